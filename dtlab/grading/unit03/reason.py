"""Level I of unit 03: batches, rates and noise worked out by hand, before anything is trained."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit03.effective_batch import EFFECTIVE_BATCH
from dtlab.grading.unit03.micro_gradients import MICRO_GRADIENTS
from dtlab.grading.unit03.noise_scale import NOISE_SCALE
from dtlab.grading.unit03.scaled_rate import SCALED_RATE

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("03/effective_batch", "The effective batch", 6, 1, EFFECTIVE_BATCH),
    reason_part("03/micro_gradients", "What microbatches add up to", 8, 2, MICRO_GRADIENTS),
    reason_part("03/scaled_rate", "The rate for k times the batch", 7, 2, SCALED_RATE),
    reason_part("03/noise_scale", "What a larger batch buys", 8, 3, NOISE_SCALE),
)
