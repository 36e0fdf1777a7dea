"""Column- and row-parallel linear layers. `nn.Linear` stores its weight as [out, in].

    column parallel: cut dim 0         row parallel: cut dim 1
    rank 0  [ w w w w ]  outputs 0,1   rank 0  [ w w | . . ]  inputs 0,1    sum over ranks
            [ w w w w ]                        [ w w | . . ]                = all outputs
    rank 1  [ w w w w ]  outputs 2,3           [ w w | . . ]
            [ w w w w ]                rank 1  [ . . | w w ]  inputs 2,3

The words "column" and "row" are the paper's. The paper computes xA, where A is this weight
transposed, so a column of A is a row of the weight.

                          forward                          backward
    column parallel   f   return the input                 all-reduce the input's gradient
    row parallel      g   all-reduce the partial outputs   return the gradient

`column_linear` in `dtlab/simple.py` is `F.linear` after f, and `row_linear` is `F.linear` before
g. Each of the layers here computes the same in one autograd function. The column-parallel layer
computes the weight's gradient while the input's gradient is all-reduced. The row-parallel layer
reduces its product in place, without a copy. The layers also divide a dense layer's parameters,
and support sequence parallelism: then the input of column and the output of row are this rank's
tokens. Column saves only these tokens, and gathers all tokens again in backward.

Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.tensor.regions import (
    gather_from_region,
    scatter_to_region,
    share,
    start_all_reduce,
    start_gather,
    start_reduce_scatter,
)
from dtlab.parallel.tensor.sequence import check_tokens
from dtlab.torch_internals import own_parameters
from dtlab.training.held import Share

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
]

TOKENS = -2  # the dim of tokens in [batch, tokens, features]


# Each rank's part of a dense layer's parameters -----------------------------------------------
#
# Split(0, (4, 2, 2)) on 2 ranks: queries, keys and values in one weight of 8 rows
#
# dense     q q q q | k k | v v
# rank 0    q q     | k   | v
# rank 1        q q |   k |   v


@dataclass(frozen=True)
class Split:
    """How a parameter is divided: `dim` has pieces of `sizes`; each rank has a part of each."""

    dim: int
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the whole dim."""
        return sum(self.sizes)

    def length(self, rank: int, ranks: int) -> int:
        """Return the size of a rank's part."""
        return sum(len(share(size, rank, ranks)) for size in self.sizes)

    def ranges(self, rank: int, ranks: int) -> tuple[tuple[int, int], ...]:
        """Return the start and stop, in the whole dim, of what a rank has of each piece."""
        starts = accumulate(self.sizes, initial=0)
        parts = [share(size, rank, ranks) for size in self.sizes]
        pairs = zip(starts, parts, strict=False)
        return tuple((start + part.start, start + part.stop) for start, part in pairs)

    def part(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """Return a copy of a rank's part.

        Raises: ValueError if the tensor does not have the size of the whole dim.
        """
        if whole.dim() <= self.dim or whole.shape[self.dim] != self.size:
            raise ValueError(
                f"dim {self.dim} of the dense tensor should have {self.size} elements; its shape "
                f"is {tuple(whole.shape)}."
            )
        pieces = torch.split(whole, list(self.sizes), self.dim)
        return torch.cat([piece.tensor_split(ranks, self.dim)[rank] for piece in pieces], self.dim)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the dense tensor, given the parts of all ranks in order."""
        cut = []
        for rank, part in enumerate(parts):
            lengths = [len(share(size, rank, len(parts))) for size in self.sizes]
            cut.append(torch.split(part, lengths, self.dim))
        return torch.cat(list(chain(*zip(*cut, strict=True))), self.dim)


class ShardedLayer(nn.Module):
    """The base class of layers with parameters that are divided among the ranks of `group`.

    A layer begins with its part of the dense layer's initial parameters, if the ranks' random
    generators are in sync: each rank draws the whole layer, and briefly holds it in memory.

    Attributes:
        splits: how each divided parameter is cut. The other parameters are whole on every rank.

    Raises: ValueError on a rank that is not in the group.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group, self.splits = group, dict[str, Split]()
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"{type(self).__name__}: this rank is not in the group that was passed. Make the "
                "layer only on the group's ranks."
            )

    def parameter_shares(self) -> dict[str, Share]:
        """Return which part of each divided parameter this rank has, for `Checkpoints`."""
        return {
            name: Share(split.dim, split.size, split.ranges(self.rank, self.ranks))
            for name, split in self.splits.items()
        }

    def load_part_of(self, dense: nn.Module) -> None:
        """Copy this rank's part of a dense layer's parameters, with their `requires_grad`.

        Raises: ValueError if there are more ranks than elements to divide, or if a parameter of
        the dense layer has another size.
        """
        for name, split in self.splits.items():
            if min(split.sizes) < self.ranks:
                raise ValueError(
                    f"{type(self).__name__}: {self.ranks} ranks cannot share dim {split.dim} of "
                    f"{name}, which has {min(split.sizes)} elements: some ranks would have none. "
                    "Use a smaller group."
                )
        for name, whole in own_parameters(dense).items():
            if whole is None:  # a layer without bias
                self.register_parameter(name, None)
                continue
            part = whole.detach()
            if name in self.splits:
                part = self.splits[name].part(part, self.rank, self.ranks)
            else:
                part = part.clone()
            self.register_parameter(name, nn.Parameter(part, whole.requires_grad))

    def check_input(self, tensor: Tensor, expected: int, hint: str) -> None:
        """Raise ValueError, before communication, unless the last dim has `expected` elements."""
        if tensor.shape[-1] != expected:
            raise ValueError(
                f"{type(self).__name__} on rank {self.rank} of {self.ranks} needs {expected} "
                f"features, but the input has shape {tuple(tensor.shape)}. {hint}"
            )


