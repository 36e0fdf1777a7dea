"""Tied parameters: parameters that several stages share, such as an embedding's table.

    stage 0   gradient a ─┐ ┌─► a + b
                          ╳
    stage 3   gradient b ─┘ └─► a + b     once per step, after the last backward

All copies begin with the same values and step with the same sum, so they stay equal (Narayanan et
al. 2021, section 2; Megatron-LM uses an all-reduce between the two stages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Tied"]


class Tied:
    """The tied parameters of one rank, by name. All `ranks` must create it together.

    `of_stages` maps each of the rank's stages to the parameters that it shares; `ranks` are the
    ranks that have stages. Each parameter begins with the values of the first stage that has it.
    """

    def __init__(
        self,
        of_stages: Mapping[int, Mapping[str, nn.Parameter]],
        ranks: Sequence[int],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._group, self._rank = group, dist.get_rank(group)
        self._own: dict[str, list[nn.Parameter]] = {}
        first: dict[str, int] = {}
        for stage in sorted(of_stages):
            for name, parameter in of_stages[stage].items():
                first.setdefault(name, stage)
                same = self._own.setdefault(name, [])
                if all(parameter is not earlier for earlier in same):
                    same.append(parameter)
        self._ranks = self._find(first, ranks)
        self._before: list[tuple[nn.Parameter, Tensor | None]] = []
        self._begin_alike()

    def _find(self, stage_of: dict[str, int], ranks: Sequence[int]) -> dict[str, list[int]]:
        """Return for each name the ranks that have it, in the order of their first such stage.

        The first rank collects the names and sends the result: ranks without a stage take no part.
        """
        first, *peers = ranks
        if self._rank != first:
            dist.send_object_list([stage_of], group=self._group, group_dst=first)
            answer: list[Any] = [None]
            dist.recv_object_list(answer, group=self._group, group_src=first)
            return dict(answer[0])
        stages = {first: stage_of}
        for rank in peers:
            received: list[Any] = [None]
            dist.recv_object_list(received, group=self._group, group_src=rank)
            stages[rank] = received[0]
        names = sorted({name for each in stages.values() for name in each})
        ranks_of = {
            name: sorted((rank for rank in ranks if name in stages[rank]),
                         key=lambda rank: stages[rank][name])
            for name in names
        }  # fmt: skip
        for rank in peers:
            dist.send_object_list([ranks_of], group=self._group, group_dst=rank)
        return ranks_of

    def _begin_alike(self) -> None:
        for name in self._names():
            values = self._exchange(name, self._own[name][0].detach())
            for parameter in self._own[name]:
                parameter.detach().copy_(values[0])

    def _names(self) -> list[str]:
        """Return this rank's names, in an order that all ranks share."""
        return [name for name in self._ranks if name in self._own]

    def begin(self) -> None:
        """Set aside gradients of earlier steps, which are already summed."""
        parameters = (parameter for name in self._names() for parameter in self._own[name])
        self._before = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, _ in self._before:
            parameter.grad = None

    def finish(self) -> None:
        """Replace the gradients of each name by their sum over all stages, on all ranks."""
        for name in self._names():
            parameters = self._own[name]
            total = torch.zeros_like(parameters[0])
            for parameter in parameters:
                if parameter.grad is not None:
                    total += parameter.grad
            total = torch.stack(self._exchange(name, total)).sum(0)
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = total.clone()
                else:
                    parameter.grad.copy_(total)
        for parameter, before in self._before:
            if before is not None and parameter.grad is not None:
                parameter.grad += before
        self._before = []

    def _exchange(self, name: str, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks that have the name, in the same order on each rank."""
        tensor = tensor.contiguous()
        given = {self._rank: tensor}
        operations = []
        for rank in self._ranks[name]:
            if rank != self._rank:
                given[rank] = torch.empty_like(tensor)
                for do, part in ((dist.isend, tensor), (dist.irecv, given[rank])):
                    operations.append(dist.P2POp(do, part, group=self._group, group_peer=rank))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return [given[rank] for rank in self._ranks[name]]
