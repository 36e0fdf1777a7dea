"""Judges that the collectives of Level II share: no ready-made code, right result, subgroups."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.checks.functions.checks import Rule
from dtlab.checks.functions.criteria import Seen, rule
from dtlab.checks.functions.trials import Observation
from dtlab.checks.functions.unseen import by_luck, unseen_messages
from dtlab.checks.words import amount, count_ranks
from dtlab.units.unit01.calls import Call

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["DIRECTION", "Message", "calls_of", "chunks_pattern", "first_mistake", "messages",
           "other_dtype", "over_the_world", "rule_after_result", "rule_of_messages",
           "rule_of_result", "rule_of_subgroups", "sizes_pattern",
           "world_sizes_right"]  # fmt: skip

DIRECTION = (
    "If you send to rank + 1, the number of the chunk goes one back in each round; if you send to "
    "rank - 1, one forward."
)
_POINT_TO_POINT = {"send", "recv", "barrier"}


class Message(NamedTuple):
    """One message between two ranks."""

    source: int
    target: int
    bytes: int
    dtype: str


def messages(trace: Trace) -> list[Message]:
    """All messages of a trace, in the order in which they were sent."""
    return [
        Message(event.rank, event.peers[0], event.bytes, event.extra.get("dtype", "float32"))
        for event in trace.events
        if event.name == "send" and event.peers
    ]


def other_dtype(sent: Sequence[Message]) -> str:
    """Advice if messages have a dtype other than the tensor's float32; empty otherwise."""
    names = sorted({message.dtype for message in sent} - {"float32"})
    return f"Your messages are {names[0]}: send the tensor's own dtype, float32." if names else ""


def calls_of(observation: Observation) -> list[Call]:
    """The calls of a trial."""
    return [call for call in observation.trial.cases if isinstance(call, Call)]


def over_the_world(seen: Seen) -> list[Observation]:
    """The trials in which all ranks take part, sorted by their numbers of ranks and elements."""

    def extent(run: Observation) -> tuple[int, int]:
        return run.trial.world_size, min(call.size for call in calls_of(run))

    return sorted((run for run in seen if not calls_of(run)[0].groups), key=extent)


# Work done by ready-made code -------------------------------------------------------------------


def _moved_by_other_code(seen: Seen) -> str:
    """A message if something else than the learner's messages moved the data; else empty."""
    for run in seen:
        dtlabs = {name for results in run.results for got in results for name in got.finished}
        torchs = set(run.trace.ops() if run.trace is not None else ()) - _POINT_TO_POINT
        ready = (*sorted(dtlabs), *(f"{name} of torch.distributed" for name in sorted(torchs)))
        for name in ready:
            return (
                f"{name[:100]} does the work for you, and a ready-made collective does not count: "
                "build it from dist.isend and dist.recv."
            )
    return next(filter(None, (unseen_messages(run) or _unseen_source(run) for run in seen)), "")


def _unseen_source(run: Observation) -> str:
    """A message if results are right although a rank received too few bytes; empty otherwise."""
    if run.trace is None or run.mistakes:
        return ""
    ranks, sent = run.trial.world_size, messages(run.trace)
    for rank in range(ranks):
        received = sum(message.bytes for message in sent if message.target == rank)
        needed = sum(call.needs(rank, ranks) for call in calls_of(run))
        if received < needed:
            return (
                f"{run.trial.words()}: the result on rank {rank} is right, but of the "
                f"{amount(needed)} that it needs, only {amount(received)} arrived in messages: "
                "the data arrived another way. Use dist.isend and dist.recv."
            )
    return ""


# Criteria that every part has -------------------------------------------------------------------


def first_mistake(seen: Seen) -> str:
    """The first mistake, or "". A wrong result comes first: it is often why messages misfit."""
    run = _first_wrong(seen)
    return run.mistakes[0] if run is not None else ""


def _first_wrong(seen: Seen) -> Observation | None:
    return next((run for run in sorted(seen, key=lambda run: run.hung) if run.mistakes), None)


def _too_early(seen: Seen) -> str:
    """The first mistake without advice on its values, if a missing `wait` can explain them."""
    run = _first_wrong(seen)
    if run is None or run.error is not None or not run.warnings:
        return ""
    sentence = run.mistakes[0].partition("\n")[0]
    return f"{sentence}\nA missing wait() can explain these values: fix it first."


def rule_of_result(points: float, right: str, pattern: Callable[[Seen], str]) -> Rule:
    """Makes the criterion "result", over all ranks; `right` is its message for a right result.

    `pattern` returns advice if the right and the wrong calls follow a known pattern.
    """

    def wrong(seen: Seen) -> str:
        world = over_the_world(seen)
        mistake = first_mistake(world)
        found = f"{mistake}\n{pattern(world)}".rstrip() if mistake else by_luck(world)
        return _moved_by_other_code(seen) or _too_early(world) or found

    def alone(seen: Seen) -> str:
        return _moved_by_other_code(seen) or by_luck(over_the_world(seen))

    return rule("result", points, right, also=wrong, alone=alone)


