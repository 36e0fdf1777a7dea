"""Written defences: text that a person grades, by a rubric.

Defence(rubric)  ──>  nbgrader's metadata of a text cell  ──>  formgrader, where points are given
                 └──>  the table above that cell, which learners read
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtlab.errors import DtlabError
from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.report import Criterion

__all__ = ["Defence"]


@dataclass(frozen=True)
class Defence:
    """How a part is graded that no program can judge: `rubric` says what earns how many points."""

    rubric: tuple[tuple[float, str], ...]

    @property
    def points(self) -> float:
        """Points that can be had."""
        return sum(points for points, _ in self.rubric)

    @property
    def rows(self) -> list[str]:
        """The rubric as rows of the table in the notebook: "| 2 | the number that decided |"."""
        return [f"| {points:g} | {what} |" for points, what in self.rubric]

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """There is nothing to run. Raises `DtlabError` that says who grades it."""
        raise DtlabError(
            f"{symbol} is graded by hand, so there is nothing to check: write it in the text cell "
            f"{symbol!r}, and look at the table above that for what earns the {self.points:g} "
            "points."
        )
