"""The doctor launches ranks, and checks the course: nbgrader, its settings, its gradebook."""

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
from dtlab.doctor import checks, probe
from dtlab.doctor.probe import Facts
from dtlab.errors import LaunchError
from dtlab.ranks.launch import inplace
from dtlab.ranks.launch import launcher as launch
from tests.test_isolation_without_root import KINDS

OLDER = "282d30a0218e"  # of nbgrader/alembic/versions: assignments know of no course
VERSIONS = "\n".join(path.read_text() for path in Path(dbutil.ALEMBIC_DIR).glob("versions/*.py"))
(HEAD,) = {*re.findall(r"^revision = '(\w+)'", VERSIONS, re.M)} - {
    *re.findall(r"^down_revision = '(\w+)'", VERSIONS, re.M)
}


GLOO = Facts(torch={"gloo": True})
NBGRADER = Facts(nbgrader={"version": "0.9.6"})


# Ranks -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_all_reduce_on_real_ranks(ranks: int) -> None:
    run = dtlab.launch(probe.all_reduce, 1000, False, world_size=ranks)
    assert [errors for errors, _ in run.values] == [0] * ranks
    assert all(0 < seconds < 10 for _, seconds in run.values)


def run_of(monkeypatch: pytest.MonkeyPatch, values: list[tuple[int, float]], sent: int) -> None:
    """Make each launch return these values of the ranks, and bytes that each rank sent."""
    trace = SimpleNamespace(bytes_wire=lambda: [sent or None] * len(values))
    run = SimpleNamespace(values=values, trace=trace, seconds=0.1)
    monkeypatch.setattr(launch, "launch", lambda *_, **__: run)


def test_a_right_sum_is_reported_with_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(monkeypatch, [(0, 1e-3), (0, 2e-3)], sent=24)
    found = checks.gloo(GLOO)
    assert found is not None and found.status == "ok"
    assert found.message == "2 ranks, the sum is correct; an all-reduce of 4 MB takes 2 ms"
    assert found.value["rank_0_bytes_sent"] == 24


def test_a_wrong_sum_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(monkeypatch, [(0, 1e-3), (7, 2e-3)], sent=24)
    found = checks.gloo(GLOO)
    assert found is not None and (found.status, found.value["wrong_elements"]) == ("wrong", 7)
    assert "dtlab.launch(int)" in found.repair
    assert checks.on_ranks("nccl", 2).repair.startswith("NCCL_DEBUG=INFO ")


def test_bytes_that_the_kernel_does_not_count_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(monkeypatch, [(0, 1e-3), (0, 2e-3)], sent=0)
    found = checks.gloo(GLOO)
    assert found is not None and found.status == "note"
    assert found.repair == "sudo modprobe -a inet_diag tcp_diag"


def test_a_launch_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LaunchError("the server that forks ranks did not start.\nIt said: no")

    monkeypatch.setattr(launch, "launch", refuse)
    found = checks.gloo(GLOO)
    assert found is not None and found.status == "wrong"
    assert found.message.startswith("2 ranks failed: the server that forks ranks did not start.")
    assert found.value["error"].endswith("It said: no")


def test_a_rank_of_another_group_launches_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in inplace.NEEDED:
        monkeypatch.setenv(name, "1")
    found = checks.gloo(GLOO)
    assert found is not None
    assert (found.status, found.repair) == (
        "note",
        "unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT",
    )


