"""Level I of unit 02: reason about a step of data parallelism, before anything is written."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions
from dtlab.grading.unit02.all_reduces import ALL_REDUCES
from dtlab.grading.unit02.ddp_step import DDP_STEP
from dtlab.grading.unit02.samples import SAMPLES
from dtlab.grading.unit02.uneven import UNEVEN

__all__ = ["PARTS"]


def _part(
    name: str, title: str, symbol: str, minutes: int, difficulty: int, check: Questions
) -> Part:
    return Part(
        name=name,
        level=1,
        title=title,
        symbol=symbol,
        grade_id=f"{symbol}-check",
        minutes=minutes,
        difficulty=difficulty,
        check=check,
    )


PARTS: tuple[Part, ...] = (
    _part("02/ddp_step", "What a step leaves in a trace", "ddp_step", 8, 2, DDP_STEP),
    _part("02/all_reduces", "How many all-reduces", "all_reduces", 7, 2, ALL_REDUCES),
    _part("02/samples", "Who sees which samples", "samples", 6, 1, SAMPLES),
    _part("02/uneven", "The mean of means", "uneven", 7, 2, UNEVEN),
)
