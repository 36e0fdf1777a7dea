"""Answers to 06/parallel_mlp: mistakes people make, and right answers written differently."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from dtlab.parallel.tensor import ParallelMLP as Finished
from dtlab.parallel.tensor.regions import copy_to_region, reduce_from_region

NAMES = ("first_weight", "first_bias", "second_weight", "second_bias")


def part(tensor, dim, group):
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    return tensor.detach().tensor_split(ranks, dim)[rank]


class Right(nn.Module):
    """In steps, so that answers can differ from it in one."""

    def __init__(self, dense, group=None):
        super().__init__()
        self.group = group
        for name, tensor in zip(NAMES, self.cut(dense[0], dense[2]), strict=True):
            setattr(self, name, nn.Parameter(self.own(tensor)))

    def cut(self, first, second):
        return (
            part(first.weight, 0, self.group),
            part(first.bias, 0, self.group),
            part(second.weight, 1, self.group),
            second.bias.detach(),
        )

    def own(self, tensor):
        return tensor.clone()

    def enter(self, x):
        return copy_to_region(x, self.group)

    def between(self, inner):
        return F.gelu(inner)

    def leave(self, product):
        return reduce_from_region(product, self.group) + self.second_bias

    def forward(self, x):
        inner = self.between(F.linear(self.enter(x), self.first_weight, self.first_bias))
        return self.leave(F.linear(inner, self.second_weight))


# Wrong ------------------------------------------------------------------------------------------


def untouched(dense, group=None):
    raise NotImplementedError()


class OtherDims(Right):
    """The first by inputs, the second by outputs."""

    def cut(self, first, second):
        return (
            part(first.weight, 1, self.group),
            first.bias.detach(),
            part(second.weight, 0, self.group),
            part(second.bias, 0, self.group),
        )


class BothByOutputs(Right):
    def cut(self, first, second):
        first_weight, first_bias, _, second_bias = super().cut(first, second)
        return first_weight, first_bias, part(second.weight, 0, self.group), second_bias


class FirstBiasWhole(Right):
    def cut(self, first, second):
        first_weight, _, second_weight, second_bias = super().cut(first, second)
        return first_weight, first.bias.detach(), second_weight, second_bias


class SecondBiasShared(Right):
    """Right in what comes out, by a bias that is not the dense one's."""

    def cut(self, first, second):
        *others, second_bias = super().cut(first, second)
        return *others, second_bias / dist.get_world_size(self.group)

    def leave(self, product):
        return reduce_from_region(product + self.second_bias, self.group)


class FirstPart(Right):
    """The same on all ranks."""

    def cut(self, first, second):
        ranks = dist.get_world_size(self.group)
        return (
            first.weight.detach().tensor_split(ranks)[0],
            first.bias.detach().tensor_split(ranks)[0],
            second.weight.detach().tensor_split(ranks, 1)[0],
            second.bias.detach(),
        )


class InFloat64(Right):
    def own(self, tensor):
        return tensor.double()


class NoParameters(Right):
    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        for name in NAMES:
            tensor = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, tensor)


class BiasBeforeTheSum(Right):
    def leave(self, product):
        return reduce_from_region(product + self.second_bias, self.group)


class NoBias(Right):
    def leave(self, product):
        return reduce_from_region(product, self.group)


class WithoutGelu(Right):
    def between(self, inner):
        return inner


class GeluByTanh(Right):
    def between(self, inner):
        return F.gelu(inner, approximate="tanh")


class GeluBehindTheSum(Right):
    def between(self, inner):
        return inner

    def leave(self, product):
        return F.gelu(super().leave(product))


class WithoutG(Right):
    def leave(self, product):
        return product + self.second_bias


class TheMean(Right):
    def leave(self, product):
        total = reduce_from_region(product, self.group)
        return total / dist.get_world_size(self.group) + self.second_bias


class WithoutF(Right):
    def enter(self, x):
        return x


class FTwice(Right):
    """Around each layer."""

    def between(self, inner):
        return copy_to_region(F.gelu(inner), self.group)


class FAfterTheFirst(WithoutF):
    """The shapes are equal, so the call runs, and sums gradients of different features."""

    def between(self, inner):
        return F.gelu(copy_to_region(inner, self.group))


class BiasThroughF(Right):
    def leave(self, product):
        return reduce_from_region(product, self.group) + copy_to_region(
            self.second_bias, self.group
        )


