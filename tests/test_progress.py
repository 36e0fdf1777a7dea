"""Progress is kept and shown; copies are begun, renewed and reset without losing an answer."""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

import dtlab
from dtlab.checks import Part, find_part, known_parts
from dtlab.checks.course import Course
from dtlab.checks.learners import (
    best_shares,
    record,
    record_mistakes,
    stored_mistakes,
    stored_results,
)
from dtlab.checks.practice import practice
from dtlab.checks.progress import Lesson, Progress, Row, Unit, progress
from dtlab.checks.workbook import reset as reset_cell
from dtlab.checks.workbook import start
from dtlab.classroom.plugins import released_source
from dtlab.cli import main
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent
UNIT = "01_ranks_and_collectives"
LEVEL_1 = f"exercises/{UNIT}/level-1.ipynb"
LEVEL_2 = f"exercises/{UNIT}/level-2.ipynb"
MY_1 = f"my/exercises/{UNIT}/01_level_1.ipynb"
MY_2 = f"my/exercises/{UNIT}/01_level_2.ipynb"
RING = find_part("01/ring_all_reduce")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "dtlab" / "progress.jsonl"


def reset(course: Course, part: Part, notebook: Path | None = None) -> tuple[Path, Path | None]:
    """Resets a part as `dtlab reset` does, which uses an instructor's sources if there are any."""
    return reset_cell(course, part, notebook, released_source)


# What is kept ----------------------------------------------------------------------------------


def test_the_best_of_each_part_is_kept(data: Path) -> None:
    for score in (0, 3, 7, 5, 7):
        record("01/step", score, 10)
    record("01/bytes_sent", 8, 8)
    assert best_shares() == {"01/step": 0.7, "01/bytes_sent": 1}
    # Only what got better is written, so Run All does not change what comes last.
    assert stored_results() == [("01/step", 0.3), ("01/step", 0.7), ("01/bytes_sent", 1)]


def test_a_check_is_kept(data: Path) -> None:
    dtlab.check("01/averages", {"divide": "both"}, learner="ada")
    assert best_shares() == {"01/averages": 0.25}


def test_autograde_keeps_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "autograded" / "ada" / UNIT
    folder.mkdir(parents=True)
    (tmp_path / "gradebook.db").touch()
    monkeypatch.chdir(folder)
    record("01/step", 1, 1)
    record_mistakes("01/step", ["`n` is missing."])
    assert not data.exists()


def test_a_check_works_where_progress_cannot_be_saved(data: Path) -> None:
    data.parent.parent.mkdir()
    data.parent.write_text("a file where a folder should be")
    assert dtlab.check("01/averages", {"divide": "both"}, learner="ada").score == 1


def test_a_torn_line_loses_no_other_line(data: Path) -> None:
    record("01/step", 1, 2)
    data.write_text(data.read_text() + '\n{"part": "01/by')
    with data.open("a") as file:
        file.write('\n[1]\n"x"\n{"part": "01/step", "share": null}')
    record("01/results", 1, 1)
    assert best_shares() == {"01/step": 0.5, "01/results": 1}


