"""The command for traces: `dtlab analyze`."""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dtlab.errors import DtlabError

__all__ = ["add"]

PATIENCE = 2.0  # seconds until a message says what takes a while


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command for traces to the parser."""
    analyze = commands.add_parser(
        "analyze",
        help="say where the time of a training step went, why, and what to try",
        description="Reads the trace of a job: the files that torch.profiler's "
        "export_chrome_trace or tensorboard_trace_handler wrote, one per rank, or the file of "
        "Trace.to_chrome. Prints for each rank how long a step computes, waits for input, waits "
        "for late ranks and communicates; the likely causes, sorted by the time that a step "
        "would save without them; and what to try.",
    )
    analyze.add_argument("traces", nargs="+", type=Path, metavar="TRACE",
                         help="a file, .json or .json.gz, or a folder of such files")  # fmt: skip
    analyze.add_argument(
        "--json", action="store_true", help="print JSON, with units in the names of keys"
    )
    analyze.set_defaults(run=_analyze)


def _analyze(options: argparse.Namespace) -> None:
    from dtlab.trace import Trace
    from dtlab.trace.diagnosis import diagnose

    files = list(_files(options.traces))
    size = sum(file.stat().st_size for file in files if file.is_file())
    reading = f"Reading {len(files)} file{'s' * (len(files) > 1)}, {size / 1e6:.0f} MB"
    with _patience(reading), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the diagnosis says which ranks are missing
        trace = Trace.from_chrome(files)
    with _patience(f"Analyzing {len(trace.events):,} events"):
        try:
            diagnosis = diagnose(trace)
        except ValueError as error:
            raise DtlabError(f"{', '.join(map(str, files))}: {error}") from error
    print(diagnosis.as_json() if options.json else diagnosis)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, and the traces in folders."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(each for each in path.iterdir() if each.name.endswith((".json", ".gz")))
        if not inside:
            raise DtlabError(f"{path} has no files .json or .json.gz.")
        yield from inside


@contextmanager
def _patience(text: str) -> Iterator[None]:
    """Print a message if the block takes over two seconds."""
    timer = threading.Timer(PATIENCE, lambda: print(f"{text} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
