"""`dtlab grade`: which students are graded, what stays as it was, and how it is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import ItemsView, Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import psutil
import pytest
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import capture_log

from dtlab.checks.questions.answers import Questions
from dtlab.classroom import booking, grade, verdicts
from dtlab.classroom.grade import Grading
from dtlab.classroom.submissions import handed_in
from dtlab.classroom.verdicts import ALL
from dtlab.classroom.workers import server, tasks
from dtlab.classroom.workers.server import JudgesServer
from dtlab.cli import main
from dtlab.errors import DtlabError, LaunchError
from dtlab.ranks.launch import client
from tests.a_class import NAME, Class, Kept, judged, keep_path, without_seconds

pytestmark = pytest.mark.slow  # a gradebook for each

STEP, AVERAGES = "01/step", "01/averages"


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    """Judges with a warm server."""
    engine = Kept()
    yield engine
    engine.engine.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, kept: Kept) -> Path:
    """A class of which two are graded: ada has everything, bob one of two parts."""
    with pytest.MonkeyPatch.context() as patch:
        keep_path(patch)
        patch.setattr(grade, "engine_named", kept)
        a_class = Class(tmp_path_factory.mktemp("made") / "course")
        a_class.hand_in("ada")
        a_class.hand_in("bob", "step")
        a_class.grade()
    return a_class.folder


@pytest.fixture
def group(
    made: Path, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Class]:
    """A copy of it."""
    keep_path(monkeypatch)
    monkeypatch.setattr(grade, "engine_named", kept)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "course")
    kept.tasks.clear()
    copy = Class(tmp_path / "course")
    yield copy
    copy.end_processes()


# Which students are graded ----------------------------------------------------------------------


def test_points_and_reasons_are_booked(group: Class) -> None:
    assert group.points("ada") == {"step": 6, "averages": 4}
    assert group.points("bob") == {"step": 0, "averages": 4}
    assert [one.status for one in group.record("bob").parts[AVERAGES].criteria].count("ok") == 3
    assert "6 of 6" in group.outputs("ada", "step")
    assert group.autograded("ada").stat().st_mode & 0o777 == 0o444
    assert not (group.folder / "verdicts" / NAME / "ada.json.new").exists()


def test_what_has_not_changed_is_not_judged_again(group: Class, kept: Kept) -> None:
    assert all(outcome.skipped for outcome in group.grade().values())
    assert kept.tasks == []


def test_nothing_to_judge_starts_no_engine(group: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade, "engine_named", lambda *_: pytest.fail("started"))
    assert len(group.grade()) == 2


def test_what_is_handed_in_anew_is_graded_anew(group: Class, kept: Kept) -> None:
    seeds = [part.seed for part in group.record("bob").parts.values()]
    group.hand_in("bob")
    group.hand_in("cyd")
    outcomes = group.grade()
    assert judged(kept.tasks) == ["bob", "cyd"]
    assert outcomes["ada"].skipped
    assert group.points("bob") == {"step": 6, "averages": 4}
    assert [part.seed for part in group.record("bob").parts.values()] == seeds


def test_a_pattern_names_students(group: Class, kept: Kept) -> None:
    group.grade("a*", again=True)
    assert judged(kept.tasks) == ["ada"]
    with pytest.raises(DtlabError, match=r"matches 'x\*' has handed in week-1. There are: ada"):
        group.grade("x*")


def test_changed_prose_in_the_release_causes_no_regrading(group: Class, kept: Kept) -> None:
    path = group.folder / "release" / NAME / "01_level_1.ipynb"
    notebook = nbformat.read(path, as_version=4)
    prose = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    prose.source += " (typo corrected)"
    nbformat.write(notebook, path)
    group.grade()
    assert kept.tasks == []
    next(cell for cell in notebook.cells if cell.id == "step-check").metadata.nbgrader.points = 7
    nbformat.write(notebook, path)
    group.grade("ada")
    assert judged(kept.tasks) == ["ada"]


@pytest.mark.parametrize("lost", ["row", "file"])
def test_what_the_gradebook_has_lost_is_graded_again(group: Class, kept: Kept, lost: str) -> None:
    if lost == "file":
        shutil.rmtree(group.autograded("ada").parent)
    else:
        with group.book() as book:
            book.find_grade("step-check", "01_level_1", NAME, "ada").auto_score = 1
            book.db.commit()
    group.grade()
    assert judged(kept.tasks) == ["ada"]
    assert group.points("ada") == {"step": 6, "averages": 4}


# Regrading --------------------------------------------------------------------------------------


def test_a_part_is_judged_again_and_touches_no_other(
    group: Class, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rows = group.record("ada"), group.grades("ada")
    own, marked = group.outputs("ada", "step"), mark(group.autograded("ada"), "averages-check")
    assert group.outputs("ada", "averages") == marked
    worsen(monkeypatch)
    outcomes = group.grade(parts=["step"])
    after = group.record("ada")
    assert after.parts[AVERAGES] == before.parts[AVERAGES]
    assert group.outputs("ada", "averages") == marked
    assert group.grades("ada")["averages"] == rows["averages"]
    assert (group.points("ada")["step"], after.parts[STEP].score) == (3, 3)
    assert group.outputs("ada", "step") != own
    changed = [(c.part, c.before, c.after) for c in verdicts.changes(before, after)]
    assert changed == [(STEP, 6, 3)]
    assert outcomes["ada"].before == replace(before, due=(STEP,))
    assert after.due == ()


def mark(path: Path, name: str) -> str:
    """Changes a report, as a version that words it otherwise would."""
    notebook = nbformat.read(path, as_version=4)
    (report,) = next(cell for cell in notebook.cells if cell.id == name).outputs
    report.data["text/html"] = "<p>The same in other words.</p>"
    path.chmod(0o644)
    nbformat.write(notebook, path)
    saved = json.loads(path.read_text())["cells"]
    return json.dumps(next(cell for cell in saved if cell["id"] == name)["outputs"])


def worsen(patch: pytest.MonkeyPatch) -> None:
    """Let right answers earn half of the points, as if a check had been changed."""
    run = Questions.run

    def half(self: Questions, *words: object) -> object:
        return [replace(one, earned=one.earned / 2, message="half") for one in run(self, *words)]

    patch.setattr(Questions, "run", half)


@pytest.fixture
def two_levels(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Class:
    """Ada has handed in two notebooks, with nothing in the second."""
    keep_path(monkeypatch)
    monkeypatch.setattr(grade, "engine_named", kept)
    kept.tasks.clear()
    group = Class(tmp_path / "course", parts="01/step,01/reduce_scatter")
    group.hand_in("ada", "reduce_scatter")
    return group


@pytest.mark.proof
def test_a_part_in_another_notebook_leaves_this_one_alone(two_levels: Class, kept: Kept) -> None:
    group = two_levels
    group.grade()
    path, record = group.autograded("ada", "01_level_2"), group.record("ada")
    before = path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino
    group.grade(parts=["01/step"])
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert list(kept.tasks[-1].handed) == ["01_level_1"]
    after = group.record("ada")
    assert list(after.notebooks) == ["01_level_1", "01_level_2"]
    assert after.notebooks["01_level_2"] == record.notebooks["01_level_2"]
    assert group.points("ada") == {"step": 6, "reduce_scatter": 0}


def test_a_regrade_without_a_change_repeats_the_very_same_checks(group: Class) -> None:
    before = {name: without_seconds(group.record(name)) for name in ("ada", "bob")}
    outcomes = group.grade(again=True)
    assert not any(outcome.skipped for outcome in outcomes.values())
    assert {name: without_seconds(group.record(name)) for name in before} == before


def test_a_seed_draws_other_inputs_and_the_same_everywhere(group: Class, kept: Kept) -> None:
    group.hand_in("cyd")
    group.hand_in("dan")
    group.grade("cyd", seed=7)
    group.grade("dan", seed=7)
    group.grade("ada", seed=7)  # is graded already
    cyd, dan, ada = (seeds(group, name) for name in ("cyd", "dan", "ada"))
    assert cyd == dan != ada
    group.grade("ada", seed=7, again=True)
    assert seeds(group, "ada") == cyd
    assert 0 not in cyd.values()


def test_a_part_keeps_the_seed_it_was_last_judged_with(group: Class) -> None:
    old = seeds(group, "ada")
    group.grade("ada", parts=["step"], seed=7)
    new = seeds(group, "ada")
    assert new[AVERAGES] == old[AVERAGES]
    assert new[STEP] != old[STEP]
    group.grade("ada", again=True)
    assert seeds(group, "ada") == new


def seeds(group: Class, student: str) -> dict[str, int]:
    return {name: part.seed for name, part in group.record(student).parts.items()}


def test_another_version_of_the_checks_grades_all_again_or_the_parts_that_are_named(
    group: Class, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade, "version", lambda _: "9.9")
    group.grade("ada", parts=["step"])
    assert list(kept.tasks[-1].known) == [AVERAGES]
    group.grade()
    assert judged(kept.tasks) == ["ada", "bob"]
    assert kept.tasks[-1].known == {}


def test_points_given_by_hand_survive(group: Class) -> None:
    with group.book() as book:
        row = book.find_grade("step-check", "01_level_1", NAME, "bob")
        row.manual_score, row.extra_credit, row.needs_manual_grade = 4, 1.5, False
        book.find_comment("step", "01_level_1", NAME, "bob").manual_comment = "Nice try."
        book.db.commit()
    assert group.grade()["bob"].skipped
    outcome = group.grade(again=True)["bob"]
    assert outcome.by_hand == ("step",)
    with group.book() as book:
        row = book.find_grade("step-check", "01_level_1", NAME, "bob")
        assert (row.manual_score, row.extra_credit, row.auto_score) == (4, 1.5, 0)
        assert row.needs_manual_grade  # an instructor should look at it
        comment = book.find_comment("step", "01_level_1", NAME, "bob")
        assert comment.manual_comment == "Nice try."
        assert book.find_submission(NAME, "bob").score == 4 + 1.5 + 4


# Stopping ---------------------------------------------------------------------------------------


@pytest.mark.proof
def test_parts_to_be_judged_again_are_still_so_after_a_stop(group: Class, kept: Kept) -> None:
    for name in ("cyd", "dan"):
        group.hand_in(name)
    group.grade()
    kept.tasks.clear()
    grading = Grading(group.directory, group.assignment, again=True, seed=5)
    first = None
    for outcome in grading.run(handed_in(group.directory, NAME, "*")):
        first = first or outcome.student
        grading.stop()
    assert first is not None
    left = {"ada", "bob", "cyd", "dan"} - {first}
    assert {name for name in left if group.record(name).due == ALL} == left
    kept.tasks.clear()
    outcomes = group.grade()
    assert {name for name, one in outcomes.items() if not one.skipped} == left
    assert len({tuple(seeds(group, name).values()) for name in outcomes}) == 1
    assert all(outcome.skipped for outcome in group.grade().values())


def test_a_stop_in_the_middle_of_booking_is_noticed(
    group: Class, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill the files are gone, and the stored record says so."""

    def killed(*_: object) -> None:
        group.autograded("ada").write_text("hal")
        raise KeyboardInterrupt

    before = group.record("ada")
    group.autograded("ada").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(booking._Clerk, "write_single_notebook", killed)
        outcome = group.grade("ada")["ada"]
    assert outcome.record is None
    assert "nbgrader could not book the submission" in outcome.trouble
    assert group.record("ada").due == ALL
    kept.tasks.clear()
    group.grade()
    assert judged(kept.tasks) == ["ada"]
    assert without_seconds(group.record("ada")) == without_seconds(before)


