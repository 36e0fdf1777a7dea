"""Level I of unit 01: reason with small numbers, before anything is written."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit01.gradients import AVERAGES, STEP
from dtlab.grading.unit01.results import RESULTS
from dtlab.grading.unit01.traffic import BYTES

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("01/results", "What each rank holds", 9, 1, RESULTS),
    reason_part("01/bytes_sent", "What each rank sends", 9, 2, BYTES),
    reason_part("01/averages", "The average of two gradients", 3, 1, AVERAGES),
    reason_part("01/step", "One synchronous step", 6, 2, STEP),
)
