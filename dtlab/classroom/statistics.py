"""Statistics of a class by part, by criterion and by known mistake, as a table and a figure.

    dtlab statistics week-1 --figure lost.png

It reads the records of `dtlab grade` in verdicts/ and does not judge again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from dtlab.classroom import verdicts
from dtlab.classroom.judging.judge import PartVerdict
from dtlab.classroom.lines import LONGEST_NAME, clean, fitted
from dtlab.classroom.settings import course_folder
from dtlab.errors import DtlabError

if TYPE_CHECKING:
    from dtlab.show.drawing.style import Figure

__all__ = ["CriterionCount", "PartStatistics", "figure_of", "statistics", "statistics_of"]


_LOST = "#B3261E"  # the colour of "lost" in reports
_WIDEST = 160  # columns of a line of the table
_MANY = 3  # most mistakes below a criterion, and most names in a line


@dataclass(frozen=True)
class CriterionCount:
    """The number of students who earned a criterion, lost it, had it blocked, or left it open.

    `mistakes` are the known mistakes that lost it, each with the number of students, the most
    frequent first. `unmatched` are the students who lost it by no known mistake.
    """

    name: str
    points: float
    earned: int
    lost: int
    blocked: int
    message: str  # the most frequent message of lost points
    open: int = 0
    mistakes: tuple[tuple[str, int], ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def missed(self) -> float:
        """The share of the class without these points, 0 to 1."""
        missed = self.lost + self.blocked + self.open
        return missed / max(1, self.earned + missed)


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
    """Yields the lines of the table; writes the figure to `figure`, as PNG, if given.

    Raises `DtlabError` if no submission of the assignment has been graded.
    """
    folder = course_folder(course)
    records = list(verdicts.read_all(folder, assignment))
    if not records:
        raise DtlabError(
            f"no submission of {assignment!r} has been graded in {folder}: run dtlab grade "
            f"{assignment}."
        )
    parts = statistics_of(records)
    yield from _table(parts, len(records))
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(figure_of(assignment, parts).to_png())
        yield f"\nThe figure is in {figure}."


def statistics_of(records: Sequence[verdicts.Record]) -> list[PartStatistics]:
    """Computes the statistics of each part, in the order of the notebooks."""
    names = dict.fromkeys(name for record in records for name in record.parts)
    return [
        _of_part(name, [
            (record.student, record.parts[name]) for record in records if name in record.parts
        ])
        for name in names
    ]  # fmt: skip


def _of_part(name: str, of_students: Sequence[tuple[str, PartVerdict]]) -> PartStatistics:
    judged = [part for _, part in of_students]
    rules = {
        criterion.name: criterion.points
        for part in judged
        for criterion in part.criteria
        if criterion.points
    }
    counts = []
    for rule, points in rules.items():
        if rule == "answer" and len(rules) > 1:
            continue
        criteria = [
            criterion for part in judged for criterion in part.criteria if criterion.name == rule
        ]
        messages = [criterion.message for criterion in criteria if criterion.status == "lost"]
        most = max(messages, key=messages.count, default="")
        states = [criterion.status for criterion in criteria]
        earned, blocked, left = (states.count(state) for state in ("ok", "blocked", "open"))
        losses = list(_losses(rule, of_students))
        mistakes = Counter(mistake for _, mistake in losses if mistake).most_common()
        unmatched = tuple(student for student, mistake in losses if not mistake)
        counts.append(CriterionCount(
            rule, points, earned, len(losses), blocked, most, left, tuple(mistakes), unmatched
        ))  # fmt: skip
    scores = tuple(part.score for part in judged)
    return PartStatistics(name, judged[0].max_score, scores, tuple(counts))


def _losses(
    rule: str, of_students: Sequence[tuple[str, PartVerdict]]
) -> Iterator[tuple[str, str]]:
    """Yields each student who lost this criterion, with the known mistake, or ""."""
    for student, part in of_students:
        # If an answer could not be used, its report has the single criterion "answer".
        unusable = [criterion.name for criterion in part.criteria] == ["answer"]
        for criterion in part.criteria:
            if criterion.status == "lost" and (unusable or criterion.name == rule):
                yield student, criterion.mistake


def _table(parts: Sequence[PartStatistics], students: int) -> Iterator[str]:
    yield f"{students} submission{'s' * (students != 1)}"
    width = max(len(criterion.name) for part in parts for criterion in part.criteria) + 2
    for part in parts:
        yield ""
        yield (
            f"{part.part}   mean {mean(part.scores):.2f} of {part.max_score:g}, median "
            f"{median(part.scores):g}, all points {part.scores.count(part.max_score)} times"
        )
        for criterion in sorted(part.criteria, key=lambda criterion: -criterion.missed):
            first = _first_line(criterion.message)
            counts = (
                f"{criterion.earned:>4} earned {criterion.lost:>4} lost "
                f"{criterion.blocked:>4} blocked {criterion.open:>4} open"
            )
            yield f"  {fitted(criterion.name, width)}{counts}   {first}"[:_WIDEST].rstrip()
            for count, words in _mistakes(criterion):
                yield fitted(f"{count:>8}  {words}", _WIDEST).rstrip()


def _mistakes(criterion: CriterionCount) -> Iterator[tuple[int, str]]:
    """Yields a number of students, and the known mistake by which they lost the criterion."""
    for mistake, count in criterion.mistakes[:_MANY]:
        yield count, _first_line(mistake)
    if rare := criterion.mistakes[_MANY:]:
        yield sum(count for _, count in rare), "(other known mistakes)"
    if students := criterion.unmatched:
        names = [fitted(clean(name), LONGEST_NAME).rstrip() for name in students[:_MANY]]
        more = f" and {len(students) - _MANY} more" * (len(students) > _MANY)
        yield len(students), f"(no known mistake: {', '.join(names)}{more})"


def _first_line(text: str) -> str:
    return clean((text.splitlines() or [""])[0])


def figure_of(assignment: str, parts: Sequence[PartStatistics]) -> Figure:
    """Draws a bar for each criterion: the shares of the class that lost it or have it blocked."""
    from dtlab.show.drawing.style import INK, MUTED, Figure

    bars = [(part.part, criterion) for part in parts for criterion in part.criteria]
    height = 0.28 * (len(bars) + len(parts))
    heading = f"{assignment}: which points the class misses"
    worst_part, worst = max(bars, key=lambda bar: bar[1].missed)
    figure = Figure(
        9.0, height + 1.2,
        alt_text=f"{heading}. Most often missed: {worst.name} of {worst_part}, by "
        f"{100 * worst.missed:.0f} % of the class.",
    )  # fmt: skip
    figure.heading(heading, "share of the class; dark: lost, light: blocked or left open")
    axes = figure.add_axes((0.33, 0.5 / (height + 1.2), 0.62, height / (height + 1.2)))
    place, shown = 0.0, ""
    for part, criterion in bars:
        if part != shown:
            title = axes.text(-2, -place, part, ha="right", va="center", fontsize=8, color=INK)
            title.set_fontweight("bold")
            place, shown = place + 1, part
        waiting = criterion.blocked + criterion.open
        total = max(1, criterion.earned + criterion.lost + waiting)
        lost, blocked = 100 * criterion.lost / total, 100 * waiting / total
        axes.barh(-place, lost, height=0.7, color=_LOST)
        axes.barh(-place, blocked, left=lost, height=0.7, color=_LOST, alpha=0.35)
        axes.text(-2, -place, criterion.name, ha="right", va="center", fontsize=8, color=MUTED)
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
