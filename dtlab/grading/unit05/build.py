"""Level II of unit 05: stage 2, then stage 3 in four small functions and their hooks."""

from __future__ import annotations

from dtlab.grading.parts import Part
from dtlab.grading.unit05.clipping import CLIP
from dtlab.grading.unit05.freeing import FREE
from dtlab.grading.unit05.gathering import GATHER
from dtlab.grading.unit05.hooking import STAGE_3
from dtlab.grading.unit05.owners import STAGE_2
from dtlab.grading.unit05.reducing import REDUCE
from dtlab.grading.unit05.sharding import SHARD

__all__ = ["PARTS"]

PARTS: tuple[Part, ...] = (STAGE_2, SHARD, GATHER, FREE, REDUCE, STAGE_3, CLIP)
