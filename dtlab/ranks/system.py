"""Operating-system functions that ranks need: processes, memory, signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

LINUX = sys.platform == "linux"
WINDOWS = sys.platform == "win32"
WITH_GPUS = "cpu:gloo,cuda:nccl"  # backend for ranks with GPUs: chosen by the tensor's device
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process receive a signal when its parent ends for any reason (Linux)."""
    _prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Process ids of this process's children, adopted orphans included."""
    try:
        lists = Path("/proc/self/task").glob("*/children")
        return [int(pid) for path in lists for pid in path.read_text().split()]
    except (OSError, ValueError):
        pass
    import psutil

    return [child.pid for child in psutil.Process().children()]


def reap() -> dict[int, int]:
    """Collect the children that have ended, as {pid: wait status}."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def wake_on_child() -> int:
    """A file descriptor that becomes readable whenever a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def compiler_cache(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variable with the cache folder of torch's compiler.

    Without it, importing the compiler would create a temporary folder.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    return {name: environment.get(name) or os.path.expanduser("~/.cache/torchinductor")}


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is installed; fast, and without importing torch."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists()


def usable_cpus() -> float:
    """CPUs that this process may use: its affinity, limited by the quotas of its cgroups."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    return max(0.01, min([count, *_cgroup_quotas()]))


def _cgroup_quotas(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[float]:
    """CPU quotas (in CPUs) of this process's cgroup and of all cgroups above it."""
    quotas: list[float] = []
    try:
        lines = Path(proc).read_text().splitlines()
    except OSError:
        return quotas
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            continue
        base = Path(root) / controllers
        for folder in [base / group.lstrip("/"), *(base / group.lstrip("/")).parents]:
            quotas.extend(_quota(folder))
            if folder == Path(root):
                break
    return quotas


def _quota(folder: Path) -> list[float]:
    """The quota in the folder of one cgroup, version 2 or 1; an empty list if there is none."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return [int(quota) / int(period)] if int(quota) > 0 else []
    except (OSError, ValueError):
        return []  # "max", or no such file: no quota


def kill_children() -> None:
    """Kill this process's children, adopted ones included, until it has none."""
    while True:
        for pid in children():
            kill(pid)
        reap()
        if not children():
            return
        time.sleep(0.002)


def free_memory(meminfo: str = "/proc/meminfo") -> float:
    """The fraction of this machine's memory that is available; 1 if that is unknown."""
    try:
        lines = (line.split() for line in Path(meminfo).read_text().splitlines())
        sizes = {words[0]: int(words[1]) for words in lines if len(words) > 1}
        return sizes["MemAvailable:"] / sizes["MemTotal:"]
    except (OSError, KeyError, ValueError, ZeroDivisionError):
        return 1.0


def in_a_kernel() -> bool:
    """Whether this process is a notebook's kernel; IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def has_front_end() -> bool:
    """Whether a person may be looking at this notebook and can use widgets.

    JupyterLab names the notebook in the kernel's environment, and VS Code in a variable. A kernel
    that nbclient or nbconvert runs has neither.
    """
    if not in_a_kernel():
        return False
    from IPython import get_ipython

    return "JPY_SESSION_NAME" in os.environ or "__vsc_ipynb_file__" in get_ipython().user_ns
