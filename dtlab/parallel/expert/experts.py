"""Mixture of experts: a router sends each token to few of many MLPs, which are spread over ranks.

    rank 0  tokens a b c   router: a→2 b→0 c→3      experts 0 1 ◄─ b, e        ┐ all-to-all
                                                                                │ there
    rank 1  tokens d e f   router: d→2 e→1 f→2      experts 2 3 ◄─ a, c, d, f  ┘ and back

A layer of n experts has n times the parameters of one MLP, but each token is computed by one or
two of them. One all-to-all sends the tokens of each rank to the ranks of their experts, and
a second one returns the results. The number of tokens for each rank depends on the data. So the
ranks first exchange these numbers, and the all-to-all has splits of different sizes.

If most tokens choose the same expert, its rank works while the others wait. Two measures: an
expert takes at most `capacity` tokens of each rank, and leaves out the rest, which then have only
the residual connection; and an auxiliary loss, smallest for equal shares, pushes the router
towards balance.

`routed_experts` in `dtlab/simple.py` is the way of the tokens. The layer here adds a second expert
for each token, capacity, the auxiliary loss, and the sum of the router's gradients.

Lepikhin et al. 2020, "GShard" (top-2, capacity); Fedus et al. 2021, "Switch Transformers" (top-1,
auxiliary loss, equations 4 to 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.tensor.sequence import share_parameters

__all__ = ["ExpertParallel", "Routing", "balance_loss", "dense_experts", "route"]


@dataclass(frozen=True)
class Routing:
    """Where each token goes. `choices` is 1 or 2 for top-1 or top-2 routing.

    `experts` [tokens, choices] are numbers of experts, best first, and `weights` of the same shape
    the factors of their outputs: 0 for a token that its expert left out. `probabilities`
    [tokens, n] are those of all experts.
    """

    experts: Tensor
    weights: Tensor
    kept: Tensor
    probabilities: Tensor

    @property
    def dropped(self) -> int:
        """How many pairs of a token and an expert were left out."""
        return int((~self.kept).sum())


def route(logits: Tensor, choices: int = 1, capacity: int | None = None) -> Routing:
    """Choose the best experts of each token: from [tokens, n] logits.

    With one choice, the weight is the expert's probability (Switch); with two, the probabilities
    are scaled to a sum of 1 (GShard). An expert takes at most `capacity` tokens: all first choices
    in the order of the tokens, then second choices. None: no limit.
    Raises: ValueError for other numbers of choices than 1 or 2, or more choices than experts.
    """
    experts_in_all = logits.shape[-1]
    if choices not in (1, 2) or choices > experts_in_all:
        raise ValueError(f"route: {choices} choices of {experts_in_all} experts; use 1 or 2.")
    probabilities = logits.softmax(-1)
    weights, experts = probabilities.topk(choices)
    if choices > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    kept = torch.ones_like(experts, dtype=torch.bool)
    if capacity is not None:
        in_turn = F.one_hot(experts.T.flatten(), experts_in_all)  # first choices come first
        place = (in_turn.cumsum(0) * in_turn).sum(-1)  # 1 for the first token of an expert
        kept = (place <= capacity).view(choices, -1).T
    return Routing(experts, weights * kept, kept, probabilities)


def balance_loss(routing: Routing) -> Tensor:
    """Return n * sum(f_i P_i): f_i is expert i's share of first choices, P_i its mean probability.

    It is 1 if all experts have equal shares. Only P_i has a gradient. Switch Transformers,
    equations 4 to 6.
    """
    experts = routing.probabilities.shape[-1]
    first = F.one_hot(routing.experts[:, 0], experts).to(routing.probabilities.dtype)
    return experts * (first.mean(0) * routing.probabilities.mean(0)).sum()


def dense_experts(experts: nn.ModuleList, tokens: Tensor, routing: Routing) -> Tensor:
    """Compute the chosen experts of each token in one process: [..., h] to the same shape."""
    shape, tokens = tokens.shape, tokens.reshape(-1, tokens.shape[-1])
    result = torch.zeros_like(tokens)
    for number, expert in enumerate(experts):
        token, choice = ((routing.experts == number) & routing.kept).nonzero(as_tuple=True)
        weighted = routing.weights[token, choice].unsqueeze(1) * expert(tokens[token])
        result = result.index_add(0, token, weighted)
    return result.view(shape)


class ExpertParallel(nn.Module):
    """A layer of experts, of which each rank has an equal part: [..., h] to the same shape.

    Args:
        experts: all experts, the same on every rank; this rank keeps its part.
        router: a module from [tokens, h] to [tokens, number of experts]; its gradients are summed
            over the ranks.
        choices: 1 or 2 experts for each token.
        capacity_factor: an expert takes at most this many times its even share of a rank's
            tokens, rounded up; None: all.

    Each rank passes its tokens, in any number of dims before the last, such as [b, s, h]; their
    number may differ. The experts and the router get them as [tokens, h]. `routing` is that of
    the last forward pass, for `balance_loss` and `routing.dropped`.
    Raises: ValueError if the ranks do not divide the number of experts.
    """

    def __init__(
        self,
        experts: nn.ModuleList,
        router: nn.Module,
        *,
        choices: int = 1,
        capacity_factor: float | None = None,
        group: Group = None,
    ) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if len(experts) % ranks:
            raise ValueError(
                f"ExpertParallel: {ranks} ranks do not divide {len(experts)} experts."
            )
        here = len(experts) // ranks
        self.experts = _Numbered(list(experts)[rank * here : (rank + 1) * here], rank * here)
        self.router, self.total, self.group = router, len(experts), group
        self.choices, self.capacity_factor = choices, capacity_factor
        self.routing: Routing | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the weighted sum of the outputs of each token's experts."""
        shape, tokens = tokens.shape, tokens.reshape(-1, tokens.shape[-1])
        routing = self.routing = route(self._logits(tokens), self.choices, self._capacity(tokens))
        token, choice = routing.kept.nonzero(as_tuple=True)
        order = routing.experts[token, choice].argsort(stable=True)
        token, choice = token[order], choice[order]
        counts = torch.bincount(routing.experts[token, choice], minlength=self.total)
        counts_here = torch.empty_like(counts)  # [ranks * experts here]: from each rank, for each
        dist.all_to_all_single(counts_here, counts, group=self.group)

        ranks = dist.get_world_size(self.group)
        sent = counts.view(ranks, -1).sum(1).tolist()
        received = counts_here.view(ranks, -1).sum(1).tolist()
        arrived = _exchange(tokens[token], sent, received, self.group)
        computed = self._compute(arrived, counts_here)
        back = _exchange(computed, received, sent, self.group)
        weighted = routing.weights[token, choice].unsqueeze(1) * back
        return torch.zeros_like(tokens).index_add(0, token, weighted).view(shape)

    def _logits(self, tokens: Tensor) -> Tensor:
        names = [name for name, _ in self.router.named_parameters()]
        shared = share_parameters(*self.router.parameters(), group=self.group)
        parameters = dict(zip(names, shared, strict=True))
        logits: Tensor = torch.func.functional_call(self.router, parameters, (tokens,))
        return logits

    def _capacity(self, tokens: Tensor) -> int | None:
        if self.capacity_factor is None:
            return None
        return math.ceil(self.capacity_factor * self.choices * len(tokens) / self.total)

    def _compute(self, arrived: Tensor, counts: Tensor) -> Tensor:
        """Compute each token that arrived by its expert; they are sorted by rank, then expert."""
        here = len(self.experts)
        number = torch.arange(here, device=arrived.device).repeat(len(counts) // here)
        expert = number.repeat_interleave(counts)
        order = expert.argsort(stable=True)
        parts = torch.split(arrived[order], torch.bincount(expert, minlength=here).tolist())
        pairs = zip(self.experts, parts, strict=True)
        computed = torch.cat([module(part) for module, part in pairs])
        return computed[order.argsort()]


class _Numbered(nn.ModuleList):
    """Modules that are named after their numbers among those of all ranks.

    So no two ranks have an expert of the same name, and a checkpoint has all of them.
    """

    def __init__(self, modules: Iterable[nn.Module], first: int) -> None:
        super().__init__()
        for number, module in enumerate(modules, first):
            self.add_module(str(number), module)

    def __getitem__(self, index: Any) -> Any:
        """Return the module at an index among those of this rank."""
        return list(self)[index]


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    """Send the first `sent[0]` rows to rank 0, and so on; return the rows that came, by rank."""
    return _AllToAll.apply(rows, sent, received, group)  # type: ignore[no-any-return, no-untyped-call]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Group
    ) -> Tensor:
        ctx.args = sent, received, group
        arrived = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        sent, received, group = ctx.args
        back = gradient.new_empty(sum(sent), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), sent, received, group=group)
        return back, None, None, None
