"""The doctor tells the machine and its software as they are, and what may be wrong with them."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtlab.doctor import backends, course, machine, software
from dtlab.doctor.visit import Visit
from dtlab.ranks import system
from tests.doctoring import fake_module, only

ROOT = Path(__file__).parent.parent


# The machine -----------------------------------------------------------------------------------


def test_the_machine_is_reported_as_it_is() -> None:
    told = only(machine.operating_system(Visit()))
    assert told.value["system"] == os.uname().sysname
    told = only(machine.cpus(Visit()))
    assert told.value == {"usable_cpus": system.usable_cpus(), "cpus": os.cpu_count()}
    told = only(machine.memory(Visit()))
    assert told.value["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert only(machine.loopback(Visit())).status == "ok"
    assert only(machine.proc(Visit())).status == "ok"
    told = only(machine.shared(Visit()))
    assert told.value["size_bytes"] == shutil.disk_usage("/dev/shm").total
    told = only(software.python(Visit()))
    assert told.value["version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    told = only(course.disk(Visit()))
    assert abs(told.value["free_bytes"] - shutil.disk_usage(ROOT).free) < 5e9


def test_a_limit_of_version_2_is_found_in_the_group_or_above_it(tmp_path: Path) -> None:
    root, proc = tmp_path / "fs", tmp_path / "cgroup"
    (root / "outer" / "inner").mkdir(parents=True)
    (root / "outer" / "memory.max").write_text("3000000000\n")
    (root / "outer" / "inner" / "memory.max").write_text("max\n")
    proc.write_text("0::/outer/inner\n")
    assert machine.memory_limit(str(proc), str(root)) == 3_000_000_000
    (root / "outer" / "inner" / "memory.max").write_text("2000000000\n")
    assert machine.memory_limit(str(proc), str(root)) == 2_000_000_000


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    root, proc = tmp_path / "fs", tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    limit = root / "memory" / "memory.limit_in_bytes"
    proc.write_text("5:cpuset:/\n4:memory:/docker/4711\n1:name=systemd:/\n")  # as in a container
    limit.write_text("536870912\n")
    assert machine.memory_limit(str(proc), str(root)) == 2**29
    limit.write_text("9223372036854771712\n")  # no limit, in pages
    assert machine.memory_limit(str(proc), str(root)) is None
    assert machine.memory_limit(str(tmp_path / "none"), str(root)) is None


@pytest.mark.parametrize(("limit", "status"), [(0.5e9, "wrong"), (2e9, "note")])
def test_little_memory(limit: float, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_limit", lambda: limit)
    told = only(machine.memory(Visit()))
    assert (told.status, told.value["limit_bytes"]) == (status, limit)
    assert f"this control group may use {limit / 1e9:g} GB" in told.message
    assert told.repair


def test_less_than_two_cpus_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "usable_cpus", lambda: 1.5)
    assert only(machine.cpus(Visit())).status == "note"


def test_shared_memory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SHARED", Path("/proc"))  # accepts no file
    told = only(machine.shared(Visit()))
    assert (told.status, told.value["writable"]) == ("wrong", False)
    assert told.repair.startswith("sudo mount -o remount,rw")


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "SHARED", tmp_path)
    docker = SimpleNamespace(f_blocks=2**14, f_frsize=4096, f_bavail=2**13)
    monkeypatch.setattr(os, "statvfs", lambda _: docker)
    told = only(machine.shared(Visit()))
    assert (told.status, told.value["size_bytes"], told.value["free_bytes"]) == (
        "note", 2**26, 2**25,
    )  # fmt: skip
    assert "--shm-size=1g" in told.repair
    assert list(tmp_path.iterdir()) == []


def test_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    told = only(machine.loopback(Visit()))
    assert (told.status, told.repair) == ("wrong", "sudo ip link set lo up")
    assert "Cannot assign requested address" in told.message


def test_proc_that_is_hidden(tmp_path: Path) -> None:
    told = only(machine.proc(Visit(), tmp_path))
    assert told.status == "wrong"
    assert f"{tmp_path}/self/stat cannot be read" in told.message


# The software ----------------------------------------------------------------------------------


def test_a_python_that_is_too_old_or_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("NEWEST", (3, 10)), ("OLDEST", (3, 99))):
        with monkeypatch.context() as one:
            one.setattr(software, name, version)
            told = only(software.python(Visit()))
        assert (told.status, told.repair.split()[-1]) == ("wrong", "PYTHON=python3.12")


def test_packages_that_are_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(software.packages(Visit())).value["lacking"] == []
    needs = ["numpy>=99", "pytest>=1", "dtlab-nowhere>=1.5", "other; extra == 'dev'"]
    fake, real = SimpleNamespace(version="0.1.0", requires=needs), metadata.distribution
    monkeypatch.setattr(
        metadata, "distribution", lambda name: fake if name == "dtlab" else real(name)
    )
    told = only(software.packages(Visit()))
    assert (told.status, told.value["lacking"]) == ("wrong", ["numpy>=99", "dtlab-nowhere>=1.5"])
    assert told.repair.endswith("-m pip install 'numpy>=99' 'dtlab-nowhere>=1.5'")


VERSION = "__version__ = '2.13.0'\nfrom types import SimpleNamespace\n"
CPU = VERSION + "version = SimpleNamespace(cuda=None)\n"
CUDA = VERSION + """
version = SimpleNamespace(cuda="13.0", hip=None)
class cuda:
    nccl = SimpleNamespace(version=lambda: (2, 28, 9))
    init = device_count = lambda: 2
    can_device_access_peer = lambda a, b: a < b
    get_device_properties = lambda n: SimpleNamespace(name=f"card {n}", total_memory=10**10)
