"""Output and cancellation of `dtlab grade`."""

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

from dtlab.errors import DtlabError
from dtlab.grading.classroom.grade import Grading, Outcome
from dtlab.grading.classroom.lines import clean, fitted, line, summary
from dtlab.grading.classroom.submissions import Assignment, handed_in
from dtlab.grading.classroom.verdicts import FOLDER
from dtlab.grading.settings import course_directory, course_folder

__all__ = ["grade"]

MOST_LINES = 8  # jobs that are shown one by one
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
    """Grades an assignment of the course in a folder; whether all that was asked for is booked.

    Raises `DtlabError` where there is nothing to grade, and where it was stopped.
    """
    atexit.register(gc.freeze)  # else the last look for garbage among all of torch takes seconds
    folder = course_folder(course)
    directory = course_directory(folder)
    handed_out = Assignment.of(directory, assignment)
    submissions = handed_in(directory, assignment, students)
    grading = Grading(
        directory, handed_out, jobs=jobs, seed=seed, again=again, parts=parts, engine=engine
    )
    seen: list[Outcome] = []
    with (
        _stopped_by_signals(grading),
        _Board(len(submissions)) as board,
        closing(grading.run(submissions, board.told)) as outcomes,
    ):
        for outcome in outcomes:
            seen.append(outcome)
            board.done(outcome)
    for text in summary(seen, str(Path(folder.name, FOLDER, assignment)), _width()):
        _say(text)
    if grading.stopped:
        raise DtlabError(_how_to_go_on(len(seen), len(submissions), again, parts))
    return not any(outcome.trouble for outcome in seen)


def _how_to_go_on(done: int, of: int, again: bool, parts: Sequence[str]) -> str:
    named = [f"--{word}" for word, given in (("again", again), ("part", parts)) if given]
    without = f", without {' and '.join(named)}," if named else ""
    return (
        f"stopped. {done} of {of} are done and stay so; the same command{without} goes on with "
        f"the other {of - done}."
    )


@contextmanager
def _stopped_by_signals(grading: Grading) -> Iterator[None]:
    """Ctrl-C ends the run in order, and so does whoever ends this process politely."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in _STOPS if hasattr(signal, name)]
    heeded = [one for one in numbers if signal.getsignal(one) is not signal.SIG_IGN]  # nohup
    before = [(one, signal.signal(one, lambda *_: grading.stop())) for one in heeded]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class _Board:
    """A bar, a line below it for each job, and above it what is done; on a terminal."""

    def __init__(self, total: int) -> None:
        self._shown = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._bar = self._line(0, total=total, unit="submission", dynamic_ncols=True)
        self._free: list[int] = list(range(MOST_LINES, 0, -1))
        self._lines: dict[str, tuple[int, tqdm]] = {}

    def _line(self, position: int, **words: Any) -> tqdm:
        return tqdm(position=position, disable=not self._shown, leave=False, **words)

    def told(self, student: str, what: str) -> None:
        """Somebody's work is being judged: this is what is being done."""
        with self._lock:
            if student not in self._lines and self._free and self._shown:
                place = self._free.pop()
                self._lines[student] = place, self._line(place, total=0, bar_format="{desc}")
            if student in self._lines:
                text = f"  {fitted(clean(student), 24)}  {what}"
                self._lines[student][1].set_description_str(fitted(text, _columns() - 1).rstrip())

    def done(self, outcome: Outcome) -> None:
        """Somebody's work is graded."""
        with self._lock:
            if outcome.student in self._lines:
                place, its = self._lines.pop(outcome.student)
                its.close()
                self._free.append(place)
            _say(line(outcome, _width()))
            self._bar.update()

    def __enter__(self) -> _Board:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._free.clear()
            for _, its in self._lines.values():
                its.close()
            self._bar.close()


def _columns() -> int:
    return max(40, shutil.get_terminal_size().columns)


def _width() -> int | None:
    """Columns that there are; None where the lines go into a file."""
    return _columns() if sys.stdout.isatty() else None


def _say(text: str) -> None:
    """One line on standard output, above the bar; in the letters that it can have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    tqdm.write(text.encode(encoding, "replace").decode(encoding), file=sys.stdout)
    sys.stdout.flush()
