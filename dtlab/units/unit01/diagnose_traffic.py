"""What a mended program sends, so that mending it is not writing another program.

Every rule looks at the last trial, which is the largest. Limits hold for what the trace shows, and
for the bytes that left a rank as the operating system counts them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit01.judges import Seen, messages, not_waited_for

__all__ = [
    "BYTES",
    "ELEMENTS",
    "PROGRAMS",
    "Runs",
    "all_reduce_factor",
    "check_mended",
    "judge_mended",
    "judge_traffic",
    "not_one_row_each",
    "only",
    "sends_at_most",
    "strangers",
    "sums_at_most",
    "too_much_on_the_wire",
]

Objection = Callable[[Observation], str]

_SLACK = 1.02
_PER_OPERATION = 256  # bytes of gloo's own for each rank that takes part
_CONNECTIONS = 1 << 14  # bytes of greetings when groups are made


def judge_mended(right: str) -> Judge:
    """Judges what the mended program returns: `right` is said where nothing is wrong."""

    def judge(seen: Seen) -> Verdict:
        wrong = [sentence for one in seen for sentence in one.mistakes]
        luck = filter(None, map(not_waited_for, seen))
        trouble = next(iter([*wrong, *luck]), "")
        return lost(trouble) if trouble else ok(right)

    return judge


def judge_traffic(right: str, *objections: Objection) -> Judge:
    """Judges what ranks sent in the last trial, by the first objection that says something."""

    def judge(seen: Seen) -> Verdict:
        last = seen[-1]
        if any(one.mistakes for one in seen) or last.trace is None:
            return blocked("judged once the result is right")
        what = next(filter(None, (objection(last) for objection in objections)), "")
        return lost(f"{last.trial.words()}: {what}") if what else ok(right)

    return judge


def only(operations: Collection[str], most: int, advice: str) -> Objection:
    """A rank calls nothing but these operations, at most so often in all."""

    def objection(one: Observation) -> str:
        assert one.trace is not None
        for rank in range(one.trial.world_size):
            used = one.trace.ops(rank)
            other = sorted(set(used) - {*operations, "barrier"})
            if other:
                return f"rank {rank} calls {other[0]}. {advice}"
            if used.total() > most:
                return f"rank {rank} makes {used.total()} calls. {advice}"
        return ""

    return objection


def sends_at_most(payload: Callable[[Observation, int], float], advice: str) -> Objection:
    """The messages of each rank have at most `payload(one, rank)` bytes in all."""

    def objection(one: Observation) -> str:
        assert one.trace is not None
        sent = one.trace.bytes_sent()
        for rank, count in enumerate(sent):
            most = payload(one, rank)
            if count > most:
                return f"rank {rank} sends {amount(count)}; {amount(most)} are enough. {advice}"
        return ""

    return objection


def too_much_on_the_wire(payload: Callable[[Observation, int], float], advice: str) -> Objection:
    """No more than `payload(one, rank)` bytes leave a rank, as the operating system counts."""

    def objection(one: Observation) -> str:
        assert one.trace is not None
        for rank in range(one.trial.world_size):
            left, most = one.trace.bytes_wire(rank), payload(one, rank)
            own = _CONNECTIONS + _PER_OPERATION * one.trial.world_size * (
                one.trace.ops(rank).total()
            )
            if left is not None and left > _SLACK * most + own:
                return f"{amount(left)} left rank {rank}; {amount(most)} are enough. {advice}"
        return ""

    return objection


def sums_at_most(payload: Callable[[Observation], float], advice: str) -> Objection:
    """A ring that sums what ranks hand over would send at most `payload(one)` bytes from each."""

    def objection(one: Observation) -> str:
        assert one.trace is not None
        ranks, most = one.trial.world_size, payload(one)
        for rank in range(ranks):
            built_in = sum(
                event.bytes
                for event in one.trace.events
                if event.rank == rank and event.name == "all_reduce"
            )
            sent = all_reduce_factor(ranks) * built_in + one.trace.bytes_sent(rank)
            if sent > most:
                return f"summing takes {amount(sent)}; {amount(most)} are enough. {advice}"
        return ""

    return objection


def all_reduce_factor(ranks: int) -> float:
    """What a rank sends in an all-reduce, in sizes of the tensor."""
    return 2 * (ranks - 1) / ranks


def strangers(one: Observation) -> str:
    """A rank exchanges messages with others than its two neighbours in the ring."""
    assert one.trace is not None
    ranks = one.trial.world_size
    for rank in range(ranks):
        others = one.trace.peers(rank) - {(rank - 1) % ranks, (rank + 1) % ranks}
        if others:
            return (
                f"rank {rank} exchanges messages with {ranks_in_words(sorted(others))}. In the "
                "ring only neighbours talk."
            )
    return ""


def not_one_row_each(one: Observation) -> str:
    """Rank 0 sends another rank more or less than one message, or others send any."""
    assert one.trace is not None
    sent = messages(one.trace)
    foreign = next((message for message in sent if message.source > 0), None)
    if foreign is not None:
        return f"rank {foreign.source} sends rank {foreign.target} a message. Rank 0 shares out."
    for rank in range(1, one.trial.world_size):
        count = sum(message.target == rank for message in sent)
        if count != 1:
            return f"rank 0 sends {count} messages to rank {rank}: send each its row, in one."
    return ""


Runs = list[tuple[int, Sequence[Case]]]  # how many ranks, and what they go through

PROGRAMS = "dtlab.units.unit01.programs."
ELEMENTS = 1 << 16  # of float32, in the trials in which traffic is measured: 262 kB
BYTES = 4 * ELEMENTS


def check_mended(trials: Callable[[random.Random, int], Runs], right: str, traffic: Rule) -> Check:
    """The rules that all five parts have; `trials(draw, seed)` gives world sizes with cases."""

    def made(seed: int) -> list[Trial]:
        return [Trial(ranks, cases) for ranks, cases in trials(random.Random(seed), seed)]

    return Check(made, (Rule("result", 3, judge_mended(right)), traffic))
