"""A reduce-scatter that sends no more than a ring on every backend.

NCCL has one. Gloo's sends twice as much, so on gloo `best_reduce_scatter` exchanges chunks
instead. ZeRO reduces gradients with it, and sequence parallelism reduces activations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.messages import AVG, SUM, Group, Op

__all__ = ["best_reduce_scatter", "exchange_reduce_scatter"]


def exchange_reduce_scatter(
    output: Tensor, input: Tensor, op: Op = SUM, group: Group = None, async_op: bool = False
) -> Any:
    """Reduce-scatter as one all-to-all: the owner of a chunk receives all copies and sums them.

        rank 0    chunks 0 1 2 ── chunk 1 ──► rank 1
        rank 1    chunks 0 1 2                adds its chunk 1 and the two that it receives
        rank 2    chunks 0 1 2 ── chunk 1 ──► rank 1

    Equals `torch.distributed.reduce_scatter_single` for SUM and AVG. For S bytes in `input`, N
    ranks, latency a and bandwidth B it takes (N-1) a + (N-1)/N S/B, sends as many bytes as a ring,
    and needs a receive buffer of S bytes. 16-bit numbers are rounded once, after the sum. Gloo's
    own reduce-scatter is an all-reduce that discards the other chunks, and sends twice as much.
    Raises: ValueError for another `op`.
    """
    if op not in (SUM, AVG):
        raise ValueError(f"exchange_reduce_scatter supports the ops SUM and AVG, not {op!r}.")
    received = torch.empty_like(input)
    work = dist.all_to_all_single(received, input, group=group, async_op=True)
    done = _Sum(work, output, received.view(-1, output.numel()), op)
    return done if async_op else done.wait()


def best_reduce_scatter(
    output: Tensor, input: Tensor, op: Op = SUM, group: Group = None, async_op: bool = False
) -> Any:
    """Reduce-scatter with NCCL's function on GPUs, and with the exchange above on gloo."""
    backends = dict(entry.split(":") for entry in dist.get_backend_config(group).split(","))
    on_gloo = backends.get(input.device.type) == "gloo"
    reduce_scatter = exchange_reduce_scatter if on_gloo else dist.reduce_scatter_single
    return reduce_scatter(output, input, op=op, group=group, async_op=async_op)


class _Sum:
    """Work that is complete once the received rows are summed."""

    def __init__(self, work: Any, output: Tensor, rows: Tensor, op: Op) -> None:
        self._work, self._output, self._rows, self._op = work, output, rows, op

    def wait(self) -> None:
        self._work.wait()
        torch.sum(self._rows, 0, out=self._output)
        if self._op == AVG:
            self._output /= len(self._rows)
