"""What the ranks of a graded answer have of `dtlab.units`, whose modules judge the answers.

An answer that runs in a rank could otherwise import its judge: the right states, the seeds and the
reference solutions. A rank needs only the functions that run an answer there:

    each case's `on_rank`               with all that it uses
    the broken programs of Level III    the notebook shows them, and answers change and call them
    `HELPERS`                           functions that notebooks import for answers

Notebooks have all of `dtlab.units`, because their cells call its examples.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from dtlab.checks.functions.trials import Case
from dtlab.checks.parts import known_parts
from dtlab.checks.programs.broken import Fix
from dtlab.ranks.sandbox.hidden_modules import prepared
from dtlab.ranks.sandbox.isolation import HiddenModules

__all__ = ["judges", "prepare"]

_UNITS = "dtlab.units"
HELPERS = ("unit07.budget.needs_of", "unit08.water.start_of", "unit09.levers.predicted_seconds")


@functools.cache
def judges() -> HiddenModules:
    """Returns the package of the judges, and the names in it that ranks need."""
    package = importlib.import_module(_UNITS)
    needed = set()
    for found in pkgutil.walk_packages(package.__path__, f"{_UNITS}."):
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, type) and issubclass(value, Case):
                needed.add(f"{value.__module__}.{value.__qualname__}.on_rank")
    needed |= {part.check.program for part in known_parts() if isinstance(part.check, Fix)}
    names = (name.removeprefix(f"{_UNITS}.") for name in needed if name.startswith(_UNITS))
    return ((_UNITS, tuple(sorted({*names, *HELPERS}))),)


def prepare() -> None:
    """Finds out what ranks do not have; a warm server does so before it forks sandboxes."""
    for name, allowed in judges():
        prepared(importlib.import_module(name), allowed)
