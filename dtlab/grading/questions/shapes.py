"""Shapes of answers: a number, a list of numbers, a list for each rank.

An answer of another shape than is asked for is told how to write it, before anything is said of
what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtlab.grading.questions.quantities import Nested, Unreadable, numbers_in, plain, short

__all__ = ["depth", "kind_in_words", "misfit", "rewrite"]

_EXAMPLE = (2.5, 1.0, 4.0)
_LISTS = "[4]", "[5, 6]", "[]"  # as no collective leaves them: an example is no hint


def misfit(answer: Any, got: Nested, wanted: Nested, each: str) -> str:
    """How to write an answer, read as `got`, that has not the shape of `wanted`; empty if it has.

    "[336]: write a number, as in 336, not a list." `each` is what has a list of its own: "rank".
    """
    if _fits(got, wanted):
        return ""
    kind = _difference(answer, got, wanted)
    return f"{short(answer)}: {_write(wanted, numbers_in(answer), each)}, not {kind}."


def rewrite(error: Unreadable, answer: Any, wanted: Nested, each: str) -> str:
    """The same for an answer that cannot be read, or one of whose elements cannot."""
    if not isinstance(wanted, list):
        return str(error)
    how = _write(wanted, numbers_in(answer), each)
    if isinstance(plain(answer), list | tuple):
        return f"{error.what} {how[0].upper()}{how[1:]}."
    return f"{short(answer)}: {how}, not {kind_in_words(answer)}."


def depth(value: Nested) -> int:
    """0 for a number, 1 for a list of numbers, 2 for a list of lists."""
    if not isinstance(value, list):
        return 0
    return 1 + max(map(depth, value), default=0)


def kind_in_words(value: Any) -> str:
    """What was written, as a learner calls it: "a number", "text", "a list"."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return str(value)
    kinds: tuple[tuple[Any, str], ...] = (
        ((int, float), "a number"),
        (str, "text"),
        (Mapping, "a dict"),
        ((set, frozenset), "a set"),
        (Sequence, "a list"),
    )
    names = (words for types, words in kinds if isinstance(value, types))
    return next(names, "a function" if callable(value) else f"a {type(value).__name__}")


def _fits(got: Nested, wanted: Nested) -> bool:
    """Whether only numbers can be wrong; a number may stand for a list that holds nothing else."""
    if not isinstance(wanted, list):
        return not isinstance(got, list)
    if not isinstance(got, list):
        return len(wanted) == 1
    deep = depth(wanted) > 1  # how much each inner list holds is part of the answer
    return len(got) == len(wanted) and depth(got) == (2 if deep else 1)


def _write(wanted: Nested, own: Sequence[float], each: str) -> str:
    """What to write, with the learner's `own` numbers for an example where they suffice."""
    if not isinstance(wanted, list):
        example = own[0] if len(own) == 1 else _EXAMPLE[0]
        return f"write a number, as in {example:g}"
    count = len(wanted)
    if depth(wanted) > 1:
        return f"write one list for each {each}, {count} in all, as in {_example(_LISTS, count)}"
    numbers = [f"{one:g}" for one in (own if len(own) == count else _EXAMPLE)]
    things = "one number" if count == 1 else f"{count} numbers"
    return f"write a list of {things}, as in {_example(numbers, count)}"


def _example(elements: Sequence[str], count: int) -> str:
    more = ["..."] if count > len(elements) else []
    return f"[{', '.join([*elements[:count], *more])}]"


def _difference(answer: Any, got: Nested, wanted: Nested) -> str:
    """What was written instead, as exactly as it takes to see the difference."""
    value = plain(answer)
    if not isinstance(got, list) or not isinstance(wanted, list):
        return kind_in_words(answer)
    levels = depth(got)
    if depth(wanted) == 1 and levels > 1:
        nothing = not isinstance(value, str) and None in value
        return "a list with None in it" if nothing else "a list with lists in it"
    if levels > 2:
        return "lists with lists in them"
    things = ("number", "list")[levels - 1]
    return f"a list of {len(got)} {things}{'s' * (len(got) != 1)}"
