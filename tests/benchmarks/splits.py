"""Ring attention against gathered keys and values; a halo exchange against bare sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

import dtlab
from dtlab.parallel.context import gathered_attention, ring_attention, ulysses_attention
from dtlab.parallel.domain import halo_exchange
from dtlab.parallel.mesh import make_mesh
from dtlab.training.live import peak_bytes

RANKS, WARM, STEPS = 4, 2, 15
TOKENS, HEADS, SIZE = 4096, 8, 64  # on all ranks together
FIELD, CHANNELS = 512, 16  # a tile of 512 x 512


def in_turns(steps: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each step on this rank."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM + STEPS):
        for name, step in steps.items():
            dist.barrier()
            begun = time.perf_counter()
            step()
            dist.barrier()
            if number >= WARM:
                times[name].append(time.perf_counter() - begun)
    return times


def attend() -> tuple[dict[str, list[float]], dict[str, int]]:
    """Times, forward and backward, and the peak of bytes of one step."""
    torch.manual_seed(dist.get_rank())
    shape = 1, HEADS, TOKENS // dist.get_world_size(), SIZE
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    ways = {
        "ring": lambda: ring_attention(*inputs, zigzag=True),
        "gathered": lambda: gathered_attention(*inputs, zigzag=True),
        "ulysses": lambda: ulysses_attention(*inputs),
    }

    def step(way: Callable[[], torch.Tensor]) -> object:
        return torch.autograd.grad(way().sum(), inputs)

    steps = {name: lambda way=way: step(way) for name, way in ways.items()}
    peaks = {name: peak_bytes(each) for name, each in ways.items()}
    return in_turns(steps), peaks


def exchange() -> dict[str, list[float]]:
    """A halo of width 2 on rows, and the same bytes by bare sends."""
    mesh, rank, ranks = make_mesh(y=RANKS), dist.get_rank(), dist.get_world_size()
    tile = torch.randn(CHANNELS, FIELD, FIELD)
    edges = torch.randn(2, CHANNELS, 2, FIELD)
    halos = torch.empty_like(edges)

    def bare() -> None:
        operations = []
        for side, peer in enumerate((rank - 1, rank + 1)):
            if 0 <= peer < ranks:
                operations.append(dist.P2POp(dist.isend, edges[side], peer))
                operations.append(dist.P2POp(dist.irecv, halos[side], peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        torch.cat([halos[0], tile, halos[1]], 1)

    return in_turns({"ours": lambda: halo_exchange(tile, mesh, 2), "bare": bare})


def main() -> None:
    """Print ratios."""
    print(f"splits: {RANKS} ranks, {TOKENS} tokens, gloo")
    runs = dtlab.launch(attend, world_size=RANKS, trace=False, timeout=300, threads=1).values
    slowest = {
        name: [max(run[0][name][step] for run in runs) for step in range(STEPS)]
        for name in runs[0][0]
    }
    peaks = {name: max(run[1][name] for run in runs) for name in runs[0][1]}
    for name in ("ring", "ulysses"):
        ratio = median(a / b for a, b in zip(slowest[name], slowest["gathered"], strict=True))
        print(
            f"  {name} attention: {ratio:.2f} times the time and "
            f"{peaks[name] / peaks['gathered']:.2f} times the peak memory of gathered keys and "
            f"values ({median(slowest['gathered']) * 1e3:.0f} ms)"
        )
    halos = dtlab.launch(exchange, world_size=RANKS, trace=False, timeout=300, threads=1).values
    pairs = [
        max(run["ours"][step] for run in halos) / max(run["bare"][step] for run in halos)
        for step in range(STEPS)
    ]
    print(f"  halo exchange: {median(pairs):.2f} times bare sends of the same bytes (goal 1.5)")


if __name__ == "__main__":
    main()
