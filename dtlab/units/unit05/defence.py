"""05/defence: a written defence of one of the three plans of 05/plans, graded by a person."""

from __future__ import annotations

from dtlab.checks.functions.defences import Defence
from dtlab.checks.parts import Part

RUBRIC = (  # a point for each
    "the plan, and the limit that decides its stage: a number of bytes, and of what",
    "the nearest rejected plan: by how many bytes it does not fit, or sends more",
    "what the choice costs, as a number: bytes sent, operations, or GPU memory",
    "what would change the choice: one figure of the model or the cluster, and its threshold",
    "what the arithmetic leaves out, and how a run would show whether it matters",
)
RULES = Defence(tuple((1, words) for words in RUBRIC))

PART = Part("05/defence", 3, "Defend one of the three", 15, 2, RULES)
