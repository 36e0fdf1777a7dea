"""Level I as declarations: what is drawn and asked, what is right, what people write instead.

    QUESTIONS = asked(
        {"ranks": (4, 6, 8), "size": range(10, 100)},            # drawn from the learner's id
        [("your ranks", "{ranks}"), ("each has", "{size} MB")],  # shown
        number(
            "sent",
            "what each rank sends in a ring all-reduce",
            "2 * size * (ranks - 1) / ranks",                    # right
            "Once round to add up, and once more to hand round.",
            {
                "answer / 2": "this is one half of the ring.",
                "2 * size": "a rank keeps its own chunk: it sends N-1 of N.",
            },
            unit="MB",
        ),
    )

A formula is a Python expression in the drawn values and the names of `where`, and, for a mistake,
in `answer`, the right one. In place of a formula there may be a function of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from dtlab.grading.questions.answers import Choice, Choices, Mistake, Question, Questions, Values
from dtlab.grading.questions.kinds import Number

__all__ = ["asked", "choice", "choices", "formula", "number"]

Formula = str | Callable[[Values], Any]
Drawn = Mapping[str, Sequence[Any]] | Callable[[Random], Values]
Rows = Sequence[tuple[str, str]] | Callable[[Values], Sequence[tuple[str, str]]]


def asked(
    drawn: Drawn, shown: Rows, *questions: Question, where: Mapping[str, Any] | None = None
) -> Questions:
    """The questions of a part.

    `drawn` says for each value what it is drawn from, in this order; or it is a function that
    draws all of them. `shown` are rows of label and text, which may name values, "{ranks}".
    `where` has names for formulas to use: a text is a formula, in which earlier names may be used;
    anything else, such as a function, is what it is. `given` is the name of all values together.
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
    """A question for a number, or for (nested) lists of numbers.

    `wrong` has known mistakes, with what is said of each. Numbers count to 1 %; where `exact`,
    none but the very same does. `each`: see `kinds.Number`.
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
    """A question for one of several options.

    `wrong` are other options. One that depends on the values is `formula("...")`. `explained`: see
    `kinds.Choice`.
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
    """A question for a set of options.

    A mistake is one of them, a whole (frozen) set, or a function of the values that gives either.
    """
    wanted = right if callable(right) else frozenset(right)
    return Question(
        name, points, prompt, Choices(_named(options), wanted, _mistakes(wrong), hint)
    )


def formula(text: Formula) -> Callable[[Values], Any]:
    """The function of the values that a formula stands for."""
    if not isinstance(text, str):
        return text
    code = compile(text, f"<formula {text}>", "eval")
    return lambda given: eval(code, {"given": given, **given})


def _named_values(given: Values, where: Mapping[str, Any]) -> Values:
    values = dict(given)
    for name, one in where.items():
        values[name] = formula(one)(values) if isinstance(one, str) else one
    return values


def _named(options: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    return options if isinstance(options, Mapping) else dict.fromkeys(options, "")


def _mistakes(wrong: Mapping[Any, str] | None) -> tuple[Mistake, ...]:
    return tuple(Mistake(value, why) for value, why in (wrong or {}).items())