@pytest.mark.slow
def test_several_notebooks_may_write_at_once(data: Path) -> None:
    code = (
        "import sys; from dtlab.checks.learners import record\n"
        "for n in range(1, 101): record(f'{sys.argv[1]}/{n % 10}', n, 100)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(one)]) for one in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    best = {f"{one}/{n % 10}": n / 100 for one in range(4) for n in range(91, 101)}
    assert best_shares() == best
    for line in data.read_text().split("\n")[1:]:
        json.loads(line)


def test_each_known_mistake_of_a_part_is_kept_once(data: Path) -> None:
    for answer in ("both", "none", "none", "worker 0", "none"):
        dtlab.check("01/averages", {"divide": answer}, learner="ada")
    kept = data.read_text()
    assert stored_mistakes() == {
        "SUM only adds.": ["01/averages"],
        "then the copies of the model are no longer equal.": ["01/averages"],
    }
    dtlab.check("01/averages", {"divide": "none"}, learner="ada")
    assert data.read_text() == kept
    assert stored_results() == [("01/averages", 0.25)]  # an earlier version reads only these


# What is shown ---------------------------------------------------------------------------------


def test_progress_says_what_is_passed_and_what_is_next() -> None:
    record("01/results", 8, 8)
    record("practice/swap_numbers", 1, 1)
    record("01/bytes_sent", 4, 8)
    path, _, *shown = repr(progress()).splitlines()
    assert path.startswith("Short path, 7 to 11 hours: 0 of 9 parts. Next on it: sections 1 to ")
    assert path.endswith(" of lesson 00, then 00/eight_gpus")
    assert path in progress()._repr_html_()
    assert "Short path" not in repr(progress("01"))
    assert shown[0].split("  ")[0] == "00 One GPU is not enough"  # as the lesson writes it
    assert shown[1].endswith("█░░░░░░░░░  12 of  84 points  lesson: 1 of 10 tasks")
    next_part = find_part("01/bytes_sent")
    told = f"{next_part.title}, {next_part.minutes} minutes   {LEVEL_1}"
    assert shown[-2] == f"Next: 01/bytes_sent, {told}"
    assert shown[-1] == "All parts of a unit: dtlab progress 01"


def test_progress_says_which_known_mistake_came_back_in_several_parts() -> None:
    record_mistakes("01/step", ["`n` is <missing>.", "only here."])
    record_mistakes("06/f", ["the mean, not the sum"])
    assert "Twice" not in repr(progress())
    assert "Twice" not in progress()._repr_html_()
    record_mistakes("06/g", ["the mean, not the sum"])
    sentence = "Twice or more: the mean, not the sum (in 2 parts, most recently in 06/g)."
    assert repr(progress()).splitlines()[-1] == sentence
    assert f"<p>{sentence}</p>" in progress()._repr_html_()
    for part in ("06/f", "01/averages"):
        record_mistakes(part, ["`n` is <missing>."])
    more = "is <missing> (in 3 parts, most recently in 01/averages)."
    assert repr(progress("01")).splitlines()[-1] == f"Twice or more: n {more}"
    assert html.escape(more) in progress()._repr_html_()


def test_a_stored_result_under_an_earlier_name_counts_for_no_part() -> None:
    record("01/results", 8, 8)
    before = repr(progress())
    record("01/earlier_name", 6, 6)  # the latest result
    assert repr(progress()) == before
    assert "earlier_name" not in repr(progress("01"))
    assert progress("01").next == find_part("01/bytes_sent")


def test_progress_of_a_unit_lists_its_lesson_and_its_parts() -> None:
    record("01/bytes_sent", 3, 8)
    record("practice/swap_numbers", 1, 1)
    shown = repr(dtlab.progress("01"))
    lines = [line.strip() for line in shown.splitlines()]
    for part in known_parts():
        listed = any(f" {part.name} " in line and part.title in line for line in lines)
        assert listed is (part.unit == "01"), part.name
    for begin in ("3 of 8  01/bytes_sent", "open    01/averages",
                  "passed  swap_numbers", "open    train_step",
                  "Lesson: 1 of 10 tasks", f"notebooks/{UNIT}.ipynb", LEVEL_1, LEVEL_2,
                  "Level I, reason: 3 of 26 points",
                  "Level II, build: 0 of 18 points, 0 of 14 extra"):  # fmt: skip
        assert any(line.startswith(begin) for line in lines), begin
    assert repr(progress("1")) == shown
    with pytest.raises(DtlabError, match="there is no unit '99'"):
        progress("99")


def test_progress_in_a_notebook_unfolds_and_links() -> None:
    record("01/bytes_sent", 4, 8)
    page = progress()._repr_html_()
    units = {part.unit for part in known_parts()}
    assert page.count("<details") == len(units)
    assert page.count("<details open>") == 1  # the unit that the learner works on
    for part in known_parts():
        assert f'.ipynb#cell-id={part.answer_id}">{html.escape(part.title)}' in page
    where = os.path.relpath(ROOT)  # from the folder of the notebook
    assert f'<a href="{where}/notebooks/{UNIT}.ipynb">Lesson</a>'.replace("./", "") in page
    assert f'/{UNIT}.ipynb#cell-id=swap-check">swap_numbers</a>' in page
    told = f'Next: <a href="{where}/{LEVEL_1}#cell-id=bytes_sent">01/bytes_sent</a>'
    assert told.replace("./", "") in page
    assert "width:5%" in page
    assert progress("01")._repr_html_().count("<details open>") == 1


@pytest.mark.slow
def test_a_practice_task_is_kept() -> None:
    def labelled_sum() -> int:
        return 3

    assert practice(labelled_sum, returns=[3, 4]).score == 0
    assert best_shares() == {}
    assert practice(labelled_sum, returns=[3, 3]).score == 1
    assert best_shares() == {"practice/labelled_sum": 1}


def test_practice_tasks_have_different_names() -> None:
    tasks = [task.name for unit in progress().units for task in unit.lesson.tasks]
    assert len(tasks) == len(set(tasks)) > 20


def state_of(
    passed: Sequence[Part], latest: str = "", parts: Sequence[Part] = (), saved: Sequence[str] = ()
) -> Progress:
    """The state in which some parts are passed and some units have copies, without lessons."""
    rows = [Row(part, 1.0 if part in passed else None) for part in parts or known_parts()]
    units = groupby(rows, key=lambda row: row.part.unit)

    def at(number: str) -> float:  # each copy of `saved` is newer than the one before it
        return saved.index(number) + 1 if number in saved else 0

    return Progress(
        [Unit(Lesson(number, number), list(of), at(number)) for number, of in units], latest
    )


def test_what_is_extra_comes_last() -> None:
    parts = list(known_parts())
    extra = [part for part in parts if part.stretch]
    required = [part for part in parts if not part.stretch]
    assert state_of(required).next == extra[0]
    assert state_of(parts).next is None
    assert state_of([], extra[0].name).next == extra[0]  # in which the learner is
    following = state_of(extra[:1], extra[0].name).next
    assert following in required
    assert following.unit == extra[0].unit
    unit = [part for part in parts if part.unit == "01"]
    assert state_of([], parts=sorted(unit, key=lambda part: not part.stretch)).next == unit[0]


def test_either_half_of_a_level_gives_full_points() -> None:
    """Unit 08, Level II: the second half is extra, and has as many points as the first one."""
    level = [part for part in known_parts() if part.unit == "08" and part.level == 2]
    extra = [part for part in level if part.stretch]
    required = [part for part in level if not part.stretch]
    full = sum(part.points for part in required)
    assert sum(part.points for part in extra) == full == 28
    assert sum(part.minutes for part in extra) == sum(part.minutes for part in required)
    for part in extra:
        record(part.name, part.points, part.points)
    shown = repr(progress("08"))
    assert "Level II, build: 28 of 28 points (28 from extra parts)" in shown
    assert "28 of 28 extra" not in shown
    of_unit = sum(p.points for p in known_parts() if p.unit == "08" and not p.stretch)
    assert f"  28 of {of_unit:>3g} points" in shown.splitlines()[0]
    assert f"28 of {of_unit:g} points (28 from extra parts)" in progress("08")._repr_html_()
    assert progress("08").next not in level  # the other half is not next
    record(required[0].name, 1, 1)
    assert "28 of 28 points (20 from extra parts), 8 of 8 extra" in repr(progress("08"))


def test_points_of_extra_parts_stay_in_their_level_and_add_no_more_than_is_missing() -> None:
    level = [part for part in known_parts() if part.unit == "01" and part.level == 2]
    extra = next(part for part in level if part.stretch)
    record(extra.name, 1, 1)
    text = repr(progress("01"))
    assert f"Level II, build: {extra.points:g} of 18 points ({extra.points:g} from extra" in text
    assert "Level I, reason: 0 of 26 points" in text
    for part in level:
        record(part.name, 1, 1)
    assert "Level II, build: 18 of 18 points, 14 of 14 extra" in repr(progress("01"))


def test_what_is_next_follows_what_the_learner_works_on() -> None:
    parts = [part for part in known_parts() if not part.stretch and not part.by_hand]
    later = [part for part in parts if part.unit == "05"]
    unit = [part for part in parts if part.unit == "01"]
    # A part that is not passed yet; then the rest of the unit; then its beginning; then others.
    assert state_of([], unit[3].name).next == unit[3]
    assert state_of([*later, *unit[:3]], unit[2].name).next == unit[3]
    assert state_of([*later, *unit[2:]], unit[-1].name).next == unit[0]
    assert state_of(unit, unit[1].name).next == parts[parts.index(unit[-1]) + 1]
    assert state_of(parts[1:], parts[-1].name).next == parts[0]  # round the end
    # A required part that is left in a unit that was begun, or a started unit, before a new unit.
    left = [part for part in parts if part.unit == "02"][2]
    done = [part for part in parts if part.unit in ("02", "03") and part != left]
    assert state_of(done, done[-1].name).next == left
    started = next(part for part in parts if part.unit == "06")
    assert state_of(unit, unit[-1].name, saved=["06"]).next == started
    assert state_of([], saved=["06"]).next == started
    assert state_of([], saved=["06", "07"]).next == started  # nothing is done: the first one


# The learner's own copies ----------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A course of the test's own, in which the test works."""
    root = tmp_path / "course"
    for name in ("notebooks", "exercises", "solutions"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    monkeypatch.chdir(root)
    return Course.find()


def test_the_lesson_comes_before_the_exercises(course: Course) -> None:
    def following() -> str:
        return repr(progress()).splitlines()[-2]

    assert following() == (
        "Next: lesson 00 One GPU is not enough, 110 minutes   dtlab start 00"
    )
    assert "dtlab start 00</p>" in progress()._repr_html_()
    list(start(course, UNIT))
    assert following() == (
        f"Next: lesson 01 Ranks and collectives, 115 minutes   my/notebooks/{UNIT}.ipynb"
    )
    record("practice/swap_numbers", 1, 1)
    assert following().startswith("Next: lesson 01 Ranks and collectives, 115 minutes")
    record("01/results", 1, 8)  # the exercises are begun
    assert following().startswith("Next: 01/results, ")
    record("practice/train_step", 1, 1)  # the learner has returned to the lesson
    assert following().startswith("Next: lesson 01 Ranks and collectives")


def cell(notebook: Path, name: str) -> NotebookNode:
    cells = nbformat.read(notebook, as_version=4).cells
    return next(one for one in cells if one.id == name)


def edit(notebook: Path, **sources: str) -> None:
    node = nbformat.read(notebook, as_version=4)
    for name, source in sources.items():
        next(one for one in node.cells if one.id == name).source = source
    nbformat.write(node, notebook)


def test_a_unit_is_begun_in_a_folder_of_the_learners_own(course: Course) -> None:
    said = list(start(course, UNIT))
    assert f"my/notebooks/{UNIT}.ipynb   new" in said
    assert f"{MY_2}   new" in said
    assert "my/" in (ROOT / ".gitignore").read_text().split()
    assert course.worked_on(RING) == Path(MY_2)
    ours = nbformat.read(course.root / LEVEL_2, as_version=4)
    assert [cell.id for cell in nbformat.read(MY_2, as_version=4).cells] == [
        cell.id for cell in ours.cells
    ]


def test_copies_of_different_units_have_different_names(course: Course) -> None:
    for unit in course.units():
        list(start(course, unit))
    names = [path.name for path in Path("my").rglob("*.ipynb")]
    assert len(names) == len(set(names)) >= 4 * len(course.units())


@pytest.fixture
def old_copies(course: Course) -> Course:
    """Copies as an earlier dtlab made them: levels are called level-2.ipynb in every unit."""
    for notebook in course.handed_out(UNIT):
        copy = course.root / "my" / notebook
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, copy)
    edit(Path("my", LEVEL_2), ring_all_reduce="mine = 1", title="my notes")
    return course


def test_copies_with_their_old_names_are_worked_on(old_copies: Course) -> None:
    assert old_copies.worked_on(RING) == Path("my", LEVEL_2)
    newer = "kept; the course has a newer one (see --renew)"
    assert f"my/{LEVEL_2}   {newer}" in list(start(old_copies, UNIT))
    assert not Path(MY_2).exists()
    path, backup = reset(old_copies, RING)
    assert (path, backup and backup.name) == (
        Path("my", LEVEL_2).absolute(), "level-2-backup-1.ipynb"
    )  # fmt: skip


def test_renewed_copies_get_their_new_names(old_copies: Course) -> None:
    said = list(start(old_copies, UNIT, renew=True))
    assert (
        f"{MY_2}   renewed, with your answers; the old copy is level-2-backup-1.ipynb. It was "
        "level-2.ipynb: if that is open in JupyterLab, close it without saving"
    ) in said
    assert cell(Path(MY_2), "ring_all_reduce").source == "mine = 1"
    assert cell(Path(MY_2).with_name("level-2-backup-1.ipynb"), "title").source == "my notes"
    assert not Path("my", LEVEL_2).exists()
    assert old_copies.worked_on(RING) == Path(MY_2)
    assert f"{MY_2}   kept" in list(start(old_copies, UNIT))


def test_what_is_there_is_never_overwritten(course: Course) -> None:
    list(start(course, UNIT))
    edit(Path(MY_2), ring_all_reduce="mine = 1")
    assert f"{MY_2}   kept" in list(start(course, UNIT))
    edit(Path(LEVEL_2), title="# A newer release")
    assert f"{MY_2}   kept; the course has a newer one (see --renew)" in list(
        start(course, UNIT)
    )
    assert cell(Path(MY_2), "ring_all_reduce").source == "mine = 1"


def test_a_newer_release_takes_the_answers_over(course: Course) -> None:
    list(start(course, UNIT))
    edit(Path(MY_2), ring_all_reduce="mine = 1", title="my notes")
    edit(Path(LEVEL_2), title="# A newer release")
    backup = Path(MY_2).with_name("01_level_2-backup-1.ipynb")
    said = list(start(course, UNIT, renew=True))
    assert f"{MY_2}   renewed, with your answers; the old copy is {backup.name}" in said
    assert f"{MY_1}   kept" in said
    assert cell(Path(MY_2), "title").source == "# A newer release"
    for notebook in (Path(MY_2), backup):
        assert cell(notebook, "ring_all_reduce").source == "mine = 1"
    assert cell(backup, "title").source == "my notes"
    assert f"{MY_2}   kept" in list(start(course, UNIT, renew=True))


def test_a_newer_lesson_says_where_the_old_one_is(course: Course) -> None:
    list(start(course, UNIT))
    lesson = Path("notebooks", f"{UNIT}.ipynb")
    first = nbformat.read(lesson, as_version=4).cells[0].id
    edit(Path("my", lesson), **{first: "my notes"})
    edit(lesson, **{first: "# A newer lesson"})
    backup = f"{UNIT}-backup-1.ipynb"
    told = f"my/{lesson}   renewed; the old copy, with everything that you wrote, is {backup}"
    assert told in list(start(course, UNIT, renew=True))
    assert cell(Path("my", lesson), first).source == "# A newer lesson"
    assert cell(Path("my/notebooks", backup), first).source == "my notes"


def test_an_answer_to_a_removed_part_is_named(course: Course) -> None:
    list(start(course, UNIT))
    newer = nbformat.read(LEVEL_2, as_version=4)
    newer.cells = [one for one in newer.cells if one.id != "tree_broadcast"]
    nbformat.write(newer, LEVEL_2)
    assert (
        f"{MY_2}   renewed, with your answers; answers that are no longer asked (tree_broadcast) "
        "are in 01_level_2-backup-1.ipynb"
    ) in list(start(course, UNIT, renew=True))


def test_an_answer_to_a_part_with_another_name_now_stays_in_the_backup(course: Course) -> None:
    list(start(course, UNIT))
    edit(Path(MY_2), tree_broadcast="# my answer")
    newer = nbformat.read(LEVEL_2, as_version=4)
    for one in newer.cells:
        if one.id == "tree_broadcast":
            one.id = one.metadata.nbgrader.grade_id = "newer_name"
    blank = cell(Path(LEVEL_2), "tree_broadcast").source
    nbformat.write(newer, LEVEL_2)
    assert any("no longer asked (tree_broadcast)" in line
               for line in start(course, UNIT, renew=True))  # fmt: skip
    assert cell(Path(MY_2), "newer_name").source == blank
    backup = Path(MY_2).with_name("01_level_2-backup-1.ipynb")
    assert cell(backup, "tree_broadcast").source == "# my answer"


def test_backups_are_not_handed_out(course: Course) -> None:
    given = list(course.handed_out(UNIT))
    edit(Path(LEVEL_2), **{RING.answer_id: "mine = 1"})
    reset(course, RING)
    assert list(course.handed_out(UNIT)) == given


@pytest.mark.parametrize("own", [True, False], ids=["my", "exercises"])
@pytest.mark.parametrize("with_solutions", [True, False])
def test_a_part_is_reset_and_nothing_else(course: Course, own: bool, with_solutions: bool) -> None:
    began = cell(Path(LEVEL_2), RING.answer_id).source
    if own:
        list(start(course, UNIT))
    if not with_solutions:
        shutil.rmtree("solutions")
    path = Path(MY_2 if own else LEVEL_2)
    edit(path, **{RING.answer_id: "mine = 1", "title": "my notes"})
    before = nbformat.read(path, as_version=4)
    if not own and not with_solutions:
        with pytest.raises(DtlabError, match="released form of 01/ring_all_reduce was not found"):
            reset(course, RING)
        assert nbformat.read(path, as_version=4) == before
        return
    where, backup = reset(course, RING)
    assert backup is not None
    assert (where, backup.name) == (path.absolute(), f"{path.stem}-backup-1.ipynb")
    assert nbformat.read(backup, as_version=4) == before
    after = nbformat.read(path, as_version=4)
    assert cell(path, RING.answer_id).source == began
    assert "raise NotImplementedError" in began
    others = [(a, b) for a, b in zip(before.cells, after.cells, strict=True)
              if a.id != RING.answer_id]  # fmt: skip
    assert all(a == b for a, b in others)
    edit(path, **{RING.answer_id: "mine = 2"})
    _, second = reset(course, RING)
    assert second is not None
    assert second.name == f"{path.stem}-backup-2.ipynb"


@pytest.mark.parametrize("own", [True, False], ids=["my", "exercises"])
def test_reset_does_not_change_a_part_that_is_as_released(course: Course, own: bool) -> None:
    if own:
        list(start(course, UNIT))
    path = Path(MY_2 if own else LEVEL_2)
    edit(path, title="my notes")
    before = {one: one.read_bytes() for one in path.parent.iterdir()}
    assert reset(course, RING) == (path.absolute(), None)
    assert {one: one.read_bytes() for one in path.parent.iterdir()} == before


def test_a_form_is_reset_to_its_blanks(course: Course) -> None:
    edit(Path(LEVEL_1), step="step = 3")
    reset(course, find_part("01/step"))
    assert '"rate": None' in cell(Path(LEVEL_1), "step").source
    assert "SOLUTION" not in cell(Path(LEVEL_1), "step").source


def test_reset_refuses_what_it_cannot_find(course: Course) -> None:
    with pytest.raises(DtlabError, match="there is no notebook .*To get one: dtlab start 01"):
        reset(course, RING, Path("elsewhere.ipynb"))
    with pytest.raises(DtlabError, match="no longer has a cell 'ring_all_reduce'"):
        reset(course, RING, Path(LEVEL_1))
    for broken in (b"{", b"{}", b"[]", b"\xff"):
        Path(LEVEL_2).write_bytes(broken)
        with pytest.raises(DtlabError, match="cannot be read as a notebook"):
            reset(course, RING)


def test_what_is_next_is_shown_where_the_learner_works(course: Course) -> None:
    list(start(course, "02_data_parallelism"))
    parts = [part for part in known_parts() if part.unit == "02"]
    record(parts[0].name, 1, 1)
    assert f"Next: {parts[1].name}, " in repr(progress())
    assert "   my/exercises/02_data_parallelism/02_level_1.ipynb\n" in repr(progress())


# The command -----------------------------------------------------------------------------------


def test_commands_say_what_they_did(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "1"]) == 0
    said = capsys.readouterr().out
    assert f"{MY_1}   new" in said
    assert f"Begin with my/notebooks/{UNIT}.ipynb;" in said
    assert main(["start", UNIT, "--renew"]) == 0
    assert "Reload Notebook from Disk" in capsys.readouterr().out
    assert main(["reset", RING.name]) == 0
    assert f"{RING.name}: nothing to reset." in capsys.readouterr().out
    edit(Path(MY_2), **{RING.answer_id: "mine = 1"})
    assert main(["reset", RING.name]) == 0
    assert "the original cell is back in" in capsys.readouterr().out
    record("01/results", 8, 8)
    assert main(["progress"]) == 0
    assert MY_1 in capsys.readouterr().out
    assert main(["progress", "01"]) == 0
    assert "  passed  01/results" in capsys.readouterr().out