# The course ------------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course that is set up for dtlab, as the working folder."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # configure adds to it
    text = "from dtlab.classroom.settings import configure\nconfigure(get_config(), {!r})\n"
    (tmp_path / "nbgrader_config.py").write_text(text.format(str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def create_gradebook(folder: Path, revision: str | None) -> None:
    """Create a database with a schema's version in it."""
    with closing(sqlite3.connect(folder / "gradebook.db")) as database, database:
        database.execute("CREATE TABLE assignment (id VARCHAR PRIMARY KEY, name VARCHAR)")
        if revision is not None:
            database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            database.execute("INSERT INTO alembic_version VALUES (?)", [revision])


@pytest.mark.parametrize(
    ("revision", "status", "words", "repair"),
    [
        (HEAD, "ok", "has the version of this nbgrader", ""),
        (OLDER, "wrong", "an older nbgrader", "nbgrader db upgrade"),
        (None, "wrong", "an older nbgrader", "nbgrader db upgrade"),
        ("f" * 12, "wrong", "a newer nbgrader", "-m pip install --upgrade nbgrader"),
    ],
)
def test_a_gradebook_of_another_version(
    revision: str | None, status: str, words: str, repair: str, course: Path
) -> None:
    create_gradebook(course, revision)
    found = checks.gradebook(NBGRADER)
    assert found is not None
    assert (found.status, found.value["newest_revision"]) == (status, HEAD)
    assert str(course / "gradebook.db") in found.message and words in found.message
    assert found.repair.endswith(repair)


def test_a_gradebook_that_does_not_exist_yet(course: Path) -> None:
    found = checks.gradebook(NBGRADER)
    assert found is not None and found.status == "ok"
    assert f"nbgrader will create it: {course}/gradebook.db" in found.message
    assert not (course / "gradebook.db").exists()


def test_a_gradebook_on_a_server(course: Path) -> None:
    with (course / "nbgrader_config.py").open("a") as file:
        file.write("get_config().CourseDirectory.db_url = 'postgresql://ada:secret@db/grades'\n")
    found = checks.gradebook(NBGRADER)
    assert found is not None and found.status == "note"
    assert "postgresql://" in found.message and "secret" not in found.message


def test_a_gradebook_that_cannot_be_read(course: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_gradebook(course, HEAD)
    path = course / "gradebook.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        found = checks.gradebook(NBGRADER)
        assert found is not None
        assert (found.status, found.repair.split()[0]) == ("note", "fuser")
    path.write_text("no database at all, and longer than a header" * 9)
    found = checks.gradebook(NBGRADER)
    assert found is not None and found.status == "wrong"
    assert found.repair == f"mv {path} {path}.broken"
    assert "file is not a database" in found.message
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may always
    found = checks.gradebook(NBGRADER)
    assert found is not None and found.status == "wrong"
    assert found.repair.startswith("sudo chown $USER")


@pytest.mark.proof
@pytest.mark.slow
def test_the_command_repairs_an_old_gradebook(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    create_gradebook(course, OLDER)
    found = checks.gradebook(NBGRADER)
    assert found is not None and (found.status, found.value["revision"]) == ("wrong", OLDER)
    subprocess.run(found.repair, shell=True, check=True, capture_output=True)
    found = checks.gradebook(NBGRADER)
    assert found is not None and (found.status, found.value["revision"]) == ("ok", HEAD)


@pytest.mark.parametrize(
    ("text", "words"),
    [("1 / 0", "cannot be read: ZeroDivisionError"), ("", "does not set up dtlab")],
)
def test_settings_that_are_wrong(text: str, words: str, course: Path) -> None:
    (course / "nbgrader_config.py").write_text(text)
    found = checks.settings(NBGRADER)
    assert found is not None and found.status == "wrong" and words in found.message
    assert found.repair.endswith(str(course / "nbgrader_config.py"))
    assert checks.gradebook(NBGRADER) is None


def test_settings_are_found_above_the_working_folder(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (course / "below").mkdir()
    monkeypatch.chdir(course / "below")
    found = checks.settings(NBGRADER)
    assert found is not None
    assert (found.status, found.message) == ("ok", str(course / "nbgrader_config.py"))


def test_outside_of_a_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "CONFIG", "no_such_config.py")
    found = checks.settings(NBGRADER)
    assert found is not None and found.status == "note"
    assert found.repair == "cd THE_COURSE && dtlab doctor"
    assert checks.gradebook(NBGRADER) is None
    assert checks.disk(Facts()).message.endswith(str(tmp_path))


@pytest.mark.parametrize(("free", "status"), [(1e8, "wrong"), (1e9, "note"), (1e11, "ok")])
def test_a_full_disk(free: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    found = checks.disk(Facts())
    assert found.status == status and f"{free / 1e9:g} GB are free" in found.message
    assert found.repair.startswith("du ") == (status != "ok")


def test_isolation_that_the_sandbox_lacks() -> None:
    assert checks.isolation([]).status == "ok"
    files = "files ([Errno 1] unshare: Operation not permitted)"
    found = checks.isolation([files, "another user (only root can)"])
    assert found.status == "note" and files in found.value["missing"]
    words = "another user: learners' code runs as you; files: it can read and change your files"
    assert words in found.message
    for kind in KINDS:
        assert f" {kind}: " in checks.isolation([f"{kind} (reason)"]).message


def test_without_nbgrader_nothing_of_the_course_is_checked() -> None:
    facts = Facts(nbgrader={"trouble": "ModuleNotFoundError: No module named 'nbgrader'"})
    found = checks.nbgrader(facts)
    assert (found.status, found.message) == ("note", "is not installed; only instructors need it")
    assert found.repair.endswith("-m pip install 'nbgrader>=0.9.6,<0.10'")
    assert checks.settings(facts) is checks.gradebook(facts) is checks.sandbox(facts) is None
