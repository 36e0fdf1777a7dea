"""What ranks print: shown line by line while they run, kept by rank, and bounded.

Everything is shown on the notebook's stdout, warnings and errors of ranks too: text on stderr
makes nbgrader take a correct answer for a failed one.
"""

from __future__ import annotations

import codecs
import sys
from typing import Literal, TextIO

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, ...] = ("out", "err")
KEEP = 1_000_000  # characters kept of each stream of each rank
SHOW = 200_000  # characters shown of one launch


class Output:
    """Takes bytes as they come from the ranks; shows them, and keeps them."""

    def __init__(self, world_size: int, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self._sources = {(r, s): _Source(r) for r in range(world_size) for s in STREAMS}
        self._open: _Source | None = None  # whose unfinished line the cursor stands in
        self._shown = 0

    def feed(self, rank: int, stream: Stream, data: bytes) -> None:
        """Take what rank `rank` has written; show its finished lines, and rank 0's as it grows."""
        source = self._sources[rank, stream]
        lines = source.take(data)
        for line in lines:
            self._show(source, line, finished=True)
        if rank == 0 and source.rest:
            self._show(source, source.rest, finished=False)

    def finish(self) -> None:
        """Show what was left without a line end, and say what was too much."""
        for source in self._sources.values():
            for line in source.end():
                self._show(source, line, finished=True)
        self._close_line()
        if self._shown > SHOW:
            self._file.write(f"... only the first {SHOW:,} characters are shown.\n")
        for source in self._sources.values():
            if source.dropped:
                text = f"rank {source.rank}: {source.dropped:,} more characters were not kept.\n"
                self._file.write(text)
        self._file.flush()

    def kept(self, stream: Stream) -> list[str]:
        """What each rank has written to the stream, in the order of the ranks."""
        return ["".join(src.kept) for (_, name), src in self._sources.items() if name == stream]

    def _show(self, source: _Source, line: str, *, finished: bool) -> None:
        if self._shown > SHOW:
            return
        visible = line.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites its line
        if self._open is source:
            self._file.write("\r")
        else:
            self._close_line()
        text = f"rank {source.rank}: {visible}"
        self._file.write(text + ("\n" if finished else ""))
        self._open = None if finished else source
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
        self.rest = ""  # the line that has not ended yet
        self.kept: list[str] = []
        self.dropped = 0
        self._room = KEEP
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> list[str]:
        text = self._decoder.decode(data)
        self._keep(text)
        *lines, self.rest = (self.rest + text).split("\n")
        self.rest = self.rest[-10_000:]
        return lines

    def end(self) -> list[str]:
        """The unfinished line, if there is one."""
        lines, self.rest = [self.rest] if self.rest else [], ""
        return lines

    def _keep(self, text: str) -> None:
        kept = text[: self._room]
        self._room -= len(kept)
        self.dropped += len(text) - len(kept)
        self.kept.append(kept)
