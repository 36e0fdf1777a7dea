"""Level I of unit 07: bubbles, activations under way, and grids read by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit07.bubble import BUBBLE
from dtlab.grading.unit07.in_flight import IN_FLIGHT
from dtlab.grading.unit07.timeline import TIMELINE
from dtlab.grading.unit07.zero_bubble import ZERO_BUBBLE

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("07/bubble", "The bubble and what caps a pipeline", 8, 2, BUBBLE),
    reason_part("07/in_flight", "What each stage keeps", 6, 2, IN_FLIGHT),
    reason_part("07/timeline", "Read a grid, find the impossible cell", 9, 3, TIMELINE),
    reason_part("07/zero_bubble", "Backward in two pieces", 6, 2, ZERO_BUBBLE),
)
