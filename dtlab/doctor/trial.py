"""The functions that the doctor runs on ranks."""

from __future__ import annotations

import time

__all__ = ["ROUNDS", "all_reduce"]

ROUNDS = 5  # all-reduces, of which the fastest counts


def all_reduce(elements: int, on_gpu: bool) -> tuple[int, float]:
    """On a rank: how many elements of the sums are wrong, and the seconds of one all-reduce.

    Each of N ranks r gives r + 1, so the first sum is N(N + 1)/2, and each further one N times
    the last: exact in single precision up to 8 ranks. `elements` are of 4 bytes.
    """
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    tensor = torch.full((elements,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(tensor)  # connects, too
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
    """A GPU works behind the program's back: wait for it."""
    import torch

    if on_gpu:
        torch.cuda.synchronize()
