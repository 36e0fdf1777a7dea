"""Functions that declare a part of Level I: drawn values, questions, right answers and mistakes.

    QUESTIONS = asked(
        {"ranks": (4, 6, 8), "size": range(10, 100)},            # drawn from the learner's id
        [("your ranks", "{ranks}"), ("each has", "{size} MB")],  # shown to the learner
        number(
            "sent",
            "what each rank sends in a ring all-reduce",
            "2 * size * (ranks - 1) / ranks",                    # the right answer
            "The chunks go round the ring twice: to be added up, and to be distributed.",
            {
                "answer / 2": "this is only what the reduce-scatter sends.",
                "2 * size": "each time, a rank sends every chunk but one.",
            },
            unit="MB",
        ),
    )

A formula is a Python expression in the drawn values and the names of `where`. The formula of a
mistake may also use `answer`, the right answer. A function of the values may replace a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from dtlab.checks.questions.answers import Choice, Choices, Mistake, Question, Questions, Values
from dtlab.checks.questions.kinds import Number

__all__ = ["asked", "choice", "choices", "formula", "number"]

Formula = str | Callable[[Values], Any]
Drawn = Mapping[str, Sequence[Any]] | Callable[[Random], Values]
Rows = Sequence[tuple[str, str]] | Callable[[Values], Sequence[tuple[str, str]]]


def asked(
    drawn: Drawn, shown: Rows, *questions: Question, where: Mapping[str, Any] | None = None
) -> Questions:
    """Declares the questions of a part.

    `drawn` maps each value to the options from which it is drawn, in this order; or it is a
    function that draws all of them. `shown` are rows of label and text, which may contain values:
    "{ranks}". `where` defines names that formulas can use: a text is a formula, which may use
    earlier names; anything else, such as a function, is used unchanged. In formulas, `given` is
    the mapping of all values.
    """

    def draw(generator: Random) -> Values:
        assert isinstance(drawn, Mapping)
        return {name: generator.choice(options) for name, options in drawn.items()}

    def rows(given: Values) -> list[tuple[str, str]]:
        assert not callable(shown)
        return [(label, text.format(**given)) for label, text in shown]

    return Questions(
        drawn if callable(drawn) else draw,
        shown if callable(shown) else rows,
        questions,
        lambda given: _named_values(given, where or {}),
    )


def number(
    name: str,
    prompt: str,
    right: Formula,
    hint: str,
    wrong: Mapping[Formula, str] | None = None,
    *,
    points: float = 1,
    unit: str = "",
    exact: bool = False,
    each: str = "rank",
) -> Question:
    """Declares a question for a number, or for (nested) lists of numbers.

    `wrong` maps known mistakes to their messages. The tolerance is 1 %, and 0 if `exact`. For
    `each` see `kinds.Number`.
    """
    mistakes = tuple(Mistake(formula(value), why) for value, why in (wrong or {}).items())
    tolerance = 0 if exact else 0.01
    kind = Number(formula(right), mistakes, hint, unit=unit, tolerance=tolerance, each=each)
    return Question(name, points, prompt, kind)


def choice(
    name: str,
    prompt: str,
    options: Mapping[str, str] | Sequence[str],
    right: str | Callable[[Values], str],
    hint: str,
    wrong: Mapping[Any, str] | None = None,
    *,
    points: float = 1,
    explained: bool = False,
) -> Question:
    """Declares a question for one of several options.

    `wrong` maps other options to their messages. An option that depends on the values is written
    `formula("...")`. For `explained` see `kinds.Choice`.
    """
    kind = Choice(_named(options), right, _mistakes(wrong), hint, explained)
    return Question(name, points, prompt, kind)


def choices(
    name: str,
    prompt: str,
    options: Mapping[str, str] | Sequence[str],
    right: set[str] | Callable[[Values], frozenset[str]],
    hint: str,
    wrong: Mapping[Any, str] | None = None,
    *,
    points: float = 1,
) -> Question:
    """Declares a question for a set of options.

    A mistake is one option, a (frozen) set of them, or a function of the values that returns
    either.
    """
    wanted = right if callable(right) else frozenset(right)
    return Question(
        name, points, prompt, Choices(_named(options), wanted, _mistakes(wrong), hint)
    )


def formula(text: Formula) -> Callable[[Values], Any]:
    """Compiles a formula to a function of the values."""
    if not isinstance(text, str):
        return text
    code = compile(text, f"<formula {text}>", "eval")
    return lambda given: eval(code, {"given": given, **given})


def _named_values(given: Values, where: Mapping[str, Any]) -> Values:
    values = dict(given)
    for name, value in where.items():
        values[name] = formula(value)(values) if isinstance(value, str) else value
    return values


def _named(options: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    return options if isinstance(options, Mapping) else dict.fromkeys(options, "")


def _mistakes(wrong: Mapping[Any, str] | None) -> tuple[Mistake, ...]:
    return tuple(Mistake(value, why) for value, why in (wrong or {}).items())
