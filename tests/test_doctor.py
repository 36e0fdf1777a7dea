"""The doctor carries out its checks whatever they do; what it prints; how the command ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtlab.cli import main
from dtlab.doctor import backends, checkup, machine, trial
from dtlab.doctor.checkup import CHECKS, Check, examine
from dtlab.doctor.finding import AREAS, Finding, note, ok, wrong
from dtlab.doctor.show import as_json, as_text
from dtlab.doctor.visit import Visit

ROOT = Path(__file__).parent.parent
KEYS = ["area", "name", "status", "message", "repair", "value"]


def raises(_: Visit) -> Iterator[Finding]:
    yield ok("machine", "first", "was found before")
    raise ZeroDivisionError("an unforeseen error")


def leaves(_: Visit) -> Iterator[Finding]:
    print("not to be seen")
    yield from ()
    sys.exit("a program of settings may do this")


def test_the_next_check_runs_whatever_a_check_does(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [
        Check("machine", "a", raises), Check("course", "b", leaves),
        Check("machine", "c", machine.cpus), Check("ranks", "d", raises, on_ranks=True),
    ]  # fmt: skip
    first, failed, left, last = examine(quick=True, checks=checks)
    assert [one.name for one in (first, failed, left, last)] == ["first", "a", "b", "CPUs"]
    assert failed.status == left.status == "wrong"
    assert "ZeroDivisionError: an unforeseen error" in failed.message
    assert "in raises" in failed.value["traceback"]
    assert "SystemExit" in left.message
    assert capsys.readouterr().out == ""
    assert len(examine(checks=checks)) == 6


def test_a_check_that_hangs_costs_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtlab.doctor.checkup.PATIENCE", 0.05)
    end, progress = threading.Event(), []

    def hang(_: Visit) -> Iterator[Finding]:
        end.wait(60)
        yield ok("machine", "never", "")

    checks = [Check("gpus", "slow", hang, 0.3), Check("machine", "c", machine.cpus)]
    begun = time.monotonic()
    slow, last = examine(progress=progress.append, checks=checks)
    end.set()
    assert 0.3 <= time.monotonic() - begun < 10
    assert (slow.status, slow.message) == ("wrong", "no answer within 0.3 s")
    assert (last.name, progress) == ("CPUs", ["slow takes a while; 0.3 s at most ..."])


def test_started_processes_end_with_the_visit() -> None:
    visit = Visit()
    asked = threading.Thread(target=visit.ask, args=(["sleep", "60"], 60.0))
    asked.start()
    while not visit._running:
        time.sleep(0.01)
    visit.end()
    asked.join(10)
    assert not asked.is_alive()


def test_text_fits_and_commands_stay_whole() -> None:
    repair = "sudo " + "long " * 40
    found = [ok("machine", "CPUs", "2 of 2"), wrong("gpus", "GPUs", "word " * 60, repair),
             note("gpus", "MIG", "is on")]  # fmt: skip
    lines = list(as_text(found, 1.25, width=70))
    assert lines[:3] == ["machine", "  ok     CPUs           2 of 2", "gpus"]
    assert lines[3].startswith("  WRONG  GPUs           word word")
    assert f"         repair:        {repair}" in lines
    assert max(len(line) for line in lines if "repair:" not in line) <= 70
    assert lines[-1] == "1 wrong: GPUs; 1 note. 3 findings in 1.2 s."
    assert list(as_text(found[:1], 0.0))[-1].startswith("Nothing is wrong. 1 finding")


def test_json_has_the_keys_that_are_documented() -> None:
    told = json.loads(as_json([note("gpus", "MIG", "is on", "repair it", index=3)], 1.0, "0.1.0"))
    assert told == {
        "format": 1, "dtlab_version": "0.1.0", "status": "note", "seconds": 1.0,
        "findings": [{"area": "gpus", "name": "MIG", "status": "note", "message": "is on",
                      "repair": "repair it", "value": {"index": 3}}],
    }  # fmt: skip


@pytest.mark.parametrize(("status", "expected"), [("ok", 0), ("note", 0), ("wrong", 1)])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_exit_status(
    status: str,
    expected: int,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = Finding("machine", "CPUs", {}, status, "so it is")  # type: ignore[arg-type]
    monkeypatch.setattr("dtlab.doctor.examine", lambda *_, **__: [found])
    assert main(["doctor", *options]) == expected
    assert "so it is" in capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_the_command_on_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    status = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    found = {one["name"]: one for one in told["findings"]}
    assert status == (told["status"] == "wrong")
    assert all(list(one) == KEYS and one["area"] in AREAS for one in told["findings"])
    assert all(one["repair"] for one in found.values() if one["status"] == "wrong")
    assert found["gloo"]["status"] == "ok"
    assert found["gloo"]["value"]["all_reduce_seconds"] > 0
    assert found["bytes sent"]["value"]["rank_0_bytes"] > 4 * backends.ELEMENTS * trial.ROUNDS
    assert found["torch"]["value"]["version"] == found["torch"]["message"].partition(",")[0]
    assert found["settings"]["value"]["folder"] == str(ROOT)
    assert found["nbgrader"]["status"] == found["matplotlib"]["status"] == "ok"
    expected = {check.name for check in CHECKS} - {"usable", "links", "peer access", "nccl"}
    assert expected - found.keys() == set()


@pytest.mark.slow
def test_the_doctor_needs_nothing_to_begin_with() -> None:
    code = "import sys, dtlab.doctor; sys.exit(bool({'torch', 'numpy'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_another_python_than_the_courses_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "NEEDED", ("no_such_module", "nor_this"))
    (found,) = examine()
    assert found.status == "wrong" and "it is not the course's Python" in found.message
    assert found.repair.startswith("make lab")