# -------------------------------------------------------------------------------- the layers


class _ParallelLinear(ShardedLayer):
    weight: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, group: Group) -> None:
        super().__init__(group)
        self.in_features, self.out_features = in_features, out_features

    @classmethod
    def from_dense(cls, dense: nn.Linear, **options: Any) -> Self:
        """Make this rank's shard of a dense layer; `options` are arguments of the class."""
        make = cast(Any, cls)  # for mypy: the subclasses take `bias` and `device`
        bias = dense.bias is not None
        layer: Self = make(dense.in_features, dense.out_features, bias, device="meta", **options)
        layer.load_part_of(dense)
        return layer

    def extra_repr(self) -> str:
        """Return the sizes of the dense layer, and this rank's index in the group."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, rank {self.rank} of {self.ranks}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """An `nn.Linear` of which each rank computes some outputs: [..., in] to [..., out / ranks].

    Args:
        in_features, out_features, bias, device, dtype: of the dense layer. If the number of ranks
            does not divide the outputs, the first ranks have one output more.
        gather_output: return all outputs on all ranks, with one more all-gather. A row-parallel
            layer that follows needs only this rank's outputs.
        sequence_parallel: the input is this rank's tokens, [..., s / ranks, in].
        pieces: sizes of the weights that are concatenated in this weight, such as [q; k; v]; each
            of them is divided among all ranks. None: one weight.
        group: the ranks that share the weight; None: all.

    Raises: ValueError for fewer outputs than ranks, pieces whose sum is not out_features, pieces
        together with gather_output, or an input of the wrong size.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        gather_output: bool = False,
        sequence_parallel: bool = False,
        pieces: tuple[int, ...] | None = None,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group)
        self.gather_output, self.sequence_parallel = gather_output, sequence_parallel
        split = Split(0, (out_features,) if pieces is None else pieces)
        if split.size != out_features:
            raise ValueError(
                f"ColumnParallelLinear: pieces={pieces} sum to {split.size} outputs, but "
                f"out_features={out_features}. Pass pieces that sum to out_features."
            )
        if gather_output and pieces is not None:
            raise ValueError(
                "ColumnParallelLinear: the outputs of a layer with pieces cannot be gathered. Use "
                "gather_output=False."
            )
        self.splits = {"weight": split, "bias": split} if bias else {"weight": split}
        self.load_part_of(nn.Linear(in_features, out_features, bias, device, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs, or all outputs with `gather_output`."""
        self.check_input(x, self.in_features, "Column-parallel layers take all features.")
        y: Tensor = _Column.apply(  # type: ignore[no-untyped-call]
            *_cast_for_autocast(x, self.weight, self.bias), self.group, self.sequence_parallel
        )
        return gather_from_region(y, self.group, self.out_features) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """An `nn.Linear` of which each rank has some inputs: [..., in / ranks] to [..., out].

    Args:
        in_features, out_features, bias, device, dtype: of the dense layer. If the number of ranks
            does not divide the inputs, the first ranks have one input more. The bias is whole on
            every rank.
        input_is_parallel: True: the input is this rank's part, as a column-parallel layer returns
            it. False: the input is the same whole tensor on all ranks.
        sequence_parallel: the output is this rank's tokens, [..., s / ranks, out].
        group: the ranks that share the weight; None: all.

    Raises: ValueError for fewer inputs than ranks, an input of the wrong size, or, with
        `sequence_parallel`, a number of tokens that is not divisible by the number of ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        input_is_parallel: bool = True,
        sequence_parallel: bool = False,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, group)
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        self.splits = {"weight": Split(1, (in_features,))}
        self.load_part_of(nn.Linear(in_features, out_features, bias, device, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return all outputs for all tokens; with `sequence_parallel`, for this rank's tokens."""
        if not self.input_is_parallel:
            self.check_input(x, self.in_features, "input_is_parallel=False takes all features.")
            x = scatter_to_region(x, self.group)
        hint = (
            f"These are its part of {self.in_features} features. Do not gather the output of the "
            "column-parallel layer, or set input_is_parallel=False."
        )
        self.check_input(x, self.weight.shape[1], hint)
        if self.sequence_parallel:
            check_tokens("RowParallelLinear", x, self.group, TOKENS)
        y: Tensor = _Row.apply(  # type: ignore[no-untyped-call]
            *_cast_for_autocast(x, self.weight, self.bias), self.group, self.sequence_parallel
        )
        return y


# ---------------------------------------------------------- one autograd function for each layer


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)  # not the gathered tokens: backward gathers them again
        ctx.group, ctx.sequence = group, sequence
        wait_x = _start_token_gather(x, group, sequence)
        return F.linear(wait_x(), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        wait_x = _start_token_gather(x, ctx.group, ctx.sequence and needs_weight)
        wait_grad_x = _start_sum(gradient @ weight, ctx.group, ctx.sequence) if needs_x else None
        grad_weight = _weight_gradient(gradient, wait_x()) if needs_weight else None
        grad_bias = _rows(gradient).sum(0) if needs_bias else None
        grad_x = wait_grad_x() if wait_grad_x else None
        return grad_x, grad_weight, grad_bias, None, None


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.sequence = group, sequence
        y = _start_sum(F.linear(x, weight), group, sequence)()
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        # Each rank's weights took part in all tokens' outputs, so gather all tokens' gradients.
        gradient = _start_token_gather(gradient, ctx.group, ctx.sequence)()
        grad_x = gradient @ weight if needs_x else None
        grad_weight = _weight_gradient(gradient, x) if needs_weight else None
        grad_bias = _rows(gradient).sum(0) if needs_bias else None
        return grad_x, grad_weight, grad_bias, None, None


def _start_token_gather(tensor: Tensor, group: Group, sequence: bool) -> Callable[[], Tensor]:
    """Start to gather all ranks' tokens; without sequence parallelism, `tensor` has them all."""
    return start_gather(tensor, TOKENS, group) if sequence else lambda: tensor


def _start_sum(partial: Tensor, group: Group, sequence: bool) -> Callable[[], Tensor]:
    """Start to sum over ranks, for all tokens or this rank's; the result may reuse `partial`."""
    if sequence:
        return start_reduce_scatter(partial, TOKENS, group)
    return start_all_reduce(partial, group)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    return _rows(gradient).t() @ _rows(x)


def _cast_for_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Cast as autocast does for `F.linear`; autocast does not reach into autograd functions."""
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    wide = torch.float64  # autocast does not cast float64 tensors
    return [t if t is None or t.dtype == wide else t.to(dtype) for t in tensors]
