"""The doctor reports the machine and its software as they are, and what may be wrong with them."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtlab.doctor import CHECKS, checks, probe
from dtlab.doctor.probe import Facts
from dtlab.ranks import system

NO_FACTS = Facts()
FUNCTIONS = {check.name: check.function for check in CHECKS}


def fake_module(folder: Path, name: str, **files: str) -> str:
    """Write a package of that name into a folder; return the PYTHONPATH to find it."""
    for file, text in files.items():
        path = folder / name / f"{file}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(folder)


# The machine -----------------------------------------------------------------------------------


def test_the_machine_is_reported_as_it_is() -> None:
    assert os.uname().sysname in checks.operating_system(NO_FACTS).message
    usable = f"{system.usable_cpus():g} of {os.cpu_count()} are usable"
    assert checks.cpus(NO_FACTS).message.startswith(usable)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert checks.memory(NO_FACTS).value["total_bytes"] == total
    assert checks.loopback(NO_FACTS).status == "ok"
    assert checks.watcher(NO_FACTS).status == "ok"
    size = shutil.disk_usage("/dev/shm").total
    assert checks.shared_memory(NO_FACTS).value["size_bytes"] == size
    version = f"{sys.version_info[0]}.{sys.version_info[1]}."
    assert checks.python(NO_FACTS).message.startswith(version)
    assert sys.executable in checks.python(NO_FACTS).message


def test_a_limit_of_version_2_is_found_in_the_group_or_above_it(tmp_path: Path) -> None:
    root, proc = tmp_path / "fs", tmp_path / "cgroup"
    (root / "outer" / "inner").mkdir(parents=True)
    (root / "outer" / "memory.max").write_text("3000000000\n")
    (root / "outer" / "inner" / "memory.max").write_text("max\n")
    proc.write_text("0::/outer/inner\n")
    assert checks.memory_limit(str(proc), str(root)) == 3_000_000_000
    (root / "outer" / "inner" / "memory.max").write_text("2000000000\n")
    assert checks.memory_limit(str(proc), str(root)) == 2_000_000_000


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    root, proc = tmp_path / "fs", tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    limit = root / "memory" / "memory.limit_in_bytes"
    proc.write_text("5:cpuset:/\n4:memory:/docker/4711\n1:name=systemd:/\n")  # as in a container
    limit.write_text("536870912\n")
    assert checks.memory_limit(str(proc), str(root)) == 2**29
    limit.write_text("9223372036854771712\n")  # no limit, in pages
    assert checks.memory_limit(str(proc), str(root)) is None
    assert checks.memory_limit(str(tmp_path / "none"), str(root)) is None


@pytest.mark.parametrize(("limit", "status"), [(0.5e9, "wrong"), (2e9, "note")])
def test_little_memory(limit: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "memory_limit", lambda: limit)
    found = checks.memory(NO_FACTS)
    assert (found.status, found.value["limit_bytes"]) == (status, limit)
    assert f"this control group may use {limit / 1e9:g} GB" in found.message
    assert found.repair.startswith("ps ")


def test_less_than_two_cpus_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cpus", lambda: 1.5)
    assert checks.cpus(NO_FACTS).status == "note"


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "SHARED", tmp_path)
    docker = SimpleNamespace(f_blocks=2**14, f_frsize=4096, f_bavail=2**13)
    monkeypatch.setattr(os, "statvfs", lambda _: docker)
    found = checks.shared_memory(NO_FACTS)
    assert (found.status, found.value) == ("note", {"size_bytes": 2**26, "free_bytes": 2**25})
    assert "--shm-size=1g" in found.repair


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    found = checks.loopback(NO_FACTS)
    assert found.status == "wrong" and found.repair.startswith("sudo ip link set lo up")
    assert "Cannot assign requested address" in found.message


def test_a_loopback_that_a_firewall_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def drops(*_: object, **__: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", drops)
    found = checks.loopback(NO_FACTS)
    assert found.status == "wrong" and "iptables" in found.repair
    assert "timed out" in found.message


def test_proc_that_is_hidden(tmp_path: Path) -> None:
    found = checks.watcher(NO_FACTS, tmp_path)
    assert found.status == "wrong"
    assert f"{tmp_path}/stat cannot be read" in found.message
    assert found.repair == "sudo mount -o remount,hidepid=0 /proc"


def test_what_macos_lacks_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.setattr(checks, "SHARED", tmp_path / "none")
    for check in (checks.operating_system, checks.shared_memory, checks.watcher):
        assert check(NO_FACTS).status == "note"


# The software ----------------------------------------------------------------------------------


def test_a_python_that_is_too_old_or_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("NEWEST", (3, 10)), ("OLDEST", (3, 99))):
        with monkeypatch.context() as one:
            one.setattr(checks, name, version)
            found = checks.python(NO_FACTS)
        assert (found.status, found.repair.split()[-1]) == ("wrong", "PYTHON=python3.12")


def test_packages_that_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.packages(NO_FACTS).status == "ok"
    needs = ["numpy>=99", "pytest>=1", "dtlab-nowhere>=1.5", "other; extra == 'dev'"]
    fake, real = SimpleNamespace(version="0.1.0", requires=needs), metadata.distribution
    monkeypatch.setattr(
        metadata, "distribution", lambda name: fake if name == "dtlab" else real(name)
    )
    found = checks.packages(NO_FACTS)
    assert found.status == "wrong"
    assert found.message.endswith("these packages are missing: numpy>=99, dtlab-nowhere>=1.5")
    assert found.repair.endswith("-m pip install 'numpy>=99' 'dtlab-nowhere>=1.5'")


def test_a_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    found = checks.packages(NO_FACTS)
    assert found.status == "note" and found.repair.endswith(f"install -e {checks.ROOT}")


VERSION = "__version__ = '2.13.0'\nfrom types import SimpleNamespace\n"
CPU = VERSION + "version = SimpleNamespace(cuda=None)\n"
CUDA = (
    VERSION
    + """
