"""Widgets for batch sizes and learning rates.

explore_effective_batch()     the batch from microbatch, microbatches, copies and GPUs
explore_schedule()            warm-up, decay, and a scheduler that is called too often
explore_published_sweep()     learning-rate rules at a batch of 8192 on ImageNet
"""

from __future__ import annotations

from typing import Final

from dtlab.show.figures.batch import AT_8K, effective_batch, published_sweep, schedule
from dtlab.show.widgets.dials import Dial, Scale, choice, count_scale
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_effective_batch", "explore_published_sweep", "explore_schedule"]

_POWERS: Final = tuple(2**power for power in range(11))
_PARTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_CALLS: Final = (1, 2, 3, 4, 6, 8, 12, 16)
_SHARES: Final = tuple(round(0.05 * step, 2) for step in range(21))


def explore_effective_batch() -> Explorer:
    """Show the effective batch as a product of sizes, and the effect of GPUs that share a copy.

    See `effective_batch`.
    """
    dials = {
        "micro_batch": Dial("Microbatch, in samples", count_scale(_POWERS), 4),
        "micro_batches": Dial("Microbatches in a step", count_scale(_PARTS), 8),
        "data_parallel": Dial("Data-parallel degree", count_scale(_POWERS), 4),
        "gpus_per_copy": Dial("GPUs that share a copy", count_scale(_PARTS), 2),
    }
    return Explorer(effective_batch, dials, [[each.widget for each in dials.values()]])


def explore_schedule() -> Explorer:
    """Show the learning rate under warm-up, decay and extra scheduler calls. See `schedule`."""
    shares = Scale(_SHARES, lambda each: f"{each:g}", lambda words: number_from_words(words, {}))
    dials = {
        "warmup": Dial("Warm-up, share of run", shares, 0.25),
        "times": Dial("Times the batch", count_scale(_PARTS), 8),
        "calls_per_step": Dial("Scheduler calls a step", count_scale(_CALLS), 1),
    }
    decay = choice("Decay", ["cosine", "linear", "constant"])
    rows = [each.widget for each in dials.values()], [decay]
    return Explorer(schedule, dials | {"decay": decay}, rows)


def explore_published_sweep() -> Explorer:
    """Show another rule next to the published sweep, at a batch of 8192. See `published_sweep`."""
    rule = choice("At a batch of 8k", list(AT_8K))
    return Explorer(published_sweep, {"rule": rule}, [[rule]])
