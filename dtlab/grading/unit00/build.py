"""Level II of unit 00: a recipe for eight GPUs, and a report on how a job scales."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit00.best_ranks import BEST_RANKS
from dtlab.grading.unit00.efficiency import EFFICIENCY_OF
from dtlab.grading.unit00.eight_gpus import EIGHT_GPUS
from dtlab.grading.unit00.report import SCALING_REPORT
from dtlab.grading.unit00.time_goes import WHERE_TIME_GOES

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    EIGHT_GPUS,
    EFFICIENCY_OF,
    WHERE_TIME_GOES,
    SCALING_REPORT,
    BEST_RANKS,
)
