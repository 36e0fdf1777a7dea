"""03/accumulate: accumulate the gradient of one large batch from microbatches, in one process."""

from __future__ import annotations

import random

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.nets import Net, draw_nets
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.unseen import FOREIGN
from dtlab.checks.parts import Part
from dtlab.units.unit03.training import Accumulating


def _trials(seed: int) -> list[Trial]:
    """Trials with equal microbatches, with uneven ones, and with a gradient already in `.grad`.

    The equal ones have fewer microbatches in the last step. The uneven ones have three sizes, or a
    short last microbatch, or one without samples. With these numbers, counting mistakes show.
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
                "right if all microbatches have equally many samples, in every step",
                lost_by=("equal", FOREIGN),
            ),
            rule(
                "uneven",
                2,
                "right if microbatches differ in size, and if one has no samples",
                after="equal",
            ),
            rule("added", 1, "adds to the old content of .grad", after="equal"),
            rule("graphs", 1, "holds the graph of only one microbatch at a time", after="equal"),
            rule("loss", 1, "returns the mean loss over all samples", after="uneven"),
        ),
    ),
    short_path="1, 2, 4 and 5",
)
