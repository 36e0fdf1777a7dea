"""Every unit has a lesson, three levels, and exercises that reveal no solution.

The units are those that have notebooks/NN_name.ipynb or solutions/NN_name/.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from nbformat import NotebookNode

from dtlab.checks import Part, known_parts
from dtlab.checks.course import Course
from dtlab.checks.functions.defences import Defence
from dtlab.checks.parts import discussion_of, unit_packages
from dtlab.checks.questions.answers import Questions
from dtlab.checks.workbook import MAKE_A_COPY, start
from dtlab.classroom.notebooks import normalise_all
from tests.known_answers import ONE_OF_MANY

ROOT = Path(__file__).parent.parent
UNITS = Course(ROOT).units()
LEVELS = ("level-1", "level-2", "level-3")
PARTS = list(known_parts())
FILES = ("lesson", *LEVELS)
# Units that are being written, and the notebooks that they have.
UNDER_WAY: dict[str, tuple[str, ...]] = {}
MOST = {"cells": 100, "lines of a code cell": 25, "predictions": 12}
CELLS_PER_TASK = 10  # at most, from the first section to the key ideas
ENDS = ("Key ideas", "Self-check", "Frequent questions", "The same on GPUs", "Sources")
EFFORT = {1: (20, 30), 2: (45, 100), 3: (60, 90)}  # minutes of a level's required parts
WRITTEN_BY_HAND = [ROOT / "notebooks", ROOT / "solutions"]


def files_of(unit: str) -> tuple[str, ...]:
    """The lesson and the levels that a unit has."""
    return UNDER_WAY.get(unit, FILES)


unit_and_file = pytest.mark.parametrize(
    ("unit", "file"), [(unit, file) for unit in UNITS for file in files_of(unit)]
)
unit_and_level = pytest.mark.parametrize(
    ("unit", "level"), [(one, file) for one in UNITS for file in files_of(one) if file in LEVELS]
)
part_by_name = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


def read(path: Path) -> NotebookNode:
    assert path.is_file(), f"missing: {path.relative_to(ROOT)}"
    return nbformat.read(path, as_version=4)


def notebooks(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from (
            path
            for path in sorted(folder.rglob("*.ipynb"))
            if ".ipynb_checkpoints" not in str(path)
        )


def solution_of(part: Part) -> Path:
    return ROOT / "solutions" / Course(ROOT).level(part)


# Which files exist -------------------------------------------------------------------------------


@unit_and_file
def test_a_unit_has_a_lesson_and_three_levels(unit: str, file: str) -> None:
    if file == "lesson":
        assert (ROOT / "notebooks" / f"{unit}.ipynb").is_file()
        return
    for folder in ("solutions", "exercises"):
        path = ROOT / folder / unit / f"{file}.ipynb"
        assert path.is_file(), f"missing: {path.relative_to(ROOT)}"
    assert any((part.unit, f"level-{part.level}") == (unit[:2], file) for part in PARTS), (
        f"no part of dtlab/units/unit{unit[:2]} is of {file}"
    )


def test_every_part_is_of_a_unit() -> None:
    assert {part.unit for part in PARTS} <= {unit[:2] for unit in UNITS}
    for names in ([part.name for part in PARTS], [(p.unit, p.grade_id) for p in PARTS]):
        assert len(names) == len(set(names))


def test_a_part_is_in_the_module_with_its_name() -> None:
    for package in unit_packages():
        for name in importlib.import_module(package).PARTS:
            part = importlib.import_module(f"{package}.{name}").PART
            assert part.name == f"{package[-2:]}/{name}"


@pytest.mark.parametrize("unit", UNDER_WAY)
def test_a_unit_under_way_has_the_notebooks_that_are_listed(unit: str) -> None:
    levels = (path.stem for path in (ROOT / "solutions" / unit).glob("level-*.ipynb"))
    lesson = ["lesson"] if (ROOT / "notebooks" / f"{unit}.ipynb").exists() else []
    assert sorted([*lesson, *levels]) == sorted(UNDER_WAY[unit])


@unit_and_level
def test_a_level_takes_as_long_as_it_should(unit: str, level: str) -> None:
    parts = [p for p in PARTS if (p.unit, f"level-{p.level}") == (unit[:2], level)]
    minutes = sum(part.minutes for part in parts if not part.stretch)
    shortest, longest = EFFORT[parts[0].level]
    assert shortest <= minutes <= longest, f"{minutes} minutes for the required parts"


# The form of lessons ---------------------------------------------------------------------------


def opening(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells of a lesson before its first section."""
    return list(itertools.takewhile(lambda cell: not cell.source.startswith("## "), cells))


