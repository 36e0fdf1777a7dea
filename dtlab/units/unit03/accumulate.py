"""03/accumulate: many microbatches in one process, and the gradient of one large batch."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.units.unit03.judges import judge_equal, judge_graphs, judge_losses, judge_topic
from dtlab.units.unit03.training import Accumulating

__all__ = ["PART"]


def _trials(seed: int) -> list[Trial]:
    """Equal microbatches, the last step with fewer; uneven ones; something in `.grad`."""
    draw = random.Random(seed)
    chain, tied = draw_nets(draw)
    skipping = Net("skipping", (*chain.sizes, 5), "a frozen and an unused layer")
    n, m = draw.sample(range(3, 7), 2)
    equal = [
        Accumulating(seed, chain, (((n, n, n), (n, n)),)),
        Accumulating(seed, skipping, (((m,) * 5, (m,)),)),
    ]
    steps = draw_uneven(draw)
    uneven = [Accumulating(seed, net, (steps,), "uneven") for net in (chain, tied)]
    added = [Accumulating(seed, tied, (((n, n, n),),), "added", has_before=True)]
    return [Trial(1, cases) for cases in (equal, uneven, added)]


def draw_uneven(draw: random.Random) -> tuple[tuple[int, ...], ...]:
    """Three sizes; the last one short; one of no samples. No number of samples tells another."""
    first = draw.choice([(2, 7, 3), (3, 1, 6), (6, 2, 3), (4, 7, 2)])
    whole = draw.randint(5, 7)
    return first, (whole, whole, whole, draw.randint(1, 3)), (draw.randint(2, 4), 0, 5)


def _advise_on_uneven(one: Observation) -> str:
    if "this is off" in one.mistakes[0]:
        return "Every sample counts the same, whichever microbatch it is in: how many are there?"
    return ""


PART = Part(
    name="03/accumulate",
    level=2,
    title="Accumulate gradients",
    minutes=15,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule(
                "equal",
                2,
                judge_equal("right where all microbatches have as many samples, in every step"),
            ),
            Rule(
                "uneven",
                2,
                judge_topic(
                    "uneven",
                    "right where microbatches differ, and where one has no samples",
                    _advise_on_uneven,
                ),
            ),
            Rule(
                "added",
                1,
                judge_topic("added", "added to what is in .grad already", lambda one: ""),
            ),
            Rule("graphs", 1, judge_graphs("the graph of one microbatch at a time")),
            Rule("loss", 1, judge_losses("returns the mean loss over all samples")),
        ),
    ),
)
