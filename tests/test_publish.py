"""`dtlab release 01 --levels 1,2`: files, gradebook, and that nothing is ever lost."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from dtlab.checks import find_part, known_parts
from dtlab.classroom.command import grade as grade_class
from dtlab.classroom.releases import publish, wanted
from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent
UNIT = "01_ranks_and_collectives"
RING = "01/ring_all_reduce"

pytestmark = pytest.mark.slow


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a course may be made."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the settings change it
    monkeypatch.chdir(tmp_path)
    return tmp_path / "course"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course with an assignment, week-3, that asks for the ring."""
    folder = tmp_path_factory.mktemp("made") / "course"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"])
        release(folder, parts=RING)
    return folder


@pytest.fixture
def folder(new: Path, made: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, new)
    return new


def book(folder: Path) -> Gradebook:
    directory = course_directory(folder)
    return Gradebook(directory.db_url, directory.course_id)


def release(folder: Path | None, name: str | None = "week-3", **words: object) -> list[str]:
    return list(release_assignment("01", course=folder, name=name, **words))  # type: ignore[arg-type]


def cells(path: Path) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def grade(folder: Path, **scores: float) -> None:
    """Add one student, ada, with scores for the graded cells."""
    with book(folder) as gradebook:
        gradebook.update_or_create_student("ada")
        gradebook.update_or_create_submission("week-3", "ada")
        for name, score in scores.items():
            grade = gradebook.find_grade(f"{name}-check", "01_level_2", "week-3", "ada")
            grade.auto_score, grade.needs_manual_grade = score, False
        gradebook.db.commit()


def test_a_course_is_made_with_one_assignment(new: Path) -> None:
    folder = new
    said = release(
        folder,
        levels="1,2",
        parts=f"01/step,{RING}",
        points=f"{RING}=20",
        due="2026-12-01 18:00 +01:00",
    )
    assert (folder / "nbgrader_config.py").is_file()
    assert set(cells(folder / "source/week-3/01_level_2.ipynb")) >= {"imports", "ring_all_reduce"}
    assert sorted(path.name for path in (folder / "release/week-3").iterdir()) == [
        "01_level_1.ipynb",
        "01_level_2.ipynb",
    ]
    with book(folder) as gradebook:
        assignment = gradebook.find_assignment("week-3")
        assert str(assignment.duedate) == "2026-12-01 17:00:00"
        points = {
            cell.name: cell.max_score for one in assignment.notebooks for cell in one.grade_cells
        }
    step = find_part("01/step").points
    assert points == {"step-check": step, "ring_all_reduce-check": 20}
    assert said[-1] == (
        f"week-3: {20 + step:g} points, due 2026-12-01 18:00 UTC+01:00 (2026-12-01 17:00 UTC)"
    )


def test_points_of_extra_parts_are_counted_where_other_parts_are_there(new: Path) -> None:
    half = "08/halo_rows,08/halo_corners,08/tile_conv"
    release_08 = partial(release_assignment, "08", course=new)
    assert list(release_08(name="both", levels="2"))[-1] == (
        "both: 56 points, 28 of them for extra parts"
    )
    assert list(release_08(name="half", parts=half))[-1] == "half: 28 points"
    both = cells(new / "release/both/08_level_2.ipynb")["title"].source
    assert "**Either half alone gives full points for this level.**" in both
    title = cells(new / "release/half/08_level_2.ipynb")["title"].source
    assert "28 points, about 60 minutes." in title
    more = list(release_08(name="more", parts=f"{half},08/merge_blocks"))
    assert more[-1] == "more: 36 points, 28 of them for extra parts"
    title = cells(new / "release/more/08_level_2.ipynb")["title"].source
    assert "36 points, 28 of them for extra parts, about 15 minutes without these." in title


@pytest.mark.proof
def test_learners_get_no_solution_and_the_form_of_an_answer(folder: Path) -> None:
    release(folder, parts="01/step", name="week-4")
    ring = cells(folder / "release/week-3/01_level_2.ipynb")
    assert "raise NotImplementedError()" in ring["ring_all_reduce"].source
    assert "isend" not in ring["ring_all_reduce"].source
    assert ring["ring_all_reduce-check"].metadata.nbgrader.locked
    step = cells(folder / "release/week-4/01_level_1.ipynb")["step"]
    assert '"rate": None' in step.source
    assert "SOLUTION" not in step.source
    assert "isend" in cells(folder / "source/week-3/01_level_2.ipynb")["ring_all_reduce"].source