def test_a_notebook_outside_the_units_is_copied_too(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    nbformat.write(nbformat.v4.new_notebook(), course.root / "notebooks" / "gpu_lab.ipynb")
    assert main(["start", "gpu_lab"]) == 0
    assert capsys.readouterr().out.endswith("new\nBegin with my/notebooks/gpu_lab.ipynb.\n")
    assert main(["start", "lab"]) == 1
    assert "There is also gpu_lab." in capsys.readouterr().err


def test_outside_of_the_course_paths_are_told_in_full(
    course: Course,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Course, "find", lambda: course)
    monkeypatch.chdir(course.root / "notebooks")
    assert main(["start", "01"]) == 0
    said = capsys.readouterr().out
    assert f"\n{MY_1}   new" in said
    assert f"These copies are in {course.root}/my, not in the folder where you are." in said
    monkeypatch.chdir(course.root / "my" / "notebooks")
    assert main(["start", "01"]) == 0
    assert "These copies" not in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    record("01/results", 8, 8)
    assert main(["start", "01"]) == main(["progress"]) == 0
    said = capsys.readouterr().out
    assert f"{course.root}/{MY_1}   kept" in said
    assert f"Begin with {course.root}/my/notebooks/{UNIT}.ipynb;" in said
    assert f"{find_part('01/bytes_sent').minutes} minutes   {course.root}/{MY_1}" in said


# `dtlab start --into` ---------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_copies_are_made_in_another_folder_and_found_there(
    course: Course,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = tmp_path / "home" / "my work"
    assert main(["start", "01", "--into", str(work)]) == 0
    said = capsys.readouterr().out
    assert f"{work}/{MY_1}   new" in said
    assert f"These copies are in {work}/my. To open them: cd '{work}' && dtlab lab 01\n" in said
    assert f"in {work} too: where you are now, they use {course.root}/my." in said
    assert f"Begin with {work}/my/notebooks/{UNIT}.ipynb;" in said
    assert not (course.root / "my").exists()

    monkeypatch.setattr("dtlab.checks.course.REPOSITORY", course.root)  # the clone of this dtlab
    edit(work / MY_2, **{RING.answer_id: "mine = 1"})
    for inside in (work, work / "my" / "notebooks"):
        monkeypatch.chdir(inside)
        assert Course.find() == Course(work, course.root)
    assert main(["start", "02"]) == 0
    assert (work / "my/notebooks/02_data_parallelism.ipynb").is_file()
    record("01/results", 8, 8)
    assert main(["progress"]) == 0
    assert f"{find_part('01/bytes_sent').minutes} minutes   {MY_1}\n" in capsys.readouterr().out
    assert f'href="../exercises/{UNIT}/01_level_1.ipynb' in progress()._repr_html_()
    assert main(["reset", RING.name]) == 0
    assert f"is back in {work / MY_2}" in capsys.readouterr().out
    assert not (course.root / "my").exists()


def test_work_in_another_folder_is_never_overwritten(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", "01"]) == main(["start", "01", "--into", str(tmp_path / "w")]) == 0
    assert f"Your earlier copies in {course.root}/my are unchanged" in capsys.readouterr().out
    edit(tmp_path / "w" / MY_2, **{RING.answer_id: "mine = 1"})
    before = tree(tmp_path)
    for folder in (tmp_path / "w", tmp_path / "w" / "my", course.root, course.root / "my"):
        assert main(["start", "01", "--into", str(folder)]) == 0
    assert main(["start", "01", "--renew", "--into", str(tmp_path / "w")]) == 0
    assert f"{tmp_path}/w/{MY_2}   kept" in capsys.readouterr().out
    assert tree(tmp_path) == before


def test_a_newer_release_takes_the_answers_over_in_another_folder(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["start", "01", "--into", str(tmp_path / "w")]
    assert main(arguments) == 0
    edit(tmp_path / "w" / MY_2, **{RING.answer_id: "mine = 1"})
    edit(course.root / LEVEL_2, title="# A newer release")
    assert main(arguments) == 0
    assert f"{tmp_path}/w/{MY_2}   kept; the course has a newer one" in capsys.readouterr().out
    assert main([*arguments, "--renew"]) == 0
    assert "renewed, with your answers" in capsys.readouterr().out
    assert cell(tmp_path / "w" / MY_2, RING.answer_id).source == "mine = 1"
    assert cell(tmp_path / "w" / MY_2, "title").source == "# A newer release"


def test_a_lab_begun_in_another_folder_is_found_there(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat.write(nbformat.v4.new_notebook(), course.root / "notebooks" / "gpu_lab.ipynb")
    (course.root / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "reference_card.md", course.root / "docs")
    assert main(["start", "gpu_lab", "--into", str(tmp_path / "w")]) == 0
    monkeypatch.setattr("dtlab.checks.course.REPOSITORY", course.root)
    monkeypatch.chdir(tmp_path / "w" / "my" / "notebooks")
    assert Course.find() == Course(tmp_path / "w", course.root)


@pytest.mark.parametrize("folder", ["file", "file/inside", "/proc", "/proc/inside", "read_only"])
def test_a_folder_that_cannot_take_copies_is_refused(
    course: Course, tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a file of the learner")
    (tmp_path / "read_only").mkdir(mode=0o555)
    wanted = tmp_path / folder  # an absolute path stays as it is
    if folder.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("there is no folder /proc, which is read-only")
    if folder == "read_only" and os.access(wanted, os.W_OK):
        pytest.skip("root may write everywhere")
    assert main(["start", "01", "--into", str(wanted)]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert f"dtlab start: the notebooks cannot be copied into {wanted}/my: " in error
    assert error.endswith("Name a folder in which you may write: dtlab start 01 --into FOLDER\n")
    if folder.startswith("file"):
        assert f"/my: {tmp_path}/file is a file, not a folder" in error
    assert (tmp_path / "file").read_text() == "a file of the learner"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["start", "99", "--into", "nowhere"], 1, "dtlab start: there is no unit '99'."),
        (["reset", "01/ringall"], 1, "dtlab reset: there is no part '01/ringall'. Did you"),
        (["start", "99"], 1, "dtlab start: there is no unit '99'. Units: 00_one_gpu_is"),
        (["start", "01_ranks"], 1, "dtlab start: there is no unit '01_ranks'."),
        (["start", "01/level-9"], 1, "which includes all its levels"),
        (["start", "01", "level-2"], 2, "dtlab start: unexpected 'level-2'. See: "),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    course: Course,
    arguments: list[str],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == status
    assert words in capsys.readouterr().err
    assert not (course.root / "my").exists()
    assert not (course.root / "nowhere").exists()


def test_without_a_command_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "copy a unit into my/" in capsys.readouterr().out


def test_python_m_dtlab_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dtlab", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("start", "progress", "reset", "release"):
        assert command in done.stdout
