"""The broken programs of 08/run_a and 08/run_b, as level-3.ipynb shows them.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

__all__ = ["advance", "attend", "smooth"]


def smooth(padded: Tensor) -> Tensor:
    """One step of the heat equation, with nine points: [H + 2, W + 2] to [H, W]."""
    centre = padded[1:-1, 1:-1]
    sides = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    corners = padded[:-2, :-2] + padded[:-2, 2:] + padded[2:, :-2] + padded[2:, 2:]
    return centre + 0.2 * (4 * sides + corners - 20 * centre) / 6


def advance(tile: Tensor, mesh: DeviceMesh, steps: int) -> Tensor:
    """Advance this rank's tile of a periodic field by some steps of `smooth`."""
    for _ in range(steps):
        padded = F.pad(tile, (1, 1, 1, 1))
        for axis, dim in (("y", 0), ("x", 1)):
            group, size = mesh.get_group(axis), tile.shape[dim]
            rank, ranks = group.rank(), group.size()
            before, after = (rank - 1) % ranks, (rank + 1) % ranks
            lines = padded.narrow(1 - dim, 1, tile.shape[1 - dim])
            first = lines.narrow(dim, 1, 1).contiguous()
            last = lines.narrow(dim, size, 1).contiguous()
            from_before, from_after = torch.empty_like(last), torch.empty_like(first)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, first, group=group, group_peer=before),
                dist.P2POp(dist.isend, last, group=group, group_peer=after),
                dist.P2POp(dist.irecv, from_before, group=group, group_peer=before),
                dist.P2POp(dist.irecv, from_after, group=group, group_peer=after),
            ])  # fmt: skip
            for work in works:
                work.wait()
            lines.narrow(dim, 0, 1).copy_(from_before)
            lines.narrow(dim, size + 1, 1).copy_(from_after)
        tile = smooth(padded)
    return tile


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention over the tokens of all ranks, in zig-zag order; the result for this rank's."""
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), q.shape[-2]
    runs = torch.arange(ranks * count).chunk(2 * ranks)
    positions = [torch.cat([runs[r], runs[ranks + r]]) for r in range(ranks)]
    block, sizes = torch.cat([k, v], -1), [k.shape[-1], v.shape[-1]]
    result, total = torch.zeros_like(v), v.new_full((*v.shape[:-1], 1), -math.inf)
    for step in range(ranks):
        keys, values = block.split(sizes, -1)
        scores = q @ keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            source = (rank + step) % ranks
            later = positions[source] > positions[rank].unsqueeze(1)
            scores = scores.masked_fill(later, -math.inf)
        together = torch.logaddexp(total, scores.logsumexp(-1, keepdim=True))
        result = result * (total - together).exp() + (scores - together).exp() @ values
        total = together
        if step < ranks - 1:
            arriving = torch.empty_like(block)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, block, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, arriving, (rank - 1) % ranks),
            ])  # fmt: skip
            for work in works:
                work.wait()
            block = arriving
    return result
