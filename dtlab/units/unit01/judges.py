"""What the judges of Level II's collectives share: whose work it was, the result, subgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dtlab.grading.checking.checks import Judge, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Observation
from dtlab.grading.checking.unseen import unseen_messages
from dtlab.grading.words import amount, count_ranks
from dtlab.units.unit01.calls import Call

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = [
    "Message",
    "Seen",
    "calls_of",
    "cannot_measure",
    "judge_result",
    "judge_subgroups",
    "measured_call",
    "messages",
    "not_waited_for",
    "only_uneven_is_wrong",
    "other_dtype",
    "over_the_world",
    "world_sizes_right",
]

Seen = Sequence[Observation]

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


def measured_call(one: Observation) -> Call:
    """The only call of a trial in which traffic is measured."""
    (call,) = one.trial.cases
    assert isinstance(call, Call)
    return call


def over_the_world(seen: Seen) -> list[Observation]:
    """The trials in which all ranks take part, from few ranks and elements to many."""

    def extent(one: Observation) -> tuple[int, int]:
        return one.trial.world_size, min(call.size for call in calls_of(one))

    return sorted((one for one in seen if not calls_of(one)[0].groups), key=extent)


def calls_of(one: Observation) -> list[Call]:
    """The calls of a trial."""
    return [call for call in one.trial.cases if isinstance(call, Call)]


# Whose work it was ------------------------------------------------------------------------------


def _not_your_own(seen: Seen) -> str:
    """How the data moved, where it was not by messages of the learner's; empty where it was."""
    for one in seen:
        name = _finished(one)
        if name:
            return (
                f"{name} does the work for you, and a finished collective does not count: build "
                "it from dist.isend and dist.recv."
            )
    return next(filter(None, (unseen_messages(one) or _unseen_source(one) for one in seen)), "")


def _finished(one: Observation) -> str:
    """The first finished collective that was called."""
    ours = {name for answers in one.results for answer in answers for name in answer.finished}
    torchs = set(one.trace.ops() if one.trace is not None else ()) - _POINT_TO_POINT
    return next(iter([*sorted(ours), *(f"dist.{name}" for name in sorted(torchs))]), "")[:100]


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


# Criteria that every part has -------------------------------------------------------------------


def judge_result(right: str, pattern: Callable[[Seen], str]) -> Judge:
    """Judges the result over all ranks: `right` is said where it is so.

    `pattern` tells what right and wrong calls have in common, where that says where to look.
    """

    def judge(seen: Seen) -> Verdict:
        foreign = _not_your_own(seen)
        if foreign:
            return lost(foreign)
        wrong = [sentence for one in over_the_world(seen) for sentence in one.mistakes]
        if wrong:
            return lost("\n".join(filter(None, (wrong[0], pattern(over_the_world(seen))))))
        luck = next(filter(None, map(not_waited_for, over_the_world(seen))), "")
        return lost(luck) if luck else ok(right)

    return judge


def not_waited_for(one: Observation) -> str:
    """Says that nobody knows of some messages whether they have left or come; empty if none."""
    events = one.trace.events if one.trace is not None else ()
    left = [
        event
        for event in events
        if event.name in ("send", "recv") and event.extra.get("blocked") == []
    ]
    if not left:
        return ""
    rank, name = left[0].rank, left[0].name
    return (
        f"{one.trial.words()}: the result is right, but by luck: rank {rank} does not wait for "
        f"its dist.i{name}. Only once wait() has returned, a message has left or come; keep what "
        f"dist.i{name} returns, and wait for it."
    )


def judge_subgroups(seen: Seen) -> Verdict:
    """The same on groups whose members are not the first ranks of the world."""
    if _not_your_own(seen):
        return blocked("judged once your own messages move the data")
    if any(one.mistakes for one in over_the_world(seen)):
        return blocked("judged once the result over all ranks is right")
    one = next(one for one in seen if calls_of(one)[0].groups)
    if one.mistakes:
        return lost(f"{one.mistakes[0]}\n{_group_advice(one)} {calls_of(one)[0].note}".rstrip())
    return ok("right on groups of some of the ranks too")


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


def cannot_measure(seen: Seen, at: int = 0) -> Verdict | None:
    """Why the measured trial says nothing on traffic, None where it does."""
    if _not_your_own(seen):
        return blocked("judged once your own messages move the data")
    if len(seen) <= at or seen[at].trace is None:
        return blocked(f"judged once the call comes back on {count_ranks(_ranks(seen, at))}")
    return None


def _ranks(seen: Seen, at: int) -> int:
    return seen[min(at, len(seen) - 1)].trial.world_size


# Patterns ---------------------------------------------------------------------------------------


def world_sizes_right(seen: Seen) -> set[int]:
    """The numbers of ranks on which every call was right."""
    wrong = {one.trial.world_size for one in seen if one.mistakes}
    return {one.trial.world_size for one in seen} - wrong


def only_uneven_is_wrong(seen: Seen) -> bool:
    """Whether every call was right whose size is a multiple of the number of ranks."""
    return all(_only_uneven_is_wrong(one) for one in seen)


def _only_uneven_is_wrong(one: Observation) -> bool:
    calls, ranks = calls_of(one), one.trial.world_size
    if one.error is not None:
        at = one.failed_case
        return at is not None and not one.hung and calls[at].size % ranks != 0
    fitting = [case for case, call in enumerate(calls) if call.size % ranks == 0]
    return not any(calls[case].mistake(one.results[case]) for case in fitting)
