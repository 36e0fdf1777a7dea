"""Shared code for the five broken programs of Level III: judges of diagnoses, results and traffic.

A fixed program may send little more than the program was meant to send, so that learners fix it
rather than write another one. The last and largest trial tests that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import UNANSWERED, Check, Verdict, blocked, lost, ok
from dtlab.checks.functions.criteria import Faulty, Seen, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import by_luck
from dtlab.checks.programs.broken import FixProgram
from dtlab.checks.words import amount, ranks_in_words
from dtlab.predict.units import counted

if TYPE_CHECKING:
    import torch

    from dtlab.trace import Trace

__all__ = ["BYTES", "ELEMENTS", "Returning", "all_reduced", "are_tensors", "compared",
           "fix_program", "name_of", "strangers", "traffic"]  # fmt: skip

ELEMENTS = 1 << 16  # of float32, in the trials that measure traffic: 262 kB
BYTES = 4 * ELEMENTS

_SLACK = 1.02
_PER_OPERATION = 256  # bytes that gloo adds to an operation for each rank that takes part
_CONNECTIONS = 1 << 14  # bytes that gloo sends to create process groups


def fix_program(
    program: str,
    scene: Trial,
    judge: Callable[[Observation, Any], Verdict],
    trials: Callable[[int], Sequence[Trial]],
    result: str,
    sent: str,
    wrong: Callable[[Seen], str],
) -> FixProgram:
    """The check of a program of `programs`: see `FixProgram`.

    `result` and `sent` are the messages if the result and the traffic of the fixed program are
    right; `wrong` returns what is wrong with its traffic.
    """
    rules = (
        rule("result", 3, result, also=by_luck),
        rule("traffic", 1, sent, "result", also=wrong),
    )
    name = f"dtlab.units.unit01.programs.{program}"
    return FixProgram(name, scene, Check(trials, rules), judge)


# Results ----------------------------------------------------------------------------------------


class Returning(Faulty):
    """A call of a program that is judged by its return value."""

    topic = "result"

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Sequence[Any]) -> Any:
        return {"returned": _plain(fn(*given))}


def _plain(value: Any) -> Any:
    """A return value as a tensor or a list of tensors; the name of its type if it is neither."""
    import torch

    if isinstance(value, torch.Tensor | float):
        return torch.as_tensor(value).detach().clone()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return type(value).__name__


def are_tensors(value: Any, count: int) -> bool:
    """Whether `value` is a list of `count` tensors."""
    return (
        isinstance(value, list)
        and len(value) == count
        and not any(isinstance(item, str | list) for item in value)
    )


def name_of(got: torch.Tensor, blocks: Sequence[torch.Tensor], name: str) -> str:
    """The block that `got` equals, as text: `name` formatted with the block's number."""
    numbers = [number for number, block in enumerate(blocks) if same(got, block, dtype=True)]
    return name.format(numbers[0]) if numbers else "other values"


# Diagnoses --------------------------------------------------------------------------------------


def compared(
    entries: tuple[str, str],
    form: str,
    right: str,
    wrong: Callable[[Observation, Mapping[str, Any]], str],
) -> Callable[[Observation, Any], Verdict]:
    """Makes a judge of a diagnosis that is a dict with these two entries.

    `form` says how to write the dict. `wrong` returns a message about its values; if that is
    empty, the verdict's message is `right`.
    """

    def judge(run: Observation, diagnosis: Any) -> Verdict:
        if diagnosis is None:
            return UNANSWERED
        if not isinstance(diagnosis, Mapping) or set(diagnosis) != set(entries):
            return lost(f"the diagnosis is {diagnosis!r}. {form}")
        if all(_is_empty(diagnosis[name]) for name in entries):
            return UNANSWERED
        for name in entries:
            if diagnosis[name] is None:
                return lost(f"{name!r} is not filled in. {form}")
        if run.error is not None:
            return blocked(f"the broken program did not return: {run.trouble}")
        message = wrong(run, diagnosis)
        return lost(message) if message else ok(right)

    return judge


def _is_empty(value: Any) -> bool:
    """Whether an entry is still unfilled, as in the notebook that learners get."""
    if isinstance(value, Mapping):
        return all(item is None for item in value.values())
    return value is None or value == set()


# Traffic ----------------------------------------------------------------------------------------


def traffic(
    operations: Collection[str],
    calls: int,
    payload: Callable[[int, int], float],
    advice: str,
    *more: Callable[[Trace], str],
) -> Callable[[Seen], str]:
    """Makes a function that returns a message about the traffic of the last trial, or "".

    Each rank may make `calls` calls of these operations and of barriers, and may send
    `payload(world_size, rank)` bytes. `more` are further functions that return such a message.
    """

    def other_calls(trace: Trace) -> str:
        for rank in range(trace.world_size):
            used = trace.ops(rank)
            other = sorted(set(used) - {*operations, "barrier"})
            if other:
                return f"rank {rank} calls {other[0]}. {advice}"
            if used.total() > calls:
                return f"rank {rank} makes {counted(used.total(), 'call')}. {advice}"
        return ""

    def too_much(trace: Trace) -> str:
        ranks = trace.world_size
        for rank in range(ranks):
            most = payload(ranks, rank)
            sent = trace.bytes_sent(rank) + sum(
                all_reduced(len(event.peers) + 1, event.bytes)
                for event in trace.events
                if event.rank == rank and event.name == "all_reduce"
            )
            # The operating system's counter includes the bytes that gloo adds to the payload.
            overhead = _CONNECTIONS + _PER_OPERATION * ranks * trace.ops(rank).total()
            wire = trace.bytes_wire(rank) or 0
            for count, extra in ((sent, 0), (wire, overhead)):
                if count > _SLACK * most + extra:
                    return f"rank {rank} sent {amount(count)}; {amount(most)} are enough. {advice}"
        return ""

    def wrong(seen: Seen) -> str:
        last = seen[-1]
        assert last.trace is not None  # its result is right
        messages = (objection(last.trace) for objection in (other_calls, *more, too_much))
        message = next(filter(None, messages), "")
        return f"{last.trial.words()}: {message}" if message else ""

    return wrong


def strangers(trace: Trace) -> str:
    """A message if a rank exchanges messages with a rank that is not its neighbour in the ring."""
    ranks = trace.world_size
    for rank in range(ranks):
        others = trace.peers(rank) - {(rank - 1) % ranks, (rank + 1) % ranks}
        if others:
            peers = ranks_in_words(sorted(others))
            return f"rank {rank} exchanges messages with {peers}, but they are not neighbours."
    return ""


def all_reduced(ranks: int, size: float) -> float:
    """Bytes that a rank sends in a ring all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size
