"""01/reduce_scatter: one half of a ring."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.words import amount, ranks_in_words
from dtlab.units.unit01.calls import ReduceScatter, draw_groups
from dtlab.units.unit01.judges import (
    Seen,
    calls_of,
    cannot_measure,
    judge_result,
    judge_subgroups,
    messages,
    only_uneven_is_wrong,
    other_dtype,
    over_the_world,
    world_sizes_right,
)

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["BYTES", "PART", "RANKS", "WHOLE", "pattern"]

# What is sent in a ring that goes round once, or twice -------------------------------------------

RANKS = 4  # of the trial in which bytes, neighbours and rounds are counted
BYTES = 4 << 20  # of the tensor in it, float32
_SLACK = 0.01  # of the bytes that a ring needs


@dataclass(frozen=True)
class RingTraffic:
    """Judges what was sent in a ring that goes round once (`halves` = 1) or twice (2)."""

    halves: int

    @property
    def rounds_in_words(self) -> str:
        """How many rounds a ring takes, as a formula."""
        return "N-1" if self.halves == 1 else f"{self.halves}(N-1)"

    @property
    def need(self) -> float:
        """Bytes that each rank has to send."""
        return self.halves * (RANKS - 1) / RANKS * BYTES

    def bytes(self, seen: Seen) -> Verdict:
        """So much leaves each rank, and no more."""
        waiting = cannot_measure(seen)
        if waiting:
            return waiting
        sent = _trace(seen).bytes_sent()
        formula = f"{self.halves if self.halves > 1 else ''}(N-1)/N x {amount(BYTES)}"
        if all(abs(payload - self.need) <= _SLACK * self.need for payload in sent):
            return ok(f"each rank sent {amount(max(sent))} = {formula}")
        return lost(
            f"{_who_sent(sent)}; a ring needs {formula} = {amount(self.need)}. "
            f"{self._advice(_trace(seen))}"
        )

    def neighbours(self, seen: Seen) -> Verdict:
        """A rank talks to the rank before it and the rank after it only."""
        waiting = cannot_measure(seen) or self._moved_too_little(seen)
        if waiting:
            return waiting
        for rank in range(RANKS):
            before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
            others = sorted(_trace(seen).peers(rank) - {before, after})
            if others:
                return lost(
                    f"rank {rank} talks to {ranks_in_words(others)} too; in a ring of {RANKS} it "
                    f"sends to rank {after} and receives from rank {before} only."
                )
        return ok("only neighbours talk")

    def rounds(self, seen: Seen) -> Verdict:
        """No more messages from a rank to one neighbour, since each costs a latency."""
        waiting = cannot_measure(seen) or self._moved_too_little(seen)
        if waiting:
            return waiting
        pairs = Counter(one[:2] for one in messages(_trace(seen)))
        rounds, goal = max(pairs.values(), default=0), self.halves * (RANKS - 1)
        counted = f"{rounds} rounds on {RANKS} ranks; a ring needs {self.rounds_in_words} = {goal}"
        if rounds <= goal:
            return ok(counted)
        return lost(
            f"{counted}. Each message to the same neighbour costs a latency: send a whole chunk "
            "in one message."
        )

    def _moved_too_little(self, seen: Seen) -> Verdict | None:
        """A few bytes sent to a neighbour are no ring yet."""
        sent = _trace(seen).bytes_sent()
        if min(sent) >= (1 - _SLACK) * self.need or not seen[0].mistakes:
            return None
        return blocked("judged once the sum is right, or enough data moves for one")

    def _advice(self, trace: Trace) -> str:
        """What to look at, from how much was sent and how large a message was."""
        sent, need = trace.bytes_sent(), self.need
        most = max(sent)
        sends = trace.sends(sent.index(most))
        if most - min(sent) > _SLACK * most:
            return "The ranks do not share the work: let each one pass one chunk on in each round."
        if other_dtype(messages(trace)):
            return other_dtype(messages(trace))
        if sends and most / sends > (1 - _SLACK) * BYTES:
            return "You pass the whole tensor on in every round: pass one chunk."
        if self.halves == 1 and abs(most - 2 * need) <= _SLACK * need:
            return "These are both halves of a ring: stop after N-1 rounds."
        if self.halves == 2 and abs(most - need / 2) <= _SLACK * need:
            return "That is one half of the ring: N-1 rounds sum, and N-1 hand the sums round."
        return (
            "Some chunks never travel."
            if most < need
            else "Some chunks travel further than needed."
        )


def _trace(seen: Seen) -> Trace:
    trace = seen[0].trace
    assert trace is not None  # `cannot_measure` has said so
    return trace


def _who_sent(sent: Sequence[int]) -> str:
    if max(sent) - min(sent) <= _SLACK * max(sent):
        return f"each rank sent {amount(max(sent))}"
    busiest = max(range(len(sent)), key=lambda rank: sent[rank])
    return f"rank {busiest} sent {amount(sent[busiest])} and others down to {amount(min(sent))}"


def pattern(seen: Seen) -> str:
    if world_sizes_right(seen) == {1, 2}:
        return "Right on 1 and 2 ranks only: a chunk takes N-1 rounds to meet every rank."
    if only_uneven_is_wrong(seen):
        return "Right where the size divides by N: let chunks differ (tensor.tensor_split(N))."
    return ""


HALF, WHOLE = RingTraffic(halves=1), RingTraffic(halves=2)


# The part ----------------------------------------------------------------------------------------


def _reduce_scatter_trials(seed: int) -> list[Trial]:
    """1 to 5 ranks, with chunks of several elements and of one."""
    draw = random.Random(seed)
    trials = [Trial(RANKS, [ReduceScatter(seed, BYTES // 4)])]
    for ranks in range(1, 6):
        sizes = (ranks * draw.randint(2, 4), ranks)
        trials.append(Trial(ranks, [ReduceScatter(seed, size) for size in sizes]))
    groups = draw_groups(draw, world_size=5, size=3)
    return [*trials, Trial(5, [ReduceScatter(seed, 6 * draw.randint(2, 4), groups)])]


def _judge_input(seen: Seen) -> Verdict:
    """The input of a reduce-scatter is only read."""
    world = over_the_world(seen)
    if any(one.mistakes for one in world):
        return blocked("judged once the result is right")
    waiting = cannot_measure(seen)
    if waiting:
        return waiting
    for one in world:
        for number, answers in enumerate(one.results):
            rank = calls_of(one)[number].rank_of_changed_input(answers)
            if rank is not None:
                return lost(
                    f"{one.trial.words(number)}, rank {rank}: `input` is not as it was, and your "
                    "caller may still need it. Sum in a tensor of your own."
                )
    return ok("`input` is as it was")


PART = Part(
    name="01/reduce_scatter",
    level=2,
    title="Reduce-scatter",
    minutes=25,
    difficulty=1,
    check=Check(
        trials=_reduce_scatter_trials,
        rules=(
            Rule(
                "result",
                2,
                judge_result("chunk r of the sum is on rank r, on 1 to 5 ranks", pattern),
            ),
            Rule("input", 1, _judge_input),
            Rule("subgroups", 1, judge_subgroups),
            Rule("bytes", 2, HALF.bytes),
            Rule("neighbours", 1, HALF.neighbours),
            Rule("rounds", 1, HALF.rounds),
        ),
    ),
    reference="dtlab.collectives.ring_reduce_scatter",
)