version = SimpleNamespace(cuda="13.0", hip=None)
class cuda:
    nccl = SimpleNamespace(version=lambda: (2, 28, 9))
    init = device_count = lambda: 2
    can_device_access_peer = lambda a, b: a < b
    get_device_properties = lambda n: SimpleNamespace(name=f"card {n}", total_memory=10**10)
"""
)
WITHOUT = "def is_available(): return False\n"
WITHOUT_GLOO = "def is_available(): return True\ndef is_gloo_available(): return False\n"
WITH = "def is_available(): return True\nis_gloo_available = is_nccl_available = is_available\n"


@pytest.mark.parametrize(
    ("distributed", "lacks"),
    [
        (WITHOUT, "torch.distributed"),
        (f"{WITHOUT_GLOO}is_nccl_available = is_gloo_available", "the backend gloo"),
    ],
)
def test_a_torch_that_cannot_run_ranks(
    distributed: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_module(tmp_path, "torch", __init__=CPU, distributed=distributed)
    monkeypatch.setenv("PYTHONPATH", path)
    facts = Facts()
    found = checks.torch(facts)
    assert found.status == "wrong"
    assert found.message == f"2.13.0 was built without {lacks}: no rank can run"
    assert found.repair.endswith("--force-reinstall 'torch>=2.13,<2.14'")
    assert checks.gloo(facts) is None  # is not tried


def test_a_torch_for_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_module(tmp_path, "torch", __init__=CUDA, distributed=WITH)
    monkeypatch.setenv("PYTHONPATH", path)
    facts = Facts()
    assert checks.torch(facts).message == "2.13.0, CUDA 13.0, NCCL 2.28.9"
    assert facts["torch"]["devices"][1] == {"name": "card 1", "memory_bytes": 10**10}
    assert facts["torch"]["no_peers"] == [[1, 0]]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: can"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import sys, os; sys.stderr.write('bus error'); os._exit(3)", "exit status 3; bus error"),
        ("import os; os._exit(0)", "exit status 0"),
        ("raise SystemExit('no')", "SystemExit: no"),
    ],
)
def test_a_torch_that_is_broken(
    source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "torch", __init__=source))
    found = checks.torch(Facts())
    assert found.status == "wrong"
    assert words in found.message
    assert found.repair.endswith("--force-reinstall 'torch>=2.13,<2.14'")


def test_an_import_that_hangs_costs_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "IMPORT_LIMIT", 0.3)
    path = fake_module(tmp_path, "torch", __init__="import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", path)
    assert checks.torch(Facts()).message == "cannot be imported: no answer within 0.3 s"


@pytest.mark.parametrize("name", ["matplotlib", "JupyterLab", "nbgrader"])
def test_a_package_that_cannot_be_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = name.lower()
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, module, __init__="import nowhere"))
    found = FUNCTIONS[name](Facts())
    assert found is not None and found.status == "wrong"
    assert "ModuleNotFoundError: No module named 'nowhere'" in found.message
    assert f"--force-reinstall '{module}>=" in found.repair
