"""Widgets for data-parallel training.

explore_overlap()      exposed communication by size of buckets, ranks and link
explore_straggler()    throughput by the delay of one worker, for each consistency model
"""

from __future__ import annotations

from typing import Final

from dtlab.show.figures.overlap import overlap, straggler
from dtlab.show.widgets.dials import (
    Dial,
    Scale,
    box,
    bytes_scale,
    count_scale,
    rate_scale,
    seconds_scale,
)
from dtlab.show.widgets.explorer import Explorer
from dtlab.show.words import number_from_words

__all__ = ["explore_overlap", "explore_straggler"]

_BUCKETS: Final = (
    1e5, 1.5e5, 2.5e5, 4e5, 6e5, 1e6, 1.5e6, 2.5e6, 4e6, 6e6, 1e7, 1.5e7, 2.5e7, 4e7, 6e7, 1e8,
    1.5e8, 2e8,
)  # fmt: skip
_RANKS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LATENCIES: Final = (1e-6, 2e-6, 5e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
_BANDWIDTHS: Final = (1.25e9, 5e9, 12.5e9, 25e9, 50e9, 100e9, 300e9, 450e9)
_BACKWARD: Final = (5e-3, 10e-3, 20e-3, 40e-3, 60e-3, 80e-3, 120e-3, 200e-3)
_DELAYS: Final = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)


def explore_overlap() -> Explorer:
    """Find the bucket size that leaves the least communication exposed. See `overlap`.

    The dials start at PyTorch's 25 MB and at the 5 µs and 25 GB/s of InfiniBand HDR.
    """
    dials = {
        "bucket_bytes": Dial("Size of a bucket", bytes_scale(_BUCKETS), 25e6),
        "backward_seconds": Dial("Time of backward", seconds_scale(_BACKWARD), 20e-3),
        "num_ranks": Dial("Number of ranks", count_scale(_RANKS), 16),
        "latency": Dial("Latency of a link", seconds_scale(_LATENCIES), 5e-6),
        "bandwidth": Dial("Bandwidth of a link", rate_scale(_BANDWIDTHS), 25e9),
    }
    return Explorer(overlap, dials, [[each.widget for each in dials.values()]])


def explore_straggler() -> Explorer:
    """Show what a late worker costs in sync, bounded and async training. See `straggler`."""
    delays = Scale(_DELAYS, lambda each: f"{each:g}", lambda words: number_from_words(words, {}))
    dials = {
        "delay": Dial("Delay, in steps", delays, 1.0),
        "num_workers": Dial("Number of workers", count_scale(range(2, 33)), 8),
        "staleness": Dial("Bound, in steps", count_scale(range(1, 33)), 3),
    }
    turns = box("a different worker in each step", False)
    rows = [each.widget for each in dials.values()], [turns]
    return Explorer(straggler, dials | {"turns": turns}, rows)
