"""`Bench`: where learners' functions run, on the learner's own machine or in a sandbox.

A check calls `observe` of a bench and judges the observation, in the same way for both benches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dtlab.checks.functions.trials import Observation, Trial, observe
from dtlab.checks.learners import graded_student

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


def warm_up() -> None:
    """Have the warm server import PyTorch's compiler before its next launch.

    The first optimizer or DistributedDataParallel of a process imports the compiler. Ranks that
    find it imported do not lose seconds of an answer's time limit.
    """
    from dtlab.ranks import protocol
    from dtlab.ranks.launch.client import SERVER

    SERVER.share(*protocol.SLOW_MODULES)
