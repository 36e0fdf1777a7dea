"""Isolation of untrusted code in a sandbox by namespaces, limits and users.

Code in the sandbox sees only the files that it needs (filesystem.py), its user's processes, and a
separate loopback network. Many system calls are refused (system_calls.py). The notebook and each
rank run as different users. Each of these is one kind of isolation and has a name, such as
"files". dtlab also works on systems that do not allow all kinds: the grader then receives the
names of the missing ones.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dtlab.ranks import system
from dtlab.ranks.sandbox import kernel_calls as kernel
from dtlab.ranks.sandbox import system_calls as calls
from dtlab.ranks.sandbox.filesystem import EXCHANGE, HOME, change_root, own_scratch
from dtlab.ranks.sandbox.hidden_modules import files_of, hide_modules

__all__ = ["HOME", "HiddenModules", "Isolation", "confine", "end_all_of", "isolate"]

_SETGID, _SETUID = 6, 7  # capabilities, of linux/capability.h

OPEN_FILES = 1024
NICE = 5  # lower priority than the supervising processes
HiddenModules = tuple[tuple[str, tuple[str, ...]], ...]  # `hidden_modules.AllowedNames` as tuples
STOPS = 100  # attempts to stop all processes of a fork bomb


@dataclass(frozen=True)
class Isolation:
    """What a sandbox hides from the code in it, and the limits for this code; sizes in bytes.

    `user` is the first user id: a notebook runs as `user`, and rank r as `user + 1 + r`. `memory`
    and `processes` (which includes threads) limit all code in the sandbox together, `scratch` each
    scratch folder, and `processes_of_rank` each rank.
    `hidden_files` lists files and folders that are hidden, although a visible folder contains
    them. `hidden_modules` lists modules of the library whose functions are disabled
    (hidden_modules.py), each with the names in it that stay allowed.
    `missing` names the kinds of isolation that could not be set up; None before `isolate`.
    """

    user: int
    memory: int = 6 * 2**30
    processes: int = max(400, 8 * (os.cpu_count() or 1))
    processes_of_rank: int = 64  # a rank with ten process groups has 35 threads
    scratch: int = 512 * 2**20
    file_size: int = 256 * 2**20
    hidden_files: tuple[str, ...] = (EXCHANGE,)
    hidden_modules: HiddenModules = ()
    missing: tuple[str, ...] | None = None

    def has(self, name: str) -> bool:
        """Whether the kind of isolation with this name has been set up."""
        return self.missing is not None and not any(m.startswith(name) for m in self.missing)


def isolate(isolation: Isolation) -> list[str]:
    """Isolate this process and its future children; return the kinds of isolation that fail."""
    modules = dict(isolation.hidden_modules)
    hide_modules(modules)
    hidden = [*isolation.hidden_files, *files_of(modules)]
    kinds: dict[str, Callable[[], None]] = {
        "another user": lambda: _check_user(isolation),
        "files": lambda: change_root(isolation.user, isolation.scratch, hidden),
        "network": _close_network,
        "shared memory": lambda: kernel.unshare(kernel.NEW_IPC | kernel.NEW_NAMES),
        "system calls": _check_filter,
    }
    missing = []
    for name, set_up in kinds.items():
        try:
            set_up()
        except OSError as error:
            missing.append(f"{name} ({error})")
    return missing


def _check_user(isolation: Isolation) -> None:
    if not _may_become(isolation.user):
        raise OSError("only root of the machine can change to another user")


def _may_become(user: int) -> bool:
    """Whether this process may become this user; a namespace may have only 1 or 65536 users."""
    if os.geteuid() != 0 or not _may_change_users():
        return False
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return sys.platform != "linux"
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= user < first + count for first, count in ranges)


def _may_change_users() -> bool:
    """Whether this process has SETUID and SETGID, which a container may have dropped."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return sys.platform != "linux"
    held = int(status.split("CapEff:")[1].split()[0], 16)
    return all(held & 1 << capability for capability in (_SETGID, _SETUID))


def _check_filter() -> None:
    if reason := calls.why_not():
        raise OSError(reason)


def _close_network() -> None:
    kernel.unshare(kernel.NEW_NETWORK)
    kernel.loopback_up()


def environment() -> dict[str, str]:
    """The environment variables in the sandbox; only PATH and the language come from outside."""
    copied = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**copied, "HOME": HOME, "USER": "learner", "LOGNAME": "learner", "MPLBACKEND": "agg"}


def confine(isolation: Isolation, rank: int | None = None) -> None:
    """Confine this process permanently: change to the notebook's or rank's user, and set limits.

    A rank also gets separate scratch folders, so that ranks share only the messages they send.
    """
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    if rank is not None:
        with suppress(OSError):  # `missing` already names "files"
            own_scratch(isolation.scratch)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, isolation.file_size)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    most = isolation.processes
    if isolation.has("another user"):  # the kernel counts by user
        most = isolation.processes if rank is None else isolation.processes_of_rank
    elif not isolation.has("processes"):
        most += _threads()
    _limit(resource.RLIMIT_NPROC, most)
    user = isolation.user if rank is None else isolation.user + 1 + rank
    if _may_become(user):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if system.LINUX:
        kernel.drop_capabilities()
        kernel.keep_privileges_away()
    system.die_with_parent()  # a change of user has undone this
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # killed before trusted ones
    if not calls.why_not():
        calls.put_on("notebook" if rank is None else "rank")


def end_all_of(isolation: Isolation, ranks: int) -> None:
    """Kill all processes of the ranks' users at the same moment, so that none can fork again.

    The supervisor uses this if killing its children one after another does not succeed.
    """
    if not isolation.has("another user"):
        if isolation.has("processes"):  # otherwise it would kill all our user's processes
            os.kill(-1, signal.SIGKILL)
        else:
            _stop_descendants()
        return
    for user in range(isolation.user + 1, isolation.user + 1 + ranks):
        pid = os.fork()
        if pid == 0:
            with suppress(OSError):
                os.setresuid(user, user, user)
                os.kill(-1, signal.SIGKILL)  # all processes of this user
            os._exit(0)
        os.waitpid(pid, 0)


def _stop_descendants() -> None:
    """Stop all descendants: stopped processes do not fork, and can be killed one by one."""
    import psutil

    for _ in range(STOPS):
        running = False
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if child.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    running = True
                    child.suspend()
        if not running:
            return


@functools.cache
def _threads() -> int:
    """Number of threads of this user on the machine, all of which count towards the limit."""
    import psutil

    count = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        uids, threads = process.info["uids"], process.info["num_threads"]
        count += (threads or 1) if uids and uids.real == os.getuid() else 0
    return count


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (least, least))
