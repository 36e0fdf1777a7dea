"""Answers to 06/parallel_attention: mistakes people make, and right answers of other kinds."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtlab.parallel.tensor.attention import ParallelAttention as Finished
from dtlab.parallel.tensor.regions import copy_to_region, reduce_from_region

NAMES = ("qkv_weight", "qkv_bias", "projection_weight", "projection_bias")


class Right(nn.Module):
    """In steps, so that answers can differ from it in one."""

    def __init__(self, qkv, projection, heads, kv_heads, group=None):
        super().__init__()
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.heads, self.kv_heads, self.size = heads, kv_heads, projection.in_features // heads
        self.refuse()
        for name, tensor in zip(NAMES, self.cut(qkv, projection), strict=True):
            setattr(self, name, nn.Parameter(self.own(tensor.detach())))

    def refuse(self):
        if self.heads % self.ranks or self.kv_heads % self.ranks:
            raise ValueError(f"{self.ranks} ranks do not divide the heads")

    def rows(self, tensor):
        pieces = [each * self.size for each in (self.heads, self.kv_heads, self.kv_heads)]
        return torch.cat([each.chunk(self.ranks)[self.rank] for each in tensor.split(pieces)])

    def cut(self, qkv, projection):
        return (
            self.rows(qkv.weight),
            self.rows(qkv.bias),
            projection.weight.chunk(self.ranks, 1)[self.rank],
            projection.bias,
        )

    def own(self, tensor):
        return tensor.clone()

    def enter(self, x):
        return copy_to_region(x, self.group)

    def leave(self, product):
        return reduce_from_region(product, self.group) + self.projection_bias

    def spread(self, k):
        return k.repeat_interleave(self.heads // self.kv_heads, 1)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, self.spread(k), self.spread(v), is_causal=True)

    def between(self, made):
        return made

    def forward(self, x):
        made = F.linear(self.enter(x), self.qkv_weight, self.qkv_bias)
        heads = made.unflatten(-1, (-1, self.size)).transpose(1, 2)
        own, share = self.heads // self.ranks, self.kv_heads // self.ranks
        y = self.attend(*heads.split([own, share, share], 1)).transpose(1, 2).flatten(2)
        return self.leave(F.linear(self.between(y), self.projection_weight))


# Wrong ------------------------------------------------------------------------------------------


def untouched(qkv, projection, heads, kv_heads, group=None):
    raise NotImplementedError()


class CutAsOne(Right):
    """Rank 0 gets queries, and the last one values."""

    def rows(self, tensor):
        return tensor.chunk(self.ranks)[self.rank]


class EveryNthHead(Right):
    def rows(self, tensor):
        pieces = [each * self.size for each in (self.heads, self.kv_heads, self.kv_heads)]
        return torch.cat([
            each.unflatten(0, (-1, self.size))[self.rank :: self.ranks].flatten(0, 1)
            for each in tensor.split(pieces)
        ])  # fmt: skip


class WithinHeads(Right):
    """A part of every head."""

    def rows(self, tensor):
        each = tensor.unflatten(0, (-1, self.size))
        return each.tensor_split(self.ranks, 1)[self.rank].flatten(0, 1)


class QueriesOnly(Right):
    """Keys and values whole."""

    def rows(self, tensor):
        q, kv = tensor.split([self.heads * self.size, 2 * self.kv_heads * self.size])
        return torch.cat([q.chunk(self.ranks)[self.rank], kv])


class InFloat64(Right):
    def own(self, tensor):
        return tensor.double()


class ProjectionByOutputs(Right):
    def cut(self, qkv, projection):
        weight, bias, _, last = super().cut(qkv, projection)
        return weight, bias, projection.weight.chunk(self.ranks, 0)[self.rank], last


class BiasBeforeTheSum(Right):
    def leave(self, product):
        return reduce_from_region(product + self.projection_bias, self.group)


class WithoutG(Right):
    def leave(self, product):
        return product + self.projection_bias


class NotCausal(Right):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, self.spread(k), self.spread(v))


class NotScaled(Right):
    def attend(self, q, k, v):
        return super().attend(q * math.sqrt(self.size), k, v)


class KeysAndValuesSwapped(Right):
    def attend(self, q, k, v):
        return super().attend(q, v, k)


class WithoutF(Right):
    def enter(self, x):
        return x


class BiasThroughF(Right):
    def leave(self, product):
        bias = copy_to_region(self.projection_bias, self.group)
        return reduce_from_region(product, self.group) + bias


class Gather(torch.autograd.Function):
    """All features on all ranks; backward keeps this rank's."""

    @staticmethod
    def forward(ctx, tensor, group):
        ranks, ctx.rank = dist.get_world_size(group), dist.get_rank(group)
        every = [torch.empty_like(tensor) for _ in range(ranks)]
        dist.all_gather(every, tensor.contiguous(), group=group)
        ctx.ranks = ranks
        return torch.cat(every, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(ctx.ranks, -1)[ctx.rank].contiguous(), None


class GatheredBetween(Right):
    def between(self, made):
        return Gather.apply(made, self.group).chunk(self.ranks, -1)[self.rank]


class XFromTheFirst(Right):
    def enter(self, x):
        dist.broadcast(x.detach(), group_src=0, group=self.group)
        return super().enter(x)


class Repeated(Right):
    """k0 k1 k0 k1, where queries 0 and 1 use keys 0."""

    def spread(self, k):
        return k.repeat(1, self.heads // self.kv_heads, 1, 1)


class ThirdsAlways(Right):
    """[q; k; v] of equal parts, as long as there are as many heads of each."""

    def rows(self, tensor):
        return torch.cat([each.chunk(self.ranks)[self.rank] for each in tensor.chunk(3)])


class NeverRefuses(Right):
    def refuse(self):
        pass


class QueriesRefused(Right):
    """Keys and values are not looked at."""

    def refuse(self):
        if self.heads % self.ranks:
            raise ValueError("heads")


class Asserts(Right):
    def refuse(self):
        assert self.heads % self.ranks == 0
        assert self.kv_heads % self.ranks == 0


class AllRanks(Right):
    def enter(self, x):
        return copy_to_region(x)

    def leave(self, product):
        return reduce_from_region(product) + self.projection_bias


class Views(Right):
    def rows(self, tensor):
        return super().rows(tensor).clone()

    def own(self, tensor):
        return tensor


class KeepsTheBytesOfAll(Right):
    def __init__(self, qkv, projection, heads, kv_heads, group=None):
        super().__init__(qkv, projection, heads, kv_heads, group)
        self.kept = [one.detach().numpy().tobytes() for one in (qkv.weight, projection.weight)]


class DenseKept(Right):
    def __init__(self, qkv, projection, heads, kv_heads, group=None):
        super().__init__(qkv, projection, heads, kv_heads, group)
        self.dense = qkv, projection


def by_the_library(qkv, projection, heads, kv_heads, group=None):
    return Finished(projection.out_features, heads, num_kv_heads=kv_heads, group=group)


# Right ------------------------------------------------------------------------------------------


class WithEnableGqa(Right):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class ByHand(Right):
    """The matrix of tokens by tokens, and heads by their numbers."""

    def rows(self, tensor):
        by_head = tensor.unflatten(0, (-1, self.size))
        own, share = self.heads // self.ranks, self.kv_heads // self.ranks
        places = [*range(self.rank * own, (self.rank + 1) * own)]
        for start in (self.heads, self.heads + self.kv_heads):
            first = start + self.rank * share
            places += range(first, first + share)
        return by_head[places].flatten(0, 1)

    def attend(self, q, k, v):
        k, v = self.spread(k), self.spread(v)
        tokens = q.shape[-2]
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / self.size**0.5).masked_fill(later, -math.inf)
        return scores.softmax(-1) @ v


RIGHT = [Right, WithEnableGqa, ByHand]

WRONG = {
    untouched: {"shards": "is not written yet"},
    CutAsOne: {"shards": "three weights in one"},
    EveryNthHead: {"shards": "three weights in one"},
    WithinHeads: {"shards": ""},
    QueriesOnly: {"shards": ""},
    InFloat64: {"shards": "has dtype torch.float64"},
    ProjectionByOutputs: {"shards": ""},
    BiasBeforeTheSum: {"output": "then add the bias"},
    WithoutG: {"output": "y is off"},
    NotCausal: {"output": "earlier tokens"},
    NotScaled: {"output": "y is off"},
    KeysAndValuesSwapped: {"output": "y is off"},
    WithoutF: {"gradients": "the gradient of x is off"},
    BiasThroughF: {"gradients": "times the number of ranks"},
    GatheredBetween: {"calls": "Heads are independent"},
    XFromTheFirst: {"calls": "broadcast"},
    Repeated: {"grouped": "which queries use keys 0"},
    ThirdsAlways: {"grouped": ""},
    NeverRefuses: {"refuses": "if ranks cannot have whole heads"},
    QueriesRefused: {"refuses": "it makes a module"},
    Asserts: {"refuses": "it raises AssertionError"},
    AllRanks: {"group": "y is off"},
    Views: {"memory": "clone()"},
    KeepsTheBytesOfAll: {"memory": "the kernel counts"},
    DenseKept: {"memory": "of your module refers to it"},
    by_the_library: {"shards": "finished code"},
}

RAISED = (
    "if heads % ranks or kv_heads % ranks:; "
    "raise ValueError(f'{ranks} ranks do not divide {heads} and {kv_heads} heads')"
)
KEPT = "self.group, self.size = (group, projection.in_features // heads)"
NOBODY = "it is whole, and nobody has the dense one any more"
SAME = "two dims change places, whichever is named first"
EQUIVALENT = {
    f"{RAISED}; {KEPT} -> {KEPT}; {RAISED}": "neither needs the other",
    "self.projection_bias = nn.Parameter(projection.bias.detach().clone()) "
    "-> self.projection_bias = nn.Parameter(projection.bias.detach())": NOBODY,
    "... made.unflatten(-1, (-1, self.size)).transpose(1, 2).split(self.own, 1) "
    "-> ... made.unflatten(-1, (-1, self.size)).transpose(2, 1).split(self.own, 1)": SAME,
    "product = F.linear(y.transpose(1, 2).flatten(2), self.projection_weight) "
    "-> product = F.linear(y.transpose(2, 1).flatten(2), self.projection_weight)": SAME,
}
