"""Exercise parts, their checks, and the reports that learners and nbgrader read.

Read in this order: `report` (what a learner sees), then for values `quantities`, `kinds` and
`answers` (questions as data), for functions `trials` (the learner's function on real ranks) and
`checks` (criteria as data), for broken programs `waits` and `mends`, then `parts` (the catalogue,
`ask` and `check`), and a unit's folder. What surrounds them: `practice` (blanks without points),
`records` and `progress`, `course`, `workbook` and `notebooks` (files). Nothing here loads torch
before a check runs.
"""

from dtlab.grading.answers import Given
from dtlab.grading.parts import Part, ask, check, find_part, known_parts
from dtlab.grading.report import Criterion, Report

__all__ = ["Criterion", "Given", "Part", "Report", "ask", "check", "find_part", "known_parts"]
