"""Archives of Moodle and Canvas are collected for the right students."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from dtlab.classroom.releases.release import release_assignment
from dtlab.classroom.settings import course_directory

NAME = "week-1"
STUDENTS = {
    "ada": {"first_name": "Ada", "last_name": "Lovelace", "lms_user_id": "4711"},
    "g.h": {"first_name": "Grace", "last_name": "Hopper", "lms_user_id": "4712"},
}
MOODLE = {
    "Ada Lovelace_71_assignsubmission_file/01_level_2.ipynb": "ada",
    "grace  HOPPER_72_assignsubmission_file_/01_level_2.ipynb": "g.h",
    "Alan Turing_73_assignsubmission_file/01_level_2.ipynb": "Alan Turing",
    "Ada Lovelace_71_assignsubmission_file/01_level_1.ipynb.txt": "ada",
    "Grace Hopper_72_assignsubmission_file/level_1.json": "g.h",
}
CANVAS = {
    "lovelaceada_4711_90210_01_level_2.ipynb": "ada",
    "hoppergrace_LATE_4712_90211_01_level_2-1.ipynb": "g.h",
    "turingalan_4999_90212_level-2-1.ipynb": "turingalan",  # the name of an earlier dtlab
    "lovelaceada_4711_90213_01_level_1-1.ipynb.txt": "ada",
}
RENAMED = ["01_level_2.ipynb", "level-2.ipynb", "01_level_1.ipynb.txt"]  # without Canvas's marks


@pytest.mark.slow
@pytest.mark.parametrize("members", [MOODLE, CANVAS], ids=["moodle", "canvas"])
def test_an_archive_is_collected_by_student(tmp_path: Path, members: dict[str, str]) -> None:
    course = tmp_path / "course"
    for _ in release_assignment("01", parts="01/reduce_scatter", name=NAME, course=course):
        pass
    directory = course_directory(course)
    with Gradebook(directory.db_url, directory.course_id) as gradebook:
        for student, facts in STUDENTS.items():
            gradebook.add_student(student, **facts)
    archive = course / "downloaded" / NAME / "archive" / "all.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        for name in members:
            made.writestr(name, f'{{"cells": [], "of": "{name}"}}')
    command = [sys.executable, "-m", "nbgrader", "zip_collect", NAME]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for name, student in members.items():
        (collected,) = [
            path
            for path in (course / "submitted" / student / NAME).iterdir()
            if name in path.read_text()
        ]
        assert collected.name in (name.rpartition("/")[2], *RENAMED)
    unknown = next(student for student in members.values() if student not in STUDENTS)
    assert f"{unknown} (" in done.stderr
    assert "nbgrader db student add" in done.stderr
