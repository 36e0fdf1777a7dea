"""The doctor runs its checks whatever they do; what it prints; how the command ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dtlab.doctor as doctor
from dtlab.cli import main
from dtlab.doctor import CHECKS, Check, Finding, as_json, as_text, checks, examine, probe
from dtlab.doctor.probe import Facts

ROOT = Path(__file__).parent.parent
KEYS = ["area", "name", "status", "message", "repair", "value"]


def fails(_: Facts) -> Finding:
    raise ZeroDivisionError("an unforeseen error")


def exits(_: Facts) -> Finding:
    print("not to be seen")
    sys.exit("a program of settings may do this")


def nothing(_: Facts) -> None:
    return None


def test_the_next_check_runs_whatever_a_check_does(capsys: pytest.CaptureFixture[str]) -> None:
    table = [
        Check("machine", "a", fails), Check("course", "b", exits), Check("gpus", "n", nothing),
        Check("machine", "c", checks.cpus), Check("ranks", "d", fails, on_ranks=True),
    ]  # fmt: skip
    failed, exited, last = examine(quick=True, checks=table)
    assert [(one.area, one.name) for one in (failed, exited, last)] == [
        ("machine", "a"), ("course", "b"), ("machine", "c"),
    ]  # fmt: skip
    assert (failed.status, exited.status, last.status) == ("wrong", "wrong", "ok")
    assert "ZeroDivisionError: an unforeseen error" in failed.message
    assert "in fails" in failed.value["traceback"]
    assert "SystemExit" in exited.message
    assert failed.repair.endswith("-m dtlab doctor --json")
    assert capsys.readouterr().out == ""
    assert len(examine(checks=table)) == 4


def test_a_check_that_hangs_costs_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATIENCE", 0.05)
    end, progress = threading.Event(), []

    def hang(_: Facts) -> None:
        end.wait(60)

    table = [Check("gpus", "slow", hang, 0.3), Check("machine", "c", checks.cpus)]
    begun = time.monotonic()
    slow, last = examine(progress=progress.append, checks=table)
    end.set()
    assert 0.3 <= time.monotonic() - begun < 10
    assert (slow.status, slow.message) == ("wrong", "no answer within 0.3 s")
    assert (last.name, progress) == ("c", ["slow takes a while; 0.3 s at most ..."])


def test_text_fits_and_commands_stay_whole() -> None:
    repair = "sudo " + "long " * 40
    findings = [
        Finding("ok", "2 of 2", area="machine", name="CPUs"),
        Finding("wrong", "word " * 60, repair, area="gpus", name="GPUs"),
        Finding("note", "is on", area="gpus", name="MIG"),
    ]
    lines = list(as_text(findings, 1.25, width=70))
    assert lines[:3] == ["machine", "  ok     CPUs           2 of 2", "gpus"]
    assert lines[3].startswith("  WRONG  GPUs           word word")
    assert f"         repair:        {repair}" in lines
    assert max(len(line) for line in lines if "repair:" not in line) <= 70
    assert lines[-1] == "1 wrong: GPUs; 1 note. 3 findings in 1.2 s."
    assert list(as_text(findings[:1], 0.0))[-1].startswith("Nothing is wrong. 1 finding")


def test_json_has_the_keys_that_are_documented() -> None:
    findings = [Finding("note", "is on", "repair it", {"index": 3}, "gpus", "MIG")]
    assert json.loads(as_json(findings, 1.0, "0.1.0")) == {
        "format": 2, "dtlab_version": "0.1.0", "status": "note", "seconds": 1.0,
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
    finding = Finding(status, "so it is")  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [finding])
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
    printed = json.loads(capsys.readouterr().out)
    found = {one["name"]: one for one in printed["findings"]}
    assert status == (printed["status"] == "wrong")
    assert all(list(one) == KEYS for one in printed["findings"])
    assert all(one["repair"] for one in found.values() if one["status"] == "wrong")
    assert found["gloo"]["status"] == "ok"
    assert found["gloo"]["value"]["all_reduce_seconds"] > 0
    assert found["gloo"]["value"]["rank_0_bytes_sent"] > 4 * checks.ELEMENTS * probe.ROUNDS
    assert found["torch"]["value"]["version"] == found["torch"]["message"].partition(",")[0]
    assert found["settings"]["message"] == str(ROOT / "nbgrader_config.py")
    assert found["nbgrader"]["status"] == found["matplotlib"]["status"] == "ok"
    with_gpus = {"compute mode", "MIG", "usable", "links", "peer access", "nccl"}
    assert {check.name for check in CHECKS} - with_gpus <= found.keys()


@pytest.mark.slow
def test_the_doctor_needs_nothing_to_begin_with() -> None:
    code = "import sys, dtlab.doctor; sys.exit(bool({'torch', 'numpy'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_another_python_than_the_courses_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "REQUIRED", ("no_such_module", "nor_this"))
    (found,) = examine()
    assert found.status == "wrong" and "it is not the course's Python" in found.message
    assert found.repair.startswith("make lab")
