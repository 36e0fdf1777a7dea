"""Level I of unit 03: batches, rates and noise worked out by hand, before anything is trained."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions
from dtlab.grading.unit03.effective_batch import EFFECTIVE_BATCH
from dtlab.grading.unit03.micro_gradients import MICRO_GRADIENTS
from dtlab.grading.unit03.noise_scale import NOISE_SCALE
from dtlab.grading.unit03.scaled_rate import SCALED_RATE

__all__ = ["PARTS"]


def _part(title: str, symbol: str, minutes: int, difficulty: int, check: Questions) -> Part:
    return Part(
        name=f"03/{symbol}",
        level=1,
        title=title,
        symbol=symbol,
        grade_id=f"{symbol}-check",
        minutes=minutes,
        difficulty=difficulty,
        check=check,
    )


PARTS: tuple[Part, ...] = (
    _part("The effective batch", "effective_batch", 6, 1, EFFECTIVE_BATCH),
    _part("What micro-batches add up to", "micro_gradients", 8, 2, MICRO_GRADIENTS),
    _part("The rate for k times the batch", "scaled_rate", 7, 2, SCALED_RATE),
    _part("What a larger batch buys", "noise_scale", 8, 3, NOISE_SCALE),
)
