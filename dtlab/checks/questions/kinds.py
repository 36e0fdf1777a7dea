"""Kinds of answers: a number, one of several options, a set of options.

For a known mistake, the message says why the answer is wrong. For any other wrong answer, it gives
a hint. No message contains the right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dtlab.checks.functions.checks import UNANSWERED, Verdict, lost, ok
from dtlab.checks.questions.quantities import (
    Nested,
    Unreadable,
    binary_twin,
    close,
    other_units,
    plain,
    read,
    short,
    written,
)
from dtlab.checks.questions.shapes import depth, kind_in_words, misfit, rewrite
from dtlab.checks.words import Explanation

__all__ = ["Choice", "Choices", "Kind", "Mistake", "Number", "Values"]

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")

Values = Mapping[str, Any]
T = TypeVar("T")


def _value(fixed_or_function: T | Callable[[Values], T], given: Values) -> T:
    return fixed_or_function(given) if callable(fixed_or_function) else fixed_or_function


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer: a value or a function of the given values, and why it is wrong.

    `why` follows the learner's answer, "25.2 MB: ...", and does not contain the right answer. It
    is the same for all learners, so that the verdict can keep it as the name of the mistake.
    """

    value: Any
    why: str

    def lost_by(self, shown: str) -> Verdict:
        """Returns the verdict on an answer, `shown` in words, that has this mistake."""
        return lost(Explanation(f"{shown}: {self.why}", self.why))


class Kind(Protocol):
    """Parses and judges one answer."""

    @property
    def mistakes(self) -> Sequence[Mistake]:
        """The wrong answers for which there is a message."""
        ...

    def form(self) -> str:
        """Describes the form of an answer in a few words: "in MB"."""
        ...

    def judge(self, answer: Any, given: Values) -> Verdict:
        """Judges an answer."""
        ...

    def distinct(self, given: Values) -> bool:
        """Whether the right answer and the known mistakes differ for these values."""
        ...


@dataclass(frozen=True)
class Number:
    """A number, a list of numbers or a list of lists, computed by `expected` from given values.

    Functions of mistakes get the expected value as `answer`. All values are in `unit`. `tolerance`
    is relative to the expected value, and 0 for whole numbers. `hint` is shown for a wrong answer
    that is not a known mistake. A message may say that the shape is wrong, since the shape is not
    secret. In a list of lists, `each` names what an inner list belongs to ("rank"); the lengths of
    the inner lists stay secret.
    """

    expected: Callable[[Values], Any]
    mistakes: tuple[Mistake, ...]
    hint: str
    unit: str = ""
    tolerance: float = 0.01
    each: str = "rank"

    def form(self) -> str:
        return f"in {self.unit}" if self.unit else ""

    def judge(self, answer: Any, given: Values) -> Verdict:
        wanted = self.expected(given)
        try:
            readings = read(answer, self.unit)
        except Unreadable as error:
            return lost(rewrite(error, answer, wanted, self.each))
        if _empty(readings[0]):
            return UNANSWERED
        for got in readings:
            if close(got, wanted, self.tolerance):
                return ok(written(got, self.unit))
        trouble = misfit(answer, readings[0], wanted, self.each)
        for mistake in self._mistakes():
            value = _value(mistake.value, {**given, "answer": wanted})
            if trouble and depth(readings[0]) != depth(value):
                continue  # the same numbers by coincidence, in another shape
            for got in readings:
                if close(got, value, self.tolerance):
                    return mistake.lost_by(written(got, self.unit))
        shown = written(readings[0], self.unit if len(readings) == 1 else "")
        if self.tolerance and _is_rounded(readings[0], wanted):
            return lost(f"{shown} is rounded too far: {100 * self.tolerance:g} % off is allowed.")
        hint = self._in_twin(readings[0], wanted)
        if not isinstance(answer, str):  # a text has its unit
            hint = hint or self._in_other_unit(readings[0], wanted)
        hint = hint or self.hint
        return lost(trouble or f"{shown} is not it. {hint}{self._where(readings[0], wanted)}")

    def distinct(self, given: Values) -> bool:
        right = self.expected(given)
        known = {**given, "answer": right}
        values = [right, *(_value(mistake.value, known) for mistake in self._mistakes())]
        apart = 2 * self.tolerance
        return not any(
            close(value, other, apart)
            for number, value in enumerate(values)
            for other in values[number + 1 :]
        )

    def _in_twin(self, got: Nested, wanted: Nested) -> str:
        """Returns the message for the right number in a binary unit, 448 MiB for 448 MB; or ""."""
        twin = binary_twin(self.unit)
        if twin is None or not close(got, _times(wanted, twin[1]), self.tolerance):
            return ""
        return (
            f"{twin[0]} is a binary unit (powers of 1024), {self.unit} a decimal one (powers of "
            f"1000): one {twin[0]} is {twin[1]:.7g} {self.unit}. Which of the two did you use?"
        )

    def _in_other_unit(self, got: Nested, wanted: Nested) -> str:
        """Returns the message for the right number in another unit, MB for GB; or ""."""
        for name, factor in other_units(self.unit).items():
            if close(got, _times(wanted, factor), self.tolerance):
                return f"It is right in {name}, but the question asks for {self.unit}."
        return ""

    def _where(self, got: Nested, wanted: Nested) -> str:
        """Names the wrong entries of a list of numbers in which others are right; "" otherwise."""
        if not (isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted)):
            return ""
        right = [close(*pair, self.tolerance) for pair in zip(got, wanted, strict=True)]
        if not any(right) or any(isinstance(entry, list) for entry in wanted):
            return ""
        wrong = [word for word, fits in zip(_ORDINALS, right, strict=False) if not fits]
        return f" Look at the {' and the '.join(wrong)} entry." if wrong else ""

    def _mistakes(self) -> Iterator[Mistake]:
        """Yields the mistakes of the question, and the confusion of decimal and binary units."""
        yield from self.mistakes
        twin = binary_twin(self.unit)
        if twin is not None:
            name, size = twin
            yield Mistake(
                lambda given: _times(self.expected(given), 1 / size),
                f"this would be right in {name} (powers of 1024); {self.unit} are powers of 1000.",
            )


