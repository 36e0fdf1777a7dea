"""Level II of unit 02: average gradients one by one, by hooks, in buckets, beside backward.

Each part's file says what is run and what is judged: `average`, `hooks`, `in_buckets`, `overlap`,
`sampler`. All but the last share `training` (what a rank does with a model, and what must come of
it), `steps` (the communication of each step) and `judges`.
"""

from __future__ import annotations

from dtlab.grading.unit02.average import AVERAGE_GRADIENTS
from dtlab.grading.unit02.hooks import AVERAGE_BY_HOOKS
from dtlab.grading.unit02.in_buckets import AVERAGE_IN_BUCKETS
from dtlab.grading.unit02.overlap import OVERLAP
from dtlab.grading.unit02.sampler import SAMPLES_OF_EPOCH

__all__ = ["PARTS"]

PARTS = (AVERAGE_GRADIENTS, AVERAGE_BY_HOOKS, AVERAGE_IN_BUCKETS, OVERLAP, SAMPLES_OF_EPOCH)
