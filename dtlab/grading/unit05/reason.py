"""Level I of unit 05: bytes, elements and moments worked out by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit05.four_answers import FOUR_ANSWERS
from dtlab.grading.unit05.moments import MOMENTS
from dtlab.grading.unit05.states import STATES
from dtlab.grading.unit05.wire import WIRE

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("05/states", "Bytes by stage and ranks", 8, 2, STATES),
    reason_part("05/four_answers", "One model, four answers", 6, 2, FOUR_ANSWERS),
    reason_part("05/wire", "What is sent", 7, 2, WIRE),
    reason_part("05/moments", "Who holds what, and when", 7, 3, MOMENTS),
)
