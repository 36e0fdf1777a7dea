"""nbgrader's settings in one call: for the repository, for a course elsewhere, for formgrader."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.server_extensions.formgrader.formgrader import FormgradeExtension

from dtlab.classroom import plugins
from dtlab.classroom.settings import (
    CONFIG,
    begin_course,
    configure,
    course_directory,
    course_folder,
)
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new course folder; what its settings do to this process is taken back."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "deep learning, 2026"
    begin_course(folder)
    return folder


def test_a_course_elsewhere_has_nbgraders_own_folders(course: Path) -> None:
    directory = course_directory(course)
    assert directory.root == str(course)
    assert directory.course_id == "deep-learning-2026"
    assert directory.db_url == f"sqlite:///{course / 'gradebook.db'}"
    assert [
        directory.source_directory,
        directory.release_directory,
        directory.submitted_directory,
        directory.autograded_directory,
        directory.feedback_directory,
    ] == ["source", "release", "submitted", "autograded", "feedback"]


def test_the_repository_keeps_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    directory = course_directory(ROOT)
    assert directory.root == str(ROOT)
    assert directory.course_id == "dtlab"
    assert directory.source_directory == "solutions"
    assert directory.release_directory == "exercises"
    assert directory.submitted_directory == "submitted"


def test_nbgraders_steps_are_replaced_one_by_one(course: Path) -> None:
    directory = course_directory(course)
    release = GenerateAssignment(coursedir=directory, config=directory.config)
    before = GenerateAssignment.preprocessors.default()
    names = [step.__name__ for step in release.preprocessors]
    assert names == [*(step.__name__ for step in before), "Stamp"]
    assert plugins.ClearSolutions in release.preprocessors
    grade = Autograde(coursedir=directory, config=directory.config)
    before = Autograde.autograde_preprocessors.default()
    assert len(grade.autograde_preprocessors) == len(before)


def test_an_instructors_own_setting_has_the_last_word(course: Path) -> None:
    with (course / CONFIG).open("a") as file:
        file.write("c = get_config()\nc.CourseDirectory.source_directory = 'mine'\n")
    assert course_directory(course).source_directory == "mine"


def test_what_is_set_for_all_courses_of_a_machine_counts_too(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jupyter").mkdir()
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    (tmp_path / "jupyter" / CONFIG).write_text(
        "c = get_config()\n"
        "c.CourseDirectory.db_url = 'sqlite:////elsewhere.db'\n"
        "c.CourseDirectory.course_id = 'another'\n"
    )
    directory = course_directory(course)
    assert directory.db_url == "sqlite:////elsewhere.db"
    assert directory.course_id == "deep-learning-2026"


def test_a_course_below_a_link_stays_below_it(course: Path, tmp_path: Path) -> None:
    """JupyterLab started in the link looks for the course there."""
    (tmp_path / "link").symlink_to(tmp_path)
    linked = tmp_path / "link" / course.name
    assert course_directory(linked).root == str(linked)


def test_the_settings_are_three_lines() -> None:
    text = (ROOT / "dtlab" / "classroom" / "settings.py").read_text()
    promised = [line.strip() for line in text.splitlines()[2:5]]
    from traitlets.config import Config

    config = Config()
    names = {"get_config": lambda: config, "__file__": str(ROOT / "elsewhere" / CONFIG)}
    exec("\n".join(promised), names)
    expected = Config()
    configure(expected, ROOT / "elsewhere")
    assert config == expected
    assert config.CourseDirectory.root == str(ROOT / "elsewhere")


def test_what_learners_hand_in_stays_out_of_git(course: Path) -> None:
    ignored = (course / ".gitignore").read_text().splitlines()
    assert {"/submitted/", "/autograded/", "/feedback/", "/verdicts/"} <= set(ignored)
    assert "/gradebook.db*" in ignored


def test_a_course_is_begun_once(course: Path) -> None:
    (course / CONFIG).write_text("# mine\n")
    assert begin_course(course) == []
    assert (course / CONFIG).read_text() == "# mine\n"


def test_a_folder_in_use_is_no_place_for_a_course(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DtlabError, match="is no course") as caught:
        begin_course(tmp_path)
    assert str(tmp_path / CONFIG) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_settings_without_dtlab_are_refused(course: Path) -> None:
    (course / CONFIG).write_text("c = get_config()\nc.CourseDirectory.course_id = 'other'\n")
    with pytest.raises(DtlabError, match="configure"):
        course_directory(course)


def test_settings_that_fail_are_reported(course: Path) -> None:
    (course / CONFIG).write_text("c = get_confi()\n")
    with pytest.raises(DtlabError, match="NameError.*get_confi") as caught:
        course_directory(course)
    assert str(course / CONFIG) in str(caught.value)


def test_the_course_is_where_we_are_or_what_is_named(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(course)
    assert course_folder(None) == course
    assert course_folder(Path("..")) == course / ".."
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DtlabError, match="--course FOLDER"):
        course_folder(None)


@pytest.mark.proof
@pytest.mark.slow
def test_formgrader_finds_the_course(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `load_jupyter_server_extension` does in a JupyterLab started in the course folder."""
    directory = course_directory(course)
    (course / "source" / "week-3").mkdir(parents=True)
    with Gradebook(directory.db_url, directory.course_id) as book:
        book.add_assignment("week-3", duedate="2026-12-01 18:00")
    monkeypatch.chdir(course)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(course.parent / "no config here"))
    formgrader = FormgradeExtension()
    formgrader.root_dir = str(course)
    formgrader.initialize([])
    assert formgrader.url_prefix == "."
    assert formgrader.coursedir.root == str(course)
    known = NbGraderAPI(formgrader.coursedir, parent=formgrader).get_assignments()
    assert [(one["name"], one["duedate_notimezone"]) for one in known] == [
        ("week-3", "2026-12-01T18:00:00")
    ]