def objections_to(cells: list[NotebookNode]) -> list[str]:
    """What a lesson has too much of, and what it lacks."""
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    programs = [cell for cell in cells if cell.cell_type == "code"]
    code = [cell.source for cell in programs]
    imports, first_figure, *_ = code[[cell.id for cell in programs].index("imports") :]
    lines = (len(re.findall(r"^.*\S", cell, re.MULTILINE)) for cell in code if cell != imports)
    counted = {
        "cells": len(cells),
        "words": sum(len(text.split()) for text in texts),
        "lines of a code cell": max(lines),
        "predictions": len(re.findall(r"= (?:dtlab\.)?guess\(", "\n".join(code))),
        "tasks": len(re.findall(r"\bpractice\(", "\n".join(code))),
    }
    most = {what: limit for what, limit in MOST.items() if counted[what] > limit}
    found = [f"{counted[what]} {what}, at most {limit}" for what, limit in most.items()]
    text = "\n".join(texts)
    found += [f"no section {name!r}" for name in ENDS if f"\n## {name}" not in f"\n{text}"]
    first = "\n".join(cell.source for cell in opening(cells))
    for words in ("You will be able to", "Know before", "minutes for the lesson"):
        if words not in first:
            found.append(f"the opening does not say {words!r}")
    if "under the lamp" not in text:
        found.append("no claims under the lamp")
    if "dtlab.calibration()" not in code:
        found.append("no calibration of the predictions")
    asked = text.partition("## Self-check")[2].partition("<details>")[0]
    questions = re.findall(r"^\d\. ", asked, re.MULTILINE)
    if len(questions) != 5:
        found.append(f"{len(questions)} questions in the self-check, not 5")
    draws = re.search(r"from dtlab.show import (?:\(([^)]*)\)|(.*))", imports)
    names = "|".join(re.findall(r"\w+", "".join(filter(None, draws.groups())))) if draws else "-"
    if not re.search(rf"\b(?:{names})\(", first_figure):
        found.append("its first code cell after the imports draws no figure of the mechanism")
    if not MAKE_A_COPY.search(texts[0]):
        found.append("no advice to make a copy, in the words that a copy leaves out")
    # Reading, thinking about a prediction, and writing; the runs come on top.
    estimate = counted["words"] / 110 + 2 * counted["predictions"] + 4 * counted["tasks"]
    stated = int((re.findall(r"(\d+) minutes for the lesson", first) or [0])[0])
    if not estimate <= stated <= estimate + 15:
        found.append(f"{stated} minutes are stated, {estimate:.0f} and the run time are estimated")
    return found + objections_to_the_story(cells)


def objections_to_the_story(cells: list[NotebookNode]) -> list[str]:
    """What a lesson lacks that carries its reader from a question to its answer."""
    found = []
    if not re.search(r"^> \*\*[^*]*\?\*\*$", cells[0].source, re.MULTILINE):
        found.append("no question in the title cell, as `> **What ...?**`")
    aims = next(place for place, cell in enumerate(cells) if "You will be able to" in cell.source)
    imports = [cell.id for cell in cells].index("imports")
    shown = [cell for cell in cells[:aims] if cell.cell_type == "code"]
    if not shown or imports < aims:
        found.append("nothing runs before the aims, which come before the imports")
    sections: dict[str, list[NotebookNode]] = {}
    title = ""
    for cell in cells:
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if heading := re.match(r"## (.*)", part):
                title = heading[1]
            sections.setdefault(title, []).append(nbformat.from_dict({**cell, "source": part}))
    titles = list(sections)
    body = titles[1 : titles.index("Key ideas")]
    for title in body:
        boxes = sum(cell.source.count("> **Takeaway.** ") for cell in sections[title])
        if boxes != 1 and "under the lamp" not in title:
            found.append(f"section {title!r} has {boxes} boxed takeaways, not 1")
    inside = [cell for title in body for cell in sections[title]]
    tasks, count = sum("practice(" in cell.source for cell in inside), len({c.id for c in inside})
    if count > CELLS_PER_TASK * tasks:
        found.append(f"{tasks} tasks in {count} cells, fewer than one in {CELLS_PER_TASK}")
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_a_lesson_tells_how_long_the_required_exercises_take(unit: str) -> None:
    cells = read(ROOT / "notebooks" / f"{unit}.ipynb").cells
    first = " ".join(word for cell in opening(cells) for word in cell.source.split())
    spelled = {"two": 120, "two and a half": 150, "three": 180, "three and a half": 210}
    ((nearly, hours),) = re.findall(r"(nearly )?((?:two|three)(?: and a half)?) hours ", first)
    stated = spelled[hours] - 15 * bool(nearly)
    parts = [part for part in known_parts() if part.unit == unit[:2] and not part.stretch]
    assert abs(sum(part.minutes for part in parts) - stated) <= 15


