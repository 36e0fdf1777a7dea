"""Our collectives against gloo's own: `python tests/benchmarks/collectives.py`, about a minute.

One table of ratios, ours / gloo's: below 1 ours is faster. Each figure is the median of
interleaved pairs in one launch, each pair a short burst of ours and one of gloo's on the same
tensor, timed by the slowest rank. float32, sum, one thread per rank.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import dtlab
from dtlab import collectives

SIZES = {"4 KB": 4_096, "256 KB": 262_144, "4 MB": 4_194_304, "64 MB": 67_108_864}  # bytes
WORLD_SIZES = (2, 4, 8)
ALL_REDUCES = {
    "naive": collectives.naive_all_reduce,
    "ring": collectives.ring_all_reduce,
    "tree": collectives.tree_all_reduce,
    "doubling": collectives.recursive_doubling_all_reduce,
    "halving": collectives.halving_doubling_all_reduce,
    "hierarchical": collectives.hierarchical_all_reduce,
}
BUDGET = 0.8  # seconds per figure, about; three pairs at least


def _seconds(
    all_reduce: Callable[..., None], tensor: torch.Tensor, burst: int, **options: int
) -> float:
    """Seconds per call of a burst on the slowest rank; the same number on every rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(burst):
        all_reduce(tensor, **options)
    slowest = torch.tensor((time.perf_counter() - start) / burst, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def measure(
    names: list[str], sizes: list[int], budget: float = BUDGET
) -> dict[int, dict[str, float]]:
    """Return on every rank {bytes: {name: median ratio, "gloo": median seconds}}."""
    table = {}
    for size in sizes:
        tensor, row, gloo = torch.zeros(size // 4), {}, []
        burst = 1 if size > 1_000_000 else 10
        for name in names:
            options = {"ranks_per_node": 2} if name == "hierarchical" else {}
            ours, pairs = ALL_REDUCES[name], []
            first = _seconds(ours, tensor, 1, **options) + _seconds(dist.all_reduce, tensor, 1)
            for _ in range(max(3, min(25, int(budget / first / burst)))):
                mine = _seconds(ours, tensor, burst, **options)
                gloo.append(_seconds(dist.all_reduce, tensor, burst))
                pairs.append(mine / gloo[-1])
            row[name] = statistics.median(pairs)
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
