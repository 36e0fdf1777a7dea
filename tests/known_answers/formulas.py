"""Wrong answers that the questions of Level I declare themselves, each with its message.

A question has a formula for each mistake that it knows, and a hint for every other answer. So its
wrong answers need not be written: here they are computed from the values of a learner. Only right
answers come from elsewhere, or else a formula would be compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dtlab.checks.questions.answers import Question, Values
from dtlab.checks.questions.kinds import _ORDINALS, Choice, Choices, Number, _times, _value
from dtlab.checks.questions.quantities import close

__all__ = ["wrong_values"]

FACTORS = (1.37, 0.61, 2.93, 0.17)  # of a number that is no known mistake
AWAY = 17  # added to it, since it may be 0
NO_OPTION = "no such option"


def wrong_values(question: Question, given: Values) -> Iterator[tuple[str, Any, str]]:
    """The name, the value and a piece of the message of each wrong answer to a question.

    `given` has the values of a learner, with those that the part computes from them. Kinds of
    questions that a unit defines for itself yield none.
    """
    kind = question.answer
    if isinstance(kind, Number):
        yield from _wrong_numbers(kind, given)
    elif isinstance(kind, Choice):
        right = _value(kind.expected, given)
        known = {_value(one.value, given): one.why for one in reversed(kind.mistakes)}
        for option in [*kind.options, NO_OPTION]:
            if option != right:
                other = kind.hint if option in kind.options else "is none of the options"
                yield option, option, known.get(option, other)
    elif isinstance(kind, Choices):
        yield from _wrong_sets(kind, given)


def _wrong_numbers(kind: Number, given: Values) -> Iterator[tuple[str, Any, str]]:
    right = kind.expected(given)
    known = [(_value(one.value, {**given, "answer": right}), one.why) for one in kind._mistakes()]
    for number, (value, why) in enumerate(known, 1):
        if not _undefined(value):
            yield f"mistake_{number}", value, why
    avoided = [right, *(value for value, _ in known)]
    yield "another", _other(right, avoided), kind.hint
    if not isinstance(right, list):
        yield "a_list", [AWAY], "write a number"
        return
    if len(right) > 1:
        yield "no_list", AWAY, "write "
    if not any(isinstance(entry, list) for entry in right):
        for number, (entry, ordinal) in enumerate(zip(right, _ORDINALS, strict=False)):
            value = [*right[:number], _other(entry, [entry]), *right[number + 1 :]]
            if not any(close(value, one, 2 * kind.tolerance) for one in avoided):
                look = f" Look at the {ordinal} entry." if len(right) > 1 else ""
                yield f"{ordinal}_entry", value, f"is not it. {kind.hint}{look}"


def _other(right: Any, avoided: list[Any]) -> Any:
    """A number, or a list of the same shape, that is none of these values."""
    moved = _moved(right)
    return next(
        value
        for value in (_times(moved, factor) for factor in FACTORS)
        if not any(close(value, one, 0.02) for one in avoided)
    )


def _undefined(value: Any) -> bool:
    """Whether the formula of a mistake gives no number (nan), so that it is no answer."""
    return isinstance(value, float) and not math.isfinite(value)


def _moved(value: Any) -> Any:
    return [_moved(one) for one in value] if isinstance(value, list) else value + AWAY


def _wrong_sets(kind: Choices, given: Values) -> Iterator[tuple[str, Any, str]]:
    """Sets that have one option more or less, and those that the question knows as a whole."""
    right = frozenset(_value(kind.expected, given))
    known = [(_value(one.value, given), one.why) for one in kind.mistakes]
    sets = [right ^ {one} for one in kind.options]
    sets += [frozenset(value) for value, _ in known if not isinstance(value, str)]
    for number, found in enumerate(dict.fromkeys(sets), 1):
        said = (why for value, why in known if value in (found, *(found ^ right)))
        yield f"set_{number}", {*found}, next(said, kind.hint)
    yield "no_option", {NO_OPTION}, "is none of the options"
