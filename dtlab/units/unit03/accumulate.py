"""03/accumulate: many microbatches in one process, and the gradient of one large batch."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import rule
from dtlab.grading.checking.nets import Net, draw_nets
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.unseen import FOREIGN
from dtlab.grading.parts import Part
from dtlab.units.unit03.training import Accumulating


def _trials(seed: int) -> list[Trial]:
    """Equal microbatches, the last step with fewer; uneven ones; something in `.grad`.

    Of uneven ones, some are of three sizes, some have a short last one, and one has no samples. No
    number of samples tells another.
    """
    draw = random.Random(seed)
    chain, tied = draw_nets(draw)
    skipping = Net("skipping", (*chain.sizes, 5), "a frozen and an unused layer")
    n, m = draw.sample(range(3, 7), 2)
    equal = [
        Accumulating(seed, chain, (((n, n, n), (n, n)),)),
        Accumulating(seed, skipping, (((m,) * 5, (m,)),)),
    ]
    three = draw.choice([(2, 7, 3), (3, 1, 6), (6, 2, 3), (4, 7, 2)])
    whole = draw.randint(5, 7)
    steps = three, (whole, whole, whole, draw.randint(1, 3)), (draw.randint(2, 4), 0, 5)
    uneven = [Accumulating(seed, net, (steps,), "uneven") for net in (chain, tied)]
    added = [Accumulating(seed, tied, (((n, n, n),),), "added", has_before=True)]
    return [Trial(1, cases) for cases in (equal, uneven, added)]


PART = Part(
    name="03/accumulate",
    level=2,
    title="Accumulate gradients",
    minutes=15,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "equal",
                2,
                "right where all microbatches have as many samples, in every step",
                lost_by=("equal", FOREIGN),
            ),
            rule(
                "uneven",
                2,
                "right where microbatches differ, and where one has no samples",
                after="equal",
            ),
            rule("added", 1, "added to what is in .grad already", after="equal"),
            rule("graphs", 1, "the graph of one microbatch at a time", after="equal"),
            rule("loss", 1, "returns the mean loss over all samples", after="uneven"),
        ),
    ),
)
