"""Level III of unit 00: where models run out of memory, and what to do about it."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit00.cure import CURE
from dtlab.grading.unit00.dies import DIES
from dtlab.grading.unit00.train_within import TRAIN_WITHIN

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (DIES, CURE, TRAIN_WITHIN)
