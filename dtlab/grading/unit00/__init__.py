"""Unit 00, one GPU is not enough: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit00 import build, diagnose, reason

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    *reason.PARTS,
    *build.PARTS,
    *diagnose.PARTS,
)
