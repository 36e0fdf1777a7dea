"""Printed output of ranks: shown live, grouped by rank, stored, and limited in size.

Everything is shown on the notebook's stdout, even the stderr of ranks, because nbgrader takes a
correct answer for a failed one if there is text on stderr.
"""

from __future__ import annotations

import codecs
import re
import sys
import time
from typing import Literal, TextIO

Stream = Literal["out", "err"]
# Output that arrives together is shown in this order, so that a progress bar comes before prints.
STREAMS: tuple[Stream, ...] = ("err", "out")
KEEP = 1_000_000  # characters kept of each stream of each rank
SHOW = 200_000  # characters shown of one launch
# What C++ prints before an exception that the error of the launch reports in words, and what
# Kineto prints whenever torch.profiler starts or stops.
NOT_SHOWN = re.compile(
    r"terminate called after throwing an instance of|  what\(\):  |"
    r"\[rank\d+\]:\[F.* ProcessGroupGloo\.cpp:\d+\] Check failed|"
    r"USDT:.* profiler_(start|stop)$"
)
GATHER = 0.15  # seconds for which lines are collected and then shown rank by rank


class Output:
    """Shows and stores the bytes that ranks write."""

    def __init__(
        self, world_size: int, file: TextIO | None = None, gather: float = GATHER
    ) -> None:
        self._gather = gather
        self._file = file or sys.stdout
        self._sources = {(r, s): _Source(r) for r in range(world_size) for s in STREAMS}
        self._open: tuple[_Source, str] | None = None  # the unfinished line that the cursor is in
        self._shown = 0
        self._due: float | None = None  # when the next output must be shown

    def feed(self, rank: int, stream: Stream, data: bytes) -> None:
        """Take bytes that rank `rank` has written."""
        self._sources[rank, stream].take(data)
        if self._due is None:
            self._due = time.monotonic() + self._gather

    def patience(self) -> float | None:
        """Seconds until `show_if_due` must be called; None if there is nothing to show."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def show_if_due(self) -> bool:
        """If it is time, show the collected lines rank by rank, and rank 0's unfinished line.

        Returns whether it was time.
        """
        due = self.patience() == 0.0
        if due:
            self.show_now()
        return due

    def show_now(self) -> None:
        """Show the collected output at once, as `show_if_due` does when it is time."""
        self._due = None
        self._show_lines()
        for stream in STREAMS:
            growing = self._sources[0, stream]
            if growing.rest and self._open != (growing, growing.rest):
                self._show(growing, growing.rest, finished=False)

    def finish(self) -> None:
        """Show the remaining output, unfinished lines too, and report what was cut off."""
        for source in self._sources.values():
            source.end()
        self._show_lines()
        self._close_line()
        if self._shown > SHOW:
            most = max(self._sources.values(), key=lambda source: source.written)
            self._file.write(
                f"... only the first {SHOW:,} characters are shown. "
                f"Most is from rank {most.rank}: {most.written:,} characters.\n"
            )
        for source in self._sources.values():
            if source.dropped:
                text = f"rank {source.rank}: {source.dropped:,} more characters were not kept.\n"
                self._file.write(text)
        self._file.flush()

    def kept(self, stream: Stream) -> list[str]:
        """The stored text of each rank's stream, in the order of the ranks."""
        return ["".join(src.kept) for (_, name), src in self._sources.items() if name == stream]

    def _show_lines(self) -> None:
        for source in self._sources.values():
            for line in source.lines:
                self._show(source, line, finished=True)
            source.lines.clear()

    def _show(self, source: _Source, line: str, *, finished: bool) -> None:
        if self._shown > SHOW:
            return
        visible = line.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites its line
        if self._open is not None and self._open[0] is source:
            self._file.write("\r")
        else:
            self._close_line()
        text = f"rank {source.rank}: {visible}"
        self._file.write(text + ("\n" if finished else ""))
        self._open = None if finished else (source, line)
        self._shown += len(text)
        self._file.flush()

    def _close_line(self) -> None:
        if self._open is not None:
            self._file.write("\n")
            self._open = None


class _Source:
    """One stream of one rank, cut into lines."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lines: list[str] = []  # finished, not shown yet
        self.rest = ""  # the line that has not ended yet
        self.kept: list[str] = []
        self.written = 0  # characters
        self.dropped = 0  # characters that were not stored
        self._room = KEEP
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self._keep(text)
        *lines, self.rest = (self.rest + text).split("\n")
        self.lines += [line for line in lines if not NOT_SHOWN.match(line)]
        self.rest = self.rest[-10_000:]

    def end(self) -> None:
        """Treat the unfinished line, if there is one, as finished."""
        if self.rest:
            self.lines.append(self.rest)
        self.rest = ""

    def _keep(self, text: str) -> None:
        self.written += len(text)
        stored = text[: self._room]
        self._room -= len(stored)
        self.dropped += len(text) - len(stored)
        self.kept.append(stored)
