"""The five broken programs of Level III, as level-3.ipynb shows them.

A check runs them on ranks, to compare a diagnosis with a real run. This file imports torch, so it
is imported only when a check runs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["gather_blocks", "sum_columns", "sum_grid", "train", "with_neighbours"]


def gather_blocks(block: torch.Tensor, per_node: int) -> list[torch.Tensor]:
    """Send blocks round a ring; return those of this rank's node in the order of its ranks."""
    place = dist.get_rank() % per_node
    right, left = (place + 1) % per_node, (place - 1) % per_node
    blocks = [torch.empty_like(block) for _ in range(per_node)]
    blocks[place].copy_(block)
    for step in range(per_node - 1):
        arriving = blocks[(place - step - 1) % per_node]
        sending = dist.isend(block, dst=right)
        dist.recv(arriving, src=left)
        sending.wait()  # type: ignore[union-attr]
    return blocks


def train(batches: torch.Tensor) -> torch.Tensor:
    """Make a step for each batch, without the bad ones; the weights are equal on all ranks."""
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
    if (row + column) % 2 == 0:  # this keeps all links busy
        dist.all_reduce(outputs, group=rows[row])
        dist.all_reduce(gradients, group=columns[column])
    else:
        dist.all_reduce(gradients, group=columns[column])
        dist.all_reduce(outputs, group=rows[row])


def with_neighbours(strip: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows between the row before them and the row after them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    above, below = (rank - 1) % size, (rank + 1) % size
    top, bottom = torch.empty_like(strip[:1]), torch.empty_like(strip[:1])
    sending = [dist.isend(strip[:1], dst=above), dist.isend(strip[-1:], dst=below)]
    dist.recv(top, src=above)
    dist.recv(bottom, src=below)
    for work in sending:
        work.wait()  # type: ignore[union-attr]
    return torch.cat([top, strip, bottom])


def sum_columns(table: torch.Tensor) -> torch.Tensor:
    """Sum the first two columns of `table` over all ranks, in place; return the samples of all."""
    samples = table[:, 1].sum()
    dist.all_reduce(samples)
    dist.all_reduce(table[:, :2])
    return samples
