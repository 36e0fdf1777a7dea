"""Level II of unit 03: accumulate, accumulate over ranks, schedule the rate, measure the noise.

Each part's file says what is tried and what is judged: `accumulate`, `over_ranks`, `schedule`,
`noise`. The first two share `training` (what a rank does with microbatches), `shares` and `wrong`
(what must come of it), `graphs` (what autograd holds meanwhile) and `judges`. What ranks do with a
schedule is in `scheduled`, with noise in `measuring`.
"""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit03.accumulate import ACCUMULATE
from dtlab.grading.unit03.noise import MEASURE_NOISE_SCALE
from dtlab.grading.unit03.over_ranks import ACCUMULATE_OVER_RANKS
from dtlab.grading.unit03.schedule import WARMUP_THEN_DECAY

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    ACCUMULATE,
    ACCUMULATE_OVER_RANKS,
    WARMUP_THEN_DECAY,
    MEASURE_NOISE_SCALE,
)
