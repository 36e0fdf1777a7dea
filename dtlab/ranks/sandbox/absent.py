"""Disables the library's own solution of an exercise for the code that is graded.

In the sandbox, a learner's code runs in processes that have imported the library. The solution of
an exercise must not be usable there, under any name or import:

    its functions     get new code that raises, which affects every reference to them
    its source        is hidden (walls.py hides the file and its compiled form)
    allowed names     stay, with the functions of the same module that they use

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
    """Make all functions of these modules raise, permanently in this process and its children.

    Allowed functions stay, with the functions of their module that they use. Call this before the
    modules' files are hidden, because it imports them.
    """
    for name, allowed in absent.items():
        module = importlib.import_module(name)
        needed = _needed(module, allowed)
        for defined, value in _definitions(module).items():
            if defined not in needed:
                for function in _functions(value):
                    function.__code__ = _refusal(function)
    linecache.clearcache()


def files_of(absent: Absent) -> list[str]:
    """The source files of these modules, and their compiled forms."""
    files = []
    for name in absent:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            source = Path(spec.origin)
            compiled = (source.parent / "__pycache__").glob(f"{source.stem}.*")
            files += [str(source), *map(str, compiled)]
    return files


def _definitions(module: ModuleType) -> dict[str, Any]:
    """The objects that a module defines itself, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    }


def _needed(module: ModuleType, allowed: Collection[str]) -> set[str]:
    """The allowed names, and the names of the module that they use, directly or indirectly."""
    defined, needed = _definitions(module), set[str]()
    todo = set(allowed) & set(defined)
    while todo:
        name = todo.pop()
        needed.add(name)
        used = {base.__name__ for base in getattr(defined[name], "__mro__", ())}
        for function in _functions(defined[name]):
            used |= _names(function.__code__)
        todo |= used & set(defined) - needed
    return needed


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the functions in `value`, a function or a class, including those inside decorators."""
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
    """Code that raises, with the function's file and names, so that tracebacks show it."""
    path = f"{function.__module__}.{function.__qualname__}"
    message = f"{path} is not available while an answer is graded: write it yourself"
    free = [f"_{number}" for number in range(len(function.__code__.co_freevars))]
    namespace: dict[str, Any] = {}
    source = (
        f"def make({', '.join(free)}):\n"
        "    def refuse(*_args, **_named):\n"
        f"        raise RuntimeError({message!r})\n"
        f"        return [{', '.join(free)}]\n"
        "    return refuse\n"
    )
    exec(compile(source, function.__code__.co_filename, "exec"), namespace)
    refuse: FunctionType = namespace["make"](*free)
    old = function.__code__
    return refuse.__code__.replace(co_name=old.co_name, co_qualname=old.co_qualname)
