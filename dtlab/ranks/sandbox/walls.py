"""The walls of a sandbox: namespaces, limits and users that isolate untrusted code.

Code in the sandbox sees only the files that it needs (filesystem.py), its user's processes, and
a separate loopback network. Many system calls are refused (system_calls.py). The notebook and each
rank run as different users. The rest of dtlab works without the walls: if the system does not
allow one of them, the grader is told which wall is missing.
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
from dtlab.ranks.sandbox.absent import files_of, take_away
from dtlab.ranks.sandbox.filesystem import EXCHANGE, HOME, change_root, own_scratch

__all__ = ["HOME", "AbsentModules", "Walls", "end_all_of", "raise_walls", "step_behind"]

_SETGID, _SETUID = 6, 7  # capabilities, of linux/capability.h

OPEN_FILES = 1024
NICE = 5  # behind whoever looks after it
AbsentModules = tuple[tuple[str, tuple[str, ...]], ...]  # as absent.Absent
STOPS = 100  # tries to make all processes of a fork bomb stand still


@dataclass(frozen=True)
class Walls:
    """What code behind the walls may take; sizes in bytes.

    `user` is the first of the ids that it runs as: `user` for a notebook, `user + 1 + r` for
    rank r. `memory` and `processes` (threads count) hold for all of it together, `scratch` for
    each folder, `processes_of_rank` for each rank.
    `hidden` are files and folders that are not shown, though a folder that is contains them.
    `absent` are modules of the library whose functions are taken away (absent.py), each with the
    names in it that are allowed.
    `missing` names those that could not be raised; None before anybody tried.
    """

    user: int
    memory: int = 6 * 2**30
    processes: int = max(400, 8 * (os.cpu_count() or 1))
    processes_of_rank: int = 64  # a rank with ten process groups has 35 threads
    scratch: int = 512 * 2**20
    file_size: int = 256 * 2**20
    hidden: tuple[str, ...] = (EXCHANGE,)
    absent: AbsentModules = ()
    missing: tuple[str, ...] | None = None

    def stand(self, name: str) -> bool:
        """Whether the wall of this name has been raised."""
        return self.missing is not None and not any(w.startswith(name) for w in self.missing)


def raise_walls(walls: Walls) -> list[str]:
    """Put this process, and all that it will fork, behind the walls. Names those that fail."""
    absent = dict(walls.absent)
    take_away(absent)
    hidden = [*walls.hidden, *files_of(absent)]
    raising: dict[str, Callable[[], None]] = {
        "another user": lambda: _check_user(walls),
        "files": lambda: change_root(walls.user, walls.scratch, hidden),
        "network": _close_network,
        "shared memory": lambda: kernel.unshare(kernel.NEW_IPC | kernel.NEW_NAMES),
        "system calls": _check_filter,
    }
    missing = []
    for name, raise_wall in raising.items():
        try:
            raise_wall()
        except OSError as error:
            missing.append(f"{name} ({error})")
    return missing


def _check_user(walls: Walls) -> None:
    if not _may_become(walls.user):
        raise OSError("only root of the machine can become one")


def _may_become(user: int) -> bool:
    """Whether there is such a user here: a namespace may have one only, or 65536."""
    if os.geteuid() != 0 or not _may_change_users():
        return False
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return sys.platform != "linux"
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= user < first + count for first, count in ranges)


def _may_change_users() -> bool:
    """Whether root has what that takes: a container may have dropped these capabilities."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return sys.platform != "linux"
    held = int(status.split("CapEff:")[1].split()[0], 16)
    return all(held & 1 << one for one in (_SETGID, _SETUID))


def _check_filter() -> None:
    if reason := calls.why_not():
        raise OSError(reason)


def _close_network() -> None:
    kernel.unshare(kernel.NEW_NETWORK)
    kernel.loopback_up()


def environment() -> dict[str, str]:
    """The environment behind the walls: nothing of the one outside but where programs are."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "HOME": HOME, "USER": "learner", "LOGNAME": "learner", "MPLBACKEND": "agg"}


def step_behind(walls: Walls, rank: int | None = None) -> None:
    """Become the notebook's user, or a rank's: for good, and with limits.

    A rank also gets scratch folders of its own, so that ranks share nothing but what they send.
    """
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    if rank is not None:
        with suppress(OSError):  # then the wall "files" is missing, and was said to be
            own_scratch(walls.scratch)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, walls.file_size)
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    most = walls.processes
    if walls.stand("another user"):  # the kernel counts by user
        most = walls.processes if rank is None else walls.processes_of_rank
    elif not walls.stand("processes"):
        most += _threads()
    _limit(resource.RLIMIT_NPROC, most)
    user = walls.user if rank is None else walls.user + 1 + rank
    if _may_become(user):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if system.LINUX:
        kernel.drop_capabilities()
        kernel.keep_privileges_away()
    system.die_with_parent()  # a change of user has undone this
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # before anything that is trusted
    if not calls.why_not():
        calls.put_on("notebook" if rank is None else "rank")


def end_all_of(walls: Walls, ranks: int) -> None:
    """End every process of the ranks' users at the same moment, so that none can fork on.

    For the supervisor, where ending its children one after the other does not come to an end.
    """
    if not walls.stand("another user"):
        if walls.stand("processes"):  # else these would be all that our user has
            os.kill(-1, signal.SIGKILL)
        else:
            _stop_descendants()
        return
    for user in range(walls.user + 1, walls.user + 1 + ranks):
        pid = os.fork()
        if pid == 0:
            with suppress(OSError):
                os.setresuid(user, user, user)
                os.kill(-1, signal.SIGKILL)  # all that this user may
            os._exit(0)
        os.waitpid(pid, 0)


def _stop_descendants() -> None:
    """What stands still does not fork, and can be ended one after the other."""
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
    """How many this process's user has on the machine: the limit is for all of them together."""
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
