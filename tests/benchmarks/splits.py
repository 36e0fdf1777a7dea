"""Ring attention against gathered keys and values; a halo exchange against bare sends."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

import dtlab
from dtlab.parallel.context import gathered_attention, ring_attention, ulysses_attention
from dtlab.parallel.domain import halo_exchange
from dtlab.parallel.mesh import make_mesh
from dtlab.training.live import peak_bytes
from tests.benchmarks.pairs import ratio, time_in_turns

RANKS, WARM, STEPS = 4, 2, 15
TOKENS, HEADS, SIZE = 4096, 8, 64  # on all ranks together
FIELD, CHANNELS = 512, 16  # a tile of 512 x 512


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
    return time_in_turns(steps, STEPS, WARM), peaks


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

    steps = {"ours": lambda: halo_exchange(tile, mesh, 2), "bare": bare}
    return time_in_turns(steps, STEPS, WARM)


def main() -> None:
    """Print ratios."""
    print(f"splits: {RANKS} ranks, {TOKENS} tokens, gloo")
    runs = dtlab.launch(attend, world_size=RANKS, trace=False, timeout=300, threads=1).values
    times = runs[0][0]
    peaks = {name: max(run[1][name] for run in runs) for name in runs[0][1]}
    for name in ("ring", "ulysses"):
        print(
            f"  {name} attention: {ratio(times[name], times['gathered']):.2f} times the time and "
            f"{peaks[name] / peaks['gathered']:.2f} times the peak memory of gathered keys and "
            f"values ({median(times['gathered']) * 1e3:.0f} ms)"
        )
    halos = dtlab.launch(exchange, world_size=RANKS, trace=False, timeout=300, threads=1).values[0]
    halo = ratio(halos["ours"], halos["bare"])
    print(f"  halo exchange: {halo:.2f} times bare sends of the same bytes (goal 1.5)")


if __name__ == "__main__":
    main()
