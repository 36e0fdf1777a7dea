"""Questions with values drawn at random for each learner, as data.

learner's id ──> Given (values, shown by `dtlab.ask`) ──> Question.settle ──> Criterion
                                    learner's answers ────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random
from typing import Any

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.checks import UNANSWERED, Verdict, blocked, lost
from dtlab.checks.learners import normalised, random_for
from dtlab.checks.questions.kinds import Choice, Choices, Kind, Mistake, Number, Values
from dtlab.checks.questions.shapes import kind_in_words
from dtlab.checks.report import Criterion, as_html, as_text
from dtlab.errors import DtlabError

__all__ = ["Choice", "Choices", "Given", "Mistake", "Number", "Question", "Questions", "Values",
           "unanswered"]  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One field of an answer: its name, its points, its prompt, and the kind of answer.

    `prompt` may contain given values, as in "what rank {root} holds".
    """

    name: str
    points: float
    prompt: str
    answer: Kind

    def settle(self, answer: Any, given: Values) -> Criterion:
        """Judges an answer and returns its criterion."""
        if unanswered(answer):
            return self.closed(UNANSWERED)
        return self.closed(self.answer.judge(answer, given))

    def closed(self, verdict: Verdict) -> Criterion:
        """Returns the criterion with this verdict: it earns all of its points or none."""
        earned = self.points if verdict.status == "ok" else 0
        message = f"{self.name}: {verdict.message}"
        return Criterion(
            self.name, self.points, earned, verdict.status, message, mistake=verdict.mistake
        )


class Given(Mapping[str, Any]):
    """The values of one part for one learner; displays these values and the questions."""

    def __init__(
        self, title: str, values: Values, rows: Sequence[tuple[str, str]], asked: Sequence[str]
    ) -> None:
        self._title, self._values, self._rows, self._asked = title, dict(values), rows, asked

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise KeyError(
                f"{name!r} is not given here. Given: {', '.join(self._values)}. These are the "
                f"numbers of {self._title.partition(',')[0]}. If you work on another part, run "
                "the cell with its numbers again."
            )
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self._rows)
        lines = [f"  {label:<{width}}   {value}" for label, value in self._rows]
        asked = (f"  {as_text(question)}" for question in self._asked)
        return "\n".join([self._title, *lines, "asked for", *asked])

    def _repr_html_(self) -> str:
        cell = "padding:.2em 1em .2em 0;vertical-align:top;text-align:left"
        rows = "".join(
            f'<tr style="background:none"><th scope="row" style="{cell}">{as_html(label)}</th>'
            f'<td style="{cell}">{as_html(value)}</td></tr>'
            for label, value in self._rows
        )
        asked = "".join(
            f"<li><b>{as_html(name)}</b>: {as_html(question)}</li>"
            for name, _, question in (line.partition(": ") for line in self._asked)
        )
        return (
            '<table style="color:inherit;border-collapse:collapse;margin:0">'
            '<caption style="color:inherit;text-align:left;white-space:nowrap;padding:.3em 0">'
            f"<b>{as_html(self._title)}</b></caption><tbody>{rows}</tbody></table>"
            f'<ul style="margin:.5em 0 0 1.2em;padding:0">{asked}</ul>'
        )


