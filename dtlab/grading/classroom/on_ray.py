"""Grading tasks on the machines of a Ray cluster: `dtlab grade --engine ray`.

    this process                        a node of the cluster
    Task (bytes, seeds) ──── Ray ────►  Judge, an actor with its own warm server
    Done (verdicts)     ◄─── Ray ─────  (the sandbox depends on that node's system)

The machines share no files: a task contains all data that judging needs. Every node needs the same
version of dtlab. If no cluster is running, one is started on this machine for this run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from dtlab.errors import DtlabError
from dtlab.grading.classroom.server import JudgesServer, Progress, carry_out_surely
from dtlab.grading.classroom.tasks import Done, Task
from dtlab.ranks.system import usable_cpus

__all__ = ["Judge", "RayEngine"]

START_LIMIT = 120.0  # seconds for the first judge to start: it imports torch
END_LIMIT = 3.0  # seconds for judges to end their tasks
QUIET = {"log_to_driver": False, "logging_level": "error"}
LONGEST = 42  # most characters of the folder of a cluster: Ray puts sockets into it


class Judge:
    """An actor in a process of the cluster that judges one task at a time, with a warm server."""

    def __init__(self) -> None:
        self._server, self._lock = JudgesServer(), threading.Lock()
        self._server.start()

    def version(self) -> str:
        """Returns the version of dtlab on the node."""
        return version("dtlab")

    def judge(self, task: Task) -> Done:
        """Carries out a task."""
        with self._lock:
            self._server.wait()
            return carry_out_surely(task, self._server)

    def stop(self) -> None:
        """Ends the task in progress; Ray calls this in a second thread."""
        self._server.stop()


class RayEngine:
    """An engine with one judge for each CPU of the cluster, but at most `jobs`."""

    def __init__(self, jobs: int | None, progress: Progress) -> None:
        """Raises `DtlabError` if Ray is not installed or the cluster cannot be used."""
        self._progress = progress
        self._judges: list[Any] = []
        self._undo = contextlib.ExitStack()  # cleanup for `close`, in reverse order
        try:
            with _our_signals():
                self._ray = self._connected(jobs)
            cores = int(self._ray.cluster_resources().get("CPU", 1))
            self.room = max(1, min(jobs or cores, cores))
            actor = self._ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=1)(Judge)
            # A second thread in each actor, so that `stop` can run during `judge`.
            self._judges = [actor.options(max_concurrency=2).remote() for _ in range(self.room)]
            self._undo.callback(self._stop_judges)
            self._busy = dict.fromkeys(self._judges, 0)
            self._demand_our_version()
        except BaseException:
            self.close()
            raise

    def submit(self, task: Task) -> Future[Done]:
        judge = min(self._judges, key=self._busy.__getitem__)
        self._busy[judge] += 1
        self._progress(task.student, "on the cluster")
        future: Future[Done] = judge.judge.remote(task).future()
        future.add_done_callback(lambda _: self._free(judge))
        return future

    def _free(self, judge: Any) -> None:
        self._busy[judge] -= 1

    def close(self) -> None:
        self._undo.close()

    def _stop_judges(self) -> None:
        with contextlib.suppress(Exception):  # a node may be gone
            ended = [judge.stop.remote() for judge in self._judges]
            self._ray.wait(ended, num_returns=len(ended), timeout=END_LIMIT)

    def _connected(self, jobs: int | None) -> Any:
        """Connects Ray to the running cluster, or starts one on this machine; returns Ray."""
        if _is_running():
            ray = _imported()
            self._undo.callback(ray.shutdown)
            try:
                ray.init(address="auto", **QUIET)
            except Exception as error:  # Ray raises many kinds of exceptions
                raise DtlabError(
                    "there is a Ray cluster that cannot be used from here. Check RAY_ADDRESS, and "
                    "RAY_AUTH_TOKEN if the cluster requires a token. RAY_ADDRESS=local starts a "
                    f"cluster on this machine only. Ray says: {error}"
                ) from error
            return ray
        self._undo.enter_context(_private_cluster())
        ray, folder = _imported(), _short_folder()
        self._undo.callback(shutil.rmtree, folder, ignore_errors=True)
        self._undo.callback(ray.shutdown)
        cores = jobs or max(1, int(usable_cpus()))
        ray.init(
            address="local", num_cpus=cores, include_dashboard=False, _temp_dir=folder, **QUIET
        )
        return ray

    def _demand_our_version(self) -> None:
        ours = version("dtlab")
        try:
            versions = self._ray.get(
                [judge.version.remote() for judge in self._judges], timeout=START_LIMIT
            )
        except self._ray.exceptions.RayError as error:
            raise DtlabError(
                f"no judge started on the Ray cluster. Every node needs dtlab {ours}, installed "
                f"as on this machine. Ray says: {error}"
            ) from error
        others = sorted({*versions} - {ours})
        if others:
            raise DtlabError(
                f"the Ray cluster has dtlab {', '.join(others)}, and this machine {ours}, so "
                "points would depend on the machine. Install the same version everywhere."
            )


def _is_running() -> bool:
    """Whether RAY_ADDRESS names a cluster, or a cluster has a node on this machine."""
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return named != "local"
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))


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


@contextlib.contextmanager
def _private_cluster() -> Iterator[None]:
    """Makes a new cluster listen on loopback, require a token, and send no usage statistics.

    Ray reads these variables when it is imported. The first is meant for Windows and macOS, but
    makes Ray listen on loopback everywhere.
    """
    switches = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise DtlabError(
            "--engine ray needs Ray, which is not installed here. Install it: pip install "
            "'dtlab[ray]'. On one machine, --jobs does the same without Ray."
        ) from error
    return ray


def _short_folder() -> str:
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
