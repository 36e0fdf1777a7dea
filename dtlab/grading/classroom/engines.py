"""Engines that run grading tasks: an engine accepts tasks and returns a future for each.

LocalEngine    threads of this process, which mostly wait for ranks, and one warm server
RayEngine      on_ray.py: actors on the machines of a cluster, each with its own warm server
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from dtlab.grading.classroom.server import JudgesServer, Progress, carry_out_surely
from dtlab.grading.classroom.tasks import Done, Task

__all__ = ["Engine", "LocalEngine", "engine_named"]

PATIENT = 4  # tasks in progress for each job: most of them may be in slow cells
MOST = 16  # largest number of slots of a judge
END_LIMIT = 1.0  # seconds for running tasks to end after the server has stopped


class Engine(Protocol):
    """Judges tasks, several at a time."""

    @property
    def room(self) -> int:
        """The number of tasks that can be in progress; further ones would only wait."""
        ...

    def submit(self, task: Task) -> Future[Done]:
        """Starts judging a task and returns a future. Never blocks."""
        ...

    def close(self) -> None:
        """Ends the tasks in progress and cleans up."""
        ...


def engine_named(name: str, jobs: int | None, progress: Progress) -> Engine:
    """Creates the engine "local" or "ray". Raises `DtlabError` if it is not available."""
    if name == "ray":
        from dtlab.grading.classroom.on_ray import RayEngine

        return RayEngine(jobs, progress)
    return LocalEngine(jobs, progress)


class LocalEngine:
    """Threads that judge tasks, `jobs` of them at a time.

    While a cell of one task takes long (it may never end), another task continues. The threads are
    daemons, since at exit one may be parsing a notebook of 100 MB.
    """

    def __init__(self, jobs: int | None, progress: Progress) -> None:
        from dtlab.ranks.system import usable_cpus

        jobs = jobs or max(1, int(usable_cpus()))
        self.room, self._progress = min(jobs * PATIENT, max(jobs, MOST)), progress
        self._turns = threading.Semaphore(jobs)
        self._server = JudgesServer()
        self._server.start()
        self._tasks: SimpleQueue[tuple[Task, Future[Done]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"judge {slot}", daemon=True)
            for slot in range(self.room)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> Future[Done]:
        future: Future[Done] = Future()
        self._tasks.put((task, future))
        return future

    def close(self) -> None:
        self._server.stop()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + END_LIMIT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._server.stop()  # a thread may have started another server at that moment

    def _work(self, slot: int) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            if self._server.over:
                continue
            try:
                progress = partial(self._progress, task.student)
                progress("waiting for the judge")
                with self._turns:
                    self._server.wait()
                    done = carry_out_surely(task, self._server, slot, progress, self._wait)
                future.set_result(done)
            except BaseException as error:  # noqa: BLE001  the future's owner decides
                future.set_exception(error)

    def _wait(self, begins: bool) -> None:
        """Releases the turn when a long wait begins, and acquires it again when the wait ends."""
        if begins:
            self._turns.release()
        else:
            self._turns.acquire()
