"""Level I of unit 06: shapes, holders, elements and bytes worked out by hand."""

from __future__ import annotations

from dtlab.grading.parts import Part, reason_part
from dtlab.grading.unit06.holds import HOLDS
from dtlab.grading.unit06.kept import KEPT
from dtlab.grading.unit06.shapes import SHAPES
from dtlab.grading.unit06.volume import VOLUME

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    reason_part("06/shapes", "Shapes of the shards", 8, 2, SHAPES),
    reason_part("06/holds", "Who holds what", 8, 3, HOLDS),
    reason_part("06/volume", "What is sent, and how long it takes", 8, 2, VOLUME),
    reason_part("06/kept", "What a layer keeps", 5, 2, KEPT),
)
