"""10/defence: defend a plan for the model of 10/plan_320 in writing."""

from __future__ import annotations

from dtlab.checks.functions.defences import Defence
from dtlab.checks.parts import Part

RUBRIC = (  # points, and what earns them
    (1, "the plan for one of the three clusters, with its bytes per GPU and what they consist of"),
    (1, "the axes inside a node and those across nodes, with the bytes that each axis sends"),
    (1, "where sharding fits: the ZeRO stage, and why neither one stage more nor one less"),
    (2, "the two most likely bottlenecks, and for each the operation, group and ranks in a trace"),
    (1, "what would change with a tenth of the batch: the plan then, and the cost that decides"),
)
RULES = Defence(RUBRIC)

PART = Part("10/defence", 3, "Defend your plan", 15, 2, RULES)
