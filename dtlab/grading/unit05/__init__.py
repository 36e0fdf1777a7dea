"""Unit 05, ZeRO and FSDP: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit05 import build, diagnose, plans, reason

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (*reason.PARTS, *build.PARTS, *diagnose.PARTS, *plans.PARTS)
