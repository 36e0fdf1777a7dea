"""02/average_gradients: after backward, one all-reduce for each gradient."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, lost, ok
from dtlab.grading.checking.groups import draw_groups
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.topics import right_on_some
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit02.judges import (
    Seen,
    advise_on_groups,
    amounts,
    cannot_count,
    judge_gradients,
    judge_topic,
    steps_in,
)
from dtlab.units.unit02.training import Arguments, Training, begin, train

__all__ = ["PART", "judge_all_reduces"]


class Afterwards(Training):
    """`fn(module)` is called when `.grad` is there."""

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Arguments) -> dict[str, Any]:
        """See `Case`."""
        module, group = begin(given)
        return train(module, given, lambda: None, lambda: fn(module, **group))


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; then parameters without a gradient, and groups."""
    draw = random.Random(seed)
    nets = draw_nets(draw)
    trials = [Trial(ranks, [Afterwards(seed, net) for net in nets]) for ranks in (4, 1, 2, 3)]
    skipping = Net("skipping", (*nets[0].sizes, 5), "a frozen and an unused layer")
    groups = draw_groups(draw, world_size=5, size=3)
    return [
        *trials,
        Trial(3, [Afterwards(seed, skipping, topic="frozen")]),
        Trial(5, [Afterwards(seed, nets[0], topic="subgroups", groups=groups)]),
    ]


def judge_all_reduces(seen: Seen) -> Verdict:
    """No more of them than there are gradients, and nothing else."""
    waiting = cannot_count(seen, "gradients")
    if waiting:
        return waiting
    for one, step in steps_in(seen, "gradients"):
        if one.trial.world_size == 1:
            continue
        most, count = len(step.case.sizes_of_gradients), len(step.all_reduces)
        if step.others:
            names = " and ".join(f"dist.{name}" for name in step.others)
            return lost(
                f"{step.words(one)}: {names} took part. One dist.all_reduce for each gradient is "
                "all that it takes."
            )
        if count > most:
            return lost(
                f"{step.words(one)}: {count} all-reduces for {most} gradients. Look for a loop "
                "that comes to the same parameter twice, or for what all ranks know anyway."
            )
        if count == 0:
            return lost(f"{step.words(one)}: no all-reduce at all. dist.all_reduce sums in place.")
        travelled = sum(event.bytes for event in step.all_reduces)
        gradients = sum(size for size, _ in step.case.sizes_of_gradients)
        if travelled > gradients:
            more, enough = amounts(travelled, gradients)
            return lost(
                f"{step.words(one)}: the all-reduces carry {more}, and the gradients are "
                f"{enough}. Hand each gradient over as it is: in its own dtype, and nothing "
                "beside it."
            )
    return ok("one all-reduce for each gradient, and nothing else")


def _advise_on_frozen(one: Observation) -> str:
    return (
        "A frozen parameter has no gradient, nor has one that the model did not use: `.grad` is "
        "None there, and stays so."
    )


PART = Part(
    name="02/average_gradients",
    level=2,
    title="Average the gradients",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "gradients",
                2,
                judge_gradients(
                    "every gradient is the mean, on 1 to 4 ranks, in every step", right_on_some
                ),
            ),
            Rule(
                "frozen",
                1,
                judge_topic(
                    "frozen", "parameters without a gradient are left alone", _advise_on_frozen
                ),
            ),
            Rule("all_reduces", 1, judge_all_reduces),
            Rule(
                "subgroups",
                1,
                judge_topic(
                    "subgroups", "right on groups of some of the ranks too", advise_on_groups
                ),
            ),
        ),
    ),
)
