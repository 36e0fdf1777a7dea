"""Statistics of a class by part and by criterion, as a table and a figure.

    dtlab statistics week-1 --figure lost.png

It reads what `dtlab grade` has kept in verdicts/, and judges nothing anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from dtlab.errors import DtlabError
from dtlab.grading.classroom import verdicts
from dtlab.grading.classroom.lines import clean, fitted
from dtlab.grading.judging.judge import PartVerdict
from dtlab.grading.settings import course_folder

if TYPE_CHECKING:
    from dtlab.show.drawing.style import Figure

__all__ = ["CriterionCount", "PartStatistics", "figure_of", "statistics", "statistics_of"]


_LOST = "#B3261E"  # as reports show it


@dataclass(frozen=True)
class CriterionCount:
    """How many of a class earned a criterion, lost it, or had it blocked by another."""

    name: str
    points: float
    earned: int
    lost: int
    blocked: int
    message: str  # that of those who lost it, the most frequent one

    @property
    def missed(self) -> float:
        """The share of the class without these points, 0 to 1."""
        return (self.lost + self.blocked) / max(1, self.earned + self.lost + self.blocked)


@dataclass(frozen=True)
class PartStatistics:
    """The scores of a class in one part, and its criteria."""

    part: str
    max_score: float
    scores: tuple[float, ...]
    criteria: tuple[CriterionCount, ...]


def statistics(
    assignment: str, *, course: Path | None = None, figure: Path | None = None
) -> Iterator[str]:
    """The lines of the table; writes the figure to `figure`, as PNG, if that is given.

    Raises `DtlabError` where nothing of the assignment has been graded.
    """
    folder = course_folder(course)
    records = list(verdicts.read_all(folder, assignment))
    if not records:
        raise DtlabError(
            f"nothing of {assignment!r} has been graded in {folder}: run dtlab grade {assignment}."
        )
    found = statistics_of(records)
    yield from _table(found, len(records))
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(figure_of(assignment, found).to_png())
        yield f"\nThe figure is in {figure}."


def statistics_of(records: Sequence[verdicts.Record]) -> list[PartStatistics]:
    """The statistics of each part, in the order of the notebooks."""
    names = dict.fromkeys(name for record in records for name in record.parts)
    return [
        _of_part(name, [record.parts[name] for record in records if name in record.parts])
        for name in names
    ]


def _of_part(name: str, judged: Sequence[PartVerdict]) -> PartStatistics:
    # If an answer could not be taken, its report has the single criterion "answer".
    rules = {one.name: one.points for part in judged for one in part.criteria}
    without = [part for part in judged if [one.name for one in part.criteria] == ["answer"]]
    counts = []
    for rule, points in rules.items():
        if rule == "answer" and len(rules) > 1:
            continue
        found = [one for part in judged for one in part.criteria if one.name == rule]
        states = [one.status for one in found] + ["lost"] * (len(without) * (rule != "answer"))
        messages = [one.message for one in found if one.status == "lost"]
        most = max(messages, key=messages.count, default="")
        earned, lost, blocked = (states.count(state) for state in ("ok", "lost", "blocked"))
        counts.append(CriterionCount(rule, points, earned, lost, blocked, most))
    scores = tuple(part.score for part in judged)
    return PartStatistics(name, judged[0].max_score, scores, tuple(counts))


def _table(found: Sequence[PartStatistics], students: int) -> Iterator[str]:
    yield f"{students} submission{'s' * (students != 1)}"
    width = max(len(one.name) for part in found for one in part.criteria) + 2
    for part in found:
        yield ""
        yield (
            f"{part.part}   mean {mean(part.scores):.2f} of {part.max_score:g}, median "
            f"{median(part.scores):g}, all points {part.scores.count(part.max_score)} times"
        )
        for one in sorted(part.criteria, key=lambda one: -one.missed):
            first = clean((one.message.splitlines() or [""])[0])
            counts = f"{one.earned:>4} earned {one.lost:>4} lost {one.blocked:>4} blocked"
            yield f"  {fitted(one.name, width)}{counts}   {first}"[:160].rstrip()


def figure_of(assignment: str, found: Sequence[PartStatistics]) -> Figure:
    """A bar for each criterion: the share of the class that lost it, and had it blocked."""
    from dtlab.show.drawing.style import INK, MUTED, Figure

    bars = [(part.part, one) for part in found for one in part.criteria]
    height = 0.28 * (len(bars) + len(found))
    heading = f"{assignment}: which points the class misses"
    worst_part, worst = max(bars, key=lambda bar: bar[1].missed)
    figure = Figure(
        9.0, height + 1.2,
        alt_text=f"{heading}. Most often missed: {worst.name} of {worst_part}, by "
        f"{100 * worst.missed:.0f} % of the class.",
    )  # fmt: skip
    figure.heading(heading, "share of the class; dark: lost, light: blocked by another criterion")
    axes = figure.add_axes((0.33, 0.5 / (height + 1.2), 0.62, height / (height + 1.2)))
    place, shown = 0.0, ""
    for part, one in bars:
        if part != shown:
            title = axes.text(-2, -place, part, ha="right", va="center", fontsize=8, color=INK)
            title.set_fontweight("bold")
            place, shown = place + 1, part
        total = max(1, one.earned + one.lost + one.blocked)
        lost, blocked = 100 * one.lost / total, 100 * one.blocked / total
        axes.barh(-place, lost, height=0.7, color=_LOST)
        axes.barh(-place, blocked, left=lost, height=0.7, color=_LOST, alpha=0.35)
        axes.text(-2, -place, one.name, ha="right", va="center", fontsize=8, color=MUTED)
        axes.text(lost + blocked + 1, -place, f"{lost + blocked:.0f} %", va="center", fontsize=7)
        place += 1
    axes.set_xlim(0, 108)
    axes.set_ylim(-place + 0.4, 0.6)
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.set_facecolor("none")
    axes.set_xlabel("% of the class", fontsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure
