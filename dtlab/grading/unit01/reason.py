"""Level I of unit 01: reason with small numbers, before anything is written."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions
from dtlab.grading.unit01.gradients import AVERAGES, STEP
from dtlab.grading.unit01.results import RESULTS
from dtlab.grading.unit01.traffic import BYTES

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
    _part("01/results", "What each rank holds", "results", 9, 1, RESULTS),
    _part("01/bytes_sent", "What each rank sends", "bytes_sent", 9, 2, BYTES),
    _part("01/averages", "The average of two gradients", "averages", 3, 1, AVERAGES),
    _part("01/step", "One synchronous step", "step", 6, 2, STEP),
)
