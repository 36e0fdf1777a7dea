"""Unit 02, data parallelism: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit02 import build, reason, scripts_parts

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (*reason.PARTS, *build.PARTS, *scripts_parts.PARTS)