@dataclass(frozen=True)
class Questions:
    """The check of a part of Level I: values drawn from the learner's id, and questions.

    `rows` describes the given values. Values are drawn again until the right answer and all known
    mistakes differ. `where` computes further values from the drawn ones, for use in formulas.
    """

    draw: Callable[[Random], Values]
    rows: Callable[[Values], Sequence[tuple[str, str]]]
    questions: tuple[Question, ...]
    where: Callable[[Values], Values] = dict

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(question.points for question in self.questions)

    def given(self, symbol: str, learner: object) -> Given:
        """Draws the values for this learner. Raises `DtlabError` if the id is missing."""
        generator = random_for(normalised(learner), symbol)
        for _ in range(1000):
            values = self.draw(generator)
            named = self.named(values)
            if all(question.answer.distinct(named) for question in self.questions):
                break
        else:
            raise AssertionError(f"{symbol}: no draw tells the known mistakes apart")
        title = f"{symbol}, drawn for {str(learner).strip()}"
        return Given(
            title, values, self.rows(values), [self._asked(q, values) for q in self.questions]
        )

    def named(self, given: Values) -> Values:
        """Returns the given values and those that `where` computes from them."""
        return self.where(given)

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Judges the answers, a value for each question, with the values of this learner."""
        try:
            given = self.given(symbol, learner)
        except DtlabError as error:  # no id yet
            remark = Criterion(symbol, 0, 0, "open", str(error))
            return [remark, *(question.closed(UNANSWERED) for question in self.questions)]
        try:
            _refuse_others(normalised(learner), learner, bench.student)
            answers = self._by_name(symbol, answer)
        except DtlabError as error:
            return self._nothing_to_judge(str(error))
        return self._settled(symbol, answers, given)

    def _settled(self, symbol: str, answers: Mapping[str, Any], given: Values) -> list[Criterion]:
        """Returns a criterion for each question; unknown entries do not affect the others."""
        misspelt, unmatched = self._unasked(answers)
        named = self.named(given)
        criteria = [
            question.closed(lost(misspelt[question.name]))
            if question.name in misspelt
            else question.settle(answers.get(question.name), named)
            for question in self.questions
        ]
        if unmatched:
            names = ", ".join(question.name for question in self.questions)
            unknown = f"answer{'s' * (len(unmatched) > 1)} {', '.join(map(repr, unmatched))}"
            message = f"unknown {unknown}. The questions are: {names}."
            criteria.append(Criterion(symbol, 0, 0, "blocked", message))
        return criteria

    def _unasked(self, answers: Mapping[str, Any]) -> tuple[dict[str, str], list[Any]]:
        """Returns messages about misspelt names, by the question meant, and all other names."""
        names = [question.name for question in self.questions]
        still_open = [name for name in names if unanswered(answers.get(name))]
        misspelt, unmatched = {}, []
        for unknown in (name for name in answers if name not in names):
            matches = get_close_matches(str(unknown).casefold(), still_open, n=1)
            if matches:
                still_open.remove(matches[0])
                message = f"unknown answer {unknown!r}: did you mean {matches[0]!r}?"
                misspelt[matches[0]] = message
            else:
                unmatched.append(unknown)
        return misspelt, unmatched

    def _asked(self, question: Question, values: Values) -> str:
        points = "1 point" if question.points == 1 else f"{question.points:g} points"
        prompt, form = question.prompt.format(**values), question.answer.form()
        return f"{question.name}: {prompt} ({'; '.join(filter(None, (points, form)))})"

    def _by_name(self, symbol: str, answer: Any) -> dict[str, Any]:
        names = [question.name for question in self.questions]
        if isinstance(answer, Mapping):
            return dict(answer)
        if len(names) == 1:
            return {names[0]: answer}
        if isinstance(answer, list | tuple) and len(answer) == len(names):
            return dict(zip(names, answer, strict=True))
        if answer is None:
            return {}
        entries = ", ".join(f'"{name}": ...' for name in names)
        raise DtlabError(
            f"{symbol} is {kind_in_words(answer)} here. Write a dict with an entry for each "
            f"question: {symbol} = {{{entries}}}."
        )

    def _nothing_to_judge(self, why: str) -> list[Criterion]:
        first, *others = self.questions
        waiting = blocked("judged once the problem above is solved")
        head = Criterion(first.name, first.points, 0, "lost", why)
        return [head, *(question.closed(waiting) for question in others)]


def unanswered(answer: Any) -> bool:
    """Whether the answer is still the blank of the notebook (None) or of an example (...).

    A dict is a blank if all its values are.
    """
    if isinstance(answer, Mapping):
        return all(map(unanswered, answer.values()))
    return answer is None or answer is ...


def _refuse_others(name: str, typed: object, student: str | None) -> None:
    """Raises `DtlabError` if the work of a `student` whose id is not `name` is graded."""
    if student is not None and "".join(student.casefold().split()) != name:
        raise DtlabError(
            f"these are the questions of {str(typed).strip()!r}, and {student!r} handed them in. "
            "Each learner gets different values: type your own id in the cell `learner = ...`, "
            "and answer the questions that it then shows."
        )
