"""Detects calls of library functions that solve the exercise.

The trace names the operations of torch.distributed. Other library code sends messages and uses
hooks as a learner's code does, so a profiler must detect its calls.

This is feedback for learners on their own machine, and a learner can evade it. When an assignment
is graded, the library's functions are hidden (ranks/sandbox/hidden_modules.py).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from dtlab.ranks.sandbox.isolation import HiddenModules

__all__ = ["called_by", "finished_calls", "hidden_modules_of"]

_NEEDED = "dtlab.trace"  # ranks record with it
_WHY = "finished code does not count, write it yourself"


@contextmanager
def finished_calls(
    *modules: str, refuse: bool = False, allowed: Collection[str] = ()
) -> Iterator[set[str]]:
    """Collects the public names of these modules that any thread calls inside the context.

    A method counts as its class; names that are `allowed` do not count. With `refuse` such a call
    raises RuntimeError before it does anything. If code removes the profiler that detects the
    calls, the set contains a phrase about this.
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


def hidden_modules_of(parts: Iterable[Any]) -> HiddenModules:
    """Returns the library modules that are hidden from learners' code for these parts.

    Each module comes with the names in it that remain available. A name remains available if
    every case that forbids the module allows it.
    """
    stays: dict[str, set[str]] = {}
    for part in parts:
        check = getattr(part.check, "check", part.check)
        for trial in getattr(check, "trials", _no_trials)(1):
            for case in trial.cases:
                for module in case.finished:
                    if module.startswith("dtlab.") and not module.startswith(_NEEDED):
                        stays.setdefault(module, {*case.allowed}).intersection_update(case.allowed)
    return tuple((module, tuple(sorted(names))) for module, names in sorted(stays.items()))


def _no_trials(_: int) -> Iterable[Any]:
    return ()


def _is_import(frame: FrameType) -> bool:
    """Whether this is a call by an import, which runs the bodies of a module and its classes."""
    spec = frame.f_globals.get("__spec__")
    return getattr(spec, "_initializing", False) or not frame.f_code.co_flags & CO_OPTIMIZED


def called_by(results: Iterable[Any]) -> str:
    """Returns a name in `finished` of the ranks' results; empty if there is none."""
    names = {name for result in results for name in getattr(result, "finished", ())}
    return min(names)[:100] if names else ""
