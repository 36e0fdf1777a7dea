"""`python -m tests.known_answers 05/gather copies`: what the check says of known answers.

Shows how an answer differs from the solution, the whole report, whether the report is what the
file of the part says, and the line that would say it. Without a name, all answers of the part are
judged; only those whose report differs are shown.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from textwrap import shorten

from tqdm import tqdm

from dtlab.checks import Report, find_part, known_parts
from tests.known_answers import Answer, Answers, AnswersError, answers_of
from tests.known_answers.answers import lost_in

_WITH_NUMBER = re.compile(r"\S*\d\S*|\n")


def main(words: Sequence[str] | None = None) -> int:
    """Judge known answers; 0 if all are as the file says, 1 if not, 2 if there are none."""
    parser = argparse.ArgumentParser(prog="python -m tests.known_answers", description=__doc__)
    parser.add_argument("part", help="such as 05/gather")
    parser.add_argument("names", nargs="*", help="answers of this part; all of them if none")
    asked = parser.parse_args(words)
    try:
        known = _answers(asked.part)
        chosen = {name: _answer(known, name) for name in asked.names or known.named}
    except (AnswersError, LookupError) as error:
        print(error.args[0], file=sys.stderr)
        return 2
    differ = 0
    for name, answer in chosen.items() if asked.names else tqdm(chosen.items(), unit="answer"):
        report = known.check(answer)
        objections = known.objections(answer, report)
        if answer in known.undecided:
            objections = ["the file does not say yet what it loses"]
        differ += bool(objections)
        if asked.names or objections:
            print(f"\n{known.part.name}, {name}", *_changes(known, answer), "", report, sep="\n")
            print(*(objections or ["as the file says"]), sep="\n")
            print("", "the line for the file:", line_for(name, report), sep="\n")
    print(f"{len(chosen) - differ} of {len(chosen)} answers are judged as the file says")
    try:
        answers_of(known.part)
    except AnswersError as error:
        print(f"The file is not complete yet: {error}")
        return 1
    return int(bool(differ))


def line_for(name: str, report: Report) -> str:
    """The line that says in the file what an answer loses, with a piece of each message.

    The piece is the known mistake that the message reports, if it reports one, or the longest
    piece without a number, since most numbers are drawn or measured.
    """
    pieces = []
    mistakes = {one.name: one.mistake for one in report.criteria}
    for criterion, message in lost_in(report).items():
        known = mistakes.get(criterion, "")
        of_message = max(_WITH_NUMBER.split(message), key=len).strip(" ,.:;")
        words = known if known and known in message else of_message
        pieces.append(f"{criterion}: {shorten(words, 60, placeholder='')}")
    return f"{name:24}  " + ("\n  ".join(pieces) or "right")


def _answers(name: str) -> Answers:
    if name not in (names := [part.name for part in known_parts() if not part.by_hand]):
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
        raise LookupError(f"{name!r} is no part with known answers. Near: {', '.join(near)}")
    known = answers_of(find_part(name), complete=False)
    if known is None:
        raise LookupError(f"{name} has no known answers yet: write tests/known_answers/NN_name/")
    return known


def _answer(known: Answers, name: str) -> Answer:
    if name not in known.named:
        near = difflib.get_close_matches(name, known.named, n=3, cutoff=0.4)
        raise LookupError(f"{known.part.name} has no answer {name!r}. Near: {', '.join(near)}")
    return known.named[name]


def _changes(known: Answers, answer: Answer) -> list[str]:
    """The lines of the cell that differ from the solution's, each with a line around them."""
    solution = known.cells["solution"]
    cell = known.cells.get(answer.__name__, solution)  # one by a formula has none
    lines = solution.splitlines(), cell.splitlines()
    return list(difflib.unified_diff(*lines, "solution", "answer", n=1, lineterm=""))


if __name__ == "__main__":
    sys.exit(main())
