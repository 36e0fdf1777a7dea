"""Benchmarks of collectives in the manner of nccl-tests: times, bandwidths and fitted links.

    runner.bench()          measure.measure(), on every rank         results.Results
    check the arguments     each curve: sizes from small to large    table(), figure(), links(),
    launch ───────────────► check once, warm up, time ─── diary ───► paste(), to_json()

Call `bench()` in a cell, or run `dtlab bench` in a terminal; both also work under torchrun on
several nodes.
"""

from __future__ import annotations

from dtlab.bench.names import BUILT_IN, COLLECTIVES
from dtlab.bench.results import Measurement, Results
from dtlab.bench.runner import bench

__all__ = ["BUILT_IN", "COLLECTIVES", "Measurement", "Results", "bench"]
