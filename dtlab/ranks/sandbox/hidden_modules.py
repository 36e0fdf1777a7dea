"""Disables library code that a graded answer must not use.

In the sandbox, a learner's code runs in processes that have imported the library. The solution of
an exercise, and the modules that judge answers, must not be usable there, under any name or
import:

    its functions     get new code that raises, which affects every reference to them
    its constants     are deleted, because they may hold right answers
    its source        is hidden (isolation.py hides the files and their compiled forms)
    allowed names     stay, with all that they use in this module or below this package

    hide_modules({"dtlab.parallel.tensor.regions": ["copy_to_region"]})
    hide_modules({"dtlab.units": ["unit05.gather.Gathers.on_rank"]})

A class of which only a function is allowed keeps this function, and no other that it does not use.
Classes themselves always stay, because data that are sent to ranks refer to them by name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import linecache
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = ["AllowedNames", "Kept", "Removal", "files_of", "hide_modules", "prepared"]

# The full name of each hidden module or package, and the names in it that stay allowed.
AllowedNames = Mapping[str, Collection[str]]
_SIMPLE = {str, int, float, bool, bytes, complex, type(None), CodeType}  # they hold nothing
_MESSAGE = "message"  # stands for the message of a function in code that all of them share


def hide_modules(modules: AllowedNames) -> None:
    """Make all functions of these modules raise, permanently in this process and its children.

    Allowed functions stay, with all that they use in their module, or in modules of their package.
    Call this before the modules' files are hidden, because it imports them.
    """
    for name, allowed in modules.items():
        prepared(importlib.import_module(name), tuple(allowed)).carry_out()
    linecache.clearcache()


@functools.cache
def prepared(module: ModuleType, allowed: tuple[str, ...]) -> Removal:
    """What `hide_modules` does to a module or package; found before a fork, it saves 50 ms."""
    return Removal(Kept(module, allowed))


def files_of(modules: AllowedNames) -> list[str]:
    """The source files of these modules and their compiled forms, and the folders of packages."""
    files = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            files += spec.submodule_search_locations
        elif spec is not None and spec.origin:
            source = Path(spec.origin)
            compiled = (source.parent / "__pycache__").glob(f"{source.stem}.*")
            files += [str(source), *map(str, compiled)]
    return files


class Kept:
    """What stays of a hidden module, or of all modules in a hidden package.

    These are the allowed objects, and all objects that their code names. `value in kept` compares
    identities. `modules` are the hidden modules by name, `partly` the classes of which only some
    functions are allowed.
    """

    def __init__(self, module: ModuleType, allowed: Collection[str]) -> None:
        self.modules = {each.__name__: each for each in (module, *_modules_below(module))}
        found = [self._owner(f"{module.__name__}.{path}") for path in allowed]
        self.partly = {owner for owner, _ in found if isinstance(owner, type)}
        self._objects: dict[int, Any] = {}  # by identity; while they are here, it is unique
        self._searched: set[tuple[int, frozenset[str]]] = set()
        for owner, inner in found:
            if isinstance(owner, type) or self.defines(vars(owner).get(inner), owner.__name__):
                self._keep_names(owner, frozenset([inner]))

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._objects

    def __iter__(self) -> Iterator[Any]:
        return iter(self._objects.values())

    def defines(self, value: Any, module: str = "") -> bool:
        """Whether a function or class was defined in this module, in any hidden one if empty."""
        home = getattr(value, "__module__", None)
        return home == module if module else home in self.modules

    def _owner(self, path: str) -> tuple[Any, str]:
        """The module or class in which a dotted name is looked up, and the name's last part."""
        before, _, last = path.rpartition(".")
        if before in self.modules:
            return self.modules[before], last
        owner, name = self._owner(before)
        return getattr(owner, name), last

    def _keep_names(self, owner: Any, names: frozenset[str]) -> None:
        """Keep the attributes with these names, of a hidden module or of a class in `partly`."""
        if (id(owner), names) in self._searched:
            return
        self._searched.add((id(owner), names))
        for home in owner.__mro__ if isinstance(owner, type) else (owner,):
            for name in names & vars(home).keys():
                value = vars(home)[name]
                self._keep(value, names)
                if isinstance(owner, type):  # its functions can name others, as in cls.build()
                    for function in filter(_is_function, [value, *_held(value)]):
                        self._keep_names(owner, _names(function.__code__))

    def _keep(self, value: Any, names: frozenset[str]) -> None:
        """Keep a value that code with these `names` uses, and all that it uses itself."""
        is_module = isinstance(value, ModuleType)
        is_part = isinstance(value, type) and value in self.partly
        if is_part or (is_module and self.modules.get(value.__name__) is value):
            self._keep_names(value, names)
        elif not is_module and value not in self:
            self._objects[id(value)] = value
            for inner in self._held_by_kept(value):
                self._keep(inner, frozenset())
            if isinstance(value, FunctionType) and self.defines(value):
                used = _names(value.__code__)
                for name in used & value.__globals__.keys():
                    self._keep(value.__globals__[name], used)
                for name in used & self.modules.keys():  # imported in the function
                    self._keep_names(self.modules[name], used)

    def held(self, value: Any) -> Iterable[Any]:
        """The objects in a value: members of hidden classes, items, and what functions enclose."""
        if not isinstance(value, type):
            return _held(value)
        return (*value.__mro__[1:], *vars(value).values()) if self.defines(value) else ()

    def _held_by_kept(self, value: Any) -> Iterable[Any]:
        """The objects in a value that stays; also those in an instance of a hidden class."""
        if not self.defines(type(value)):
            return self.held(value)
        return (*self.held(value), type(value), *getattr(value, "__dict__", {}).values())


