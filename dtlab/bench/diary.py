"""The file to which rank 0 writes measurements, for the progress bar and after Ctrl-C."""

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

_EVERY = 0.2  # seconds between two reads of the file
_PATIENCE = 2.0  # seconds before the progress bar appears


def write(diary: Path, measurement: Measurement) -> None:
    """Append a measurement as one line."""
    with diary.open("a") as file:
        file.write(json.dumps(asdict(measurement)) + "\n")


def read(diary: Path) -> list[Measurement]:
    """Return the measurements of all complete lines, in the order in which they were written."""
    if not diary.exists():
        return []
    *lines, _ = diary.read_text().split("\n")
    return [Measurement(**json.loads(line)) for line in lines]


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """Context manager: the path of a diary in a temporary folder, deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="dtlab-bench-") as folder:
        yield Path(folder, "diary")


@contextlib.contextmanager
def shown(diary: Path, curves: Sequence[tuple[str, str]], sizes: int) -> Iterator[None]:
    """Context manager: show a progress bar in a terminal or notebook if the block runs long.

    `curves` are (collective, implementation) in the order in which they are measured, each at up
    to `sizes` sizes.
    """
    interactive = sys.stderr.isatty() or system.in_a_kernel()
    over = threading.Event()
    with tqdm(total=len(curves) * sizes, unit="size", leave=False, delay=_PATIENCE,
              miniters=0, disable=not interactive) as bar:  # fmt: skip
        follower = threading.Thread(
            target=_follow, args=(diary, curves, sizes, bar, over), daemon=True
        )
        if interactive:
            follower.start()
        try:
            yield
        finally:
            over.set()
            if interactive:
                follower.join()


def _follow(
    diary: Path, curves: Sequence[tuple[str, str]], sizes: int, bar: tqdm, over: threading.Event
) -> None:
    while not over.wait(_EVERY):
        measurements = read(diary)
        if not measurements:
            continue
        last = measurements[-1].collective, measurements[-1].implementation
        count = sum((each.collective, each.implementation) == last for each in measurements)
        bar.set_description_str(f"{last[0]}, {last[1]}", refresh=False)
        bar.update(curves.index(last) * sizes + count - bar.n)  # shown only after the delay
