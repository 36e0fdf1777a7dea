"""Notebooks are found where learners have put them, and nothing else is taken for one."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from nbformat.v4 import new_notebook

from dtlab.errors import DtlabError
from dtlab.grading.classroom.submissions import Assignment, Files, Submission

ASSIGNMENT = Assignment("week-1", {"level-1": new_notebook(), "level-2": new_notebook()})
TEXT = b'{"cells": []}'


def files(tmp_path: Path, **contents: bytes) -> Files:
    """What is found of files by path, in a student's folder."""
    folder = tmp_path / "submitted" / "ada" / "week-1"
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Submission("ada", folder).files(ASSIGNMENT)


def archive(**members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize(
    "path",
    ["level_2.ipynb", "Level 2.ipynb", "level-2 (1).ipynb", "level-2-Copy1.ipynb",
     "week 1/level-2.ipynb", "a/b/LEVEL_2.ipynb"],
)  # fmt: skip
def test_a_notebook_with_another_name_or_place_is_taken(tmp_path: Path, path: str) -> None:
    found = files(tmp_path, **{"level-1.ipynb": b"1", path: TEXT})
    assert found.notebooks == {"level-1": b"1", "level-2": TEXT}
    assert found.notes["level-2"] == (f"{path} was used as level-2.ipynb, which is missing.",)


def found_as(tmp_path: Path, names: str, *handed: str) -> dict[str, str]:
    """What is taken of the files that were handed in, for an assignment of these notebooks."""
    assignment = Assignment("week-1", {name: new_notebook() for name in names.split()})
    for name in handed:
        (tmp_path / name).write_text(name)
    taken = Submission("ada", tmp_path).files(assignment).notebooks
    return {name: data.decode() for name, data in taken.items() if data}


@pytest.mark.parametrize(
    ("names", "handed", "taken"),
    [
        ("01_level_1 01_level_2", "level-2.ipynb", "01_level_2"),
        ("01_level_1 01_level_2", "level-2-Copy1.ipynb", "01_level_2"),
        ("01_level_1 01_level_2", "Level_2.ipynb", "01_level_2"),
        ("01_level_2 02_level_2", "02-level-2.ipynb", "02_level_2"),
        ("01_level_2 02_level_2", "level-2.ipynb", ""),  # of which unit?
        ("01_level_1 01_level_2", "02_level_2.ipynb", ""),
        ("level-1 level-2", "01_level_2.ipynb", "level-2"),
        ("01-level-2 02-level-2", "01_level_2.ipynb", "01-level-2"),
    ],
)
def test_old_names_are_accepted(tmp_path: Path, names: str, handed: str, taken: str) -> None:
    assert found_as(tmp_path, names, handed) == ({taken: handed} if taken else {})


def test_a_new_name_is_preferred_to_an_old_one(tmp_path: Path) -> None:
    taken = found_as(tmp_path, "01_level_2", "level-2.ipynb", "01_level_2.ipynb")
    assert taken == {"01_level_2": "01_level_2.ipynb"}


def test_a_notebook_in_a_zip_archive_is_taken(tmp_path: Path) -> None:
    zipped = archive(**{"week-1/level-2.ipynb": TEXT, "__MACOSX/level-1.ipynb": b"no"})
    found = files(tmp_path, **{"work.zip": zipped})
    assert found.notebooks == {"level-1": None, "level-2": TEXT}
    assert "work.zip/week-1/level-2.ipynb was used" in found.notes["level-2"][0]


def test_the_file_with_the_very_name_comes_first(tmp_path: Path) -> None:
    others = {"level_2.ipynb": b"", "old/level-2.ipynb": b""}
    found = files(tmp_path, **{"level-2.ipynb": TEXT}, **others)
    assert found.notebooks["level-2"] == TEXT
    assert found.notes["level-2"] == ()


def test_what_may_be_either_is_named_and_not_taken(tmp_path: Path) -> None:
    found = files(tmp_path, **{"a/Level-2.ipynb": TEXT, "b/Level-2.ipynb": TEXT, "x.ipynb": TEXT})
    assert found.notebooks == {"level-1": None, "level-2": None}
    (note,) = found.notes["level-2"]
    assert note.startswith("There is no level-2.ipynb among the submitted files: x.ipynb, a/Level")
    assert note.endswith("rename it, and grade again.")


CUT_OFF = archive(**{"level-2.ipynb": TEXT})[:60]


# An archive holds the time at which it was made, so the tests are named by hand:
# the workers of one run must agree about the names.
@pytest.mark.parametrize(
    "broken",
    [b"PK\x03\x04 nothing more", b"", CUT_OFF],
    ids=["no archive", "empty", "cut off"],
)
def test_a_broken_archive_stops_nothing(tmp_path: Path, broken: bytes) -> None:
    assert files(tmp_path, **{"work.zip": broken}).notebooks == {"level-1": None, "level-2": None}


def test_a_damaged_member_counts_as_unreadable(tmp_path: Path) -> None:
    data = bytearray(archive(**{"level-2.ipynb": TEXT * 100}))
    data[50:60] = bytes(10)
    found = files(tmp_path, **{"work.zip": bytes(data)})
    assert found.notebooks["level-2"] is None
    assert "is a link or cannot be read" in found.notes["level-2"][0]


@pytest.mark.parametrize("which", ["assignment", "student"])
def test_a_link_to_another_learners_work_is_refused(tmp_path: Path, which: str) -> None:
    files(tmp_path, **{"level-2.ipynb": TEXT})
    eve = tmp_path / "submitted" / "eve"
    if which == "student":
        eve.symlink_to("ada")
    else:
        eve.mkdir()
        (eve / "week-1").symlink_to("../ada/week-1")
    with pytest.raises(DtlabError, match="is a link to .*ada.*another student's work"):
        Submission("eve", eve / "week-1").files(ASSIGNMENT)
