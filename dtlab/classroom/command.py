"""The command `dtlab grade`: progress display and cancellation."""

from __future__ import annotations

import atexit
import gc
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dtlab.classroom.grade import Grading, Outcome
from dtlab.classroom.lines import clean, fitted, line, summary
from dtlab.classroom.settings import course_directory, course_folder
from dtlab.classroom.submissions import Assignment, handed_in
from dtlab.classroom.verdicts import FOLDER
from dtlab.errors import DtlabError

__all__ = ["grade"]

MOST_LINES = 8  # submissions in progress that get a line each
_STOPS = ("SIGINT", "SIGTERM", "SIGHUP")


def grade(
    assignment: str,
    *,
    students: str = "*",
    jobs: int | None = None,
    again: bool = False,
    parts: Sequence[str] = (),
    seed: int | None = None,
    engine: str = "local",
    course: Path | None = None,
) -> bool:
    """Grades an assignment of a course; returns whether all requested submissions are booked.

    Raises `DtlabError` if there is nothing to grade or the run was stopped.
    """
    atexit.register(gc.freeze)  # else the last garbage collection over torch takes seconds
    folder = course_folder(course)
    directory = course_directory(folder)
    released = Assignment.of(directory, assignment)
    submissions = handed_in(directory, assignment, students)
    grading = Grading(
        directory, released, jobs=jobs, seed=seed, again=again, parts=parts, engine=engine
    )
    graded: list[Outcome] = []
    with (
        _stopped_by_signals(grading),
        _Board(len(submissions)) as board,
        closing(grading.run(submissions, board.show_step)) as outcomes,
    ):
        for outcome in outcomes:
            graded.append(outcome)
            board.done(outcome)
    for text in summary(graded, str(Path(folder.name, FOLDER, assignment)), _width()):
        _say(text)
    if grading.stopped:
        raise DtlabError(_how_to_continue(len(graded), len(submissions), again, parts))
    return not any(outcome.trouble for outcome in graded)


def _how_to_continue(done: int, of: int, again: bool, parts: Sequence[str]) -> str:
    named = [f"--{word}" for word, given in (("again", again), ("part", parts)) if given]
    without = f", without {' and '.join(named)}," if named else ""
    return (
        f"stopped. {done} of {of} submissions are graded. Run the same command{without} to "
        f"grade the other {of - done}."
    )


@contextmanager
def _stopped_by_signals(grading: Grading) -> Iterator[None]:
    """Makes Ctrl-C, SIGTERM and SIGHUP stop the run in an orderly way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
    active = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]  # nohup ignores
    before = [(n, signal.signal(n, lambda *_: grading.stop())) for n in active]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class _Board:
    """A progress bar on a terminal, with finished submissions above and one line per job below."""

    def __init__(self, total: int) -> None:
        self._shown = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._bar = self._line(0, total=total, unit="submission", dynamic_ncols=True)
        self._free: list[int] = list(range(MOST_LINES, 0, -1))
        self._lines: dict[str, tuple[int, tqdm]] = {}

    def _line(self, position: int, **options: Any) -> tqdm:
        return tqdm(position=position, disable=not self._shown, leave=False, **options)

    def show_step(self, student: str, step: str) -> None:
        """Shows the current step of a submission that is being judged."""
        with self._lock:
            if student not in self._lines and self._free and self._shown:
                place = self._free.pop()
                self._lines[student] = place, self._line(place, total=0, bar_format="{desc}")
            if student in self._lines:
                text = f"  {fitted(clean(student), 24)}  {step}"
                self._lines[student][1].set_description_str(fitted(text, _columns() - 1).rstrip())

    def done(self, outcome: Outcome) -> None:
        """Prints the result of a graded submission and advances the bar."""
        with self._lock:
            if outcome.student in self._lines:
                place, bar = self._lines.pop(outcome.student)
                bar.close()
                self._free.append(place)
            _say(line(outcome, _width()))
            self._bar.update()

    def __enter__(self) -> _Board:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._free.clear()
            for _, bar in self._lines.values():
                bar.close()
            self._bar.close()


def _columns() -> int:
    return max(40, shutil.get_terminal_size().columns)


def _width() -> int | None:
    """Returns the columns of the terminal; None if the output is not a terminal."""
    return _columns() if sys.stdout.isatty() else None


def _say(text: str) -> None:
    """Prints a line above the bar; replaces characters that the encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    tqdm.write(text.encode(encoding, "replace").decode(encoding), file=sys.stdout)
    sys.stdout.flush()
