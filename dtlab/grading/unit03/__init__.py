"""Unit 03, batch size, accumulation and learning rate: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit03 import build, diagnose, reason

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (*reason.PARTS, *build.PARTS, *diagnose.PARTS)
