"""Exceptions that dtlab raises, and the records that they carry.

    DtlabError
    ├── ArgumentError        a function got an argument of the wrong kind (it is also a TypeError)
    ├── LaunchError          the ranks cannot be started with these arguments
    └── RanksError           something went wrong while ranks were running
        ├── RankError          a rank raised, exited, was killed, or ran out of memory
        ├── DeadlockError      no rank can make progress
        │   └── MismatchError    operations of different ranks do not match
        └── RankTimeoutError   some rank was still running at the time limit
    KeyboardInterrupt
    └── Interrupted          Ctrl-C, or Interrupt Kernel, while ranks were running

Each message says what happened, where, and what to do. An error that ends a script is printed
without dtlab's own frames. This file imports neither torch nor another module of dtlab, so every
module can import it.
"""

from __future__ import annotations

import contextlib
import html
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

__all__ = [
    "ArgumentError",
    "DeadlockError",
    "DtlabError",
    "Failure",
    "Interrupted",
    "LaunchError",
    "MismatchError",
    "RankError",
    "RankTimeoutError",
    "RanksError",
    "RemoteTraceback",
    "Waiting",
    "expect",
]

FailureKind = Literal["exception", "exit", "signal", "memory", "result"]


def place_in_words(file: str | None, line: int | None, code: str | None, cell: int | None) -> str:
    """Return the place of a learner's line, as text: `cell 7, line 4:   dist.recv(...)`."""
    if line is None:
        return ""
    where = f"cell {cell}, line {line}" if cell is not None else f"{file}, line {line}"
    return f"{where}:   {code}" if code else where


@dataclass(frozen=True)
class Failure:
    """How one rank failed, and the line of the learner's code that was running.

    `kind` is "exception" (the rank raised), "exit" (it called `sys.exit` or `os._exit`), "signal"
    (it was killed or crashed), "memory" (it ran out of memory) or "result" (its return value
    cannot be sent back). `cell` is the number of the notebook cell, or None outside a notebook.
    """

    kind: FailureKind
    message: str
    file: str | None = None
    line: int | None = None
    code: str | None = None
    cell: int | None = None
    traceback: str | None = field(default=None, repr=False, compare=False)
    caller: str = ""  # the calling line, if it is in another cell or file
    advice: str = field(default="", repr=False, compare=False)  # in addition to that for `kind`

    @property
    def place(self) -> str:
        """The learner's line as text; empty if it is not known."""
        return place_in_words(self.file, self.line, self.code, self.cell)


@dataclass(frozen=True)
class Waiting:
    """What one rank was doing when its launch was stopped.

    `op` is the operation that blocks the rank ("recv", "all_reduce", ...), or "compute" if the
    rank runs other code; `peers` are the ranks that it waits for, as far as known.
    """

    rank: int
    op: str
    peers: tuple[int, ...] = ()
    file: str | None = None
    line: int | None = None
    code: str | None = None
    cell: int | None = None
    waits_in: str = ""  # the line that waits, as text, if another line posted the operation

    @property
    def place(self) -> str:
        """The learner's line as text; empty if it is not known."""
        return place_in_words(self.file, self.line, self.code, self.cell)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or Interrupt Kernel, while ranks were running; the message says how they ended.

    It is not a `DtlabError`, because `except DtlabError` must not catch an interrupt.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback through dtlab's frames."""
        return [f"\x1b[1mKeyboardInterrupt\x1b[0m: {self}"]


class RemoteTraceback(Exception):
    """The traceback of an exception in a rank, as text: the `__cause__` of a `RankError`."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


class DtlabError(Exception):
    """Base class of the errors that dtlab raises."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback through dtlab's frames."""
        name, _, rest = f"{type(self).__name__}: {self}".partition(":")
        return [f"\x1b[1m{name}\x1b[0m:{rest}"]  # bold, because a colour would suit only one theme

    def _repr_html_(self) -> str:
        name = type(self).__name__
        return (
            '<pre style="border-left:4px solid #c0392b;padding:0 .8em;margin:0;'
            'white-space:pre-wrap;word-break:normal">'
            f"<b>{name}</b>: {html.escape(str(self))}</pre>"
        )


class ArgumentError(DtlabError, TypeError):
    """A function got an argument of the wrong kind; the message says what it expects."""