class Gather(torch.autograd.Function):
    """All features on all ranks; backward keeps this rank's."""

    @staticmethod
    def forward(ctx, tensor, group):
        ranks = dist.get_world_size(group)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(ranks)]
        dist.all_gather(sizes, torch.tensor([tensor.shape[-1]]), group=group)
        most = int(max(sizes))
        padded = F.pad(tensor, (0, most - tensor.shape[-1]))
        every = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(every, padded, group=group)
        ctx.start = sum(int(size) for size in sizes[: dist.get_rank(group)])
        ctx.size = tensor.shape[-1]
        return torch.cat([one[..., : int(n)] for one, n in zip(every, sizes, strict=True)], -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[..., ctx.start : ctx.start + ctx.size].contiguous(), None


class GatheredBetween(Right):
    """Put together, and cut again as it was."""

    def between(self, inner):
        whole = F.gelu(Gather.apply(inner, self.group))
        return whole.tensor_split(dist.get_world_size(self.group), -1)[dist.get_rank(self.group)]


class XFromTheFirst(Right):
    def enter(self, x):
        dist.broadcast(x.detach(), group_src=0, group=self.group)
        return super().enter(x)


class TwoSums(Right):
    """Of the sum's halves."""

    def leave(self, product):
        one, other = product.chunk(2, 1)
        return torch.cat([Right.leave(self, each.contiguous()) for each in (one, other)], 1)


class EverythingByItself(Right):
    """The dense MLP on every rank, beside shards for show."""

    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.dense = dense

    def forward(self, x):
        return self.dense(x)


class Views(Right):
    def own(self, tensor):
        return tensor


class KeepsTheBytesOfAll(Right):
    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.kept = [one.detach().numpy().tobytes() for one in dense.parameters()]


class DenseKept(Right):
    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.dense = dense


class DenseHidden(Right):
    """Where no walk over parameters finds it."""

    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.reset = lambda: dense


class ChunkedFeatures(Right):
    """Ranks get other parts than tensor_split gives them, and the last may get none."""

    def cut(self, first, second):
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        return (
            first.weight.detach().chunk(ranks)[rank],
            first.bias.detach().chunk(ranks)[rank],
            second.weight.detach().chunk(ranks, 1)[rank],
            second.bias.detach(),
        )


class RestLeftOut(Right):
    def cut(self, first, second):
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        size = len(first.weight) // ranks
        own = slice(rank * size, (rank + 1) * size)
        return (
            first.weight.detach()[own],
            first.bias.detach()[own],
            second.weight.detach()[:, own],
            second.bias.detach(),
        )


class AllRanks(Right):
    """The group is for the cuts only."""

    def enter(self, x):
        return copy_to_region(x)

    def leave(self, product):
        return reduce_from_region(product) + self.second_bias


class GroupLost(Right):
    def __init__(self, dense, group=None):
        super().__init__(dense)


def by_the_library(dense, group=None):
    return Finished.from_dense(dense, group)


# Right ------------------------------------------------------------------------------------------


class ByIndices(nn.Module):
    """Which features are mine, said once."""

    def __init__(self, dense, group=None):
        super().__init__()
        mine = torch.arange(dense[0].out_features).tensor_split(dist.get_world_size(group))
        mine = mine[dist.get_rank(group)]
        self.first_weight = nn.Parameter(dense[0].weight.detach()[mine])
        self.first_bias = nn.Parameter(dense[0].bias.detach()[mine])
        self.second_weight = nn.Parameter(dense[2].weight.detach()[:, mine])
        self.second_bias = nn.Parameter(dense[2].bias.detach().clone())
        self.group = group

    def forward(self, x):
        x = copy_to_region(x, self.group)
        inner = nn.functional.gelu(x @ self.first_weight.t() + self.first_bias)
        y = reduce_from_region(inner @ self.second_weight.t(), self.group)
        return y + self.second_bias


class BiasAsItIs(Right):
    """What is whole may be the dense one's."""

    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.second_bias = dense[2].bias


class OwnPair(Right):
    """f as a hook, and g as a sum that autograd does not see."""

    def enter(self, x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(self.summed)
        return x

    def summed(self, tensor):
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def leave(self, product):
        return product + (self.summed(product) - product.detach()) + self.second_bias


RIGHT = [Right, ByIndices, OwnPair, BiasAsItIs]

WRONG = {
    untouched: {"shards": "is not written yet"},
    OtherDims: {"shards": "which dim of [out, in]"},
    BothByOutputs: {"shards": "second_weight"},
    FirstBiasWhole: {"shards": "first_bias"},
    SecondBiasShared: {"shards": "whole on every rank"},
    FirstPart: {"shards": "rank 1: first_weight is the part of rank 0"},
    InFloat64: {"shards": "has dtype torch.float64"},
    NoParameters: {"shards": "make it an nn.Parameter"},
    BiasBeforeTheSum: {"output": "add the second bias after the sum"},
    NoBias: {"output": "y is off"},
    WithoutGelu: {"output": "GELU"},
    GeluByTanh: {"output": "tanh approximation"},
    GeluBehindTheSum: {"output": "GELU"},
    WithoutG: {"output": "y is off"},
    TheMean: {"output": "y is off"},
    WithoutF: {"gradients": "sum these parts once, where x enters"},
    FTwice: {"gradients": "do not communicate there"},
    FAfterTheFirst: {"gradients": "do not communicate there"},
    EverythingByItself: {"gradients": "is missing", "memory": "of your module refers to it"},
    BiasThroughF: {"gradients": "times the number of ranks"},
    GatheredBetween: {"calls": "do not communicate there"},
    XFromTheFirst: {"calls": "broadcast"},
    TwoSums: {"calls": "all_reduce"},
    Views: {"memory": "clone()"},
    KeepsTheBytesOfAll: {"memory": "the kernel counts"},
    DenseKept: {"memory": "of your module refers to it"},
    DenseHidden: {"memory": "of your module refers to it"},
    ChunkedFeatures: {"uneven": ""},
    RestLeftOut: {"uneven": "has the shape"},
    AllRanks: {"group": "y is off"},
    GroupLost: {"group": "has the shape"},
    by_the_library: {"shards": "finished code"},
}

ONE_DIM = "the last dim of a bias is its first"
NOBODY = "it is whole, and nobody has the dense one any more"
EQUIVALENT = {
    "self.first_bias = self.part(first.bias, 0) "
    "-> self.first_bias = self.part(first.bias, -1)": ONE_DIM,
    "self.second_bias = nn.Parameter(second.bias.detach().clone()) "
    "-> self.second_bias = nn.Parameter(second.bias.detach())": NOBODY,
}
