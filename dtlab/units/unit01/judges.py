"""What the judges of Level II's collectives share: whose work it was, the result, subgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.checks import Judge, Verdict, blocked, lost, ok
from dtlab.grading.checking.criteria import Seen
from dtlab.grading.checking.trials import Observation
from dtlab.grading.checking.unseen import unseen_messages
from dtlab.grading.words import amount, count_ranks
from dtlab.units.unit01.calls import Call

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["Message", "after_result", "by_luck", "calls_of", "chunks_pattern", "judge_result",
           "judge_sent", "judge_subgroups", "messages", "other_dtype", "over_the_world",
           "world_sizes_right"]  # fmt: skip

_POINT_TO_POINT = {"send", "recv", "barrier"}


class Message(NamedTuple):
    """One message, in the order in which they were sent."""

    source: int
    target: int
    bytes: int
    dtype: str


def messages(trace: Trace) -> list[Message]:
    """All messages of a trace."""
    return [
        Message(event.rank, event.peers[0], event.bytes, event.extra.get("dtype", "float32"))
        for event in trace.events
        if event.name == "send" and event.peers
    ]


def other_dtype(sent: Sequence[Message]) -> str:
    """Advice where something else than the tensor's float32 is sent; empty otherwise."""
    names = sorted({message.dtype for message in sent} - {"float32"})
    return f"Your messages are {names[0]}: send the tensor's own dtype, float32." if names else ""


def calls_of(one: Observation) -> list[Call]:
    """The calls of a trial."""
    return [call for call in one.trial.cases if isinstance(call, Call)]


def over_the_world(seen: Seen) -> list[Observation]:
    """The trials in which all ranks take part, from few ranks and elements to many."""

    def extent(one: Observation) -> tuple[int, int]:
        return one.trial.world_size, min(call.size for call in calls_of(one))

    return sorted((one for one in seen if not calls_of(one)[0].groups), key=extent)


# Whose work it was ------------------------------------------------------------------------------


def _not_your_own(seen: Seen) -> str:
    """How the data moved, where it was not by messages of the learner's; empty where it was."""
    for one in seen:
        ours = {name for answers in one.results for answer in answers for name in answer.finished}
        torchs = set(one.trace.ops() if one.trace is not None else ()) - _POINT_TO_POINT
        for name in (*sorted(ours), *(f"dist.{name}" for name in sorted(torchs))):
            return (
                f"{name[:100]} does the work for you, and a finished collective does not count: "
                "build it from dist.isend and dist.recv."
            )
    return next(filter(None, (unseen_messages(one) or _unseen_source(one) for one in seen)), "")


def _unseen_source(one: Observation) -> str:
    """The results are right, but too little arrived for that in messages."""
    if one.trace is None or one.mistakes:
        return ""
    ranks, arrived = one.trial.world_size, messages(one.trace)
    for rank in range(ranks):
        came = sum(message.bytes for message in arrived if message.target == rank)
        needed = sum(call.needs(rank, ranks) for call in calls_of(one))
        if came < needed:
            return (
                f"{one.trial.words()}: what rank {rank} has in the end is right, but of the "
                f"{amount(needed)} that it needs for that, {amount(came)} came in messages: the "
                "data came another way. Use dist.isend and dist.recv."
            )
    return ""


def by_luck(seen: Seen) -> str:
    """Says that a rank does not wait for a message that it posted; empty if all wait."""
    for one in seen:
        for event in one.trace.events if one.trace is not None else ():
            if event.name in ("send", "recv") and event.extra.get("blocked") == []:
                return (
                    f"{one.trial.words()}: the result is right, but by luck: rank {event.rank} "
                    f"does not wait for its dist.i{event.name}. Keep what dist.i{event.name} "
                    "returns, and call its wait(): only then the message has left or come."
                )
    return ""


# Criteria that every part has -------------------------------------------------------------------


