"""Judges all submissions of an assignment, several at a time, and writes the gradebook.

    submissions ──► plan ──► engine: judges ──► verdicts/, gradebook.db, autograded/
                     └── unchanged: keep the old verdict      └──► one outcome each

A run may be stopped at any time, even by SIGKILL, and started again. Booked submissions stay
booked, and are not judged again unless their files, the assignment or dtlab have changed. A run
with `again` or `parts` first stores, in each record, which parts are due.
"""

from __future__ import annotations

import os
import secrets
import socket
import traceback
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

from filelock import FileLock, Timeout
from nbgrader.coursedir import CourseDirectory

from dtlab.classroom import verdicts
from dtlab.classroom.booking import Books
from dtlab.classroom.judging.cells import Limits
from dtlab.classroom.late import Lateness
from dtlab.classroom.submissions import Assignment, Files, Submission
from dtlab.classroom.verdicts import ALL, Record
from dtlab.classroom.workers.engines import Engine, engine_named
from dtlab.classroom.workers.tasks import Done, Task
from dtlab.errors import DtlabError

__all__ = ["Grading", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """The result of grading one submission: its verdict and the previous one.

    `trouble` says what could not be judged; without a `record`, this is the whole submission.
    `late` is the lateness and the penalty in points. `by_hand` are parts with points that a grader
    gave; `waiting` are parts that a grader must still grade, with their maximum points.
    """

    student: str
    record: Record | None
    before: Record | None = None
    skipped: bool = False
    trouble: str = ""
    late: tuple[Lateness, float] | None = None
    by_hand: tuple[str, ...] = ()
    waiting: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class _Plan:
    """A submission that must be judged, and the task for it."""

    submission: Submission
    files: Files
    before: Record | None
    key: str
    task: Task


class Grading:
    """A run that grades the submissions of an assignment.

    `seed`: the seed of the hidden inputs, drawn if None. Unless a seed is given, a part that was
    judged before keeps its seed, so that only a change of the answer or the check changes scores.
    `again`: also judge unchanged submissions. `parts`: judge these parts again in all submissions,
    and no other parts that were judged before.
    """

    def __init__(
        self,
        directory: CourseDirectory,
        assignment: Assignment,
        *,
        jobs: int | None = None,
        seed: int | None = None,
        again: bool = False,
        parts: Collection[str] = (),
        limits: Limits | None = None,
        engine: str = "local",
    ) -> None:
        self.directory, self.assignment = directory, assignment
        self.jobs, self.engine, self.limits = jobs, engine, limits or Limits()
        self.parts = tuple(map(assignment.part, parts)) or (ALL if again else ())
        self.folder = Path(directory.root)
        self.stopped = False
        self._seed, self._drawn = seed, secrets.randbelow(2**31)
        self._version = version("dtlab")
        self._news: SimpleQueue[Future[Done] | None] = SimpleQueue()

    def stop(self) -> None:
        """Stops the run after the current booking. A signal handler may call this."""
        self.stopped = True
        self._news.put(None)

    def run(
        self,
        submissions: list[Submission],
        progress: Callable[[str, str], None] = lambda *_: None,
    ) -> Generator[Outcome, None, None]:
        """Judges and books submissions; yields each outcome, after it is booked.

        Calls `progress(student, step)` at each step. Raises `DtlabError` if the course is invalid
        or another process is grading the assignment.
        """
        engine: Engine | None = None  # there may be nothing to judge
        running: dict[Future[Done], _Plan] = {}
        with self._alone(), closing(Books(self.directory, self.assignment)) as books:
            self._write_down(submissions)
            try:
                for submission in [*submissions, None]:
                    if submission is not None and not self.stopped:
                        plan = self._planned(submission, books)
                        if isinstance(plan, Outcome):
                            yield plan
                            continue
                        engine = engine or engine_named(self.engine, self.jobs, progress)
                        future = engine.submit(plan.task)
                        running[future] = plan
                        future.add_done_callback(self._news.put)
                    # One more than the engine judges, so that no judge waits during a booking.
                    most = engine.capacity if engine and submission else 0
                    while len(running) > most and not self.stopped:
                        finished = self._news.get()
                        if finished is not None:
                            yield self._outcome(running.pop(finished), finished, books)
            finally:
                if engine is not None:
                    engine.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock of the assignment; the lock of a process that was killed is released."""
        path = self.folder / verdicts.FOLDER / self.assignment.name / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(path, timeout=0):
                path.write_text(f" (process {os.getpid()} on {socket.gethostname()})")
                yield
        except Timeout:
            raise DtlabError(
                f"{self.assignment.name} is being graded already{path.read_text()}. Wait until "
                "that run ends, or stop it with Ctrl-C: no results are lost."
            ) from None

    # ------------------------------------------------------------------ planning

    def _write_down(self, submissions: list[Submission]) -> None:
        """Stores which parts are due, so that a later run judges them if this one is stopped."""
        for submission in submissions if self.parts else ():
            before = verdicts.read(self.folder, self.assignment.name, submission.student)
            if before is not None:
                due = tuple(dict.fromkeys([*before.due, *self.parts]))
                seed = before.due_seed if self._seed is None else self._seed
                due = ALL if ALL[0] in due else due
                verdicts.write(self.folder, replace(before, due=due, due_seed=seed))

    def _planned(self, submission: Submission, books: Books) -> _Plan | Outcome:
        """Returns the plan for a submission, or its outcome if it need not or cannot be judged."""
        student = submission.student
        before = verdicts.read(self.folder, self.assignment.name, student)
        try:
            files = submission.files(self.assignment)
            key = verdicts.digest(files.key, self.assignment.key)
            due = self._due(before, key, books)
            if before is not None and not due:
                late, waiting = books.settle_late(student), books.waiting(student)
                return Outcome(student, before, before, skipped=True, late=late, waiting=waiting)
        except Exception as error:  # noqa: BLE001  one submission must not stop the others
            return Outcome(student, None, before, trouble=_error_text(error))
        return _Plan(submission, files, before, key, self._task(submission, files, before, due))

    def _due(self, before: Record | None, key: str, books: Books) -> tuple[str, ...]:
        """Returns the parts that must be judged; none if nothing has changed."""
        if before is None or before.key != key:
            return ALL
        if before.due or (before.version == self._version and books.has(before)):
            return before.due
        return ALL

    def _task(
        self, submission: Submission, files: Files, before: Record | None, due: tuple[str, ...]
    ) -> Task:
        """Returns the task: the notebooks with parts to judge, and the seeds of earlier runs."""
        old = before.parts if before else {}
        given = before.due_seed if before and before.due_seed is not None else self._seed
        seed = given if given is not None else before.seed if before else self._drawn
        known = {} if due == ALL else {name: p for name, p in old.items() if name not in due}
        return Task(
            submission.student,
            {
                name: files.notebooks[name]
                for name, parts in self.assignment.parts.items()
                if due == ALL or {*parts} - known.keys()
            },
            self.assignment.notebooks,
            files.notes,
            seed,
            {name: part.seed for name, part in old.items()} if given is None else {},
            known,
            self.limits,
        )

    # ------------------------------------------------------------------ results

    def _outcome(self, plan: _Plan, future: Future[Done], books: Books) -> Outcome:
        student, before = plan.submission.student, plan.before
        try:
            done = future.result()
            trouble = "\n".join(f"{name}: {why}" for name, why in done.troubles.items())
            if not done.notebooks:
                return Outcome(student, None, before, trouble=trouble)
            record = self._booked(plan, done, books)
            late, by_hand = books.settle_late(student), tuple(books.by_hand(student))
            waiting = books.waiting(student)
        except Exception as error:  # noqa: BLE001  one submission must not stop the others
            return Outcome(student, None, before, trouble=_error_text(error))
        return Outcome(
            student, record, before, trouble=trouble, late=late, by_hand=by_hand, waiting=waiting
        )

    def _booked(self, plan: _Plan, done: Done, books: Books) -> Record:
        """Books a result; until this is done, the stored record says that all parts are due."""
        student, before = plan.submission.student, plan.before
        if before is not None and not before.due:
            verdicts.write(self.folder, replace(before, due=ALL))
        books.book(plan.submission, plan.files.handed_at, done.notebooks, keep=[*plan.task.known])
        old = before if before is not None and before.key == plan.key else None
        parts = {**(old.notebooks if old else {}), **done.parts}
        notes = {**(old.notes if old else {}), **done.notes}
        order = [name for name in self.assignment.notebooks if name in parts]
        record = Record(
            self.assignment.name, student, plan.key, plan.task.seed, self._version, done.seconds,
            done.cell_seconds, {name: parts[name] for name in order},
            {name: notes[name] for name in order}, done.missing, ALL if done.troubles else (),
        )  # fmt: skip
        verdicts.write(self.folder, record)
        return record


def _error_text(error: Exception) -> str:
    """Returns the message of a `DtlabError`, or the traceback of any other exception."""
    if isinstance(error, DtlabError):
        return str(error)
    return "".join(traceback.format_exception(error))