class LaunchError(DtlabError):
    """Ranks cannot be started as requested; the message says what is missing and what to do."""


class RanksError(DtlabError):
    """Something went wrong while ranks were running.

    `values` has the return values of the ranks that finished, and None for the other ranks.
    `stdout` has the text that each rank had printed by then.
    """

    def __init__(
        self, message: str, *, values: Sequence[Any] = (), stdout: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.values = list(values)
        self.stdout = list(stdout)


class RankError(RanksError):
    """A rank raised, exited, was killed, ran out of memory, or its result cannot be sent.

    `failures` maps each failed rank to its `Failure`. The first key is the rank that failed first;
    the other failures may be its consequences.
    """

    def __init__(
        self,
        message: str,
        *,
        failures: Mapping[int, Failure],
        values: Sequence[Any] = (),
        stdout: Sequence[str] = (),
    ) -> None:
        super().__init__(message, values=values, stdout=stdout)
        self.failures = dict(failures)


class DeadlockError(RanksError):
    """No rank can make progress, or (`MismatchError`) operations of ranks do not match.

    `waiting` lists the operation that blocks each rank. `mismatch` says what does not match, or is
    None if all operations match. `advice` is the end of the message, which says what to do.
    """

    def __init__(
        self,
        message: str,
        *,
        waiting: Sequence[Waiting],
        mismatch: str | None = None,
        advice: str = "",
        values: Sequence[Any] = (),
        stdout: Sequence[str] = (),
    ) -> None:
        super().__init__(message, values=values, stdout=stdout)
        self.waiting = list(waiting)
        self.mismatch = mismatch
        self.advice = advice


class MismatchError(DeadlockError):
    """Operations of different ranks do not match, for instance a send and its receive buffer.

    The launch ends at once, because the ranks would hang, crash or compute wrong numbers.
    """


class RankTimeoutError(RanksError):
    """Some rank was still running at the time limit; `running` says where each rank was.

    `advice` says what keeps the ranks running, if their calls show it.
    `loops` says that no rank was stuck: all of them called operations until the end, or computed.
    """

    def __init__(
        self,
        message: str,
        *,
        running: Sequence[Waiting],
        advice: str = "",
        loops: bool = False,
        values: Sequence[Any] = (),
        stdout: Sequence[str] = (),
    ) -> None:
        super().__init__(message, values=values, stdout=stdout)
        self.running = list(running)
        self.advice = advice
        self.loops = loops or all(each.op == "compute" for each in self.running)


@contextlib.contextmanager
def expect(*kinds: type[BaseException]) -> Iterator[None]:
    """Run a block of code that is meant to fail: show its error, and continue.

        with dtlab.expect(dtlab.RankError):
            dtlab.launch(broken)

    Raises:
        DtlabError: the block raised nothing, or an exception that is not one of `kinds`.
    """
    if not kinds or not all(isinstance(kind, type) for kind in kinds):
        given = ", ".join(map(repr, kinds))
        raise ArgumentError(
            f"expect({given}): name the errors that the block should raise, such as "
            "dtlab.expect(dtlab.DeadlockError)."
        )
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds as error:
        _show(error)
    except Exception as error:
        raise DtlabError(f"expected {names}, but got {type(error).__name__}: {error}") from error
    else:
        raise DtlabError(f"expected {names}, but the cell finished without an error.")


def _show(error: BaseException) -> None:
    """Display an error in a notebook, or print it in a terminal."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None
    if get_ipython is not None and get_ipython() is not None:
        display(error)
    else:
        print(f"{type(error).__name__}: {error}")


def _show_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that ends a script without dtlab's frames; an interrupt is one line."""
    if isinstance(error, Interrupted):
        print(f"KeyboardInterrupt: {error}", file=sys.stderr)
    elif isinstance(error, DtlabError):
        shown = traceback.TracebackException(kind, error, trace)
        learners = [frame for frame in shown.stack if not frame.filename.startswith(_OURS)]
        shown.stack = traceback.StackSummary.from_list(learners)
        print("".join(shown.format()), end="", file=sys.stderr)
    else:
        _show_others(kind, error, trace)


_OURS = os.path.join(os.path.dirname(__file__), "")
_show_others, sys.excepthook = sys.excepthook, _show_uncaught
