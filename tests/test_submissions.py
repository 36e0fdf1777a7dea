"""Notebooks are found where learners have put them, and nothing else is taken for one."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from nbformat.v4 import new_notebook

from dtlab.classroom.submissions import Assignment, Files, Submission
from dtlab.errors import DtlabError
from tests.handed_in import RELEASED, Tree, at, data, tree, work

ASSIGNMENT = Assignment("week-1", {"level-1": new_notebook(), "level-2": new_notebook()})
TEXT = b'{"cells": []}'


def files(tmp_path: Path, **contents: bytes) -> Files:
    """What is found of files by path, in a student's folder."""
    folder = tmp_path / "submitted" / "ada" / "week-1"
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
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


def test_the_file_with_the_exact_name_is_preferred(tmp_path: Path) -> None:
    others = {"level_2.ipynb": b"", "old/level-2.ipynb": b""}
    found = files(tmp_path, **{"level-2.ipynb": TEXT}, **others)
    assert found.notebooks["level-2"] == TEXT
    assert found.notes["level-2"] == ()


def test_an_ambiguous_notebook_is_named_and_not_taken(tmp_path: Path) -> None:
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


# Notebooks that are recognised by their cells ---------------------------------------------------

REAL = Assignment("week-1", {"01_level_1": RELEASED["level-1"], "01_level_2": RELEASED["level-2"]})
WORK = data(work())  # of level 2


def taken(tmp_path: Path, **contents: bytes) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
    """The notebooks that are found, and the notes on level 2."""
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    read = Submission("ada", tmp_path).files(REAL)
    return dict(read.notebooks), read.notes["01_level_2"]


@pytest.mark.parametrize(
    "name",
    ["ABC 01_level_2.ipynb", "abgabe.ipynb", "Untitled7.IPYNB", "hw/final_FINAL.ipynb",
     "01_level_2.ipynb.txt", "01_level_2.ipynb.json", "solution.json", "notebook", "x.txt",
     "级别二.ipynb"],
)  # fmt: skip
def test_a_lone_notebook_is_taken_whatever_its_name(tmp_path: Path, name: str) -> None:
    found, notes = taken(tmp_path, **{name: WORK, "data.csv": b"1,2"})
    assert found == {"01_level_1": None, "01_level_2": WORK}
    assert notes == (f"{name} was used as 01_level_2.ipynb, which is missing.",)


def tarred(name: str, content: bytes, kind: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w{kind}") as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("work.zip", archive(**{"week-1\\my\\solution.ipynb": WORK})),
        ("work.zip", archive(**{"__MACOSX/._a.ipynb": b"\0\5", "a.ipynb": WORK})),
        ("work.zip", archive(**{"__MACOSX\\._a.ipynb": b"\0\5", "w\\a.ipynb.txt": WORK})),
        ("work.zip", archive(**{"inner.zip": archive(**{"b/c.ipynb": WORK})})),
        ("upload", archive(**{"a.json": WORK})),  # without an ending
        ("work.tar.gz", tarred("week-1/a.ipynb", WORK, ":gz")),
        ("work.tar", tarred("./a.ipynb", WORK, "")),
    ],
    ids=["backslashes", "macosx", "both", "nested", "no ending", "tar.gz", "tar"],
)
def test_a_lone_notebook_is_found_in_any_archive(
    tmp_path: Path, name: str, content: bytes
) -> None:
    found, notes = taken(tmp_path, **{name: content})
    assert found == {"01_level_1": None, "01_level_2": WORK}
    assert notes[0].startswith(f"{name}/")


def without_checks(notebook: Tree) -> Tree:
    kept = [cell for cell in notebook["cells"] if not str(cell.get("id")).endswith("-check")]
    return notebook | {"cells": kept}


def bare(notebook: Tree) -> Tree:
    """The notebook as saved by a program that drops ids and nbgrader's metadata."""
    for cell in notebook["cells"]:
        cell.pop("id", None)
        cell["metadata"] = {}
    return notebook


@pytest.mark.parametrize(
    "content",
    [
        data(without_checks(work())),
        data(bare(work())),
        data(bare(without_checks(work()))),
        WORK[: len(WORK) // 2],
        WORK.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + WORK,
    ],
    ids=["no checks", "no ids", "answers only", "cut off", "utf-16", "byte order mark"],
)
def test_some_of_its_cells_are_enough(tmp_path: Path, content: bytes) -> None:
    assert taken(tmp_path, **{"my work.ipynb": content})[0]["01_level_2"] == content


def test_cells_count_more_than_a_name_that_is_wrong(tmp_path: Path) -> None:
    level_1 = data(tree(RELEASED["level-1"]))
    swapped = {"01_level_1.ipynb": WORK, "01_level_2.ipynb": level_1}
    found, (note,) = taken(tmp_path, **swapped)
    assert found == {"01_level_1": level_1, "01_level_2": WORK}
    assert note == (
        "01_level_1.ipynb was used as 01_level_2.ipynb, which has the cells of another notebook."
    )


def test_of_two_different_notebooks_neither_is_taken_and_both_are_named(tmp_path: Path) -> None:
    other = work()
    at(other, "reduce_scatter")["source"] = "pass"
    copies = {"a.ipynb": WORK, "b.ipynb": WORK}
    assert taken(tmp_path, **copies)[0]["01_level_2"] == WORK
    found, (note,) = taken(tmp_path, **copies, **{"c.ipynb": data(other)})
    assert found["01_level_2"] is None
    assert "among the submitted files: a.ipynb, b.ipynb, c.ipynb." in note


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lesson.ipynb", data(bare(tree(RELEASED["level-3"])))),  # of other parts
        ("notes.txt", b'I wrote dtlab.check("01/reduce_scatter", f) in a "cell".'),
        ("package.json", b'{"name": "01_level_2", "id": "reduce_scatter"}'),
    ],
)
def test_no_other_file_is_taken_for_a_notebook(tmp_path: Path, name: str, content: bytes) -> None:
    found, (note,) = taken(tmp_path, **{name: content})
    assert found == {"01_level_1": None, "01_level_2": None}
    assert note.startswith(f"There is no 01_level_2.ipynb among the submitted files: {name}.")


def test_an_archive_that_is_not_opened_is_named(tmp_path: Path) -> None:
    notes = taken(tmp_path, **{"work.rar": b"Rar!\x1a\x07"})[1]
    assert notes[1] == "work.rar: this kind of archive is not opened. Unpack it, or get a zip."
