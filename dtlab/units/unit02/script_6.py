"""02/script_6: gradients are cleared for each microbatch, and the losses are not divided.

With both faults, a step uses the gradient of one microbatch. A learner who fixes only one of
them gets steps that are too short or too long.
"""

from __future__ import annotations

import random

from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.programs.cases import Training
from dtlab.checks.programs.data_parallel import SGD, trained
from dtlab.checks.programs.judges import (
    copies_differ,
    not_shared_out,
    too_large_passes,
    too_much_sent,
)
from dtlab.checks.programs.reference import not_as_one_process
from dtlab.checks.programs.training import script_part


def _accumulated(seed: int, samples: int, accumulate: int, hidden: int = 8) -> Training:
    """Calls `script(model, data, epochs, accumulate)`, with microbatches of 8 samples."""
    return Training(seed, samples, 2, hidden, (accumulate,), accumulate, micro_batch=8)


def _trials(seed: int) -> list[Trial]:
    """Trials with microbatches that fill whole steps, and a model whose traffic is measurable."""
    draw = random.Random(seed)

    def trial(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        samples = ranks * accumulate * 8 * steps
        return Trial(ranks, [_accumulated(seed + number, samples, accumulate, hidden=256)])

    return [trial(2, 4, draw.randint(2, 3), 0), trial(3, draw.choice((2, 3)), 3, 1)]


PART = script_part(
    "02/script_6",
    "Script 6",
    13,
    3,
    "dtlab.units.unit02.scripts.train_6",
    Trial(2, [_accumulated(0, 128, 4)]),
    _trials,
    (
        rule("traffic", 1, "a rank sends one gradient for each step", by=too_much_sent),
        trained(
            2, "traffic", too_large_passes, not_shared_out, copies_differ, not_as_one_process(SGD)
        ),
    ),
    lines=[
        "optimizer.zero_grad()",
        "loss = F.cross_entropy(replica(images), labels)",
        "loss.backward()",
    ],
    look="Which microbatches are in `.grad` when the optimizer steps, and with which weights?",
)