@pytest.mark.proof
def test_without_a_choice_it_is_the_whole_unit_in_the_course_that_we_are_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    release(None, name=None)
    with book(folder) as gradebook:
        assert gradebook.find_assignment(UNIT).max_score == sum(
            part.points for part in known_parts() if part.unit == "01"
        )
    assert not (folder / "exercises").exists()


@pytest.mark.parametrize("inside", [".", "solutions/mine", "exercises", "dtlab"])
@pytest.mark.usefixtures("new")
def test_the_repository_is_never_written_to(inside: str) -> None:
    before = sorted(ROOT.iterdir()), sorted((ROOT / "solutions").rglob("*"))
    with pytest.raises(DtlabError, match="to which no assignments are written"):
        release(ROOT / inside)
    assert (sorted(ROOT.iterdir()), sorted((ROOT / "solutions").rglob("*"))) == before


@pytest.mark.usefixtures("new")
def test_outside_of_a_course_a_course_must_be_named() -> None:
    with pytest.raises(DtlabError, match="--course FOLDER"):
        release(None)


@pytest.mark.parametrize(
    "words",
    [
        {"parts": "01/rings"},
        {"points": f"{RING}=x"},
        {"due": "soon"},
        {"name": "week+3"},
        {"name": "../week-3"},
        {"name": ".week"},
    ],
)
def test_nothing_is_made_where_something_does_not_fit(new: Path, words: dict[str, str]) -> None:
    with pytest.raises(DtlabError):
        release(new, **words)
    assert not new.exists()


