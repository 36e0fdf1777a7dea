"""Checkpointing, in three parts of Level II of unit 04.

Each part's file says what is tried and what is judged: `checkpointing_recompute` (the second run),
`checkpointing_random` (the same random numbers in it), `checkpointing_every` (which layers). What
runs on ranks is in `checkpointing_runs` and `checkpointing_spans`, with the layers that they run.
"""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit04.checkpointing_every import CHECKPOINT_EVERY
from dtlab.grading.unit04.checkpointing_random import KEEP_RANDOM_STATE
from dtlab.grading.unit04.checkpointing_recompute import RECOMPUTE

__all__ = ["CHECKPOINT_EVERY", "KEEP_RANDOM_STATE", "PARTS", "RECOMPUTE"]

PARTS: tuple[Part, ...] = (RECOMPUTE, KEEP_RANDOM_STATE, CHECKPOINT_EVERY)
