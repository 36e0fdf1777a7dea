"""The doctor tries ranks, and looks at the course: nbgrader, its settings, its gradebook."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbgrader import dbutil

import dtlab
from dtlab.doctor import backends, course, trial
from dtlab.doctor.visit import Visit
from dtlab.errors import LaunchError
from dtlab.ranks.launch import inplace
from dtlab.ranks.launch import launcher as launch
from tests.doctoring import only
from tests.test_isolation_without_root import KINDS

OLDER = "282d30a0218e"  # of nbgrader/alembic/versions: assignments know of no course
VERSIONS = "\n".join(path.read_text() for path in Path(dbutil.ALEMBIC_DIR).glob("versions/*.py"))
(HEAD,) = {*re.findall(r"^revision = '(\w+)'", VERSIONS, re.M)} - {
    *re.findall(r"^down_revision = '(\w+)'", VERSIONS, re.M)
}


# Ranks -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_trial_on_real_ranks(ranks: int) -> None:
    run = dtlab.launch(trial.all_reduce, 1000, False, world_size=ranks)
    assert [errors for errors, _ in run.values] == [0] * ranks
    assert all(0 < seconds < 10 for _, seconds in run.values)


def test_wrong_sums_are_reported() -> None:
    run = launch.Run([(0, 1e-3), (7, 2e-3)], ["", ""], None, 0.1, "gloo")
    told = backends._judged("gloo", run)
    assert (told.status, told.value["wrong_elements"]) == ("wrong", 7)
    assert told.value["all_reduce_seconds"] == 2e-3
    told = backends._counted(run)
    assert (told.status, told.value["counted"]) == ("note", False)


def gloo_is_there() -> Visit:
    visit = Visit()
    vars(visit)["torch"] = {"gloo": True}
    return visit


def test_a_launch_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LaunchError("the server that forks ranks did not start.\nIt said: no")

    monkeypatch.setattr(launch, "launch", refuse)
    told = only(backends.gloo(gloo_is_there()))
    assert told.status == "wrong"
    assert told.message.startswith("2 ranks failed: the server that forks ranks did not start.")
    assert told.value["error"].endswith("It said: no")


def test_a_rank_of_another_group_tries_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in inplace.NEEDED:
        monkeypatch.setenv(name, "1")
    told = only(backends.gloo(gloo_is_there()))
    assert (told.status, told.repair) == ("note", "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT")


# The course ------------------------------------------------------------------------------------


def gradebook(folder: Path, revision: str | None) -> str:
    """A database with a schema's version in it; its address."""
    path = folder / "gradebook.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE assignment (id VARCHAR PRIMARY KEY, name VARCHAR)")
        if revision is not None:
            database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            database.execute("INSERT INTO alembic_version VALUES (?)", [revision])
    return f"sqlite:///{path}"


@pytest.mark.parametrize(
    ("revision", "status", "repair"),
    [
        (HEAD, "ok", ""),
        (OLDER, "wrong", "nbgrader db upgrade"),
        (None, "wrong", "nbgrader db upgrade"),
        ("f" * 12, "wrong", "-m pip install --upgrade nbgrader"),
    ],
)
def test_a_gradebook_of_another_version(
    revision: str | None, status: str, repair: str, tmp_path: Path
) -> None:
    told = course.gradebook(gradebook(tmp_path, revision), tmp_path)
    assert (told.status, told.value["newest_revision"]) == (status, HEAD)
    assert told.value["path"] == str(tmp_path / "gradebook.db")
    assert told.repair.endswith(repair)


def test_a_gradebook_that_is_not_there_or_elsewhere(tmp_path: Path) -> None:
    told = course.gradebook(f"sqlite:///{tmp_path}/gradebook.db", tmp_path)
    assert (told.status, told.value["exists"]) == ("ok", False)
    assert list(tmp_path.iterdir()) == []
    told = course.gradebook("postgresql://ada:secret@db/grades", tmp_path)
    assert told.status == "note"
    assert "secret" not in told.message


def test_a_gradebook_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = gradebook(tmp_path, HEAD)
    monkeypatch.setattr(course, "_DATABASE_LIMIT", 0.05)
    with closing(sqlite3.connect(tmp_path / "gradebook.db")) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        told = course.gradebook(url, tmp_path)
        assert (told.status, told.repair.split()[0]) == ("note", "fuser")
    (tmp_path / "gradebook.db").write_text("no database at all, and longer than a header" * 9)
    told = course.gradebook(url, tmp_path)
    assert (told.status, told.repair.split()[0]) == ("wrong", "mv")
    assert "file is not a database" in told.message


@pytest.mark.proof
@pytest.mark.slow
def test_the_command_repairs_an_old_gradebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_ = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "nbgrader_config.py").write_text("")
    url = gradebook(tmp_path, OLDER)
    told = course.gradebook(url, tmp_path)
    assert (told.status, told.value["revision"]) == ("wrong", OLDER)
    subprocess.run(told.repair, shell=True, check=True, capture_output=True)
    told = course.gradebook(url, tmp_path)
    assert (told.status, told.value["revision"]) == ("ok", HEAD)


CONFIGURED = (
    "from dtlab.classroom.settings import configure\nconfigure(get_config(), {folder!r})\n"
)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        (CONFIGURED, "ok", "nbgrader_config.py"),
        ("1 / 0", "wrong", "cannot be read: ZeroDivisionError"),
        ("", "wrong", "does not set up dtlab"),
    ],
)
def test_settings_of_a_course(
    text: str, status: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # configure adds to it
    visit = Visit()
    vars(visit)["nbgrader"] = {"version": "0.9.6"}
    (tmp_path / "nbgrader_config.py").write_text(text.format(folder=str(tmp_path)))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    told, *more = course.settings(visit)
    assert (told.status, told.value["folder"]) == (status, str(tmp_path))
    assert words in told.message
    paths = [str(tmp_path / "gradebook.db")] if status == "ok" else []
    assert [one.value["path"] for one in more] == paths


def test_outside_of_a_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course, "CONFIG", "no_such_config.py")
    told = only(course.settings(Visit()))
    assert (told.status, told.value["folder"]) == ("note", None)
    assert only(course.disk(Visit())).value["folder"] == str(tmp_path)


@pytest.mark.parametrize(("free", "status"), [(1e8, "wrong"), (1e9, "note")])
def test_a_full_disk(free: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    told = only(course.disk(Visit()))
    assert (told.status, told.value["free_bytes"]) == (status, free)
    assert told.repair.startswith("du ")


def test_isolation_that_the_sandbox_lacks() -> None:
    assert course.isolation_of([]).status == "ok"
    files = "files ([Errno 1] unshare: Operation not permitted)"
    told = course.isolation_of([files, "another user (only root can)"])
    assert (told.status, list(told.value["missing"])) == ("note", ["files", "another user"])
    assert told.value["missing"]["files"] == "[Errno 1] unshare: Operation not permitted"
    words = "another user: learners' code runs as you; files: it can read and change your files"
    assert words in told.message
    for kind in KINDS:
        assert f" {kind}: " in course.isolation_of([f"{kind} (reason)"]).message


def test_the_sandbox_is_checked_only_where_nbgrader_is_installed() -> None:
    visit = Visit()
    vars(visit)["nbgrader"] = {"trouble": "No module named 'nbgrader'"}
    assert list(course.sandbox(visit)) == []
