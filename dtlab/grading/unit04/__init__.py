"""Unit 04, precision and activation memory: its parts in course order."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit04 import checkpointing, fit, master, nan_run, reason, scaler

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (
    *reason.PARTS,
    *scaler.PARTS,
    *checkpointing.PARTS,
    *master.PARTS,
    *nan_run.PARTS,
    *fit.PARTS,
)
