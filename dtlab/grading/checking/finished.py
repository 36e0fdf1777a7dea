"""Detects calls of library functions that solve the exercise.

What torch.distributed does is in the trace by its names. Other code sends messages and registers
hooks as a learner's does, so the calls themselves have to be seen.

This helps learners on their own machine; a learner who wants to can hide a call from it. When an
assignment is graded, the library's functions are taken away (ranks/sandbox/absent.py).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from dtlab.ranks.sandbox.walls import AbsentModules

__all__ = ["absent_of", "called_by", "finished_calls"]

_NEEDED = "dtlab.trace"  # ranks record with it
_WHY = "finished code does not count, write it yourself"


@contextmanager
def finished_calls(
    *modules: str, refuse: bool = False, allowed: Collection[str] = ()
) -> Iterator[set[str]]:
    """Collects what of these modules' public names is called meanwhile, in any thread.

    A method counts as its class; names that are `allowed` do not count. With `refuse` such a call
    raises RuntimeError, before it does anything. Whoever takes the profiler away that looks for
    the calls is named in their place.
    """
    names: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        home = frame.f_globals.get("__name__")
        if event == "call" and home in modules and not _is_import(frame):
            name = frame.f_code.co_qualname.partition(".")[0]
            public = frame.f_globals.get("__all__", (name,))
            if name not in public or name in allowed:
                return
            names.add(f"{home}.{name}")
            if refuse:
                raise RuntimeError(f"{home}.{name} does the work for you: {_WHY}")

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield names
    finally:
        if sys.getprofile() is not look:
            names.add("what you do after sys.setprofile")
        threading.setprofile(None)
        sys.setprofile(None)


def absent_of(parts: Iterable[Any]) -> AbsentModules:
    """The library's functions that code of these parts must not find: modules, and what stays.

    A name stays if every part that forbids the module allows it.
    """
    found: dict[str, set[str]] = {}
    for part in parts:
        check = getattr(part.check, "check", part.check)
        for trial in getattr(check, "trials", _no_trials)(1):
            for case in trial.cases:
                for module in case.finished:
                    if module.startswith("dtlab.") and not module.startswith(_NEEDED):
                        found.setdefault(module, {*case.allowed}).intersection_update(case.allowed)
    return tuple((module, tuple(sorted(names))) for module, names in sorted(found.items()))


def _no_trials(_: int) -> Iterable[Any]:
    return ()


def _is_import(frame: FrameType) -> bool:
    """Whether a module is being imported, which runs its body, and those of its classes."""
    spec = frame.f_globals.get("__spec__")
    return getattr(spec, "_initializing", False) or not frame.f_code.co_flags & CO_OPTIMIZED


def called_by(results: Iterable[Any]) -> str:
    """A name that results of ranks have in `finished`; empty where none of them has one."""
    found = {name for result in results for name in getattr(result, "finished", ())}
    return min(found)[:100] if found else ""
