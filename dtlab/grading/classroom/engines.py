"""Engines that run grading tasks: each accepts tasks and returns a future for each.

LocalEngine    threads of this process, with one warm server: they mostly wait for ranks
RayEngine      on_ray.py: actors on the machines of a cluster, each with a server of its own
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from dtlab.grading.classroom.server import JudgesServer, Told, carry_out_surely
from dtlab.grading.classroom.tasks import Done, Task

__all__ = ["Engine", "LocalEngine", "engine_named"]

PATIENT = 4  # tasks under way for each job, most of them in a cell that takes long
MOST = 16  # slots that a judge can tell apart
END_LIMIT = 1.0  # seconds for what is being judged to notice that it is not wanted any more


class Engine(Protocol):
    """Judges tasks, several at a time."""

    @property
    def room(self) -> int:
        """How many tasks may be under way: more would only wait."""
        ...

    def submit(self, task: Task) -> Future[Done]:
        """Have a task judged. Never blocks."""
        ...

    def close(self) -> None:
        """End what is being judged, and leave nothing behind."""
        ...


def engine_named(name: str, jobs: int | None, told: Told) -> Engine:
    """The engine "local" or "ray". Raises `DtlabError` where it cannot be had."""
    if name == "ray":
        from dtlab.grading.classroom.on_ray import RayEngine

        return RayEngine(jobs, told)
    return LocalEngine(jobs, told)


class LocalEngine:
    """Threads, which do not keep the process alive: one may be reading a notebook of 100 MB.

    `jobs` of them judge at a time; while a cell of one takes long, as one does that never ends,
    another goes on.
    """

    def __init__(self, jobs: int | None, told: Told) -> None:
        from dtlab.ranks.system import usable_cpus

        jobs = jobs or max(1, int(usable_cpus()))
        self.room, self._told = min(jobs * PATIENT, max(jobs, MOST)), told
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
        """See `Engine`."""
        future: Future[Done] = Future()
        self._tasks.put((task, future))
        return future

    def close(self) -> None:
        """See `Engine`."""
        self._server.stop()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + END_LIMIT
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._server.stop()  # a thread that asked at that very moment has started another

    def _work(self, slot: int) -> None:
        while (item := self._tasks.get()) is not None:
            task, future = item
            if self._server.over:
                continue
            try:
                told = partial(self._told, task.student)
                told("waiting for the judge")
                with self._turns:
                    self._server.wait()
                    done = carry_out_surely(task, self._server, slot, told, self._wait)
                future.set_result(done)
            except BaseException as error:  # noqa: BLE001  the future's owner decides
                future.set_exception(error)

    def _wait(self, begins: bool) -> None:
        if begins:
            self._turns.release()
        else:
            self._turns.acquire()
