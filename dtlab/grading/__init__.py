"""Exercise parts, their checks, and the reports that learners and nbgrader read.

What learners use: `report` (what they see), `questions/` (values to fill in), `trials` (a function
of theirs on real ranks) and `checks` (criteria as data), `waits` and `mends` (broken programs),
`parts` (the catalogue, `ask` and `check`). Units are packages of `dtlab.units`. Around: `practice`
(blanks without points), `records` and `progress`, `course`, `workbook` and `notebooks` (files).

What instructors use: `assignments/` (release), `mending/`, `judging/` and `classroom/` (grade),
`alike/`, `settings`, `plugins`, `late` and `export` (what they set up in nbgrader).

Nothing here loads torch before a check runs.
"""

from dtlab.grading.parts import Part, ask, check, find_part, known_parts
from dtlab.grading.questions.answers import Given
from dtlab.grading.report import Criterion, Report

__all__ = ["Criterion", "Given", "Part", "Report", "ask", "check", "find_part", "known_parts"]
