"""What is known about the answers to each part, judged as a learner's answer is.

An answer is what a learner's cell leaves behind, by the name that says what is wrong with it.
Where something else than a function is asked for, it is a function that makes it: from the given
values in Level I, from nothing in a part like {"diagnosis": ..., "fixed": ...}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dtlab.checks import Part, Report, known_parts
from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.programs.broken import Fix
from dtlab.checks.questions.answers import Question, Questions
from tests.known_answers.changes import KnownAnswers, path_of, read
from tests.known_answers.formulas import wrong_values
from tests.mutants.sources import solution_of

__all__ = ["ONE_OF_MANY", "Answer", "Answers", "answers_of", "known_answers", "report_on"]

Answer = Callable[..., Any]

# "1 samples" in a message; `dtlab.predict.units.counted` writes "1 sample".
_NOUNS = (
    "actions all-reduces batches blocks buckets bytes calls cells chunks columns elements epochs "
    "events experts GPUs gradients groups heads layers lines lists losses messages microbatches "
    "nodes numbers operations parameters parts passes points ranks replicas rounds rows samples "
    "sequences stages steps tensors tokens updates values"
)
ONE_OF_MANY = re.compile(rf"(?<![\w.,:/×*+=-])(?<!rank )(?<!- )1 (?:{_NOUNS.replace(' ', '|')})\b")


@dataclass(frozen=True)
class Answers:
    """What is known about the answers to one part."""

    part: Part
    wrong: Mapping[Answer, Mapping[str, str]]
    right: Sequence[Answer]
    equivalent: Mapping[str, str]
    cells: Mapping[str, str] = field(default_factory=dict)  # what is handed in, by the name
    independent: Sequence[Answer] = ()  # right answers that are no changes of one another
    undecided: Sequence[Answer] = ()  # what they lose is still to be found out

    def check(self, answer: Answer, seed: int = 0, bench: Bench = HERE) -> Report:
        """The report on one of the answers; another `seed` is another learner too."""
        learner, check = learner_of(seed), self.part.check
        if isinstance(check, Questions):
            values = answer(check.given(self.part.symbol, learner))
            return report_on(self.part, values, 0, learner, bench)
        handed_in = answer() if isinstance(check, Fix) else answer
        return report_on(self.part, handed_in, seed, learner, bench)

    @property
    def named(self) -> dict[str, Answer]:
        """Wrong answers, then right ones, each by a name of its own.

        Answers that one function has made are all called alike, so they get numbers.
        """
        found: dict[str, Answer] = {}
        for answer in (*self.wrong, *self.right, *self.undecided):
            name, number = answer.__name__, 2
            while name in found:
                name, number = f"{answer.__name__} {number}", number + 1
            found[name] = answer
        return found

    @property
    def sample(self) -> Sequence[Answer]:
        """For each criterion the first wrong answer that loses it alone, and one right answer.

        All of them at Level I, where the answers are values and take no time.
        """
        if self.part.level == 1:
            return [*self.wrong, *self.right]
        alone: dict[str, Answer] = {}
        for answer, losses in self.wrong.items():
            if len(losses) == 1:
                alone.setdefault(next(iter(losses)), answer)
        return [*alone.values(), *self.right[:1]]

    def objections(self, answer: Answer, report: Report) -> list[str]:
        """How the report differs from what the file says of this answer; empty if it does not."""
        expected, said = self.wrong.get(answer, {}), lost_in(report)
        unearned = [one.name for one in report.criteria if one.points and one.status != "ok"]
        kept = f"right, but not all points: {', '.join(unearned)}"
        unsaid = [name for name in expected if name in said and expected[name] not in said[name]]
        return [
            *(f"{name} should be lost and is not" for name in expected if name not in said),
            *(f"{name} is lost: {said[name]}" for name in said if name not in expected),
            *(f"{name}: {expected[name]!r} is not in {said[name]!r}" for name in unsaid),
            *([kept] if not expected | said and not report.passed else []),
            *(
                f"{name} counts one as many: {ONE_OF_MANY.findall(said[name])}"
                for name in said
                if ONE_OF_MANY.search(said[name])
            ),
        ]

    @property
    def criteria(self) -> set[str]:
        """Names of the criteria of the part."""
        return {one.name for one in report_on(self.part, None).criteria if one.points}


def lost_in(report: Report) -> dict[str, str]:
    """The criteria that are lost, each with its message; not those that are blocked by them."""
    said = {one.name: one.message for one in report.criteria if one.status == "lost"}
    for remark, first in pairwise(report.criteria):
        if remark.status == "open" and not remark.points:  # a function that is not written
            said[first.name] = remark.message
    return said


def report_on(
    part: Part, answer: Any, seed: int = 0, learner: str | None = None, bench: Bench = HERE
) -> Report:
    """What `dtlab.check` reports, without a line in the progress of whoever runs the tests."""
    return Report(part.symbol, tuple(part.check.run(part.symbol, answer, seed, learner, bench)))


def answers_of(part: Part, complete: bool = True) -> Answers | None:
    """The answers to `part`; None where there is no file of them yet. See `changes.read`.

    The wrong answers of Level I come from the questions themselves, so it needs no file.
    """
    path = path_of(part.unit, part.symbol)
    if path is None and not isinstance(part.check, Questions):
        return None
    return _read(part, path, complete)


def _read(part: Part, path: Path | None, complete: bool) -> Answers:
    """The answers in the file at `path`; the first right one is the solution."""
    solution, check = solution_of(part), part.check
    criteria = Answers(part, {}, [], {}).criteria
    known = read(path, criteria, complete) if path else KnownAnswers([], {})

    def run(source: str) -> Any:
        if isinstance(check, Questions):
            return lambda given: solution.answer(source, part.symbol, given=given)
        return solution.answer(source, part.symbol)

    def named(name: str, source: str) -> Answer:
        # The cell of a program to fix may launch it, so it runs only when it is judged.
        answer = (lambda: run(source)) if isinstance(check, Fix) else run(source)
        answer.__name__ = name
        return answer

    made = [(one, named(one.name, one.value(solution.source, str))) for one in known.answers]
    wrong = {answer: one.losses for one, answer in made if one.losses}
    solved = named("solution", solution.source)
    undecided = [answer for one, answer in made if one.undecided]
    right = [solved, *(a for one, a in made if not one.losses and a not in undecided)]
    whole = [answer for one, answer in made if answer in right and one.is_whole]
    cells = {one.name: one.source(solution.source) for one in known.answers}
    if isinstance(check, Questions):
        wrong |= _by_formula(part.symbol, check, solved)
    cells["solution"] = solution.source
    independent = [solved, *whole]
    return Answers(part, wrong, right, known.equivalent, cells, independent, undecided)


def _by_formula(symbol: str, check: Questions, solved: Answer) -> dict[Answer, dict[str, str]]:
    """The wrong answers that the questions declare for the learner of seed 0, by their name.

    To another learner each gives the wrong value of this name, or of the first one that there is.
    """

    def instead(question: Question, name: str) -> Answer:
        def answer(given: Any) -> Any:
            found = {each: value for each, value, _ in wrong_values(question, check.named(given))}
            return solved(given) | {question.name: found.get(name, next(iter(found.values())))}

        answer.__name__ = f"{question.name}_{name}"
        return answer

    values = check.named(check.given(symbol, learner_of(0)))
    return {
        instead(question, name): {question.name: piece}
        for question in check.questions
        for name, _, piece in wrong_values(question, values)
    }


def learner_of(seed: int) -> str:
    """The learner whose values a seed stands for."""
    return f"seed{seed}"


def known_answers(unit: str = "") -> list[Answers]:
    """The answers to all parts of `unit` ("01"), or of every unit."""
    found = (answers_of(part) for part in known_parts() if part.name.startswith(unit))
    return [answers for answers in found if answers is not None]
