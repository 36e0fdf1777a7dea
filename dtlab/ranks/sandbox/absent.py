"""Disables the library's own solution of an exercise for the code that is graded.

Behind walls a learner's code runs in processes that have the library in memory. What a part asks
for must not be found there, under whatever name it is called or imported:

    its functions     get another code, which raises: every reference to them is affected
    its source        is not shown (walls.py hides the file and its compiled form)
    what is allowed   stays, and what that calls in the same module

    take_away({"dtlab.parallel.tensor.regions": ["copy_to_region"]})
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import linecache
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["Absent", "files_of", "take_away"]

Absent = Mapping[str, Collection[str]]  # a module's full name: names in it that are allowed


def take_away(absent: Absent) -> None:
    """Have all functions of these modules refuse, for good in this process and its children.

    Functions that are allowed stay, with those of their module that they use. The modules must be
    importable, so this comes before their files are hidden.
    """
    for name, allowed in absent.items():
        module = importlib.import_module(name)
        kept = _needed(module, allowed)
        for own, value in _definitions(module).items():
            if own not in kept:
                for function in _functions(value):
                    function.__code__ = _refusal(function)
    linecache.clearcache()


def files_of(absent: Absent) -> list[str]:
    """The files in which these modules can be read: source, and what Python compiled of it."""
    found = []
    for name in absent:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            source = Path(spec.origin)
            compiled = (source.parent / "__pycache__").glob(f"{source.stem}.*")
            found += [str(source), *map(str, compiled)]
    return found


def _definitions(module: ModuleType) -> dict[str, Any]:
    """What a module defines itself, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }


def _needed(module: ModuleType, allowed: Collection[str]) -> set[str]:
    """The allowed names, and those of the module that they use, directly or by way of others."""
    own, found = _definitions(module), set[str]()
    todo = set(allowed) & set(own)
    while todo:
        name = todo.pop()
        found.add(name)
        used = {base.__name__ for base in getattr(own[name], "__mro__", ())}
        for function in _functions(own[name]):
            used |= _names(function.__code__)
        todo |= used & set(own) - found
    return found


def _names(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _functions(value: Any) -> Iterator[FunctionType]:
    """A function; those of a class; those behind decorators."""
    if isinstance(value, FunctionType):
        yield value
    if isinstance(value, type):
        for inner in vars(value).values():
            of_another = isinstance(inner, type) and inner.__module__ != value.__module__
            yield from () if of_another else _functions(inner)
    elif isinstance(value, property):
        for inner in (value.fget, value.fset, value.fdel):
            yield from _functions(inner)
    elif isinstance(value, staticmethod | classmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, functools.cached_property):
        yield from _functions(value.func)
    if (wrapped := getattr(value, "__wrapped__", None)) is not None:
        yield from _functions(wrapped)


def _refusal(function: FunctionType) -> CodeType:
    """Code that raises, with the names of a function's own: errors then show where it was."""
    what = f"{function.__module__}.{function.__qualname__}"
    message = f"{what} is not there while an answer is graded: write it yourself"
    free = [f"_{number}" for number in range(len(function.__code__.co_freevars))]
    made: dict[str, Any] = {}
    source = (
        f"def make({', '.join(free)}):\n"
        "    def refuse(*_args, **_named):\n"
        f"        raise RuntimeError({message!r})\n"
        f"        return [{', '.join(free)}]\n"
        "    return refuse\n"
    )
    exec(compile(source, function.__code__.co_filename, "exec"), made)
    refuse: FunctionType = made["make"](*free)
    old = function.__code__
    return refuse.__code__.replace(co_name=old.co_name, co_qualname=old.co_qualname)
