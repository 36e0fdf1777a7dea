"""Measurements of rank 0 in a file while the benchmark runs, for progress and for Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from dtlab.bench.results import Measurement
from dtlab.ranks import system

__all__ = ["read", "shown", "temporary", "write"]

_EVERY = 0.2  # seconds between two looks
_PATIENCE = 2.0  # seconds without a bar


def write(diary: Path, measurement: Measurement) -> None:
    """Add one line."""
    with diary.open("a") as file:
        file.write(json.dumps(asdict(measurement)) + "\n")


def read(diary: Path) -> list[Measurement]:
    """All lines that are complete, in the order in which they were written."""
    if not diary.exists():
        return []
    *lines, _ = diary.read_text().split("\n")
    return [Measurement(**json.loads(line)) for line in lines]


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A place for a diary, which goes with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="dtlab-bench-") as folder:
        yield Path(folder, "diary")


@contextlib.contextmanager
def shown(diary: Path, curves: Sequence[tuple[str, str]], sizes: int) -> Iterator[None]:
    """Show a bar while the block runs, if it runs long enough, in a terminal or a notebook.

    `curves` are (collective, implementation) in the order in which they are measured, each at up
    to so many `sizes`.
    """
    somebody_looks = sys.stderr.isatty() or system.in_a_kernel()
    over = threading.Event()
    with tqdm(total=len(curves) * sizes, unit="size", leave=False, delay=_PATIENCE,
              miniters=0, disable=not somebody_looks) as bar:  # fmt: skip
        follower = threading.Thread(
            target=_follow, args=(diary, curves, sizes, bar, over), daemon=True
        )
        if somebody_looks:
            follower.start()
        try:
            yield
        finally:
            over.set()
            if somebody_looks:
                follower.join()


def _follow(
    diary: Path, curves: Sequence[tuple[str, str]], sizes: int, bar: tqdm, over: threading.Event
) -> None:
    while not over.wait(_EVERY):
        found = read(diary)
        if not found:
            continue
        last = found[-1].collective, found[-1].implementation
        of_it = sum((one.collective, one.implementation) == last for one in found)
        bar.set_description_str(f"{last[0]}, {last[1]}", refresh=False)
        bar.update(curves.index(last) * sizes + of_it - bar.n)  # not before its delay is over
