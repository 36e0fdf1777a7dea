"""Exercise parts, their checks, and the reports that learners and nbgrader read.

For learners: `parts` (the catalogue, `ask` and `check`), `report`, `questions/` (values to fill
in), `checking/` (functions that run on real ranks), `scripts/` (broken programs), `practice`
(blanks without points), `learners` and `progress` (results), `course`, `workbook` and `notebooks`
(files). The parts themselves are in `dtlab.units`.

For instructors: `assignments/` (release), `mending/`, `judging/` and `classroom/` (grade),
`alike/` (compare submissions), `settings`, `plugins`, `late` and `export` (nbgrader's settings).

This package does not load torch before a check runs.
"""

from dtlab.grading.parts import Part, ask, check, find_part, known_parts
from dtlab.grading.questions.answers import Given
from dtlab.grading.report import Criterion, Report

__all__ = ["Criterion", "Given", "Part", "Report", "ask", "check", "find_part", "known_parts"]
