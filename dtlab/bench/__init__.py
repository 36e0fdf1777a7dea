"""Benchmarks of collectives in the manner of nccl-tests: times, bandwidths and fitted links.

    command.bench()         measure.measure(), on every rank         results.Results
    check the arguments     each curve: sizes from small to large    table(), figure(), links(),
    launch ───────────────► check once, warm up, time ─────────────► paste(), to_json()

Call `bench()` in a cell, or run `dtlab bench` in a terminal; both also work under torchrun on
several nodes.
"""

from __future__ import annotations

from dtlab.bench.command import bench
from dtlab.bench.results import BUILT_IN, COLLECTIVES, Measurement, Results

__all__ = ["BUILT_IN", "COLLECTIVES", "Measurement", "Results", "bench"]