def judge_result(right: str, pattern: Callable[[Seen], str]) -> Judge:
    """Judges the result over all ranks: `right` is said where it is so.

    `pattern` tells what right and wrong calls have in common, where that says where to look.
    """

    def judge(seen: Seen) -> Verdict:
        world = over_the_world(seen)
        mistakes = [sentence for one in world for sentence in one.mistakes]
        wrong = f"{mistakes[0]}\n{pattern(world)}".rstrip() if mistakes else by_luck(world)
        wrong = _not_your_own(seen) or wrong
        return lost(wrong) if wrong else ok(right)

    return judge


def after_result(right: str, wrong: Callable[[Seen], str]) -> Judge:
    """Judges by what is `wrong`, once ranks have the right result by messages of their own."""

    def judge(seen: Seen) -> Verdict:
        if _not_your_own(seen):
            return blocked("judged once your own messages move the data")
        if any(one.mistakes for one in over_the_world(seen)):
            return blocked("judged once the result over all ranks is right")
        words = wrong(seen)
        return lost(words) if words else ok(right)

    return judge


def _wrong_in_groups(seen: Seen) -> str:
    """The same on groups whose members are not the first ranks of the world."""
    one = next(one for one in seen if calls_of(one)[0].groups)
    if not one.mistakes:
        return ""
    return f"{one.mistakes[0]}\n{_group_advice(one)} {calls_of(one)[0].note}".rstrip()


def _group_advice(one: Observation) -> str:
    message = one.failure.message if one.failure is not None else one.mistakes[0]
    if "'group'" in message:
        return "Your function takes no `group`: write group=None as its last argument."
    give = "Hand `group` to every call of torch.distributed; without it, all ranks take part."
    count = (
        "Ranks count in the group: dist.get_rank(group), group_dst=..., group_src=...; a rank of "
        "the group is not the global rank that dst= and src= take."
    )
    if "not those of" in message:
        return give
    return count if "not part of group" in message else f"{give} {count}"


judge_subgroups = after_result("right on groups of some of the ranks too", _wrong_in_groups)


def judge_sent(
    right: str,
    wrong: Callable[[Any, Trace], str],
    least: float = 0,
    measured: int = 1,
) -> Judge:
    """Judges what was sent in the first `measured` trials, each of one call.

    `wrong` says what is wrong with a call, by its trace; it is empty if nothing is. A wrong result
    must be mended first if a rank sent less than `least` bytes for it.
    """

    def judge(seen: Seen) -> Verdict:
        if _not_your_own(seen):
            return blocked("judged once your own messages move the data")
        sent = []
        for one in seen[:measured]:
            ranks = count_ranks(one.trial.world_size)
            if one.trace is None:
                return blocked(f"judged once the call comes back on {ranks}")
            if one.mistakes and min(one.trace.bytes_sent()) < least:
                return blocked(f"judged once the result is right on {ranks}")
            sent.append(wrong(one.trial.cases[0], one.trace))
        words = next(filter(None, sent), "")
        return lost(words) if words else ok(right)

    return judge


# Patterns ---------------------------------------------------------------------------------------


def world_sizes_right(seen: Seen) -> set[int]:
    """The numbers of ranks on which every call was right."""
    wrong = {one.trial.world_size for one in seen if one.mistakes}
    return {one.trial.world_size for one in seen} - wrong


def chunks_pattern(seen: Seen, count: str = "N") -> str:
    """Where to look if a tensor is cut into `count` chunks; empty if there is no pattern."""
    if world_sizes_right(seen) == {1, 2}:
        return "Right on 1 and 2 ranks only: a chunk takes N-1 rounds to meet every rank."
    if all(map(_only_uneven_is_wrong, seen)):
        split = f"tensor.tensor_split({count})"
        return f"Right where the size divides by N: let chunks differ ({split})."
    return ""


def _only_uneven_is_wrong(one: Observation) -> bool:
    """Whether every call was right whose size is a multiple of the number of ranks."""
    calls, ranks = calls_of(one), one.trial.world_size
    if one.error is not None:
        at = one.failed_case
        return at is not None and not one.hung and calls[at].size % ranks != 0
    told = zip(calls, one.results, strict=True)
    return not any(call.mistake(results) for call, results in told if call.size % ranks == 0)
