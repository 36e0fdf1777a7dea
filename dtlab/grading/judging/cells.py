"""Runs the ungraded cells of a notebook in a sandbox, with limits.

    cells = Cells(server, walls, limits)
    cells.run(3, "x = 6 * 7")      # outputs as nbformat has them
    cells.take("x", 4)             # 42
    cells.notes                    # what was left out, and why

A cell that ends the notebook's process, or does not end, is left out; the cells before it are run
again in a fresh process, and those after it as ever, so that one such cell costs its own points
only, and its time limit once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from dtlab.grading.harmless import safe_data
from dtlab.grading.judging.patience import standing_back
from dtlab.ranks.launch.client import Server
from dtlab.ranks.sandbox.enclosure import Enclosure, Room, RoomGone, RoomHung
from dtlab.ranks.sandbox.walls import Walls

__all__ = ["MISSING", "Cells", "Limits", "NotTaken"]

MISSING = object()  # in place of what a notebook has not got


@dataclass(frozen=True)
class Limits:
    """What the cells of one notebook may take: seconds for one, and for all of them; how many
    times its process may end before the rest is not run any more."""

    cell: float = 15.0
    notebook: float = 300.0
    ends: int = 6


class NotTaken(Exception):
    """The notebook's process ended when it was asked for an answer: why, in words."""


class Cells:
    """One notebook's process, or another one after it.

    `notes` are for learner and instructor, `missing` are walls that the system refused, and
    `seconds` is what the cells took. `waits` is told that a cell takes long, so that something
    else may be done, and that it is over.
    """

    def __init__(
        self,
        server: Server,
        walls: Walls,
        limits: Limits,
        waits: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self.notes: list[str] = []
        self.missing: list[str] = []
        self.seconds = 0.0
        self._server, self._walls, self._limits, self._waits = server, walls, limits, waits
        self._ran: list[tuple[int, str]] = []  # cells that ended, to be run again if need be
        self._ends = 0
        self._enclosure: Enclosure | None = None
        self._room: Room | None = None

    def run(self, number: int, source: str) -> list[NotebookNode]:
        """Outputs of one cell; why it has none, where it was left out."""
        if not source.strip():
            return []
        room = self._open_room()
        if room is None or self._spent():
            return [_failure("NotRun", self._spent())]
        try:
            outputs = self._timed(room, number, source)
        except (RoomHung, RoomGone) as error:
            return [_failure("NotRun", self._ended(number, error))]
        self._ran.append((number, source))
        return [_sound(one) for one in outputs]

    def take(self, name: str, number: int) -> Any:
        """What the notebook has under a name in its cell `number`, `MISSING` where it has nothing.

        Plain data; functions come sealed, other objects as `Opaque`. Raises `NotTaken`.
        """
        room = self._open_room()
        try:
            taken = room.take(name) if room is not None else None
        except (RoomHung, RoomGone) as error:
            raise NotTaken(self._ended(number, error)) from None
        return taken[0] if taken else MISSING

    def close(self) -> None:
        """End the notebook's process, and all that it has started."""
        if self._enclosure is not None:
            self._enclosure.close()
        self._enclosure = self._room = None

    # ------------------------------------------------------------------ its process

    def _open_room(self) -> Room | None:
        """The notebook's process; a fresh one has gone through the cells that ended before.

        One that does not end now is left out too. None where that uses up all tries.
        """
        while self._room is None and not self._spent():
            self._enclosure = Enclosure(self._server, self._walls)
            self.missing = self._enclosure.missing
            self._room = self._enclosure.open_room()
            for cell in self._ran:
                try:
                    self._timed(self._room, *cell)
                except (RoomHung, RoomGone) as error:
                    self._ran.remove(cell)
                    self._ended(cell[0], error)
                    break
        return self._room

    def _timed(self, room: Room, number: int, source: str) -> list[dict[str, Any]]:
        """Runs a cell. One that does not end is ended before anything else is waited for."""
        enclosure = self._enclosure
        assert enclosure is not None  # the room is in it
        with standing_back(enclosure, self._waits):
            try:
                with self._clock(enclosure):
                    left = self._limits.notebook - self.seconds
                    return room.run(number, source, min(self._limits.cell, left))
            except (RoomHung, RoomGone):
                enclosure.come_last(False)  # so that it ends soon
                self.close()
                raise

    @contextmanager
    def _clock(self, enclosure: Enclosure) -> Iterator[None]:
        """What a cell takes counts; what it waits for others, then or before it, does not."""
        patience = enclosure.patience(self._limits.notebook)
        try:
            yield
        finally:
            self.seconds += patience.spent

    def _ended(self, number: int, error: Exception) -> str:
        """The process is of no use any more: why, in words that go into the notebook."""
        self._ends += 1
        self.close()
        if isinstance(error, RoomHung):
            why = f"cell {number} was still running after {self._limits.cell:g} s and was ended"
        else:
            why = f"cell {number} ended the notebook's process (an exit, a crash, or no memory)"
        self.notes.append(f"{why}. It was left out; the other cells were run without it.")
        return f"{why}."

    def _spent(self) -> str:
        if self._ends >= self._limits.ends:
            return f"not run: {self._ends} cells before it ended the notebook's process."
        if self.seconds >= self._limits.notebook:
            return f"not run: the notebook has used up its {self._limits.notebook:g} s."
        return ""


# Outputs ----------------------------------------------------------------------------------------


def _sound(output: dict[str, Any]) -> NotebookNode:
    """An output as nbformat has it, whatever the room has sent."""
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