def _is_rounded(got: Nested, wanted: Nested) -> bool:
    """Whether a number of two digits or more is the wanted one, rounded to its decimals."""
    if isinstance(got, list) or isinstance(wanted, list):
        return False
    text = f"{float(got)!r}".rstrip("0")
    digits = text.replace(".", "").strip("-0")
    return len(digits) > 1 and round(float(wanted), len(text.partition(".")[2])) == got


@dataclass(frozen=True)
class Choice:
    """One of `options` (the text to write -> its meaning); the mistakes are other options.

    `explained` is True if the given values already show the meanings; `form` then omits them.
    """

    options: Mapping[str, str]
    expected: str | Callable[[Values], str]
    mistakes: tuple[Mistake, ...]
    hint: str
    explained: bool = False

    def form(self) -> str:
        names = dict.fromkeys(self.options, "")
        return "one of " + _listed(names if self.explained else self.options)

    def judge(self, answer: Any, given: Values) -> Verdict:
        try:
            got = _option(answer, self.options)
        except Unreadable as error:
            return lost(str(error))
        if got == _value(self.expected, given):
            return ok(got)
        for mistake in self.mistakes:
            if got == _value(mistake.value, given):
                return mistake.lost_by(got)
        return lost(f"{got} is not it. {self.hint}")

    def distinct(self, given: Values) -> bool:
        right = _value(self.expected, given)
        return all(_value(mistake.value, given) != right for mistake in self.mistakes)


@dataclass(frozen=True)
class Choices:
    """A set of `options`, in any order: all of the right ones and no other.

    A mistake is a whole set, or one option that the answer wrongly contains or lacks.
    """

    options: Mapping[str, str]
    expected: frozenset[str] | Callable[[Values], frozenset[str]]
    mistakes: tuple[Mistake, ...]
    hint: str

    def form(self) -> str:
        return "a set of " + _listed(self.options)

    def judge(self, answer: Any, given: Values) -> Verdict:
        try:
            got = frozenset(_option(member, self.options) for member in _members(answer))
        except Unreadable as error:
            names = ", ".join(f'"{name}"' for name in self.options)
            how = 'Write the names in braces, as in {"one", "other"}. The options: '
            return lost(f"{error.what} {how}{names}.")
        wanted = _value(self.expected, given)
        shown = "{" + ", ".join(name for name in self.options if name in got) + "}"
        if got == wanted:
            return ok(shown)
        for mistake in self.mistakes:
            value = _value(mistake.value, given)
            if value in got ^ wanted if isinstance(value, str) else frozenset(value) == got:
                return mistake.lost_by(shown)
        return lost(f"{shown} is not it. {self.hint}")

    def distinct(self, given: Values) -> bool:
        right = _value(self.expected, given)
        values = [_value(mistake.value, given) for mistake in self.mistakes]
        return all(isinstance(value, str) or frozenset(value) != right for value in values)


def _empty(value: Any) -> bool:
    return isinstance(value, list) and all(_empty(element) for element in value)


def _times(value: Any, factor: float) -> Any:
    return [_times(item, factor) for item in value] if isinstance(value, list) else value * factor


def _listed(options: Mapping[str, str]) -> str:
    return ", ".join(
        f'"{name}"' + (f" = {text}" if text else "") for name, text in options.items()
    )


def _members(answer: Any) -> Iterable[Any]:
    answer = plain(answer)
    if isinstance(answer, str):
        return [name for name in answer.strip("{}[]() ").split(",") if name.strip()]
    if isinstance(answer, set | frozenset | list | tuple):
        return answer
    raise Unreadable(f"{short(answer)} is not a set.")


def _option(answer: Any, options: Mapping[str, str]) -> str:
    """Returns the option that an answer names; ignores case and extra spaces."""
    answer = plain(answer)
    wanted = " ".join(str(answer).strip("'\" ").casefold().split())
    for name, text in options.items():
        if wanted in (name.casefold(), text.casefold() or name.casefold()):
            return name
    how = "Write one of: " + ", ".join(f'"{name}"' for name in options) + "."
    if isinstance(answer, str | int | float):
        raise Unreadable(f"{short(answer)} is none of the options.", how)
    raise Unreadable(f"{short(answer)} is {kind_in_words(answer)}; one name is asked for.", how)
