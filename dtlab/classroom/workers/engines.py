"""Engines that run grading tasks: an engine accepts tasks and returns a future for each.

LocalEngine    threads of this process, which mostly wait for ranks, and one warm server
RayEngine      on_ray.py: actors on the machines of a cluster, each with its own warm server
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from itertools import count
from queue import SimpleQueue
from typing import Protocol

from dtlab.classroom.workers.server import JudgesServer, Progress, carry_out_surely
from dtlab.classroom.workers.tasks import Done, Task

__all__ = ["Engine", "LocalEngine", "engine_named"]

PATIENT = 4  # tasks in progress for each job: most of them may be in slow cells
MOST = 16  # largest number of slots of a judge
END_LIMIT = 1.0  # seconds for running tasks to end after the server has stopped


class Engine(Protocol):
    """Judges tasks, several at a time."""

    @property
    def capacity(self) -> int:
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
        from dtlab.classroom.workers.on_ray import RayEngine

        return RayEngine(jobs, progress)
    return LocalEngine(jobs, progress)


class Turns:
    """Gives a turn to `number` tasks at a time, and first to the task that was submitted first.

    So the results of a class arrive one by one. If all tasks in progress had equal shares, they
    would all end at about the same time, and on a busy machine no result would arrive for minutes.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: set[int] = set()
        self._unfinished: set[int] = set()
        self._changed = threading.Condition()

    def begin(self, task: int) -> None:
        """Adds a task, which has no turn yet. Tasks are numbered in their order."""
        with self._changed:
            self._unfinished.add(task)

    def finish(self, task: int) -> None:
        """Removes a task, which has no turn any more."""
        with self._changed:
            self._unfinished.discard(task)

    def acquire(self, task: int) -> None:
        """Waits until a turn is free and no earlier task waits for one."""
        with self._changed:
            self._waiting.add(task)
            self._changed.wait_for(lambda: self._free > 0 and task == min(self._waiting))
            self._waiting.remove(task)
            self._free -= 1
            self._changed.notify_all()

    def release(self) -> None:
        """Ends the turn of a task."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def give_way(self, task: int) -> None:
        """Passes the turn of `task` to an earlier task if one waits, and waits for the next."""
        with self._changed:
            earlier_waits = any(other < task for other in self._waiting)
        if earlier_waits:
            self.release()
            self.acquire(task)

    def is_first(self, task: int) -> bool:
        """Whether no earlier task is unfinished."""
        with self._changed:
            return task == min(self._unfinished, default=task)


class LocalEngine:
    """Threads that judge tasks, `jobs` of them at a time; see `Turns`.

    While a cell of one task takes long (it may never end), another task continues. The threads are
    daemons, since at exit one may be parsing a notebook of 100 MB.
    """

    def __init__(self, jobs: int | None, progress: Progress) -> None:
        from dtlab.ranks.system import usable_cpus

        jobs = jobs or max(1, int(usable_cpus()))
        self.capacity, self._progress = min(jobs * PATIENT, max(jobs, MOST)), progress
        self._turns, self._numbers = Turns(jobs), count()
        self._server = JudgesServer()
        self._server.start()
        self._tasks: SimpleQueue[tuple[int, Task, Future[Done]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"judge {slot}", daemon=True)
            for slot in range(self.capacity)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> Future[Done]:
        future: Future[Done] = Future()
        self._tasks.put((next(self._numbers), task, future))
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
            number, task, future = item
            if self._server.over:
                continue
            self._turns.begin(number)
            try:
                future.set_result(self._done(number, task, slot))
            except BaseException as error:  # noqa: BLE001  the future's owner decides
                future.set_exception(error)
            finally:
                self._turns.finish(number)

    def _done(self, number: int, task: Task, slot: int) -> Done:
        """Judges a task, in its turns."""

        def progress(step: str) -> None:
            self._turns.give_way(number)
            self._progress(task.student, step)

        def waits(begins: bool) -> bool:
            """Ends the turn while a cell takes long. Only the earliest task keeps its priority."""
            if begins:
                self._turns.release()
            else:
                self._turns.acquire(number)
            return self._turns.is_first(number)

        self._progress(task.student, "waiting for the judge")
        self._turns.acquire(number)
        try:
            self._server.wait()
            return carry_out_surely(task, self._server, slot, progress, waits)
        finally:
            self._turns.release()
