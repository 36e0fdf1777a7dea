"""How fast the links under the ranks are, measured as nccl-tests does: times and bandwidths.

    runner.bench()          measure.measure(), on every rank         results.Results
    check the wishes        each curve: sizes from small to large    table(), figure(), links(),
    launch ───────────────► check once, warm up, time ─── diary ───► paste(), to_json()

`bench()` in a cell, `dtlab bench` in a terminal, and the same under torchrun over several nodes.
"""

from __future__ import annotations

from dtlab.bench.names import BUILT_IN, COLLECTIVES
from dtlab.bench.results import Measurement, Results
from dtlab.bench.runner import bench

__all__ = ["BUILT_IN", "COLLECTIVES", "Measurement", "Results", "bench"]
