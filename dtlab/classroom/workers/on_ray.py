"""Grading tasks on the machines of a Ray cluster: `dtlab grade --engine ray`.

    this process                        a node of the cluster
    Task (bytes, seeds) ──── Ray ────►  Judge, an actor with its own warm server
    Done (verdicts)     ◄─── Ray ─────  (the sandbox depends on that node's system)

The machines share no files: a task contains all data that judging needs. Every node needs the same
version of dtlab. If no cluster is running, one is started on this machine for this run.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

from dtlab.classroom.workers.server import JudgesServer, Progress, carry_out_surely
from dtlab.classroom.workers.tasks import Done, Task
from dtlab.ranks.notices import no_notices
from dtlab.ranks.ray.cluster import connected, demand_our_version
from dtlab.ranks.system import usable_cpus

__all__ = ["Judge", "RayEngine"]

END_LIMIT = 3.0  # seconds for judges to end their tasks
NEEDED_BY = (
    "--engine ray needs Ray, which is not installed here. On one machine, --jobs does the same "
    "without Ray."
)


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
            cores = jobs or max(1, int(usable_cpus()))
            with no_notices():
                self._ray = self._undo.enter_context(connected(cores, NEEDED_BY))
            cores = int(self._ray.cluster_resources().get("CPU", 1))
            self.capacity = max(1, min(jobs or cores, cores))
            actor = self._ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=1)(Judge)
            # A second thread in each actor, so that `stop` can run during `judge`.
            actor = actor.options(max_concurrency=2)
            self._judges = [actor.remote() for _ in range(self.capacity)]
            self._undo.callback(self._stop_judges)
            self._busy = dict.fromkeys(self._judges, 0)
            demand_our_version(self._ray, self._judges)
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
