"""`Bench`: where learners' functions run, on the learner's own machine or in a sandbox.

A check calls `observe` of a bench and judges the observation, in the same way for both benches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from dtlab.grading.checking.trials import Observation, Trial, observe
from dtlab.grading.learners import graded_student

__all__ = ["HERE", "Bench", "warm_up"]


class Bench(Protocol):
    """Runs functions of answers on ranks."""

    @property
    def student(self) -> str | None:
        """The id of the student who submitted the answer, or None if it is not being graded."""
        ...

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """Runs `fn` in a trial and returns the observation."""
        ...


class _Here:
    """The learner's own machine."""

    @property
    def student(self) -> str | None:
        """None, or the student, if plain nbgrader runs the student's notebook."""
        return graded_student()

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        return observe(trial, fn)


HERE = _Here()


# Imports slow modules in advance, so that they do not count towards an answer's time limit -------

_LIMIT, _PAUSE = 60.0, 0.2  # seconds for the imports; seconds until the server reacts to them


def warm_up() -> None:
    """Makes the warm server import PyTorch's compiler, so that ranks need not import it.

    The first optimizer or DistributedDataParallel of a process imports the compiler, which takes
    seconds.
    """
    from dtlab.ranks.launch.launcher import launch

    for _ in range(3):
        if launch(_compiler_is_there, world_size=1, trace=False, timeout=_LIMIT).values[0]:
            return
        time.sleep(_PAUSE)


def _compiler_is_there() -> bool:
    """Runs on a rank: imports the compiler and returns whether it was already imported."""
    import importlib
    import sys

    imported = "torch._dynamo" in sys.modules
    importlib.import_module("torch._dynamo")
    return imported
