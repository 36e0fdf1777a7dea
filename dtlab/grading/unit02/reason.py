"""Level I of unit 02: reason about a step of data parallelism, before anything is written."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit02.all_reduces import ALL_REDUCES
from dtlab.grading.unit02.ddp_step import DDP_STEP
from dtlab.grading.unit02.samples import SAMPLES
from dtlab.grading.unit02.uneven import UNEVEN

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("02/ddp_step", "What a step leaves in a trace", 8, 2, DDP_STEP),
    reason_part("02/all_reduces", "How many all-reduces", 7, 2, ALL_REDUCES),
    reason_part("02/samples", "Who sees which samples", 6, 1, SAMPLES),
    reason_part("02/uneven", "The mean of means", 7, 2, UNEVEN),
)
