"""The five broken programs of Level III, as level-3.ipynb shows them.

A check runs them on ranks, to compare a diagnosis with a real run. This file imports torch, so it
is imported only when a check runs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["gather_blocks", "share_out", "sum_columns", "sum_grid", "train"]


def gather_blocks(block: torch.Tensor) -> list[torch.Tensor]:
    """All blocks, in the order of the ranks, on every rank: they travel round the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    blocks = [torch.empty_like(block) for _ in range(size)]
    blocks[rank].copy_(block)
    for step in range(size - 1):
        outgoing = blocks[(rank - step) % size]
        arriving = blocks[(rank - step - 1) % size]
        dist.recv(arriving, src=left)
        dist.send(outgoing, dst=right)
    return blocks


def train(batches: torch.Tensor) -> torch.Tensor:
    """The same weights on every rank: a step for each batch, in which bad ones do not count."""
    size = dist.get_world_size()
    weights = torch.zeros_like(batches[0])
    for batch in batches:
        gradient = weights - batch
        if not gradient.isfinite().all():
            continue  # a bad batch: no step with it
        dist.all_reduce(gradient)
        weights = weights - 0.5 * gradient / size
    return weights


def sum_grid(outputs: torch.Tensor, gradients: torch.Tensor, per_row: int) -> None:
    """Sum `outputs` over this rank's row of a grid and `gradients` over its column, in place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    grid = torch.arange(size).view(-1, per_row)
    rows = [dist.new_group(row.tolist()) for row in grid]
    columns = [dist.new_group(column.tolist()) for column in grid.T]
    row, column = divmod(rank, per_row)
    if (row + column) % 2 == 0:  # half of the ranks begin with the other links
        dist.all_reduce(outputs, group=rows[row])
        dist.all_reduce(gradients, group=columns[column])
    else:
        dist.all_reduce(gradients, group=columns[column])
        dist.all_reduce(outputs, group=rows[row])


def share_out(images: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row r of rank 0's `images` times its `scale`, on rank r; and the sum of all such rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = images[rank].float()
    if rank == 0:
        buffer = torch.empty_like(mine)
        sending = []
        for other in range(1, size):
            buffer.copy_(images[other])  # whole numbers become floats
            sending.append(dist.isend(buffer, dst=other))
    dist.broadcast(scale, src=0)  # while the rows travel
    if rank == 0:
        for work in sending:
            work.wait()  # type: ignore[union-attr]
    else:
        dist.recv(mine, src=0)
    mine *= scale
    total = mine.clone()
    dist.all_reduce(total)
    return mine, total


def sum_columns(table: torch.Tensor) -> torch.Tensor:
    """Sum the first two columns of `table` over all ranks, in place; return the samples of all."""
    samples = table[:, 1].sum()
    dist.all_reduce(samples)
    dist.all_reduce(table[:, :2])
    return samples
