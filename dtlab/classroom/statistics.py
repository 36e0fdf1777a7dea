"""Statistics of a class by part, by criterion and by known mistake, as a table and as a page.

    dtlab statistics week-1 --figure lost.png

It reads the records of `dtlab grade` in verdicts/ and does not judge again. The page is
feedback/week-1.html. It names students and is for the instructor: nbgrader hands out the folders
of students only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import Environment

from dtlab.classroom import verdicts
from dtlab.classroom.judging.judge import PartVerdict
from dtlab.classroom.lines import LONGEST_NAME, clean, fitted
from dtlab.classroom.settings import course_folder
from dtlab.errors import DtlabError

if TYPE_CHECKING:
    from dtlab.show.drawing.style import Figure

__all__ = ["CriterionCount", "PartStatistics", "figure_of", "page_of", "statistics",
           "statistics_of"]  # fmt: skip


_LOST = "#B3261E"  # the colour of "lost" in reports
_WIDEST = 160  # columns of a line of the table
_MANY = 3  # most mistakes below a criterion, and most names in a line


@dataclass(frozen=True)
class CriterionCount:
    """The number of students who earned a criterion, lost it, had it blocked, or left it open.

    `mistakes` are the known mistakes that lost it, each with its students, the most frequent
    first. `unmatched` are the students who lost it by no known mistake.
    """

    name: str
    points: float
    earned: int
    lost: int
    blocked: int
    message: str  # the most frequent message of lost points
    open: int = 0
    mistakes: tuple[tuple[str, tuple[str, ...]], ...] = ()
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
    """Yields the lines of the table; writes the page, and the figure to `figure`, if given.

    The figure is a PNG. Raises `DtlabError` if no submission of the assignment has been graded.
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
    page = folder / "feedback" / f"{assignment}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(assignment, parts, records, page.parent), encoding="utf-8")
    yield f"\nWho made which mistake is in {page}, a page for you only."
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(figure_of(assignment, parts).to_png())
        yield f"The figure is in {figure}."


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
        counted = Counter(mistake for _, mistake in losses).most_common()
        students = {
            mistake: tuple(student for student, made in losses if made == mistake)
            for mistake, _ in counted
        }
        unmatched = students.pop("", ())
        counts.append(CriterionCount(
            rule, points, earned, len(losses), blocked, most, left, tuple(students.items()),
            unmatched,
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
    for mistake, students in criterion.mistakes[:_MANY]:
        yield len(students), _first_line(mistake)
    if rare := criterion.mistakes[_MANY:]:
        yield sum(len(students) for _, students in rare), "(other known mistakes)"
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


def page_of(
    assignment: str,
    parts: Sequence[PartStatistics],
    records: Sequence[verdicts.Record],
    folder: Path,
) -> str:
    """Returns the page in HTML: the figure, and who made which mistake.

    Names of students are links to their pages of feedback where `folder` has these.
    """
    pages = {
        (record.student, part.part): f"{record.student}/{assignment}/{notebook}.html"
        for record in records
        for notebook, judged in record.notebooks.items()
        for part in judged
    }
    links = {key: quote(path) for key, path in pages.items() if (folder / path).is_file()}
    figure = figure_of(assignment, parts).to_html()
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)
    page.globals.update(mean=mean, median=median, first_line=_first_line, links=links)
    return page.render(assignment=assignment, parts=parts, students=len(records), figure=figure)


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ assignment }}: what the class got wrong</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0 }
thead th { border-bottom: 1px solid }
.number { text-align: right; width: 4rem; font-variant-numeric: tabular-nums }
.mistake td, .mistake th { font-weight: normal; padding-top: 0 }
img { max-width: 100%; height: auto }
</style>
</head>
<body>
{% macro names(students, part) %}
{% for student in students %}
{% set link = links.get((student, part)) %}
{% if link %}<a href="{{ link }}">{% endif %}
{{ student }}{{ "</a>" | safe if link }}{{ "," if not loop.last }}
{% endfor %}
{% endmacro %}
<h1>{{ assignment }}: what the class got wrong</h1>
<p>{{ students }} submission{{ "s" if students != 1 }}. This page names students and is for you. A
name is a link where the student's page of feedback exists (<code>nbgrader generate_feedback
{{ assignment }}</code>).</p>
{{ figure | safe }}
{% for part in parts %}
<h2>{{ part.part }}</h2>
<p>Mean {{ "%.2f" | format(mean(part.scores)) }} of {{ "%g" | format(part.max_score) }}, median
{{ "%g" | format(median(part.scores)) }}.</p>
<table>
<thead><tr><th scope="col">Criterion</th><th scope="col" class="number">Earned</th>
<th scope="col" class="number">Lost</th><th scope="col" class="number">Blocked</th>
<th scope="col" class="number">Open</th><th scope="col">Most frequent message</th></tr></thead>
<tbody>
{% for one in part.criteria | sort(attribute="missed", reverse=true) %}
<tr><th scope="row">{{ one.name }}</th><td class="number">{{ one.earned }}</td>
<td class="number">{{ one.lost }}</td><td class="number">{{ one.blocked }}</td>
<td class="number">{{ one.open }}</td><td>{{ first_line(one.message) }}</td></tr>
{% for mistake, made in one.mistakes %}
<tr class="mistake"><td></td><td></td><td class="number">{{ made | length }}</td>
<td colspan="3">{{ first_line(mistake) }}: {{ names(made, part.part) }}</td></tr>
{% endfor %}
{% if one.unmatched %}
<tr class="mistake"><td></td><td></td><td class="number">{{ one.unmatched | length }}</td>
<td colspan="3">No known mistake: {{ names(one.unmatched, part.part) }}</td></tr>
{% endif %}
{% endfor %}
</tbody>
</table>
{% endfor %}
</body>
</html>
"""