"""
WITHOUT = "def is_available(): return False\n"
WITH = "def is_available(): return True\nis_gloo_available = is_nccl_available = is_available\n"


def test_a_torch_without_distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_module(tmp_path, "torch", __init__=CPU, distributed=WITHOUT)
    monkeypatch.setenv("PYTHONPATH", path)
    visit = Visit()
    told = only(software.torch(visit))
    assert told.status == "wrong"
    assert told.message == "2.13.0 was built without torch.distributed: no rank can run"
    assert list(backends.gloo(visit)) == []  # is not tried


def test_a_torch_for_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_module(tmp_path, "torch", __init__=CUDA, distributed=WITH)
    monkeypatch.setenv("PYTHONPATH", path)
    visit = Visit()
    assert only(software.torch(visit)).message == "2.13.0, CUDA 13.0, NCCL 2.28.9"
    assert visit.torch["devices"][1] == {"name": "card 1", "memory_bytes": 10**10}
    assert visit.torch["no_peers"] == [[1, 0]]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: can"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os; os._exit(3)", "exit status 3"),
        ("import os; os._exit(0)", "the output cannot be parsed"),
        ("raise SystemExit('no')", "SystemExit: no"),
    ],
)
def test_a_torch_that_is_broken(
    source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "torch", __init__=source))
    told = only(software.torch(Visit()))
    assert told.status == "wrong"
    assert words in told.message
    assert told.repair.endswith("--force-reinstall 'torch>=2.13,<2.14'")


@pytest.mark.parametrize(
    ("module", "check"),
    [("matplotlib", software.matplotlib), ("jupyterlab", software.jupyterlab),
     ("nbgrader", course.nbgrader)],
)  # fmt: skip
def test_a_package_that_cannot_be_imported(
    module: str, check: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, module, __init__="import nowhere"))
    visit = Visit()
    told = only(check(visit))  # type: ignore[operator]
    assert told.status == "wrong"
    assert "ModuleNotFoundError: No module named 'nowhere'" in told.message
    assert f"--force-reinstall '{module}>=" in told.repair


def test_commands_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", fake_module(tmp_path, "jupyterlab", __init__=VERSION))
    assert only(software.jupyterlab(Visit())).value == {"version": "2.13.0"}
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    told = only(software.jupyterlab(Visit()))
    assert (told.status, told.repair.split()[-1]) == ("wrong", "jupyter_core")
    told = only(course.alembic(Visit()))
    assert (told.status, told.repair.split()[-1]) == ("wrong", "alembic")