BUILT = [part for part in PARTS if part.level > 1 and not part.by_hand]


@pytest.mark.parametrize("part", BUILT, ids=lambda part: part.name)
def test_a_passed_part_is_discussed(part: Part) -> None:
    text = discussion_of(part)
    sentences = re.findall(r"[.?!](?= [A-Z`]|$)", text)
    assert 3 <= len(sentences) <= 6, text
    assert 50 <= len(text.split()) <= 130, text


@pytest.mark.parametrize("unit", UNITS)
def test_each_discussion_is_of_a_part(unit: str) -> None:
    text = (ROOT / "dtlab" / "units" / f"unit{unit[:2]}" / "discussions.md").read_text()
    names = [part.name.partition("/")[2] for part in BUILT if part.unit == unit[:2]]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == names


@pytest.mark.parametrize("part", [p for p in PARTS if p.short_path], ids=lambda part: part.name)
def test_the_short_path_names_sections_of_the_lesson(part: Part) -> None:
    assert not part.stretch
    read = set(map(int, re.findall(r"\d+", part.short_path)))
    if " to " in part.short_path:
        read = {*range(min(read), max(read) + 1)}
    (unit,) = (unit for unit in UNITS if unit[:2] == part.unit)
    lesson = nbformat.read(ROOT / "notebooks" / f"{unit}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in lesson.cells)
    sections = {int(number) for number in re.findall(r"^## (\d+) ", text, re.MULTILINE)}
    assert read < sections


@pytest.mark.parametrize("unit", UNITS)
def test_a_lesson_keeps_to_the_form(unit: str) -> None:
    cells = read(ROOT / "notebooks" / f"{unit}.ipynb").cells
    assert not objections_to(cells)


# The form of notebooks -------------------------------------------------------------------------


@pytest.mark.slow
def test_notebooks_are_normalised(tmp_path: Path) -> None:
    for folder in WRITTEN_BY_HAND:
        shutil.copytree(folder, tmp_path / folder.name)
    changed = [str(path) for path in normalise_all(Course(tmp_path))]
    assert not changed, f"run `make notebooks`: {', '.join(changed)}"


def solution_lines(path: Path) -> set[str]:
    """The lines of a source that no learner may read, as they are written there."""
    lines: set[str] = set()
    for cell in read(path).cells:
        for block in re.findall(r"BEGIN SOLUTION\n(.*?)### END SOLUTION", cell.source, re.DOTALL):
            lines |= {line.strip() for line in block.splitlines()}
    return {line for line in lines if len(line) > 20 and not line.startswith(("#", "dist."))}


@pytest.mark.parametrize(
    "path",
    list(notebooks(ROOT / "exercises")),
    ids=lambda path: f"{path.parent.name[:2]}-{path.stem}",
)
def test_a_release_gives_nothing_away(path: Path) -> None:
    source = ROOT / "solutions" / path.relative_to(ROOT / "exercises")
    text = "\n".join(cell.source for cell in read(path).cells)
    for word in ("BEGIN SOLUTION", "END SOLUTION", "HIDDEN TESTS", "MARK SCHEME"):
        assert word not in text
    in_sight = "\n".join(
        re.sub(r"### BEGIN SOLUTION.*?### END SOLUTION", "", cell.source, flags=re.DOTALL)
        for cell in read(source).cells
    )
    for line in solution_lines(source):
        assert line not in text or line in in_sight, f"part of a solution: {line}"
    for cell in read(path).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


# What a learner reads --------------------------------------------------------------------------

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"")