def test_a_second_run_at_a_time_is_refused(group: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    group.hand_in("cyd")
    grading = Grading(group.directory, group.assignment)
    run = grading.run(handed_in(group.directory, NAME, "*"))
    next(run)
    with pytest.raises(DtlabError, match=rf"being graded already \(process {os.getpid()} on "):
        group.grade()
    run.close()
    assert len(group.grade()) == 3


def test_the_lock_of_a_dead_process_is_ignored(group: Class) -> None:
    (group.folder / "verdicts" / NAME / ".lock").write_text(" (process 1 on elsewhere)")
    assert len(group.grade()) == 2


# What goes wrong --------------------------------------------------------------------------------


@pytest.mark.proof
def test_a_notebook_that_cannot_be_judged_stops_no_other(
    two_levels: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repair(data: bytes | None, released: object) -> object:
        if b"reduce_scatter" in (data or b""):
            raise RuntimeError("out of order")
        return whole(data, released)

    whole = tasks.repair
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "repair", repair)
        outcome = two_levels.grade()["ada"]
    assert two_levels.points("ada") == {"step": 6, "reduce_scatter": None}
    assert "01_level_2: Traceback" in outcome.trouble
    assert outcome.record is not None
    assert outcome.record.due == ALL
    outcome = two_levels.grade()["ada"]
    assert (outcome.trouble, outcome.skipped) == ("", False)
    assert two_levels.points("ada") == {"step": 6, "reduce_scatter": 0}


def test_a_student_who_cannot_be_judged_stops_no_other(
    group: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repair(data: bytes | None, released: object) -> object:
        if b"cyd" in (data or b""):
            raise RuntimeError("out of order")
        return whole(data, released)

    group.hand_in("bob")
    group.hand_in("cyd")
    whole = tasks.repair
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "repair", repair)
        outcomes = group.grade()
    assert outcomes["bob"].record is not None
    assert outcomes["cyd"].record is None
    assert "RuntimeError: out of order" in outcomes["cyd"].trouble
    assert group.grade()["cyd"].record is not None


def test_a_judge_whose_server_ended_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have ended because others took its memory."""
    said = [tasks.Done(troubles={"01_level_1": "the server is gone"}), tasks.Done()]
    monkeypatch.setattr(server, "carry_out", lambda *_: said.pop(0))
    judges = JudgesServer()
    assert server.carry_out_surely(None, judges).troubles == {}  # type: ignore[arg-type]
    said[:] = [tasks.Done(troubles={"01_level_1": "stopped"})]
    judges.stop()
    assert server.carry_out_surely(None, judges).troubles  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="grading was stopped"):
        judges.request(b"L", [])


def test_links_and_special_files_are_not_copied(group: Class) -> None:
    folder = group.hand_in("cyd")
    (folder / "data").mkdir()
    (folder / "data" / "mine.csv").write_text("1,2")
    (folder / "book.db").symlink_to(group.folder / "gradebook.db")
    (folder / "data" / "all").symlink_to(group.folder / "submitted")
    os.mkfifo(folder / "pipe")
    (folder / ".hidden").write_text("x")
    (folder / "timestamp.txt").write_bytes(b"\xff not a time")
    outcome = group.grade("cyd")["cyd"]
    there = group.autograded("cyd").parent
    copied = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert copied == {"01_level_1.ipynb", "data/mine.csv", "timestamp.txt"}
    assert group.points("cyd") == {"step": 6, "averages": 4}
    assert outcome.record is not None
    (note,) = outcome.record.notes["01_level_1"]
    assert "timestamp.txt has no readable time" in note


def test_a_notebook_that_is_a_link_is_not_followed(group: Class) -> None:
    folder = group.hand_in("cyd")
    path = folder / "01_level_1.ipynb"
    path.unlink()
    path.symlink_to(group.folder / "submitted/ada" / NAME / path.name)
    outcome = group.grade("cyd")["cyd"]
    assert group.points("cyd") == {"step": 0, "averages": 0}
    assert outcome.record is not None
    assert "01_level_1.ipynb is a link or cannot be read" in outcome.record.notes["01_level_1"][0]


@pytest.mark.proof
def test_a_notebook_with_the_name_of_an_earlier_dtlab_is_graded(group: Class) -> None:
    folder = group.hand_in("cyd")
    (folder / "01_level_1.ipynb").rename(folder / "level-1.ipynb")
    outcome = group.grade("cyd")["cyd"]
    assert group.points("cyd") == group.points("ada")
    assert outcome.record is not None
    (note,) = outcome.record.notes["01_level_1"]
    assert note == "level-1.ipynb was used as 01_level_1.ipynb, which is missing."
    assert group.autograded("cyd").is_file()


def test_names_of_all_kinds(group: Class) -> None:
    names = ["Grace Hopper", "Ångström 林", "a[b]c*", "n" * 250, "-x", "o'neil\""]
    for name in [*names, "line\nfeed"]:
        group.hand_in(name)
    outcomes = group.grade()
    assert set(names) <= set(outcomes)
    strange = [one for one in outcomes.values() if one.record is None]
    assert [one.student for one in strange] == ["line\nfeed"]  # nbgrader cannot have it
    assert "nbgrader could not book the submission" in strange[0].trouble
    for name in names:
        assert group.points(name) == {"step": 6, "averages": 4}
    assert list(group.grade("a[b]c*")) == ["a[b]c*"]
    assert all(outcome.skipped for outcome in group.grade("*[!d]").values())


def test_every_graded_student_gets_a_page_of_feedback(group: Class) -> None:
    names = ["a[b]", "a[b]c*", "what?", "Ångström 林", "-x", "o'neil\"", "n" * 240]
    for name in names:
        group.hand_in(name)
    group.grade()
    course = CourseDirectory(config=group.directory.config)
    course.assignment_id = NAME
    config = group.directory.config
    assert capture_log(GenerateFeedback(coursedir=course, config=config))["success"]
    for name in ["ada", "bob", *names]:
        page = (group.folder / "feedback" / name / NAME / "01_level_1.html").read_text()
        assert "10.0" in page, name
    shutil.rmtree(group.folder / "feedback")
    course.student_id = "a[b]"  # of one student only
    assert capture_log(GenerateFeedback(coursedir=course, config=config))["success"]
    assert [path.name for path in (group.folder / "feedback").iterdir()] == ["a[b]"]


def test_a_notebook_of_another_dtlab_gets_a_note(group: Class) -> None:
    folder = group.hand_in("cyd")
    notebook = nbformat.read(folder / "01_level_1.ipynb", as_version=4)
    assert notebook.metadata.dtlab.version  # the release has noted it
    notebook.metadata.dtlab.version = "0.0.9"
    nbformat.write(notebook, folder / "01_level_1.ipynb")
    outcomes = group.grade()
    assert outcomes["cyd"].record is not None
    (note,) = outcomes["cyd"].record.notes["01_level_1"]
    assert note.startswith("The notebook was made with dtlab 0.0.9, and graded with ")
    assert group.record("ada").notes == {"01_level_1": ()}


def test_a_course_without_the_assignment_says_so(
    group: Class, capsys: pytest.CaptureFixture[str]
) -> None:
    course = ["--course", str(group.folder)]
    assert main(["grade", "week-9", *course]) == 1
    assert "there is no assignment 'week-9'" in capsys.readouterr().err
    assert main(["grade", NAME, *course, "--part", "ring"]) == 1
    error = capsys.readouterr().err
    assert "week-1 has no part 'ring'. Its parts: 01/averages, 01/step." in error
    assert main(["grade", NAME, "--course", str(group.folder.parent)]) == 1
    with sqlite3.connect(group.folder / "gradebook.db") as database:
        database.execute("delete from assignment")
    assert main(["grade", NAME, *course]) == 1
    assert "has no assignment week-1. Add it: nbgrader" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["grade", NAME, *course, "--jobs", "0"])
    assert ended.value.code == 2


def test_the_command_ends_with_1_where_something_is_not_graded(
    group: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    course = ["grade", NAME, "--course", str(group.folder)]
    assert main([*course, "--again"]) == 0
    assert "2 graded." in capsys.readouterr().out

    def repair(*_: object) -> object:
        raise RuntimeError("out of order")

    monkeypatch.setattr(tasks, "repair", repair)
    assert main([*course, "--again", "--student", "bob"]) == 1
    told = capsys.readouterr().out
    assert "1 not graded." in told
    assert "out of order" in told


# Real processes ---------------------------------------------------------------------------------


class Running:
    """A `dtlab grade` that has graded one student and judges the next, with all its processes."""

    def __init__(self, group: Class, *words: str) -> None:
        self.group, self.process = group, group.command(*words)
        self.first = self.line()
        self.below: list[psutil.Process] = []
        self.look()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def look(self) -> None:
        """Waits until a process runs in the sandbox; notes all processes."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.below = psutil.Process(self.process.pid).children(recursive=True)
            if len(self.below) > 3:
                return
            time.sleep(0.02)
        raise AssertionError("no student is being judged")

    def end(self, number: signal.Signals) -> tuple[float, str, str]:
        """Sends a signal; seconds until the end, and what it said."""
        begun = time.monotonic()
        self.process.send_signal(number)
        out, error = self.process.communicate(timeout=60)
        return time.monotonic() - begun, out, error

    def left(self, patience: float = 30.0) -> list[str]:
        """What is left of the run: processes, control groups, temporary folders."""
        deadline = time.monotonic() + patience
        while left := [*self._left()]:
            if time.monotonic() > deadline:
                return left
            time.sleep(0.05)
        return []

    def _left(self) -> Iterator[str]:
        yield from (str(one) for one in self.below if one.is_running())
        for one in self.below:
            for pattern in (f"dtlab-{one.pid}", f"*/dtlab-{one.pid}"):
                yield from map(str, Path("/sys/fs/cgroup").glob(pattern))
        yield from (str(path) for path in Path(os.environ["TMPDIR"]).glob("*dtlab-grade*"))


@pytest.fixture
def slow_group(group: Class) -> Class:
    """A class of five students whose work takes a while to judge."""
    for name in ("ada", "bob", *"cde"):
        folder = group.hand_in(name)
        notebook = nbformat.read(folder / "01_level_1.ipynb", as_version=4)
        for _ in range(2):  # short ones, which others wait for
            notebook.cells.insert(1, nbformat.v4.new_code_cell("import time; time.sleep(1.2)"))
        nbformat.write(notebook, folder / "01_level_1.ipynb")
    return group


def sound(group: Class) -> bool:
    with sqlite3.connect(group.folder / "gradebook.db") as database:
        return bool(database.execute("pragma integrity_check").fetchall() == [("ok",)])


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("receives_ctrl_c")
def test_ctrl_c_ends_it_at_once_and_the_same_command_continues(slow_group: Class) -> None:
    running = Running(slow_group, "--jobs", "2")
    seconds, out, error = running.end(signal.SIGINT)
    done = 1 + sum(" of 10 " in line for line in out.splitlines())
    assert running.process.returncode == 1
    assert seconds < 6  # goal 2: a guard
    assert f"stopped. {done} of 5 submissions are graded. Run the same command to grade" in error
    assert "Traceback" not in error
    assert running.left() == []
    assert sound(slow_group)
    assert sum(slow_group.points(name)["step"] == 6 for name in booked(slow_group)) >= done
    rest = slow_group.command("--jobs", "2").communicate(timeout=120)[0]
    assert f"{done} as before, {5 - done} graded." in rest
    assert all(slow_group.points(name) == {"step": 6, "averages": 4} for name in "cde")


def booked(group: Class) -> list[str]:
    with group.book() as book:
        return [one.student.id for one in book.find_assignment(NAME).submissions]


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_killed_run_leaves_nothing_and_the_next_one_continues(slow_group: Class) -> None:
    running = Running(slow_group, "--again", "--jobs", "2")
    running.end(signal.SIGKILL)
    assert running.left() == []
    assert sound(slow_group)
    rest = slow_group.command("--jobs", "2").communicate(timeout=120)[0]
    assert re.search(r"^[12] as before, [34] graded\.$", rest, re.MULTILINE), rest
    again = slow_group.command().communicate(timeout=60)[0]
    assert "5 as before." in again


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_second_process_is_refused_while_the_first_runs(slow_group: Class) -> None:
    running = Running(slow_group, "--jobs", "2")
    running.process.send_signal(signal.SIGSTOP)  # it is still running when the second one ends
    second = slow_group.command()
    error = second.communicate(timeout=60)[1]
    running.process.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert f"week-1 is being graded already (process {running.process.pid} on " in error
    assert "Ctrl-C: no results are lost." in error
    running.end(signal.SIGTERM)
    assert running.process.returncode == 1
    assert running.left() == []


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_terminal_of_80_columns(slow_group: Class) -> None:
    """A line for each student, and below the bar what each job does."""
    slow_group.hand_in("Ångström 林 " + "x" * 90)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = slow_group.command("--jobs", "2", stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 65536):
            said += data
    except OSError:  # the other end has been closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    text = said.decode()
    assert re.search(r"\d+/6 \[", text)
    doing = re.findall(r"(\w[^\r\n\x1b]*?) +(01/step|cell 1|repairing)", text)
    assert {"c", "d"} <= {name for name, _ in doing}
    lines = [re.sub(r"\x1b\[[\d;]*\w", "", line) for line in re.split(r"[\r\n]+", text)]
    assert [line for line in lines if len(line) >= 80] == []
    assert any(line.startswith("Ångström 林 xxx") and "10 of 10" in line for line in lines)


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_memory_does_not_grow_with_the_number_of_submissions(
    group: Class, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        shutil.copytree(
            group.folder / "submitted" / "ada", group.folder / "submitted" / f"s{number:03}"
        )
    this, sizes = psutil.Process(), []
    grading = Grading(group.directory, group.assignment)
    for outcome in grading.run(handed_in(group.directory, NAME, "s*")):
        assert outcome.record is not None
        sizes.append(this.memory_info().rss)
    grown = (max(sizes[-5:]) - sizes[20]) / 1e6
    print(f"{grown:.1f} MB more after 100 submissions than after 20")
    assert grown < 30


# nbgrader's own command -------------------------------------------------------------------------


def plainly(group: Class, student: str) -> None:
    """Grade a student with `nbgrader autograde`."""
    config = group.directory.config.copy()
    here = CourseDirectory(config=config)
    here.assignment_id, here.student_id = NAME, student
    app = Autograde(coursedir=here, config=config)
    app.force = True
    done = capture_log(app)
    assert done["success"], done


@pytest.mark.proof
def test_nbgrader_autograde_keeps_its_server_and_the_verdicts(
    group: Class, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[object] = []
    request = client.Server.request

    def noted(self: client.Server, *words: object) -> None:
        request(self, *words)
        servers.append(self._process)

    group.grade("ada", parts=["step"], seed=7)
    kept.tasks.clear()
    before = group.record("ada")
    group.hand_in("cyd")
    monkeypatch.setattr(client.Server, "request", noted)
    try:
        for student in ("ada", "cyd"):
            plainly(group, student)
        assert len(servers) >= 2
        assert set(servers) == {client.SERVER._process}
    finally:
        client.SERVER.stop()
    assert without_seconds(group.record("ada")) == without_seconds(before)
    assert group.points("cyd") == {"step": 6, "averages": 4}
    group.grade()
    assert judged(kept.tasks) == ["ada", "cyd"]
    assert group.record("ada").key == before.key


@pytest.mark.proof
def test_nbgrader_autograde_leaves_no_process(group: Class) -> None:
    mark = {"DTLAB_TEST": group.folder.parent.name + str(time.time_ns())}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("nbgrader")), "autograde", NAME, "--student", "ada"],
        cwd=group.folder, env=os.environ | mark, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 20
    while left := [one for one in psutil.process_iter() if mark.items() <= environment(one)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def environment(process: psutil.Process) -> ItemsView[str, str]:
    try:
        return process.environ().items()
    except psutil.Error:
        return {}.items()
