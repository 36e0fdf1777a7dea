"""Functions that the doctor runs on ranks."""

from __future__ import annotations

import time

__all__ = ["ROUNDS", "all_reduce"]

ROUNDS = 5  # timed all-reduces; the fastest one counts


def all_reduce(elements: int, on_gpu: bool) -> tuple[int, float]:
    """Run all-reduces on a rank; return the number of wrong elements, and the fastest time in s.

    Rank r of N starts with r + 1, so the first sum is N(N + 1)/2, and each further sum is N times
    the previous one. These sums are exact in single precision up to 8 ranks. `elements` have 4
    bytes each.
    """
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    tensor = torch.full((elements,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(tensor)  # also opens the connections
    seconds = []
    for _ in range(ROUNDS):
        _finish(on_gpu)
        begun = time.perf_counter()
        dist.all_reduce(tensor)
        _finish(on_gpu)
        seconds.append(time.perf_counter() - begun)
    right = ranks * (ranks + 1) / 2 * ranks**ROUNDS
    return int((tensor != right).sum()), min(seconds)


def _finish(on_gpu: bool) -> None:
    """Wait for a GPU, which runs operations asynchronously."""
    import torch

    if on_gpu:
        torch.cuda.synchronize()
