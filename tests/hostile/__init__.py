"""Submissions that try to get, read or break what they should not, and files that are broken.

`python -m tests.hostile` judges them all and prints a table; see `submissions` for what an entry
says, and `judging` for what is looked at.
"""

from __future__ import annotations

from tests.hostile import (
    catalogue_channels,
    catalogue_crashes,
    catalogue_evidence,
    catalogue_finished,
    catalogue_floods,
    catalogue_forging,
    catalogue_guessing,
    catalogue_imports,
    catalogue_judges,
    catalogue_memory,
    catalogue_nonsense,
    catalogue_notebooks,
    catalogue_ranks,
    catalogue_records,
    catalogue_runs,
    catalogue_secrets,
)
from tests.hostile.submissions import Hostile

__all__ = ["CATALOGUE", "HONEST"]

CATALOGUE: list[Hostile] = [
    *catalogue_forging.CATALOGUE,
    *catalogue_guessing.CATALOGUE,
    *catalogue_finished.CATALOGUE,
    *catalogue_imports.CATALOGUE,
    *catalogue_judges.CATALOGUE,
    *catalogue_memory.CATALOGUE,
    *catalogue_evidence.CATALOGUE,
    *catalogue_channels.CATALOGUE,
    *catalogue_records.CATALOGUE,
    *catalogue_secrets.CATALOGUE,
    *catalogue_crashes.CATALOGUE,
    *catalogue_floods.CATALOGUE,
    *catalogue_ranks.CATALOGUE,
    *catalogue_runs.CATALOGUE,
    *catalogue_nonsense.CATALOGUE,
    *catalogue_notebooks.CATALOGUE,
]

# Judged when all others have been, on the same server.
HONEST = Hostile(
    "honest work",
    "Answers what is asked, after all that others have done.",
    {
        "reduce_scatter": 8.0,
        "ring_all_reduce": 10.0,
        "tree_broadcast": 6.0,
        "hierarchical_all_reduce": 8.0,
    },
    40,
    quick=True,
)
