"""What ranks ask of the operating system."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dtlab.ranks import system


def cgroup(folder: Path, text: str) -> str:
    """A file like /proc/self/cgroup."""
    path = folder / "cgroup"
    path.write_text(text)
    return str(path)


def test_a_quota_of_version_2_is_found_in_the_group_or_above_it(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    inner = root / "outer" / "inner"
    inner.mkdir(parents=True)
    (root / "outer" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    proc = cgroup(tmp_path, "0::/outer/inner\n")
    assert system._cgroup_quotas(proc, str(root)) == [1.5]


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    group = root / "cpu,cpuacct" / "docker"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("400000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    proc = cgroup(tmp_path, "5:memory:/docker\n3:cpu,cpuacct:/docker\n")
    assert system._cgroup_quotas(proc, str(root)) == [4.0]


def test_no_quota_means_the_affinity_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_cgroup_quotas", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert system.usable_cpus() == 3.0
    monkeypatch.setattr(system, "_cgroup_quotas", lambda: [0.5])
    assert system.usable_cpus() == 0.5


def test_missing_files_are_no_quota(tmp_path: Path) -> None:
    assert system._cgroup_quotas(str(tmp_path / "nothing")) == []
    assert system._cgroup_quotas(cgroup(tmp_path, "0::/none\n"), str(tmp_path)) == []


def test_children_are_listed_and_reaped() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    assert pid in system.children()
    system.kill(pid)
    os.waitpid(pid, 0)
    assert pid not in system.children()
    system.kill(pid)  # has ended already: not an error
