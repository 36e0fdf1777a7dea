"""01/reduce_scatter: one half of a ring."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit01.calls import ReduceScatter, draw_groups
from dtlab.units.unit01.judges import (
    Seen,
    calls_of,
    cannot_measure,
    judge_result,
    judge_subgroups,
    over_the_world,
)
from dtlab.units.unit01.ring import BYTES, HALF, RANKS, pattern

__all__ = ["PART"]


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
