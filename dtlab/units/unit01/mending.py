"""What the five broken programs of Level III share: diagnoses, results, and what mended ones send.

A mended program may send little more than the program was meant to, so that mending it is not
writing another one. That is judged in the last trial, which is the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check, Verdict, blocked, lost, ok
from dtlab.grading.checking.criteria import Faulty, Seen, rule
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.mends import MendProgram
from dtlab.grading.words import amount
from dtlab.units.unit01.judges import by_luck

if TYPE_CHECKING:
    import torch

    from dtlab.trace import Trace

__all__ = ["BYTES", "ELEMENTS", "Returning", "all_reduced", "are_tensors", "compared", "mend",
           "name_of", "same", "traffic"]  # fmt: skip

ELEMENTS = 1 << 16  # of float32, in the trials in which traffic is measured: 262 kB
BYTES = 4 * ELEMENTS

_SLACK = 1.02
_PER_OPERATION = 256  # bytes of gloo's own for each rank that takes part
_CONNECTIONS = 1 << 14  # bytes of greetings when groups are made


def mend(
    program: str,
    scene: Trial,
    judge: Callable[[Observation, Any], Verdict],
    trials: Callable[[int], Sequence[Trial]],
    result: str,
    sent: str,
    wrong: Callable[[Seen], str],
) -> MendProgram:
    """The check of a program of `programs`: see `MendProgram`.

    `result` and `sent` are said where what the mended program returns and sends is right;
    `wrong` says what is wrong with what it sends.
    """
    rules = (
        rule("result", 3, result, also=by_luck),
        rule("traffic", 1, sent, "result", also=wrong),
    )
    name = f"dtlab.units.unit01.programs.{program}"
    return MendProgram(name, scene, Check(trials, rules), judge)


# Results ----------------------------------------------------------------------------------------


class Returning(Faulty):
    """A program that is called with what is given, and judged by what it returns."""

    topic = "result"

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Sequence[Any]) -> Any:
        return {"returned": _plain(fn(*given))}


def _plain(value: Any) -> Any:
    """What a program returned, as tensors or lists of them; the name of its type otherwise."""
    import torch

    if isinstance(value, torch.Tensor | float):
        return torch.as_tensor(value).detach().clone()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return type(value).__name__


def are_tensors(value: Any, count: int) -> bool:
    """Whether it is a list of so many tensors."""
    return (
        isinstance(value, list)
        and len(value) == count
        and not any(isinstance(one, str | list) for one in value)
    )


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether shape, dtype and all elements are equal."""
    return got.shape == wanted.shape and got.dtype == wanted.dtype and got.equal(wanted)


def name_of(got: torch.Tensor, blocks: Sequence[torch.Tensor], name: str) -> str:
    """Which of the blocks it is, in words: `name` has a place for the number."""
    numbers = [number for number, block in enumerate(blocks) if same(got, block)]
    return name.format(numbers[0]) if numbers else "none of those there are"


# Diagnoses --------------------------------------------------------------------------------------


def compared(
    entries: tuple[str, str],
    form: str,
    right: str,
    wrong: Callable[[Observation, Mapping[str, Any]], str],
) -> Callable[[Observation, Any], Verdict]:
    """Judges a dict with these entries by what is `wrong` with it; `form` is how to write it."""

    def judge(one: Observation, diagnosis: Any) -> Verdict:
        if diagnosis is None:
            return blocked("not answered yet")
        if not isinstance(diagnosis, Mapping) or set(diagnosis) != set(entries):
            return lost(f"the diagnosis is {diagnosis!r}. {form}")
        if all(_is_empty(diagnosis[name]) for name in entries):
            return blocked("not answered yet")
        for name in entries:
            if diagnosis[name] is None:
                return lost(f"{name!r} is not filled in. {form}")
        if one.error is not None:
            return blocked(f"the broken program did not come back: {one.trouble}")
        words = wrong(one, diagnosis)
        return lost(f"{one.trial.words()}: {words}") if words else ok(right)

    return judge


def _is_empty(value: Any) -> bool:
    """Whether an entry is as handed out."""
    if isinstance(value, Mapping):
        return all(one is None for one in value.values())
    return value is None or value == set()


# What is sent -----------------------------------------------------------------------------------


def traffic(
    operations: Collection[str],
    calls: int,
    payload: Callable[[int, int], float],
    advice: str,
    *more: Callable[[Trace], str],
) -> Callable[[Seen], str]:
    """What is wrong with what the ranks of the last trial send; empty if nothing.

    Each rank may call these operations and barriers, so often in all, and may send
    `payload(world_size, rank)` bytes. `more` are functions that say what else is wrong.
    """

    def other_calls(trace: Trace) -> str:
        for rank in range(trace.world_size):
            used = trace.ops(rank)
            other = sorted(set(used) - {*operations, "barrier"})
            if other:
                return f"rank {rank} calls {other[0]}. {advice}"
            if used.total() > calls:
                return f"rank {rank} makes {used.total()} calls. {advice}"
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
            # The operating system counts what gloo sends beside the payload, too.
            own = _CONNECTIONS + _PER_OPERATION * ranks * trace.ops(rank).total()
            wire = trace.bytes_wire(rank) or 0
            for left, beside in ((sent, 0), (wire, own)):
                if left > _SLACK * most + beside:
                    return f"{amount(left)} left rank {rank}; {amount(most)} are enough. {advice}"
        return ""

    def wrong(seen: Seen) -> str:
        last = seen[-1]
        assert last.trace is not None  # its result is right
        found = (objection(last.trace) for objection in (other_calls, *more, too_much))
        words = next(filter(None, found), "")
        return f"{last.trial.words()}: {words}" if words else ""

    return wrong


def all_reduced(ranks: int, size: float) -> float:
    """Bytes that a rank sends in a ring all-reduce of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size
