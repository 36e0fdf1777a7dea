"""Refuses arguments of the wrong kind before a figure or a widget uses them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar

from dtlab.errors import ArgumentError
from dtlab.trace import Trace

__all__ = ["checked"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_SOURCES = {  # where a learner gets an object of this class
    "Trace": "run.trace is one, after run = dtlab.launch(...); with trace=False it is None",
    "Search": "dtlab.predict.plan.search returns one",
}


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, which raises ArgumentError for an argument that does not fit its type hint.

    Numbers are not told apart, and elements of collections are not looked at: the function says
    more about these.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            bound = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{function.__name__}: {error}.{_help(function)}") from None
        hints = _hints(function)
        for name, value in bound.arguments.items():
            if not _fits(value, hints[name]):
                raise ArgumentError(_sentence(function, name, value, hints[name]))
        return function(*args, **kwargs)

    return call


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, localns={"Trace": Trace})


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _fits(value: object, hint: Any) -> bool:
    return any(_is_a(value, kind) for kind in _alternatives(hint))


def _is_a(value: object, hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return hasattr(value, "__float__")  # also the numbers of NumPy and PyTorch
    if kind is Literal:
        return isinstance(value, str)
    if not isinstance(kind, type) or kind is bool or getattr(kind, "_is_protocol", False):
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if _is_collection(kind):
        return hasattr(value, "__iter__") and not isinstance(value, (str, bytes))
    return isinstance(value, kind)


def _sentence(function: Callable[..., Any], name: str, value: object, hint: Any) -> str:
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    expected = " or ".join(dict.fromkeys(map(_in_words, kinds)))
    given = repr(value) if value is None or isinstance(value, str) else _article(type(value))
    sources = [f" {_SOURCES[kind.__name__]}." for kind in kinds
               if getattr(kind, "__name__", "") in _SOURCES]  # fmt: skip
    default = inspect.signature(function).parameters[name].default
    example = f"{default:g}" if isinstance(default, float) else repr(default)
    has_example = default not in (None, inspect.Parameter.empty) and len(example) <= 40
    such_as = f", such as {example}" if has_example else ""
    return (
        f"{function.__name__}: {name} must be {expected}{such_as}, not {given[:60]}."
        f"{''.join(sources) or _help(function)}"
    )


def _in_words(hint: Any) -> str:
    kind = typing.get_origin(hint) or hint
    if kind in (int, float):
        return "a whole number" if kind is int else "a number"
    if kind in (str, Literal):
        return "text"
    if issubclass(kind, Mapping):
        return "a dict"
    return "a list" if _is_collection(kind) else _article(kind)


def _is_collection(kind: type) -> bool:
    """Whether a hint such as `Sequence[str]` or `tuple[int, int]` means that a list fits too."""
    return kind in (list, tuple) or (
        issubclass(kind, Iterable) and kind.__module__ == "collections.abc"
    )


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeiou' else 'a'} {kind.__name__}"


def _help(function: Callable[..., Any]) -> str:
    return f" {function.__name__}? shows all arguments."
