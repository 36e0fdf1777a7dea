"""Level II of unit 01: build collectives from send and receive.

Each part's file says what is run and what is judged: `ring`, `tree`, `hierarchical`. They share
`calls` (inputs, and what must come of them) and `judges`.
"""

from __future__ import annotations

from dtlab.grading.unit01.hierarchical import HIERARCHICAL_ALL_REDUCE
from dtlab.grading.unit01.ring import REDUCE_SCATTER, RING_ALL_REDUCE
from dtlab.grading.unit01.tree import TREE_BROADCAST

__all__ = ["PARTS"]

PARTS = (REDUCE_SCATTER, RING_ALL_REDUCE, TREE_BROADCAST, HIERARCHICAL_ALL_REDUCE)
