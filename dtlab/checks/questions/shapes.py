"""Shapes of answers: a number, a list of numbers, a list for each rank.

If an answer has the wrong shape, the message says how to write it and does not judge its contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtlab.checks.questions.quantities import Nested, Unreadable, numbers_in, plain, short

__all__ = ["depth", "kind_in_words", "misfit", "rewrite"]

_EXAMPLE = (2.5, 1.0, 4.0)
_LISTS = "[4]", "[5, 6]", "[]"  # no collective gives these, so the example is not a hint


def misfit(answer: Any, got: Nested, wanted: Nested, each: str) -> str:
    """Says how to write an answer, parsed as `got`, in the shape of `wanted`; empty if it fits.

    "[336]: write a number, as in 336, not a list." `each` names what an inner list belongs to:
    "rank".
    """
    if _fits(got, wanted):
        return ""
    kind = _difference(answer, got, wanted)
    return f"{short(answer)}: {_write(wanted, numbers_in(answer), each)}, not {kind}."


def rewrite(error: Unreadable, answer: Any, wanted: Nested, each: str) -> str:
    """Says how to write an answer that cannot be parsed, or that has such an element."""
    if not isinstance(wanted, list):
        return str(error)
    how = _write(wanted, numbers_in(answer), each)
    if isinstance(plain(answer), list | tuple):
        return f"{error.what} {how[0].upper()}{how[1:]}."
    return f"{short(answer)}: {how}, not {kind_in_words(answer)}."


def depth(value: Nested) -> int:
    """Returns 0 for a number, 1 for a list of numbers, 2 for a list of lists."""
    if not isinstance(value, list):
        return 0
    return 1 + max(map(depth, value), default=0)


def kind_in_words(value: Any) -> str:
    """Names the type of a value as a learner would: "a number", "text", "a list"."""
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
    names = (name for types, name in kinds if isinstance(value, types))
    return next(names, "a function" if callable(value) else f"a {type(value).__name__}")


def _fits(got: Nested, wanted: Nested) -> bool:
    """Whether the shape is right; a number also fits a list of one element."""
    if not isinstance(wanted, list):
        return not isinstance(got, list)
    if not isinstance(got, list):
        return len(wanted) == 1
    deep = depth(wanted) > 1  # the lengths of the inner lists are part of the answer
    return len(got) == len(wanted) and depth(got) == (2 if deep else 1)


def _write(wanted: Nested, typed: Sequence[float], each: str) -> str:
    """Says what to write; the example uses the `typed` numbers if their count is right."""
    if not isinstance(wanted, list):
        example = typed[0] if len(typed) == 1 else _EXAMPLE[0]
        return f"write a number, as in {example:g}"
    count = len(wanted)
    if depth(wanted) > 1:
        return f"write one list for each {each}, {count} in all, as in {_example(_LISTS, count)}"
    numbers = [f"{value:g}" for value in (typed if len(typed) == count else _EXAMPLE)]
    things = "one number" if count == 1 else f"{count} numbers"
    return f"write a list of {things}, as in {_example(numbers, count)}"


def _example(elements: Sequence[str], count: int) -> str:
    more = ["..."] if count > len(elements) else []
    return f"[{', '.join([*elements[:count], *more])}]"


def _difference(answer: Any, got: Nested, wanted: Nested) -> str:
    """Describes the shape of the answer, in enough detail to show the difference."""
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
