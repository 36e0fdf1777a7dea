"""`Bench`: where learners' functions run, on the learner's own machine or in a sandbox.

A check asks a bench, and judges what it saw; it does not know which one it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from dtlab.grading.checking.trials import Observation, Trial, observe
from dtlab.grading.learners import graded_student

__all__ = ["HERE", "Bench", "warm_up"]


class Bench(Protocol):
    """Runs the function of an answer on ranks, and knows whose answer it is."""

    @property
    def student(self) -> str | None:
        """Who handed the answer in, where it is being graded."""
        ...

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """What is seen when `fn` goes through a trial."""
        ...


class _Here:
    """The learner's own machine."""

    @property
    def student(self) -> str | None:
        """Nobody, as a rule; the student whose notebook plain nbgrader runs."""
        return graded_student()

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """See `trials.observe`."""
        return observe(trial, fn)


HERE = _Here()


# Has what is slow to import ready for ranks, so that it does not count as an answer's time -------

_LIMIT, _PAUSE = 60.0, 0.2  # seconds for imports; that a server needs to hear of them


def warm_up() -> None:
    """Have the server of ranks import PyTorch's compiler, once and not in every rank.

    The first optimizer that a rank makes imports it, and so does the first
    DistributedDataParallel: that takes seconds.
    """
    from dtlab.ranks.launch.launcher import launch

    for _ in range(3):
        if launch(_compiler_is_there, world_size=1, trace=False, timeout=_LIMIT).values[0]:
            return
        time.sleep(_PAUSE)


def _compiler_is_there() -> bool:
    """Runs on a rank."""
    import importlib
    import sys

    found = "torch._dynamo" in sys.modules
    importlib.import_module("torch._dynamo")
    return found
