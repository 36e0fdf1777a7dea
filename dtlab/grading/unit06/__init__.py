"""Unit 06, tensor parallelism: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit06 import build, diagnose, reason

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (*reason.PARTS, *build.PARTS, *diagnose.PARTS)
