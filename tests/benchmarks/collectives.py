"""Our collectives against gloo's own: `python -m tests.benchmarks collectives`, about a minute.

One table of ratios, ours / gloo's: below 1 ours is faster. Each figure is the median of
interleaved pairs in one launch, each pair a short burst of ours and one of gloo's on the same
tensor, timed by the slowest rank. float32, sum, one thread per rank.
"""

from __future__ import annotations

import os
import statistics
from functools import partial

import torch
import torch.distributed as dist

import dtlab
from dtlab import collectives
from dtlab.bench.measure import ELEMENT, seconds_per_call
from tests.benchmarks.pairs import ratio, time_in_turns

SIZES = {"4 KB": 4_096, "256 KB": 262_144, "4 MB": 4_194_304, "64 MB": 67_108_864}  # bytes
WORLD_SIZES = (2, 4, 8)
ALL_REDUCES = {
    "naive": collectives.naive_all_reduce,
    "ring": collectives.ring_all_reduce,
    "tree": collectives.tree_all_reduce,
    "doubling": collectives.recursive_doubling_all_reduce,
    "halving": collectives.halving_doubling_all_reduce,
    "hierarchical": partial(collectives.hierarchical_all_reduce, ranks_per_node=2),
}
BUDGET = 0.8  # seconds per figure, about; three pairs at least


def measure(
    names: list[str], sizes: list[int], budget: float = BUDGET
) -> dict[int, dict[str, float]]:
    """Return on every rank {bytes: {name: median ratio, "gloo": median seconds}}."""
    table = {}
    for size in sizes:
        tensor, row, gloo = torch.zeros(size // ELEMENT), {}, []
        burst = 1 if size > 1_000_000 else 10
        peer = partial(dist.all_reduce, tensor)
        for name in names:
            ours = partial(ALL_REDUCES[name], tensor)
            first = seconds_per_call(ours, 1) + seconds_per_call(peer, 1)
            count = max(3, min(25, int(budget / first / burst)))
            times = time_in_turns({"ours": ours, "gloo": peer}, count, calls=burst)
            row[name] = ratio(times["ours"], times["gloo"])
            gloo += times["gloo"]
        table[size] = {"gloo": statistics.median(gloo), **row}
    return table


def main() -> None:
    """Print the table. The watcher is off: it costs more for a message than for a collective."""
    os.environ["DTLAB_UNWATCHED"] = "1"
    print("time of ours / time of gloo's all_reduce (float32, sum)")
    print(f"{'ranks':>5} {'size':>7} {'gloo ms':>8}", *(f"{name:>12}" for name in ALL_REDUCES))
    for n in WORLD_SIZES:
        names, sizes = list(ALL_REDUCES), list(SIZES.values())
        run = dtlab.launch(measure, names, sizes, world_size=n, trace=False, timeout=120)
        for label, size in SIZES.items():
            row = run.values[0][size]
            ratios = (f"{row[name]:12.2f}" for name in ALL_REDUCES)
            print(f"{n:5} {label:>7} {row['gloo'] * 1e3:8.2f}", *ratios)


if __name__ == "__main__":
    main()
