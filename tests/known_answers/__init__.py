"""Known answers to each part, wrong and right: `NN_name/<symbol>.answers`.

changes.py     reads a file; an answer is written as a change of the solution
formulas.py    the wrong answers of Level I, from the formulas of its questions
answers.py     both together: what a part's check must say of each answer
__main__.py    shows what the check says of one, for those who write them
"""

from tests.known_answers.answers import (
    ONE_OF_MANY,
    Answer,
    Answers,
    answers_of,
    known_answers,
    report_on,
)
from tests.known_answers.changes import FOLDER, AnswersError

__all__ = [
    "FOLDER",
    "ONE_OF_MANY",
    "Answer",
    "Answers",
    "AnswersError",
    "answers_of",
    "known_answers",
    "report_on",
]
