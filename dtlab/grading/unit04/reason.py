"""Level I of unit 04: formats, bytes and checkpoints worked out by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.questions.answers import Questions
from dtlab.grading.unit04.activation_bytes import ACTIVATION_BYTES
from dtlab.grading.unit04.checkpoint_spacing import CHECKPOINT_SPACING
from dtlab.grading.unit04.representable import REPRESENTABLE
from dtlab.grading.unit04.scaler_steps import SCALER_STEPS
from dtlab.grading.unit04.sixteen_bytes import SIXTEEN_BYTES

__all__ = ["PARTS"]


def _part(title: str, symbol: str, minutes: int, difficulty: int, check: Questions) -> Part:
    return Part(
        name=f"04/{symbol}",
        level=1,
        title=title,
        symbol=symbol,
        grade_id=f"{symbol}-check",
        minutes=minutes,
        difficulty=difficulty,
        check=check,
    )


PARTS: tuple[Part, ...] = (
    _part("What a format holds", "representable", 10, 2, REPRESENTABLE),
    _part("A loss scaler, step by step", "scaler_steps", 5, 2, SCALER_STEPS),
    _part("Which bytes are what", "sixteen_bytes", 5, 1, SIXTEEN_BYTES),
    _part("What a layer keeps", "activation_bytes", 5, 2, ACTIVATION_BYTES),
    _part("Where checkpoints go", "checkpoint_spacing", 5, 3, CHECKPOINT_SPACING),
)