def broken_links(path: Path) -> list[str]:
    """Links of a notebook to files that are not there."""
    broken = []
    for cell in read(path).cells if path.is_relative_to(ROOT) else nbformat.read(path, 4).cells:
        if cell.cell_type != "markdown":
            continue
        for found in LINK.findall(cell.source):
            target = unquote((found[0] or found[1]).partition("#")[0])
            if not target or re.match(r"[a-z]+:", target):
                continue
            if not (path.parent / target).exists():
                broken.append(f"{cell.id}: {target}")
    return broken


@pytest.mark.parametrize(
    "path",
    list(notebooks(*WRITTEN_BY_HAND, ROOT / "exercises")),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_lead_somewhere(path: Path) -> None:
    assert not broken_links(path)


@pytest.mark.slow
def test_links_lead_somewhere_in_a_learners_copies(tmp_path: Path) -> None:
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "reference_card.md", tmp_path / "docs")
    course = Course(tmp_path)
    for name in course.units():
        list(start(course, name))
    for path in notebooks(tmp_path / "my"):
        assert not broken_links(path), path


def rows_of_table(text: str) -> list[list[str]]:
    """The rows of the first table, without its head."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@unit_and_level
def test_the_table_at_the_top_is_what_the_parts_say(unit: str, level: str) -> None:
    parts = [p for p in PARTS if (p.unit, f"level-{p.level}") == (unit[:2], level)]
    title = read(ROOT / "solutions" / unit / f"{level}.ipynb").cells[0].source
    rows = rows_of_table(title)
    named = f"{[part.symbol for part in parts]} in PARTS of dtlab/units/unit{unit[:2]}/__init__.py"
    assert len(rows) == len(parts), f"{named}, but {len(rows)} rows"
    for part, row in zip(parts, rows, strict=True):
        said = " ".join(row)
        assert f"`{part.symbol}`" in said
        assert row[-3:] == [f"{part.points:g}", str(part.minutes), part.dots], part.name
        assert ("extra" in said) == part.stretch, f"{part.name}: 'extra' is for stretch=True"


@part_by_name
def test_a_part_says_its_points_minutes_and_what_counts(part: Part) -> None:
    cells = read(solution_of(part)).cells
    ids = [cell.id for cell in cells]
    assert part.answer_id in ids, f"no cell {part.answer_id!r} to fill in"
    place = ids.index(part.answer_id)
    texts = [cell.source for cell in cells[:place] if cell.cell_type == "markdown"]
    line = f"{part.points:g} points · {part.minutes} minutes · difficulty {part.dots}"
    heading = max((n for n, text in enumerate(texts) if line in text), default=None)
    assert heading is not None, f"no text above {part.answer_id!r} says: {line}"
    about = "\n".join(texts[heading:])
    titles = re.findall(r"^## Part [^:]+: (.+)$", about, re.MULTILINE)
    assert [title.casefold() for title in titles] == [part.title.casefold()], part.name
    assert "What counts" in about
    assert "<details>" in about, "no hint unfolds"


@part_by_name
def test_a_case_is_named_with_one_or_many(part: Part) -> None:
    check = getattr(part.check, "check", part.check)  # of the fixed program
    for trial in check.trials(0) if hasattr(check, "trials") else ():
        for number in range(len(trial.cases)):
            assert not ONE_OF_MANY.search(trial.words(number))


@pytest.mark.parametrize(
    "part", [p for p in PARTS if isinstance(p.check, Questions)], ids=lambda part: part.name
)
def test_a_question_lists_at_least_two_mistakes(part: Part) -> None:
    assert isinstance(part.check, Questions)
    for question in part.check.questions:
        assert len(question.answer.mistakes) >= 2, question.name


@pytest.mark.parametrize(
    "part", [part for part in PARTS if part.by_hand], ids=lambda part: part.name
)
def test_a_defence_has_its_rubric_above_it_and_room_to_write(part: Part) -> None:
    assert isinstance(part.check, Defence)
    cells = read(solution_of(part)).cells
    place = [cell.id for cell in cells].index(part.answer_id)
    above = next(c.source for c in cells[place::-1] if "What counts" in c.source)
    assert [line for line in above.splitlines() if line in part.check.rows] == part.check.rows
    released = read(ROOT / "exercises" / solution_of(part).relative_to(ROOT / "solutions"))
    room = next(cell for cell in released.cells if cell.id == part.answer_id)
    assert room.cell_type == "markdown"
    assert room.source.strip()
    assert len(room.source) < len(cells[place].source), "the model answer is handed out"
