"""05/defence: one of the three plans of 05/plans, defended in writing."""

from __future__ import annotations

from dtlab.grading.checking.defences import Defence
from dtlab.grading.parts import Part

PART = Part(
    "05/defence",
    3,
    "Defend one of the three",
    15,
    2,
    Defence(
        (
            (1, "the plan, and the limit that decides its stage: a number of bytes, and of what"),
            (
                1,
                "the nearest plan that was turned down, with the bytes by which it misses or "
                "sends more",
            ),
            (
                1,
                "what was given up for it, as a number: bytes sent, operations, or room on the "
                "card",
            ),
            (
                1,
                "what would change the choice: one figure of the model or the cluster, and from "
                "where on",
            ),
            (1, "what the arithmetic leaves out, and how a run would show whether it matters"),
        )
    ),
)