def _modules_below(module: ModuleType) -> Iterator[ModuleType]:
    """Import all modules below a package."""
    for inner in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        yield importlib.import_module(inner.name)


class Removal:
    """The functions that get new code, and the constants that are deleted."""

    def __init__(self, kept: Kept) -> None:
        homes = [*kept.modules.values(), *kept.partly]
        attributes = [
            (home, name, value)
            for home in homes
            for name, value in vars(home).items()
            if not name.startswith(("__", "_abc_")) and value not in kept
        ]
        self._constants = [(home, name) for home, name, value in attributes if _is_constant(value)]
        self.functions: list[tuple[FunctionType, CodeType]] = []
        self._caches: list[Any] = []
        used = {id(cell) for value in kept for cell in _cells(value)}
        self._cells = list[CellType]()
        found: dict[int, Any] = {}
        todo = [value for _, _, value in attributes]
        while todo:
            value = todo.pop()
            if type(value) in _SIMPLE or id(value) in found:
                continue
            found[id(value)] = value
            todo += kept.held(value)
            if not kept.defines(value) or value in kept:
                continue
            if isinstance(value, FunctionType) and not _is_generated(value):
                self.functions.append((value, _refusal(value)))
                self._cells += [cell for cell in _filled(value) if id(cell) not in used]
            elif hasattr(value, "cache_clear"):
                self._caches.append(value)

    def carry_out(self) -> None:
        """Change the functions, and forget their defaults and what they enclose."""
        for function, code in self.functions:
            function.__code__ = code
            function.__defaults__ = function.__kwdefaults__ = None
        for cell in self._cells:
            with contextlib.suppress(ValueError):  # it is empty
                del cell.cell_contents
        for cached in self._caches:
            cached.cache_clear()
        for home, name in self._constants:
            with contextlib.suppress(AttributeError):  # it was deleted before
                delattr(home, name)


def _is_generated(function: FunctionType) -> bool:
    """Whether a function has no source, as the methods that a dataclass generates."""
    return function.__code__.co_filename.startswith("<")


def _is_constant(value: Any) -> bool:
    """Whether a value is neither a function, class or module, nor one of their descriptors."""
    is_code = isinstance(value, type | ModuleType | BuiltinFunctionType)
    return (
        not is_code and not hasattr(type(value), "__get__") and not hasattr(value, "__wrapped__")
    )


def _held(value: Any) -> Iterable[Any]:
    """The objects in a function, a descriptor or a container."""
    found: list[Any] = []
    if isinstance(value, FunctionType):
        if value.__closure__:
            found += [cell.cell_contents for cell in _filled(value)]
        found += value.__defaults__ or ()
        found += (value.__kwdefaults__ or {}).values()
    elif isinstance(value, property):
        found = [value.fget, value.fset, value.fdel]
    elif isinstance(value, staticmethod | classmethod | MethodType):
        found = [value.__func__]
    elif isinstance(value, functools.cached_property | functools.partial):
        found = [value.func]
    elif isinstance(value, dict):
        found = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        found = [*value]
    if (wrapped := getattr(value, "__wrapped__", None)) is not None:
        found.append(wrapped)
    return found


def _cells(value: Any) -> tuple[CellType, ...]:
    """The variables that a function encloses."""
    return value.__closure__ or () if isinstance(value, FunctionType) else ()


def _filled(function: FunctionType) -> Iterator[CellType]:
    """The enclosed variables that have a value."""
    for cell in _cells(function):
        with contextlib.suppress(ValueError):
            _ = cell.cell_contents
            yield cell


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _names(code: CodeType) -> frozenset[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _refusal(function: FunctionType) -> CodeType:
    """Code that raises, with the function's file and names, so that tracebacks show them."""
    path = f"{function.__module__}.{function.__qualname__}"
    message = f"{path} is not available while an answer is graded: write it yourself"
    old, code = function.__code__, _raising(len(function.__code__.co_freevars))
    constants = (message if constant == _MESSAGE else constant for constant in code.co_consts)
    return code.replace(
        co_filename=old.co_filename,
        co_name=old.co_name,
        co_qualname=old.co_qualname,
        co_consts=tuple(constants),
    )


@functools.cache
def _raising(enclosed: int) -> CodeType:
    """Code that raises `_MESSAGE`, for functions that enclose so many variables."""
    free = ", ".join(f"_{number}" for number in range(enclosed))
    namespace: dict[str, Any] = {}
    source = (
        f"def make({free}):\n"
        "    def refuse(*_args, **_named):\n"
        f"        raise RuntimeError({_MESSAGE!r})\n"
        f"        return [{free}]\n"
        "    return refuse\n"
    )
    exec(source, namespace)
    refuse: FunctionType = namespace["make"](*range(enclosed))
    return refuse.__code__
