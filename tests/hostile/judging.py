"""Judges hostile submissions one by one, and lists what is wrong with the outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

import nbformat
from nbformat import NotebookNode
from nbformat.validator import ValidationError

from dtlab.classroom.judging.judge import Judged, judge
from dtlab.classroom.repair.repaired import repair
from dtlab.classroom.workers.server import JudgesServer
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.sandbox.sandbox import Sandbox, first_user
from tests.hostile.canaries import Canaries
from tests.hostile.outside import Outside, left_behind
from tests.hostile.submissions import LEARNER, Hostile

__all__ = ["Judging", "Outcome", "Stuck", "guard", "table"]

SEED = 20_260_730  # hidden from the submissions, as any seed is
LARGEST = 8 * 2**20  # bytes of a judged notebook
MEMORY = 600 * 2**20  # bytes by which the judging process may grow for one submission
_FAULTS = ("SyntaxError", "NameError", "IndentationError", "is function here")
_SHOWN = 3  # of a file or process that is left behind
LATER = 1.5  # seconds from now on: a moment at which an attack may begin
GUARD = 30.0  # seconds over its budget after which the judge itself is taken for stuck


@dataclass
class Outcome:
    """The outcome of one submission; `objections` is empty if it is as it should be."""

    entry: Hostile
    earned: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    told: str = ""  # all that the learner and the instructor get to read
    objections: list[str] = field(default_factory=list)


class Judging:
    """A warm server and the secrets around it, while it is open."""

    def __enter__(self) -> Judging:
        with contextlib.ExitStack() as undo:
            self.canaries = undo.enter_context(Canaries())
            self._server = JudgesServer()
            undo.callback(lambda: self._server.stop())
            self._warm_up()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _warm_up(self) -> None:
        """Start the server, and import what judges train with, which makes a folder in /tmp.

        That is no submission's time, and no trace of one.
        """
        import torch._dynamo  # noqa: F401

        self._server.wait()
        Sandbox(self._server, Isolation(first_user(0))).close()

    def judge(self, entry: Hostile) -> Outcome:
        """Repairs, judges, and looks at everything from outside."""
        outcome = Outcome(entry)
        later = {"later": str(time.time() + LATER)}
        submitted = entry.handed_in(self.canaries.places | later)
        before, course = Outside.now(), self.canaries.course_files()
        size = _size_from_here_on()
        begun = time.monotonic()
        try:
            with guard(entry.seconds + GUARD):
                repaired = repair(submitted, entry.handed_out())
                judged = judge(
                    repaired.notebook,
                    self._server,
                    student=LEARNER,
                    seed=SEED,
                    limits=entry.limits,
                )
        except (Exception, Stuck) as error:  # noqa: BLE001  nothing may come out of a judge
            outcome.objections.append(f"the judge itself: {type(error).__name__}: {error}"[:500])
            self._server.stop()
            self._warm_up()
        else:
            judged.notes[:0] = repaired.notes
            outcome.told = _told(judged)
            outcome.earned = _earned(judged)
            outcome.objections += _objections(entry, outcome, judged)
        outcome.seconds = time.monotonic() - begun
        if outcome.seconds > entry.seconds:
            outcome.objections.append(f"{outcome.seconds:.1f} s, and {entry.seconds:g} are enough")
        outcome.objections += self._traces(outcome, before)
        if self.canaries.course_files() != course:
            outcome.objections.append("the course's files have changed")
        grown = _size("VmHWM") - size
        if grown > MEMORY:
            outcome.objections.append(f"the judge grew by {grown / 1e6:.0f} MB")
        return outcome

    def _traces(self, outcome: Outcome, before: Outside) -> Iterator[str]:
        """Secrets that were read, and what is left behind."""
        yield from (f"{place} was read" for place in self.canaries.told(outcome.told))
        left = left_behind(before)
        yield from (f"left behind: {what}" for what in left[:_SHOWN])
        if len(left) > _SHOWN:
            yield f"left behind: {len(left) - _SHOWN} more"


def _told(judged: Judged) -> str:
    """All texts of verdict and notebook; lone surrogates could not be written to a file."""
    verdicts = [asdict(one) for one in judged.verdicts]
    words = json.dumps([judged.notes, verdicts], ensure_ascii=False)
    return str(nbformat.writes(judged.notebook)) + words


def _earned(judged: Judged) -> dict[str, float]:
    return {one.part.partition("/")[2]: one.score for one in judged.verdicts}


def _objections(entry: Hostile, outcome: Outcome, judged: Judged) -> Iterator[str]:
    if outcome.earned != entry.earns:
        yield f"it earned {outcome.earned}"
    yield from (f"no text says {words!r}" for words in entry.says if words not in outcome.told)
    faults = (fault for fault in _FAULTS if fault in outcome.told and fault not in entry.says)
    yield from (f"the attack itself is broken: {fault}" for fault in faults)
    yield from (f"a text says {words!r}" for words in entry.hides if words in outcome.told)
    if sys.platform == "linux" and os.geteuid() == 0:
        yield from (f"not isolated: {kind}" for kind in judged.missing)
    yield from _unsound(judged.notebook, outcome.told)


def _unsound(notebook: NotebookNode, told: str) -> Iterator[str]:
    """What nbgrader could not read, write or show."""
    try:
        nbformat.validate(notebook)
    except ValidationError as error:
        yield f"no notebook: {str(error).splitlines()[0]}"
    try:
        size = len(told.encode())
    except UnicodeEncodeError as error:
        yield f"it cannot be written: {error.reason}"
    else:
        if size > LARGEST:
            yield f"the judged notebook has {size / 1e6:.1f} MB"


def _size_from_here_on() -> int:
    """Bytes of this process now, from which its peak counts anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _size("VmRSS")


def _size(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# A judge that hangs -----------------------------------------------------------------------------


class Stuck(BaseException):
    """The judge hung and was interrupted. No `except Exception` of the judge catches this."""


@contextlib.contextmanager
def guard(seconds: float) -> Iterator[None]:
    """Raises `Stuck` in this, the main thread, after so many seconds."""

    def raise_stuck(*_: int | FrameType | None) -> None:
        raise Stuck(f"stuck for {seconds:g} s")

    before = signal.signal(signal.SIGUSR1, raise_stuck)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each: name, earned of what it may earn, seconds of its budget, verdict."""
    width = max(len(one.entry.name) for one in outcomes)
    lines = []
    for one in outcomes:
        points = f"{sum(one.earned.values()):g} of {sum(one.entry.earns.values()):g}"
        spent = f"{one.seconds:.1f} of {one.entry.seconds:g} s"
        verdict = "; ".join(one.objections) or "as it should be"
        lines.append(f"{one.entry.name:<{width}}  {points:>9}  {spent:>14}  {verdict}")
    return "\n".join(lines)
