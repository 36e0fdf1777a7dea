"""`dtlab grade --engine ray`: the same verdicts as here, and nothing of a cluster stays behind."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtlab.cli import main
from tests.a_class import NAME, Class, keep_path, without_seconds
from tests.with_ray import SECONDS, Marked, needs_ray, running_cluster

STUDENTS = ("ada", "bob", "cyd")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three students who handed in parts of two levels, of whom one left out a part."""
    with pytest.MonkeyPatch.context() as patch:
        keep_path(patch)
        group = Class(tmp_path_factory.mktemp("made") / "course", "01/step,01/tree_broadcast")
        group.hand_in("ada")
        group.hand_in("bob", "tree_broadcast")
        group.hand_in("cyd", "step")
    return group.folder


@pytest.fixture
def group(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Class]:
    """A copy of that class."""
    keep_path(monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    copy = Class(Path(shutil.copytree(made, tmp_path / "course")))
    yield copy
    copy.end_processes()


def graded(group: Class, *words: str) -> Marked:
    """A grading run with Ray, whose processes are marked."""
    # A cluster's sockets have long names, and tests have a long temporary folder.
    return Marked(lambda env: group.command("--engine", "ray", *words, env=env))


class TestWithRay:
    pytestmark = [*needs_ray, pytest.mark.proof]  # noqa: RUF012

    def test_it_gives_the_same_verdicts_as_this_machine(self, group: Class) -> None:
        """The cluster is on loopback only, and it ends."""
        here = group.command("--seed", "11")
        assert here.communicate(timeout=SECONDS)[1] == ""
        local = {name: without_seconds(group.record(name)) for name in STUDENTS}
        shutil.rmtree(group.folder / "verdicts")
        run = graded(group, "--seed", "11", "--jobs", "2")
        assert run.process.stdout is not None
        first = run.process.stdout.readline()
        assert len(run.folders()) == 1
        run.demand_loopback()
        out, error = run.process.communicate(timeout=SECONDS)
        assert (run.process.returncode, error) == (0, ""), first + out
        assert {name: without_seconds(group.record(name)) for name in STUDENTS} == local
        assert group.points("ada") == {"step": 6, "tree_broadcast": 6}
        assert group.points("cyd") == {"step": 0, "tree_broadcast": 6}
        run.demand_nothing_left()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_stop_ends_the_cluster_too(self, group: Class, number: signal.Signals) -> None:
        run = graded(group, "--jobs", "2")
        assert run.process.stdout is not None
        run.process.stdout.readline()
        run.process.send_signal(number)
        _, error = run.process.communicate(timeout=SECONDS)
        assert run.process.returncode == 1
        assert "of 3 submissions are graded. Run the same command to grade the other" in error
        assert "Traceback" not in error
        run.demand_nothing_left()

    def test_a_cluster_that_is_running_is_taken_and_left_running(
        self, group: Class, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running_cluster(monkeypatch, cpus=2) as cluster:
            run = graded(group)
            assert run.process.stdout is not None
            first = run.process.stdout.readline()
            assert run.folders() == []
            out, error = run.process.communicate(timeout=SECONDS)
            assert (run.process.returncode, error) == (0, ""), first + out
            assert "3 graded." in out
            names = [one.name() for one in cluster.children(recursive=True)]
            assert any("raylet" in name for name in names)
            assert not any("dtlab" in name or "Judge" in name for name in names), names


@pytest.mark.proof
@pytest.mark.slow
def test_without_ray_it_says_what_to_install(
    group: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["grade", NAME, "--course", str(group.folder), "--engine", "ray"]) == 1
    error = capsys.readouterr().err
    assert "--engine ray needs Ray, which is not installed here." in error
    assert "pip install 'dtlab[ray]'" in error
