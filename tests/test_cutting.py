"""A level with some of its parts: which cells stay, and that its text is right."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from dtlab.checks import Part, find_part, known_parts
from dtlab.checks.course import Course
from dtlab.classroom.releases.cutting import cut
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent
RING = "01/ring_all_reduce"
PARTS = list(known_parts())
LEVELS = sorted(ROOT.glob("solutions/*/level-*.ipynb"))
part_by_name = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


def level_of(part: Part) -> NotebookNode:
    return nbformat.read(ROOT / "solutions" / Course(ROOT).level(part), as_version=4)


def beside(part: Part) -> list[Part]:
    return [one for one in PARTS if (one.unit, one.level) == (part.unit, part.level)]


def only(part: Part, points: float | None = None, there: tuple[str, ...] = ()) -> NotebookNode:
    weights = {part.name: part.points if points is None else points}
    return cut(level_of(part), beside(part), weights, dict(zip(there, there, strict=True)))


def ids(notebook: NotebookNode) -> list[str]:
    return [cell.id for cell in notebook.cells]


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(one for one in notebook.cells if one.id == name)


@pytest.mark.parametrize("level", LEVELS, ids=lambda path: f"{path.parent.name[:2]}-{path.stem}")
def test_a_whole_level_stays_as_it_is(level: Path) -> None:
    whole = nbformat.read(level, as_version=4)
    parts = [part for part in PARTS if ROOT / "solutions" / Course(ROOT).level(part) == level]
    lesson = f"../../notebooks/{level.parent.name}.ipynb"
    names = (lesson, *(f"level-{number}.ipynb" for number in (1, 2, 3)))
    everything = {name: name for name in names}
    assert cut(whole, parts, {part.name: part.points for part in parts}, everything) == whole


@part_by_name
def test_a_part_alone_has_its_cells_and_the_shared_ones(part: Part) -> None:
    whole, alone = level_of(part), only(part)
    places = {name: place for place, name in enumerate(ids(whole))}
    kept = [places[name] for name in ids(alone)]
    heading = next(
        place
        for place in range(places[part.answer_id], -1, -1)
        if whole.cells[place].source.startswith("## Part")
    )
    shared = min(n for n, one in enumerate(whole.cells) if one.source.startswith("## Part"))
    assert kept == [*range(shared), *range(heading, places[part.grade_id] + 1)]
    graded = [one.id for one in alone.cells if one.metadata.get("nbgrader", {}).get("grade")]
    assert graded == [part.grade_id]


@part_by_name
def test_a_part_uses_no_names_of_another_part(part: Part) -> None:
    code = [one.source for one in only(part).cells if one.cell_type == "code"]
    given, used = {*dir(builtins), "display"}, set()  # display is a builtin of IPython
    for node in (node for source in code for node in ast.walk(ast.parse(source))):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                given.add(name)
            case ast.AsyncFunctionDef(name):
                given.add(name)
            case ast.ExceptHandler(_, str(name)):
                given.add(name)
            case ast.alias(name, alias):
                given.add((alias or name).partition(".")[0])
    assert used <= given


@part_by_name
def test_the_title_speaks_of_the_parts_that_are_there(part: Part) -> None:
    title = only(part).cells[0].source
    rows = [line for line in title.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert f"`{part.symbol}`" in rows[2]
    others = {one.symbol for one in beside(part)} - {part.symbol}
    assert not others & set(re.findall(r"\|[^|]*\|\s*`(\w+)`", title))
    effort = f"{part.points:g} points, about {part.minutes} minutes"
    assert (
        f"Of the {len(beside(part))} parts of this level, 1 is asked for here: {effort}" in title
    )
    number = beside(part).index(part) + 1
    assert set(re.findall(r"[Pp]arts? (\d)", title)) <= {str(number)}


def test_sentences_on_the_whole_level_are_cut_with_a_part() -> None:
    step = find_part("01/step")
    said = "how many bytes each rank sends"
    assert said in level_of(step).cells[0].source
    assert said not in only(step).cells[0].source
    weights = {part.name: part.points + 1 for part in beside(step)}
    title = cut(level_of(step), beside(step), weights, {}).cells[0].source
    assert said in title
    points, minutes = sum(weights.values()), sum(part.minutes for part in beside(step))
    told = f"In this assignment the level has {points:g} points, about {minutes} minutes."
    assert told in title


def test_totals_of_the_level_are_cut_from_a_part() -> None:
    assert "40 points" in level_of(find_part("01/choose")).cells[0].source
    title = only(find_part("01/choose")).cells[0].source
    assert "40 points" not in title
    assert "85 minutes" not in title
    assert "an hour's work" not in only(find_part(RING)).cells[0].source


def test_no_link_leads_to_a_missing_notebook() -> None:
    alone = only(find_part("01/fix_2"), there=("level-2.ipynb", "level-3.ipynb"))
    text = "\n".join(one.source for one in alone.cells)
    assert "Know before: lesson 01 and [Level II](level-2.ipynb)." in text
    assert set(re.findall(r"\]\(([^)]*ipynb)\)", text)) == {"level-2.ipynb"}
    assert "Know before: lesson 01 and Level II." in only(find_part("01/fix_2")).cells[0].source


def test_links_lead_to_the_names_that_notebooks_have_in_the_assignment() -> None:
    part = find_part("01/fix_2")
    there = {"level-2.ipynb": "01-level-2.ipynb"}
    title = cut(level_of(part), beside(part), {part.name: part.points}, there).cells[0].source
    assert "[Level II](01-level-2.ipynb)" in title


def test_the_next_notebook_is_named_only_if_it_is_released() -> None:
    step = find_part("01/step")
    weights = {part.name: part.points for part in beside(step)}
    for level in (1, 2):
        there = {f"level-{level}.ipynb": f"level-{level}.ipynb"}
        assert ("next" in ids(cut(level_of(step), beside(step), weights, there))) is (level == 2)
    assert "next" not in ids(only(step, there=("level-2.ipynb",)))


@pytest.mark.parametrize(("points", "said"), [(20, "20 points"), (1, "1 point"), (0, None)])
def test_another_weight_is_in_the_text_and_counts(points: float, said: str | None) -> None:
    alone = only(find_part(RING), points)
    assert cell(alone, "ring_all_reduce-check").metadata.nbgrader.points == points
    text = cell(alone, "ring_all_reduce-text").source
    assert f"*{points:g} point{'' if points == 1 else 's'} · 35 minutes" in text
    worth = f"they give {said} in this assignment" if said else "here none count"
    assert f"The check counts 10 points; {worth}" in text
    assert f"| 2 | `ring_all_reduce` | {points:g} | 35 |" in alone.cells[0].source


def test_the_original_is_not_touched() -> None:
    whole = level_of(find_part(RING))
    before = nbformat.writes(whole)
    cut(whole, beside(find_part(RING)), {RING: 3}, {})
    assert nbformat.writes(whole) == before


def test_a_part_without_its_line_of_points_is_named() -> None:
    whole = level_of(find_part(RING))
    text = cell(whole, "ring_all_reduce-text")
    text.source = text.source.replace("10 points · ", "some points · ")
    with pytest.raises(DtlabError, match=r"of part 01/ring_all_reduce.*10 points · 35 minutes"):
        cut(whole, beside(find_part(RING)), {RING: 3}, {})


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "points"), [("01/averages", 4), ("01/averages", 2.5), ("01/reduce_scatter", 20)]
)
def test_a_part_alone_runs_and_gives_its_points(name: str, points: float, tmp_path: Path) -> None:
    part = find_part(name)
    notebook = only(part, points)
    NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = cell(notebook, part.grade_id).outputs[-1].data["text/plain"]
    assert float(shown) == points
