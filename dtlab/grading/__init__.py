"""Exercise parts, their checks, and the reports that learners and nbgrader read.

Read in this order: `report` (what a learner sees), `trials` (the learner's function on real
ranks), `checks` (criteria as data), `parts` (the catalogue, and `check`), then a unit's file.
Nothing here loads torch before a check runs.
"""

from dtlab.grading.parts import Part, check, find_part, known_parts
from dtlab.grading.report import Criterion, Report

__all__ = ["Criterion", "Part", "Report", "check", "find_part", "known_parts"]
