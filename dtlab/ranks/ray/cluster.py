"""Starts a private Ray cluster on this machine, or connects to a cluster that is running.

`RAY_ADDRESS` names a cluster to connect to; "local" forbids it. Without this variable, a cluster
that this user has started here with `ray start --head` is used. In all other cases, `connected`
starts a private cluster, and ends it.

A private cluster listens on loopback only, requires a token, sends no usage statistics, and keeps
its files in one short folder. It ends with this process, even if the process is killed: the kernel
then kills Ray's processes, and a shell that waits for the end of a pipe removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from dtlab.errors import DtlabError
from dtlab.ranks import notices
from dtlab.ranks.ray import startup
from dtlab.ranks.ray.startup import replaced

__all__ = ["LocalRay", "connected", "demand_our_version", "local_ray", "running_cluster"]

QUIET = {"log_to_driver": False, "logging_level": "error"}
STORE = 10**9  # bytes of the object store of a private cluster
START_LIMIT = 120.0  # seconds for the first actor to start: it may import torch
TOGETHER = 0.5  # seconds of a task that occupies a worker, so that the next one needs another
LONGEST = 42  # most characters of the folder of a cluster: Ray puts sockets into it
ANSWER_LIMIT = 1.0  # seconds for a cluster to accept a connection
TOKEN = secrets.token_hex(32)  # for the private clusters of this process
# The first variable is meant for Windows and macOS, but keeps Ray on loopback everywhere.
PRIVATE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_free_objects_period_milliseconds": "0",  # the store frees an object at once
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else every start prints a FutureWarning
    **startup.LIMITS,
}
# Waits until the end of the process that holds the other end of its stdin. Ray's processes may
# still write while they end.
CARETAKER = 'cat > /dev/null; for i in 1 2 3; do rm -rf "$0" && sleep 1; done'


class LocalRay:
    """Starts Ray on this machine when it is called; `local_ray` is the only object of this class.

        from dtlab.ranks.ray import local_ray

        ray = local_ray(num_cpus=4)
        ...
        local_ray.stop()
    """

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._owner = 0  # id of the process that has started Ray; its forks must not stop it
        self._cell = ""  # the cell that starts Ray, if there is one

    def module(self, cell: str) -> Any:
        """Return the module `ray` for a notebook in which the cell `cell` starts Ray.

        Functions and classes can be decorated before. Whatever needs a running Ray raises a
        DtlabError that names the cell, instead of starting a cluster.

        Raises:
            DtlabError: Ray is not installed.
        """
        ray = _imported()
        if not self._cell:
            for name in ("available_resources", "cluster_resources", "nodes", "timeline"):
                setattr(ray, name, ray._private.auto_init_hook.wrap_auto_init(getattr(ray, name)))
        self._cell = cell
        ray.init = self.demand_running  # Ray calls it in functions that need a cluster
        ray._private.auto_init_hook.enable_auto_connect = True
        return ray

    @property
    def names_a_cell(self) -> bool:
        """Whether a cell of the notebook should start Ray, and nothing else."""
        return bool(self._cell)

    def demand_running(self, *_: Any, **__: Any) -> None:
        """Raises DtlabError if Ray is not running, and a cell of the notebook should start it."""
        ray = sys.modules.get("ray")
        if self._cell and not (ray and ray.is_initialized()):
            raise DtlabError(f"Ray is not running: run the cell `{self._cell}` again")

    def __call__(self, num_cpus: int = 4) -> Any:
        """Start a private cluster, and return the module `ray`; does nothing if Ray is running.

        The cluster ends with `stop` or with this process. If RAY_ADDRESS or `ray start --head`
        gives a cluster, this process connects to it instead. Workers import what this process can
        import, and use one thread of PyTorch each.

        Args:
            num_cpus: number of CPUs that Ray gives to tasks and actors. They are only a number
                for its scheduler; this machine may have fewer.

        Raises:
            DtlabError: Ray is not installed, does not start, or the cluster does not answer.
        """
        ray = _imported()
        if not ray.is_initialized():
            self._undo.close()  # Ray was shut down by other code
            self._undo.enter_context(connected(num_cpus))
            if not self._owner:
                atexit.register(self.stop)
            self._owner = os.getpid()
        return ray

    def start_workers(self, count: int) -> None:
        """Return when `count` worker processes can run tasks at the same time."""
        ray = _imported()
        together = ray.remote(num_cpus=1)(_together)
        with notices.notice(f"Ray is starting {count} workers"):
            while len(set(_got(ray, [together.remote() for _ in range(count)]))) < count:
                notices.tick()

    def stop(self) -> None:
        """End the cluster that was started, or disconnect; does nothing if there is none."""
        if self._owner == os.getpid():
            self._undo.close()


local_ray = LocalRay()


def _together() -> int:
    """A task that is long enough for others to run at the same time; returns its process."""
    time.sleep(TOGETHER)
    return os.getpid()


def _got(ray: Any, references: list[Any]) -> list[Any]:
    """The values of futures; shows the current notice while it waits."""
    while ray.wait(references, num_returns=len(references), timeout=notices.PATIENCE)[1]:
        notices.tick()
    return list(ray.get(references))


@contextlib.contextmanager
def connected(num_cpus: int, needed_by: str = "") -> Iterator[Any]:
    """Connect to the running cluster, or to a new private one; yields the module `ray`.

    `needed_by` is the beginning of the message if Ray is not installed. Raises DtlabError.
    """
    with contextlib.ExitStack() as undo:
        running = running_cluster()
        ray = _imported(needed_by)
        # Otherwise, a call of Ray after the end would start a cluster that is not private.
        if not local_ray.names_a_cell:
            ray._private.auto_init_hook.enable_auto_connect = False
        # It prints a long line whenever a process is killed, which the error of the call says too.
        quiet = replaced(ray._private.worker, "print_to_stdstream", lambda *_, **__: None)
        undo.enter_context(quiet)
        if running is None:
            _demand_main_thread()
            undo.enter_context(_private(ray))
            folder = undo.enter_context(_folder())
            undo.callback(startup.end_processes, folder)
            undo.callback(ray.shutdown)
            with _our_signals(), _environment(_for_workers()):
                _start(ray, num_cpus, folder)
        else:
            if running.startswith("127."):  # else Ray connects to another address of this machine
                undo.enter_context(_on_loopback(ray))
            undo.callback(ray.shutdown)
            with _our_signals(), _progress(f"connecting to the Ray cluster at {running}"):
                try:
                    ray._private.worker.init(address=running, **QUIET)
                except Exception as error:
                    raise DtlabError(
                        "there is a Ray cluster that cannot be used from here. Check RAY_ADDRESS, "
                        "and RAY_AUTH_TOKEN if the cluster requires a token. RAY_ADDRESS=local "
                        f"starts a cluster on this machine only. Ray says: {error}"
                    ) from error
        yield ray


def _start(ray: Any, num_cpus: int, folder: str) -> None:
    begun = time.monotonic()
    for last_try, words in ((False, "Ray is starting"), (True, "Ray is starting, second attempt")):
        try:
            with _progress(words), startup.patient(ray):
                ray._private.worker.init(
                    address="local", num_cpus=num_cpus, include_dashboard=False,
                    object_store_memory=STORE, _temp_dir=folder, **QUIET,
                )  # fmt: skip
            return
        except Exception as error:  # Ray raises many kinds of exceptions
            ray.shutdown()
            startup.end_processes(folder)
            if last_try:
                raise startup.did_not_start(error, time.monotonic() - begun) from error


def running_cluster() -> str | None:
    """The address of the cluster to use; None if a private one must be started."""
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return None if named == "local" else named
    return _started_here()


def _started_here() -> str | None:
    """The address of this user's cluster from `ray start --head`, if it accepts connections."""
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(place, "ray", "ray_current_cluster")
    try:
        if file.stat().st_uid != os.getuid():
            return None
        address = file.read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), ANSWER_LIMIT).close()
    except (OSError, ValueError):  # no such file, or the cluster was killed
        return None
    return address


