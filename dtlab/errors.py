"""Every error that dtlab raises on purpose, and the records they carry.

    DtlabError
    ├── LaunchError          what was asked for cannot be launched
    └── RanksError           something went wrong while ranks were running
        ├── RankError          a rank raised, exited, was killed, or ran out of memory
        ├── DeadlockError      no rank can move any more, or operations do not fit each other
        └── RankTimeoutError   some rank was still computing at the time limit
    KeyboardInterrupt
    └── Interrupted          Ctrl-C, or Interrupt Kernel, while ranks were running

Each message says what happened, where, and what to do. This file imports neither torch nor
anything else of dtlab, so that any room may raise from it.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "DeadlockError",
    "DtlabError",
    "Failure",
    "Interrupted",
    "LaunchError",
    "RankError",
    "RankTimeoutError",
    "RanksError",
    "RemoteTraceback",
    "Waiting",
    "expect",
]

FailureKind = Literal["exception", "exit", "signal", "memory", "result"]


def place_in_words(file: str | None, line: int | None, code: str | None, cell: int | None) -> str:
    """Where the learner has to look: `cell 7, line 4:   dist.recv(...)`."""
    if line is None:
        return ""
    where = f"cell {cell}, line {line}" if cell is not None else f"{file}, line {line}"
    return f"{where}:   {code}" if code else where


@dataclass(frozen=True)
class Failure:
    """How one rank failed, and the learner's own line on which it did.

    `kind` is "exception" (it raised), "exit" (it left by `sys.exit` or `os._exit`), "signal" (it
    was killed or crashed), "memory" (it ran out of memory) or "result" (what it returned cannot be
    sent back). `cell` is the number of the notebook cell, None outside a notebook.
    """

    kind: FailureKind
    message: str
    file: str | None = None
    line: int | None = None
    code: str | None = None
    cell: int | None = None
    traceback: str | None = field(default=None, repr=False, compare=False)
    caller: str = ""  # the line in another of the learner's cells or files that led there
    advice: str = field(default="", repr=False, compare=False)  # where more is known than the kind

    @property
    def place(self) -> str:
        """The learner's line in words; empty where it is not known."""
        return place_in_words(self.file, self.line, self.code, self.cell)


@dataclass(frozen=True)
class Waiting:
    """What one rank is doing that it does not come back from.

    `op` is the operation it is blocked in ("recv", "all_reduce", ...), or "compute" for a rank
    that is running code of its own; `peers` are the ranks that it waits for, as far as known.
    """

    rank: int
    op: str
    peers: tuple[int, ...] = ()
    file: str | None = None
    line: int | None = None
    code: str | None = None
    cell: int | None = None

    @property
    def place(self) -> str:
        """The learner's line in words; empty where it is not known."""
        return place_in_words(self.file, self.line, self.code, self.cell)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or Interrupt Kernel, while ranks were running; the message says what became of them.

    It is no `DtlabError`: what catches those must not swallow an interrupt.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback through dtlab's own frames."""
        return [f"\x1b[1mKeyboardInterrupt\x1b[0m: {self}"]


class RemoteTraceback(Exception):
    """The traceback of an exception in a rank, as text: the `__cause__` of a `RankError`."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]) if self.args else ""


class DtlabError(Exception):
    """Base of all errors that dtlab raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback through dtlab's own frames."""
        name, _, rest = f"{type(self).__name__}: {self}".partition(":")
        return [f"\x1b[1m{name}\x1b[0m:{rest}"]  # bold; a colour would suit one theme only

    def _repr_html_(self) -> str:
        name = type(self).__name__
        return (
            '<pre style="border-left:4px solid #c0392b;padding:0 .8em;margin:0;'
            'white-space:pre-wrap;word-break:normal">'
            f"<b>{name}</b>: {html.escape(str(self))}</pre>"
        )


class LaunchError(DtlabError):
    """What was asked for cannot be launched: the message says what is missing, and what to do."""


class RanksError(DtlabError):
    """Something went wrong while ranks were running.

    `values` holds the return values of the ranks that did finish (None for the others), `stdout`
    what each rank had printed until then.
    """

    def __init__(
        self, message: str, *, values: Sequence[Any] = (), stdout: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.values = list(values)
        self.stdout = list(stdout)


class RankError(RanksError):
    """A rank raised, exited, was killed, ran out of memory, or returned what cannot be sent.

    `failures` maps each rank that failed to its `Failure`; the guilty rank, whose failure came
    first and made the others fail, is the first key.
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
    """No rank can move any more, or operations of different ranks do not fit each other.

    `waiting` says for each rank what it is blocked in; `mismatch` says what does not fit, None
    where everything fits but nobody can move. `advice` is the message's last sentence, what to do.
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


class RankTimeoutError(RanksError):
    """Some rank was still computing at the time limit; `running` says where each rank was."""

    def __init__(
        self,
        message: str,
        *,
        running: Sequence[Waiting],
        values: Sequence[Any] = (),
        stdout: Sequence[str] = (),
    ) -> None:
        super().__init__(message, values=values, stdout=stdout)
        self.running = list(running)


@contextlib.contextmanager
def expect(*kinds: type[BaseException]) -> Iterator[None]:
    """Run a cell that is meant to fail: shows the error, and goes on.

        with dtlab.expect(dtlab.RankError):
            dtlab.launch(broken)

    Raises:
        DtlabError: nothing was raised, or something else than `kinds`.
    """
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds as error:
        _show(error)
    except Exception as error:
        raise DtlabError(f"expected {names}, but {type(error).__name__} came: {error}") from error
    else:
        raise DtlabError(f"expected {names}, but the cell ran through without an error.")


def _show(error: BaseException) -> None:
    """Show an error as a notebook or a terminal shows it best."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None
    if get_ipython is not None and get_ipython() is not None:
        display(error)
    else:
        print(f"{type(error).__name__}: {error}")
