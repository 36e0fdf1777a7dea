"""The command for traces: `dtlab analyze`."""

from __future__ import annotations

import argparse
import re
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
    analyze.add_argument("--ranks", metavar="R,R", help="the ranks of the files in this order, if "
                         "the files do not name them: 0,1,2 or 0-2")  # fmt: skip
    analyze.add_argument("--comm", action="append", default=[], metavar="PATTERN",
                         help="a regular expression for the names of kernels that communicate, "
                         "beside those of NCCL and other libraries; may be repeated")  # fmt: skip
    analyze.add_argument(
        "--json", action="store_true", help="print JSON, with units in the names of keys"
    )
    analyze.set_defaults(run=_analyze)


def _analyze(options: argparse.Namespace) -> None:
    from dtlab.profiling.diagnosis import diagnose
    from dtlab.profiling.reading.files import files_in
    from dtlab.trace import Trace

    files = [file for path in options.traces for file in files_in(path)]
    size = sum(file.stat().st_size for file in files if file.is_file())
    reading = f"Reading {len(files)} file{'s' * (len(files) > 1)}, {size / 1e6:.0f} MB"
    traces = _with_ranks(files, options.ranks) if options.ranks else options.traces
    with _patience(reading), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the diagnosis has them as notes
        trace = Trace.from_chrome(traces, comm=options.comm)
    with _patience(f"Analyzing {len(trace.events):,} events"):
        try:
            diagnosis = diagnose(trace)
        except ValueError as error:
            names = ", ".join(map(str, options.traces))
            raise DtlabError(" ".join([f"{names}: {error}", *trace.notes])) from error
    print(diagnosis.as_json() if options.json else diagnosis)


def _with_ranks(files: Sequence[Path], written: str) -> dict[int, Path]:
    """The file of each rank; `written` is "0,1,2" or "0-2", in the order of the files."""
    ranks: list[int] = []
    for each in written.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", each)
        if match is None:
            raise DtlabError(f"--ranks {written}: {each!r} is no rank. Write 0,1,2 or 0-2.")
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(ranks)) < len(ranks) or len(ranks) != len(files):
        raise DtlabError(
            f"--ranks {written}: give each of the {len(files)} files a rank of its own: "
            + ", ".join(map(str, files))
        )
    return dict(zip(ranks, files, strict=True))


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
