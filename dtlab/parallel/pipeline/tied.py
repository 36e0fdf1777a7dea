"""Tied parameters, which several stages share, such as the embedding and the output layer.

    stage 0   gradient a ─┐ ┌─► a + b
                          ╳
    stage 3   gradient b ─┘ └─► a + b     once in a step, after the last backward

All of them begin alike and step with the same sum, so they stay one parameter (Narayanan et al.
2021, section 2; in Megatron-LM an all-reduce of the two stages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Tied"]


class Tied:
    """The shared parameters of one rank, by name. All `ranks` make it together.

    `of_stages` has for each of the rank's stages the parameters that it shares; `ranks` are those
    that have stages. Each begins with the values of the first stage that has it.
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
                if all(parameter is not other for other in same):
                    same.append(parameter)
        self._ranks = self._find(first, ranks)
        self._before: list[tuple[nn.Parameter, Tensor | None]] = []
        self._begin_alike()

    def _find(self, own: dict[str, int], ranks: Sequence[int]) -> dict[str, list[int]]:
        """For each name the ranks that have it, in order of their first stage that does.

        One rank asks all, and tells all: ranks without a stage take no part.
        """
        first, *others = ranks
        if self._rank != first:
            dist.send_object_list([own], group=self._group, group_dst=first)
            heard: list[Any] = [None]
            dist.recv_object_list(heard, group=self._group, group_src=first)
            return dict(heard[0])
        stages = {first: own}
        for rank in others:
            told: list[Any] = [None]
            dist.recv_object_list(told, group=self._group, group_src=rank)
            stages[rank] = told[0]
        names = sorted({name for each in stages.values() for name in each})
        found = {
            name: sorted((rank for rank in ranks if name in stages[rank]),
                         key=lambda rank: stages[rank][name])
            for name in names
        }  # fmt: skip
        for rank in others:
            dist.send_object_list([found], group=self._group, group_dst=rank)
        return found

    def _begin_alike(self) -> None:
        for name in self._names():
            values = self._exchange(name, self._own[name][0].detach())
            for parameter in self._own[name]:
                parameter.detach().copy_(values[0])

    def _names(self) -> list[str]:
        """Of this rank, in an order that all ranks share."""
        return [name for name in self._ranks if name in self._own]

    def begin(self) -> None:
        """Put gradients of earlier steps aside: they have been summed."""
        parameters = (one for name in self._names() for one in self._own[name])
        self._before = [(one, one.grad) for one in parameters]
        for parameter, _ in self._before:
            parameter.grad = None

    def finish(self) -> None:
        """Give every parameter of a name the sum of the gradients of all, on all ranks alike."""
        for name in self._names():
            own = self._own[name]
            total = torch.zeros_like(own[0])
            for parameter in own:
                if parameter.grad is not None:
                    total += parameter.grad
            total = torch.stack(self._exchange(name, total)).sum(0)
            for parameter in own:
                if parameter.grad is None:
                    parameter.grad = total.clone()
                else:
                    parameter.grad.copy_(total)
        for parameter, before in self._before:
            if before is not None and parameter.grad is not None:
                parameter.grad += before
        self._before = []

    def _exchange(self, name: str, own: Tensor) -> list[Tensor]:
        """What each rank that has the name has to give, in the same order everywhere."""
        own = own.contiguous()
        given = {self._rank: own}
        operations = []
        for rank in self._ranks[name]:
            if rank != self._rank:
                given[rank] = torch.empty_like(own)
                for do, tensor in ((dist.isend, own), (dist.irecv, given[rank])):
                    operations.append(dist.P2POp(do, tensor, group=self._group, group_peer=rank))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        return [given[rank] for rank in self._ranks[name]]
