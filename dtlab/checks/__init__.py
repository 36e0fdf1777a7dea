"""The kit: what a graded part is made of, and the reports that learners and nbgrader read.

    parts.py       the catalogue: a part by its name, `ask` and `check`
    comparison.py  `difference`: what is wrong with a value, and which known mistake gives it
    functions/     parts whose answer is a function, which runs on real ranks
    questions/     parts whose answers are values, with their formulas
    programs/      parts whose answer is a diagnosis and a fixed program
    report.py      points and reasons;  practice.py: blanks without points
    learners.py    who learns here, and the stored results;  progress.py shows them
    course.py      where the notebooks are;  workbook.py: the learner's copies of them

The parts themselves are in `dtlab.units`; what only instructors use is in `dtlab.classroom`. This
package does not load torch before a check runs.
"""

from dtlab.checks.parts import Part, ask, check, find_part, known_parts
from dtlab.checks.questions.answers import Given
from dtlab.checks.report import Criterion, Report

__all__ = ["Criterion", "Given", "Part", "Report", "ask", "check", "find_part", "known_parts"]
