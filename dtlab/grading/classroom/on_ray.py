"""Grading tasks on the machines of a Ray cluster: `dtlab grade --engine ray`.

    this process                        a node of the cluster
    Task (bytes, seeds) ──── Ray ────►  Judge, an actor with a warm server of its own
    Done (verdicts)     ◄─── Ray ─────  its walls are those of that node

The machines share no files: all that is needed travels with the task. Every node needs the same
dtlab. Where no cluster is running, one is started on this machine, and ended again.
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
from dtlab.grading.classroom.server import JudgesServer, Told, carry_out_surely
from dtlab.grading.classroom.tasks import Done, Task
from dtlab.ranks.system import usable_cpus

__all__ = ["Judge", "RayEngine"]

START_LIMIT = 120.0  # seconds for the first judge to be there: it imports torch
END_LIMIT = 3.0  # seconds for judges to end what they do
QUIET = {"log_to_driver": False, "logging_level": "error"}
LONGEST = 42  # characters of the folder of a cluster: Ray puts sockets into it


class Judge:
    """One at a time; lives in a process of the cluster, and has a server there."""

    def __init__(self) -> None:
        self._server, self._one = JudgesServer(), threading.Lock()
        self._server.start()

    def version(self) -> str:
        """The version of dtlab there."""
        return version("dtlab")

    def judge(self, task: Task) -> Done:
        """Carries out a task."""
        with self._one:
            self._server.wait()
            return carry_out_surely(task, self._server)

    def stop(self) -> None:
        """Ends what is being judged, while it is."""
        self._server.stop()


class RayEngine:
    """As many judges as the cluster has CPUs, or `jobs`."""

    def __init__(self, jobs: int | None, told: Told) -> None:
        """Raises `DtlabError` where there is no Ray, or a cluster that cannot be used."""
        self._told = told
        self._judges: list[Any] = []
        self._undo = contextlib.ExitStack()  # what is to be done in the end, last things first
        try:
            with _our_signals():
                self._ray = self._connected(jobs)
            cores = int(self._ray.cluster_resources().get("CPU", 1))
            self.room = max(1, min(jobs or cores, cores))
            actor = self._ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=1)(Judge)
            # A second thread each, so that they hear that they are to stop.
            self._judges = [actor.options(max_concurrency=2).remote() for _ in range(self.room)]
            self._undo.callback(self._stop_judges)
            self._busy = dict.fromkeys(self._judges, 0)
            self._demand_our_version()
        except BaseException:
            self.close()
            raise

    def submit(self, task: Task) -> Future[Done]:
        """See `Engine`."""
        judge = min(self._judges, key=self._busy.__getitem__)
        self._busy[judge] += 1
        self._told(task.student, "on the cluster")
        future: Future[Done] = judge.judge.remote(task).future()
        future.add_done_callback(lambda _: self._free(judge))
        return future

    def _free(self, judge: Any) -> None:
        self._busy[judge] -= 1

    def close(self) -> None:
        """See `Engine`."""
        self._undo.close()

    def _stop_judges(self) -> None:
        with contextlib.suppress(Exception):  # a node may be gone
            ended = [judge.stop.remote() for judge in self._judges]
            self._ray.wait(ended, num_returns=len(ended), timeout=END_LIMIT)

    def _connected(self, jobs: int | None) -> Any:
        """Ray, on the cluster that is running; else on one of our own, for this machine alone."""
        if _is_running():
            ray = _imported()
            self._undo.callback(ray.shutdown)
            try:
                ray.init(address="auto", **QUIET)
            except Exception as error:  # it raises many kinds
                raise DtlabError(
                    "there is a Ray cluster that cannot be used from here. Look at RAY_ADDRESS, "
                    "and at RAY_AUTH_TOKEN if it asks for one; RAY_ADDRESS=local starts one for "
                    f"this machine alone. Ray says: {error}"
                ) from error
            return ray
        self._undo.enter_context(_nobody_else())
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
            found = self._ray.get(
                [one.version.remote() for one in self._judges], timeout=START_LIMIT
            )
        except self._ray.exceptions.RayError as error:
            raise DtlabError(
                f"no judge came up on the Ray cluster. Every node needs dtlab {ours}, installed "
                f"as on this machine. Ray says: {error}"
            ) from error
        others = sorted({*found} - {ours})
        if others:
            raise DtlabError(
                f"the Ray cluster has dtlab {', '.join(others)}, and this machine {ours}: points "
                "would depend on the machine. Install the same everywhere."
            )


def _is_running() -> bool:
    """Whether there is a cluster: one that is named, or one that has a node here."""
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return named != "local"
    return any(one.info["name"] == "raylet" for one in psutil.process_iter(["name"]))


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and prints its stack at it; this gives it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _nobody_else() -> Iterator[None]:
    """A cluster that is started now listens on loopback, to us alone, and tells nobody of its use.

    Ray has a switch for the first, with which it spares users of other systems the questions of
    their firewalls. It reads all of these when it is imported.
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
            "'dtlab[ray]'. On one machine, --jobs does the same without it."
        ) from error
    return ray


def _short_folder() -> str:
    """A folder of our own for a cluster, whose name leaves room for those of sockets."""
    place = tempfile.gettempdir()
    if len(place) > LONGEST - len("/ray-4194304-12345678") and os.path.isdir("/tmp"):
        place = "/tmp"
    _remove_left(Path(place))
    return tempfile.mkdtemp(prefix=f"ray-{os.getpid()}-", dir=place)


def _remove_left(place: Path) -> None:
    """Folders of processes that were killed."""
    for folder in place.glob("ray-*-*"):
        pid = folder.name.split("-")[1]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