@pytest.mark.proof
def test_a_name_is_taken_once(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(DtlabError, match=r"week-3 already.*--name.*--force"):
        release(folder, levels="1")
    assert files(folder) == before


def test_a_name_that_formgrader_has_noted_is_free(folder: Path) -> None:
    with book(folder) as gradebook:
        gradebook.add_assignment("week-4", duedate="2027-01-01 12:00")
    (folder / "source/week-4").mkdir()
    said = release(folder, parts=RING, name="week-4")
    assert said[-1] == "week-4: 10 points, due 2027-01-01 12:00 UTC"


def test_by_force_the_notebooks_are_replaced_and_other_files_stay(folder: Path) -> None:
    release(folder, levels="1,2", due="2026-12-01 18:00 UTC", force=True)
    (folder / "source/week-3/data.csv").write_text("1,2\n")
    said = release(folder, levels="2", force=True)
    assert sorted(path.name for path in (folder / "release/week-3").iterdir()) == [
        "01_level_2.ipynb",
        "data.csv",
    ]
    assert said[-1].endswith("due 2026-12-01 18:00 UTC")
    with book(folder) as gradebook:
        notebooks = gradebook.find_assignment("week-3").notebooks
        assert [one.name for one in notebooks] == ["01_level_2"]


def test_by_force_grades_stay_and_changed_points_are_named(folder: Path) -> None:
    grade(folder, ring_all_reduce=7)
    said = release(folder, parts=RING, points=f"{RING}=30", force=True)
    assert said[-1] == "Points have changed. Grade these submissions again: ada."
    with book(folder) as gradebook:
        kept = gradebook.find_grade("ring_all_reduce-check", "01_level_2", "week-3", "ada")
        assert (kept.auto_score, kept.max_score) == (7, 30)
    said = release(folder, parts=RING, points=f"{RING}=30", force=True)
    assert said[-1] == "week-3: 30 points"


@pytest.mark.parametrize("other", ["01/reduce_scatter", "01/step"])
def test_not_even_force_takes_parts_from_what_was_handed_in(folder: Path, other: str) -> None:
    grade(folder, ring_all_reduce=7)
    before = files(folder)
    with pytest.raises(DtlabError, match="handed in by ada, with ring_all_reduce: grades would"):
        release(folder, parts=other, force=True)
    assert files(folder) == before


def hand_in(folder: Path, student: str, *names: str) -> None:
    place = folder / "submitted" / student / "week-3"
    place.mkdir(parents=True)
    for name in names:
        shutil.copy(folder / "source/week-3" / name, place)


def scores(folder: Path) -> dict[str, dict[str, float]]:
    """The scores of each student by graded cell."""
    with book(folder) as gradebook:
        return {
            one.student.id: {
                grade.name.removesuffix("-check"): grade.score
                for notebook in one.notebooks
                for grade in notebook.grades
            }
            for one in gradebook.assignment_submissions("week-3")
        }


def test_parts_can_be_added_after_work_was_handed_in(folder: Path) -> None:
    grade(folder, ring_all_reduce=7)
    hand_in(folder, "ada", "01_level_2.ipynb")
    said = release(folder, parts=f"{RING},01/reduce_scatter,01/averages", force=True)
    assert said[-1].startswith("Added: averages, reduce_scatter. Already submitted: ada.")
    hand_in(folder, "instructor", "01_level_1.ipynb")  # whose values the solution is of
    assert grade_class("week-3", course=folder)
    ring, average = find_part(RING).points, find_part("01/averages").points
    none = {"ring_all_reduce": 0, "reduce_scatter": 0, "averages": 0}
    assert scores(folder)["ada"] == none | {"ring_all_reduce": ring}
    assert scores(folder)["instructor"] == none | {"averages": average}


def test_parts_of_other_units_can_be_added_too(folder: Path) -> None:
    grade(folder, ring_all_reduce=7)
    parts = f"{RING},02/average_gradients"
    said = list(release_assignment("01,02", parts=parts, name="week-3", course=folder, force=True))
    assert said[-1].startswith("Added: average_gradients. Already submitted: ada.")
    released = sorted(path.name for path in (folder / "release/week-3").iterdir())
    assert released == ["01_level_2.ipynb", "02_level_2.ipynb"]


def test_an_assignment_of_an_earlier_dtlab_keeps_its_names(new: Path) -> None:
    """A notebook was then called level-2.ipynb, or 01-level-2.ipynb with several units."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wanted, "level_file", lambda unit, level: f"level-{level}.ipynb")
        release(new, parts=RING)
    released = new / "release/week-3"
    assert [path.name for path in released.iterdir()] == ["level-2.ipynb"]
    with book(new) as gradebook:
        gradebook.update_or_create_student("ada")
        gradebook.update_or_create_submission("week-3", "ada")
    said = release(new, parts=f"{RING},01/averages", force=True)
    assert said[-1].startswith("Added: averages. Already submitted: ada.")
    names = sorted(path.name for path in released.iterdir())
    assert names == ["level-1.ipynb", "level-2.ipynb"]
    parts = f"{RING},01/averages,02/average_gradients"
    with pytest.raises(DtlabError, match="its notebooks would have other names, so use another"):
        list(release_assignment("01,02", parts=parts, name="week-3", course=new, force=True))


def test_where_adding_fails_the_gradebook_is_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grade(folder, ring_all_reduce=7)
    failed = {"success": False, "log": "the disk is full"}
    with monkeypatch.context() as patch, pytest.raises(DtlabError, match="the disk is full"):
        patch.setattr(publish, "capture_log", lambda _: failed)
        release(folder, parts=f"{RING},01/reduce_scatter", force=True)
    with book(folder) as gradebook:
        (notebook,) = gradebook.find_assignment("week-3").notebooks
        assert [cell.name for cell in notebook.grade_cells] == ["ring_all_reduce-check"]
    assert release(folder, parts=RING, force=True)[-1].startswith("week-3: ")


@pytest.mark.proof
def test_one_assignment_of_several_units(new: Path) -> None:
    parts = "01/averages,02/uneven"
    with pytest.raises(DtlabError, match="needs a name: --name"):
        list(release_assignment("01,02", parts=parts, course=new))
    said = list(release_assignment("02,01", parts=parts, name="week-3", course=new))
    names = ["01_level_1.ipynb", "02_level_1.ipynb"]
    assert sorted(path.name for path in (new / "release/week-3").iterdir()) == names
    assert any("01_level_1.ipynb" in line and line.endswith(": averages") for line in said)
    hand_in(new, "instructor", *names)
    assert grade_class("week-3", course=new)
    earned = scores(new)["instructor"]
    assert earned == {part.symbol: part.points for part in map(find_part, parts.split(","))}


def test_what_waits_to_be_graded_counts_as_handed_in(folder: Path) -> None:
    (folder / "submitted/ada/week-3").mkdir(parents=True)
    with pytest.raises(DtlabError, match="handed in by ada"):
        release(folder, parts="01/step", force=True)


@pytest.mark.parametrize("known", [True, False])
def test_where_nbgrader_fails_all_is_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    before = {name: data for name, data in files(folder).items() if name.endswith(".ipynb")}
    real = publish.capture_log

    def fails_at_the_end(step: object) -> dict[str, object]:
        real(step)
        return {"success": False, "log": "the disk is full"}

    monkeypatch.setattr(publish, "capture_log", fails_at_the_end)
    with pytest.raises(DtlabError, match="the disk is full"):
        release(folder, "week-3" if known else "week-4", levels="1,2", force=True)
    after = {name: data for name, data in files(folder).items() if name.endswith(".ipynb")}
    assert after == before
    with book(folder) as gradebook:
        assert [one.name for one in gradebook.assignments] == ["week-3"]
        (notebook,) = gradebook.find_assignment("week-3").notebooks
        assert notebook.name == "01_level_2"
