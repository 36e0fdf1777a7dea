"""Written defences: text that a person grades, by a rubric.

Defence(rubric)  ──>  nbgrader's metadata of a text cell  ──>  formgrader, where points are given
                 ├──>  the table above that cell, which learners read
                 └──>  form(): the same in formgrader, to click on
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.report import Criterion
from dtlab.errors import DtlabError

__all__ = ["Defence"]


@dataclass(frozen=True)
class Defence:
    """A written answer that a person grades; `rubric` lists the points and what earns them."""

    rubric: tuple[tuple[float, str], ...]

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(points for points, _ in self.rubric)

    @property
    def rows(self) -> list[str]:
        """The rubric as rows of the table in the notebook: "| 2 | the number that decided |"."""
        return [f"| {points:g} | {description} |" for points, description in self.rubric]

    def form(self, points: float) -> str:
        """Returns the rubric as HTML for formgrader, in a cell worth `points`: one box per row.

        A tick enters the sum as the score, and the earned rows into the comment, which the learner
        reads. The grader can change both by hand afterwards.
        """
        worth = [points * share / self.points for share, _ in self.rubric]
        rows = "".join(
            f'<div><label><input type="checkbox" data-points="{most:g}"> '
            f"{most:g}: <span>{html.escape(description)}</span></label></div>"
            for most, (_, description) in zip(worth, self.rubric, strict=True)
        )
        return f'<div class="well well-sm">{rows}<script>{_FORM}</script></div>'

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Raises `DtlabError`, which says that a person grades this part."""
        raise DtlabError(
            f"{symbol} is graded by hand, so there is nothing to check. Write your answer in the "
            f"text cell {symbol!r}. The table above it says what earns the {self.points:g} points."
        )


# Runs in formgrader's page, where $ is jQuery. Formgrader saves a score or a comment when it
# changes. The script reads from the comment, which loads after the page, which boxes are ticked.
_FORM = """
{
  const form = document.currentScript.parentElement;
  $(() => {
    const cell = form.closest(".nbgrader_cell");
    const score = cell.querySelector(".score"), comment = cell.querySelector(".comment");
    const rows = [...form.querySelectorAll("label")].map((label) => {
      const box = label.querySelector("input"), most = Number(box.dataset.points);
      const said = (points) => `${points} of ${most}: ${label.querySelector("span").textContent}`;
      return { box, most, full: said(most), none: said(0) };
    });
    const lines = () => comment.value.split("\\n").filter((line) => line.trim());
    $(document).ajaxComplete(() => {
      for (const row of rows) row.box.checked = lines().includes(row.full);
    });
    form.addEventListener("change", (event) => {
      event.stopPropagation();
      const ours = rows.flatMap((row) => [row.full, row.none]);
      const own = lines().filter((line) => !ours.includes(line));
      const earned = rows.map((row) => (row.box.checked ? row.most : 0));
      const told = rows.map((row) => (row.box.checked ? row.full : row.none));
      comment.value = [...told, ...own].join("\\n\\n");
      score.value = Number(earned.reduce((sum, one) => sum + one, 0).toFixed(4));
      $(score).trigger("change");
      $(comment).trigger("change");
    });
  });
}
"""
