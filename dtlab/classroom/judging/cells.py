"""Runs the ungraded cells of a notebook in a sandbox, with limits.

    cells = Cells(server, isolation, limits)
    cells.run(3, "x = 6 * 7")      # outputs in the format of nbformat
    cells.take("x", 4)             # 42
    cells.notes                    # which cells were left out, and why

A cell that ends the notebook's process or exceeds its time limit is left out. The cells before it
are run again in a fresh process, and the cells after it are run as usual. So such a cell costs
only its own points, and its time limit once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from dtlab.classroom.judging.patience import lowered_priority
from dtlab.classroom.sanitised import safe_data
from dtlab.ranks.launch.client import Server
from dtlab.ranks.sandbox.isolation import Isolation
from dtlab.ranks.sandbox.sandbox import NotebookEnded, NotebookHung, NotebookProcess, Sandbox

__all__ = ["MISSING", "Cells", "Limits", "NotTaken"]

MISSING = object()  # stands for a name that the notebook does not define


@dataclass(frozen=True)
class Limits:
    """Limits for a notebook: time, and how often its process may end.

    `cell` is in seconds for each cell, `notebook` in seconds for all cells. After its process has
    ended `ends` times, the remaining cells are not run.
    """

    cell: float = 15.0
    notebook: float = 300.0
    ends: int = 6


class NotTaken(Exception):
    """The notebook's process ended while an answer was read from it; the message says why."""


class Cells:
    """The process in which a notebook's cells run; a fresh one if it ends.

    `notes` are for learner and instructor, `missing` are the kinds of isolation that the system
    does not support, and `seconds` is the total time of the cells. `waits(True)` is called when a
    cell runs for a long time, so that other work can continue, and `waits(False)` when the cell
    ends.
    """

    def __init__(
        self,
        server: Server,
        isolation: Isolation,
        limits: Limits,
        waits: Callable[[bool], bool | None] = lambda _: None,
    ) -> None:
        self.notes: list[str] = []
        self.missing: list[str] = []
        self.seconds = 0.0
        self._server, self._isolation = server, isolation
        self._limits, self._waits = limits, waits
        self._ran: list[tuple[int, str]] = []  # completed cells, to run again in a fresh process
        self._ends = 0
        self._sandbox: Sandbox | None = None
        self._process: NotebookProcess | None = None

    def run(self, number: int, source: str) -> list[NotebookNode]:
        """Runs a cell; returns its outputs, or an error output that says why it was left out."""
        if not source.strip():
            return []
        process = self._running_process()
        if process is None or self._spent():
            return [_failure("NotRun", self._spent())]
        try:
            outputs = self._timed(process, number, source)
        except (NotebookHung, NotebookEnded) as error:
            return [_failure("NotRun", self._ended(number, error))]
        self._ran.append((number, source))
        return [_sound(output) for output in outputs]

    def take(self, name: str, number: int) -> Any:
        """Reads a variable of the notebook for its cell `number`; `MISSING` if it is not defined.

        Returns plain data; functions are `PickledFunction`, other objects are `Opaque`. Raises
        `NotTaken`.
        """
        process = self._running_process()
        try:
            taken = process.take(name) if process is not None else None
        except (NotebookHung, NotebookEnded) as error:
            raise NotTaken(self._ended(number, error)) from None
        return taken[0] if taken else MISSING

    def close(self) -> None:
        """Ends the notebook's process and all processes that it has started."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = self._process = None

    # ------------------------------------------------------------------ its process

    def _running_process(self) -> NotebookProcess | None:
        """Returns the notebook's process; in a fresh one, first runs the completed cells again.

        A cell that does not complete this time is left out. Returns None if the limits are used
        up.
        """
        while self._process is None and not self._spent():
            self._sandbox = Sandbox(self._server, self._isolation)
            self.missing = self._sandbox.missing
            self._process = self._sandbox.start_notebook()
            for cell in self._ran:
                try:
                    self._timed(self._process, *cell)
                except (NotebookHung, NotebookEnded) as error:
                    self._ran.remove(cell)
                    self._ended(cell[0], error)
                    break
        return self._process

    def _timed(self, process: NotebookProcess, number: int, source: str) -> list[dict[str, Any]]:
        """Runs a cell. If it hangs or ends its process, closes the sandbox before other tasks run.
        """
        sandbox = self._sandbox
        assert sandbox is not None  # the process is in it
        with lowered_priority(sandbox, self._waits):
            try:
                with self._clock(sandbox):
                    left = self._limits.notebook - self.seconds
                    return process.run(number, source, min(self._limits.cell, left))
            except (NotebookHung, NotebookEnded):
                sandbox.come_last(False)  # with normal priority the process ends sooner
                self.close()
                raise

    @contextmanager
    def _clock(self, sandbox: Sandbox) -> Iterator[None]:
        """Adds a cell's time to `seconds`, without the time in which it waits for other tasks."""
        patience = sandbox.patience(self._limits.notebook)
        try:
            yield
        finally:
            self.seconds += patience.spent

    def _ended(self, number: int, error: Exception) -> str:
        """Discards the process; returns the reason as a message for the notebook."""
        self._ends += 1
        self.close()
        if isinstance(error, NotebookHung):
            why = f"cell {number} was still running after {self._limits.cell:g} s and was ended"
        else:
            why = f"cell {number} ended the notebook's process (exit, crash, or out of memory)"
        self.notes.append(f"{why}. It was left out; the other cells were run without it.")
        return f"{why}."

    def _spent(self) -> str:
        if self._ends >= self._limits.ends:
            return f"not run: {self._ends} earlier cells ended the notebook's process."
        if self.seconds >= self._limits.notebook:
            return f"not run: the notebook has used up its {self._limits.notebook:g} s."
        return ""


# Outputs ----------------------------------------------------------------------------------------


def _sound(output: dict[str, Any]) -> NotebookNode:
    """Converts any output that the sandbox sends to a valid output of nbformat."""
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return new_output("stream", name=name, text=str(output.get("text", "")))
    if kind == "error":
        lines = output.get("traceback")
        return _failure(
            str(output.get("ename", "")), str(output.get("evalue", "")),
            [str(line) for line in lines] if isinstance(lines, Sequence) else [],
        )  # fmt: skip
    data = output.get("data")
    return new_output("display_data", data=safe_data(data) if isinstance(data, dict) else {})


def _failure(name: str, message: str, lines: Sequence[str] = ()) -> NotebookNode:
    return new_output("error", ename=name, evalue=message, traceback=list(lines) or [message])