def _imported(needed_by: str = "") -> Any:
    """The module `ray`. Raises DtlabError if it is not installed."""
    try:
        import ray
    except ImportError as error:
        needed_by = needed_by or "this needs Ray, which is not installed here."
        raise DtlabError(f"{needed_by} Install it: pip install 'dtlab[ray]'.") from error
    return ray


@contextlib.contextmanager
def _private(ray: Any) -> Iterator[None]:
    """Makes Ray use PRIVATE, though it has read the environment when it was imported."""
    try:
        with _environment(PRIVATE), _on_loopback(ray):
            _read_environment(ray)
            yield
    finally:
        _read_environment(ray)


def _on_loopback(ray: Any) -> contextlib.AbstractContextManager[None]:
    return replaced(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


def _read_environment(ray: Any) -> None:
    ray._raylet.Config.initialize("")
    with contextlib.suppress(AttributeError):  # versions that know no tokens
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def demand_our_version(ray: Any, actors: Sequence[Any]) -> None:
    """Raises DtlabError unless all `actors` start, and their `version` is that of this machine."""
    ours = version("dtlab")
    asked = [actor.version.remote() for actor in actors]
    try:
        deadline = time.monotonic() + START_LIMIT
        while ray.wait(asked, num_returns=len(asked), timeout=notices.PATIENCE)[1]:
            notices.tick()
            if time.monotonic() > deadline:
                break
        versions = ray.get(asked, timeout=0)
    except ray.exceptions.RayError as error:
        cause = str(error).strip().rpartition("\n")[2]  # the lines above are Ray's own frames
        raise DtlabError(
            f"no process of dtlab started on the Ray cluster. Every node needs dtlab {ours}, "
            f"installed as on this machine. Ray says: {cause}"
        ) from error
    others = sorted({*versions} - {ours})
    if others:
        raise DtlabError(
            f"the Ray cluster has dtlab {', '.join(others)}, and this machine {ours}, so results "
            "would depend on the machine. Install the same version everywhere."
        )


def _for_workers() -> dict[str, str]:
    """Environment of the workers: few threads, and the same modules as this process."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Restores our SIGTERM handler, since Ray replaces it by one that prints a stack trace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _demand_main_thread() -> None:
    """The kernel kills Ray's processes at the end of the thread that has started them."""
    if threading.current_thread() is not threading.main_thread():
        raise DtlabError(
            "Ray must be started in the main thread, since it ends with the thread that starts "
            "it. Call local_ray() in a cell or at the beginning of the script first."
        )


@contextlib.contextmanager
def _progress(words: str) -> Iterator[None]:
    """Shows a notice while the calling thread is busy in Ray."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(notices.PATIENCE):
            notices.tick()

    with notices.notice(words):
        ticking = threading.Thread(target=copy_context().run, args=[tick], daemon=True)
        ticking.start()
        try:
            yield
        finally:
            over.set()
            ticking.join()


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A short folder for a cluster's files, removed at the end or after the process is killed."""
    folder = short_folder()
    caretaker = subprocess.Popen(
        ["/bin/sh", "-c", CARETAKER, folder],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield folder
    finally:
        caretaker.kill()
        caretaker.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def short_folder() -> str:
    """Creates a folder for a cluster with a name short enough for the paths of its sockets."""
    place = tempfile.gettempdir()
    if len(place) > LONGEST - len("/ray-4194304-12345678") and os.path.isdir("/tmp"):
        place = "/tmp"
    _remove_left(Path(place))
    return tempfile.mkdtemp(prefix=f"ray-{os.getpid()}-", dir=place)


def _remove_left(place: Path) -> None:
    """Removes the folders of processes that were killed."""
    for folder in place.glob("ray-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