def rule_after_result(name: str, points: float, right: str, wrong: Callable[[Seen], str]) -> Rule:
    """Makes a criterion that waits until the learner's own messages give the right result.

    Then `wrong` returns a message about a mistake; if that is empty, the criterion is met, and
    its message is `right`.
    """

    def until(seen: Seen) -> str:
        if _moved_by_other_code(seen):
            return _OWN_MESSAGES
        wrong = any(run.mistakes for run in over_the_world(seen))
        return "the result over all ranks is right" if wrong else ""

    return rule(name, points, right, waits=until, also=wrong, alone=lambda _: "")


_OWN_MESSAGES = "your own messages move the data"


def _wrong_in_groups(seen: Seen) -> str:
    """A message about groups whose members are not the first ranks of the world, or empty."""
    runs = [run for run in seen if calls_of(run)[0].groups]
    return next((run.mistakes[0] for run in runs if run.mistakes), "")


def rule_of_subgroups(points: float) -> Rule:
    """Makes the criterion "subgroups"."""
    right = "right on groups of some of the ranks too"
    return rule_after_result("subgroups", points, right, _wrong_in_groups)


def rule_of_messages(
    name: str,
    points: float,
    right: str,
    wrong: Callable[[Any, Trace], str],
    least: float = 0,
    measured: int = 1,
) -> Rule:
    """Makes a criterion of the messages in the first `measured` trials, each of one call.

    `wrong(call, trace)` returns a message about a mistake, or "". If a result is wrong and a
    rank sent less than `least` bytes, the criterion waits until the result is right.
    """

    def until(seen: Seen) -> str:
        if _moved_by_other_code(seen):
            return _OWN_MESSAGES
        for run in seen[:measured]:
            ranks = count_ranks(run.trial.world_size)
            if run.trace is None:
                return f"the call returns on {ranks}"
            if run.mistakes and min(run.trace.bytes_sent()) < least:
                return f"the result is right on {ranks}"
        return ""

    def mistake(seen: Seen) -> str:
        runs = ((run.trial.cases[0], run.trace) for run in seen[:measured])
        return next(filter(None, (wrong(case, trace) for case, trace in runs if trace)), "")

    return rule(name, points, right, waits=until, also=mistake, alone=lambda _: "")


# Patterns ---------------------------------------------------------------------------------------


def world_sizes_right(seen: Seen) -> set[int]:
    """The numbers of ranks on which every call was right."""
    wrong = {run.trial.world_size for run in seen if run.mistakes}
    return {run.trial.world_size for run in seen} - wrong


def chunks_pattern(seen: Seen) -> str:
    """Advice if only some numbers of ranks or some sizes are right; empty if no pattern fits."""
    is_explained = any(
        re.search(r"this is chunk \d+ of the sum|If you wrote 1 - rank", mistake)
        for run in seen
        for mistake in run.mistakes
    )
    if world_sizes_right(seen) == {1, 2} and not is_explained:
        return f"Right on 1 and 2 ranks only{_why_not_on_three(seen)}"
    return sizes_pattern(seen)


def sizes_pattern(seen: Seen, count: str = "N") -> str:
    """Advice if only sizes that N divides are right; else empty.

    `count` is the number of chunks of the tensor, as the advice writes it.
    """
    if all(map(_only_uneven_is_wrong, seen)):
        split = f"tensor.tensor_split({count})"
        return f"Right only if N divides the size: let the sizes of chunks differ ({split})."
    return ""


def _why_not_on_three(seen: Seen) -> str:
    """The rest of a sentence on a ring that is right on 1 and 2 ranks only."""
    run = next((run for run in seen if run.trace is not None and len(run.trial.cases) == 1), None)
    sent = messages(run.trace) if run is not None and run.trace is not None else []
    if run is None or len(sent) < run.trial.world_size * (run.trial.world_size - 1):
        return ": a chunk takes N-1 rounds to reach every rank."
    if max(message.bytes for message in sent) >= 4 * calls_of(run)[0].size:
        return (
            ": the whole tensor that arrives is a sum already, which you add to your own sum. "
            "Send one chunk in each round."
        )
    return f", where both neighbours are one rank: check the direction. {DIRECTION}"


def _only_uneven_is_wrong(run: Observation) -> bool:
    """Whether all calls with a size that is a multiple of the number of ranks were right."""
    calls, ranks = calls_of(run), run.trial.world_size
    if run.error is not None:
        at = run.failed_case
        return at is not None and not run.hung and calls[at].size % ranks != 0
    pairs = zip(calls, run.results, strict=True)
    return not any(call.mistake(results) for call, results in pairs if call.size % ranks == 0)
