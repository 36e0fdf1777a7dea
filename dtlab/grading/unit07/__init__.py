"""Unit 07, pipeline parallelism: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit07 import build, diagnose, reason

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (*reason.PARTS, *build.PARTS, *diagnose.PARTS)
