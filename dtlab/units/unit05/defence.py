"""05/defence: a written defence of one of the three plans of 05/plans, graded by a person."""

from __future__ import annotations

from dtlab.grading.checking.defences import Defence
from dtlab.grading.parts import Part

RUBRIC = (  # a point for each
    "the plan, and the limit that decides its stage: a number of bytes, and of what",
    "the nearest plan that was turned down, with the bytes by which it misses or sends more",
    "what was given up for it, as a number: bytes sent, operations, or room on the card",
    "what would change the choice: one figure of the model or the cluster, and from where on",
    "what the arithmetic leaves out, and how a run would show whether it matters",
)
RULES = Defence(tuple((1, words) for words in RUBRIC))

PART = Part("05/defence", 3, "Defend one of the three", 15, 2, RULES)
