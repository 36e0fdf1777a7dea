"""Where the answers of learners are run: on the learner's own machine, or behind walls.

A check asks a bench, and judges what it saw; it does not know which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dtlab.grading.checking.trials import Observation, Trial, observe
from dtlab.grading.learners import graded_student

__all__ = ["HERE", "Bench"]


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
