"""Column- and row-parallel linear layers. `nn.Linear` stores its weight as [out, in].

    column parallel: cut dim 0         row parallel: cut dim 1
    rank 0  [ w w w w ]  outputs 0,1   rank 0  [ w w | . . ]  inputs 0,1    sum over ranks
            [ w w w w ]                        [ w w | . . ]                = all outputs
    rank 1  [ w w w w ]  outputs 2,3           [ w w | . . ]
            [ w w w w ]                rank 1  [ . . | w w ]  inputs 2,3

Columns: the paper computes xA, and its A is this weight transposed.

                    forward                      backward
    column   f      nothing                      input gradients add up: all-reduce
    row      g      outputs add up: all-reduce   nothing

The naive functions say just that. The layers do it with one node of the graph each: column starts
the all-reduce of the input's gradient, and computes the weight's while it travels; row adds up
where the product lies, without a copy.

With sequence parallelism the input of column and the output of row are this rank's tokens.
Column keeps those for backward, not all that it gathers, and gathers once more there.

Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.tensor.regions import (
    copy_to_region,
    gather_from_region,
    reduce_from_region,
    scatter_to_region,
    share,
    start_all_reduce,
    start_gather,
    start_reduce_scatter,
)
from dtlab.parallel.tensor.sequence import check_tokens

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "naive_column_linear",
    "naive_row_linear",
]

TOKENS = -2  # dim of the tokens in [b, s, h]


# ---------------------------------------------------------------------------------- the idea


def naive_column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Group = None
) -> Tensor:
    """This rank's outputs, of its rows of the dense weight [out, in] and of its bias."""
    return F.linear(copy_to_region(x, group), weight, bias)


def naive_row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Group = None
) -> Tensor:
    """All outputs, of this rank's inputs and its columns of the dense weight; one bias for all."""
    y = reduce_from_region(F.linear(x, weight), group)
    return y if bias is None else y + bias  # after the sum: it would be added once per rank


# A layer that has a part of a dense layer's parameters, and knows which part ---------------------
#
# Split(0, (4, 2, 2)) on 2 ranks: queries, keys and values in one weight of 8 rows
#
# dense     q q q q | k k | v v
# rank 0    q q     | k   | v
# rank 1        q q |   k |   v


@dataclass(frozen=True)
class Split:
    """Ranks share dim `dim` of a parameter: each of the pieces it consists of, by `sizes`."""

    dim: int
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Of the whole dim."""
        return sum(self.sizes)

    def length(self, rank: int, ranks: int) -> int:
        """Of a rank's part."""
        return sum(len(share(size, rank, ranks)) for size in self.sizes)

    def part(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """A rank's part, copied.

        Raises: ValueError where the tensor has another size in this dim.
        """
        if whole.dim() <= self.dim or whole.shape[self.dim] != self.size:
            raise ValueError(
                f"dim {self.dim} of the dense tensor should have {self.size} elements; its shape "
                f"is {tuple(whole.shape)}."
            )
        pieces = torch.split(whole, list(self.sizes), self.dim)
        return torch.cat([one.tensor_split(ranks, self.dim)[rank] for one in pieces], self.dim)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """The dense tensor, of the parts of all ranks in their order."""
        cut = []
        for rank, part in enumerate(parts):
            lengths = [len(share(size, rank, len(parts))) for size in self.sizes]
            cut.append(torch.split(part, lengths, self.dim))
        return torch.cat(list(chain(*zip(*cut, strict=True))), self.dim)


class ShardedLayer(nn.Module):
    """The base of layers with parameters that the ranks of `group` share.

    It starts with its part of what the dense layer would start with, where all ranks' random
    numbers are in step. So each rank draws the whole layer, and for a moment has it.

    Attributes:
        splits: how each shared parameter is cut. Those not in it are whole on every rank.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group, self.splits = group, dict[str, Split]()
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(
                f"{type(self).__name__}: this rank is not in the group that it is given. Make "
                "the layer on the group's ranks only."
            )

    def take(self, dense: nn.Module) -> None:
        """Have this rank's part of a dense layer's parameters: copies, trained or not as they are.

        Raises: ValueError where there are more ranks than elements to share.
        """
        for name, split in self.splits.items():
            if min(split.sizes) < self.ranks:
                raise ValueError(
                    f"{type(self).__name__}: {self.ranks} ranks cannot share dim {split.dim} of "
                    f"{name}, which has {min(split.sizes)} elements: some would have nothing. "
                    "Take a smaller group."
                )
        for name, whole in dense._parameters.items():
            if whole is None:  # no bias
                self.register_parameter(name, None)
                continue
            part = whole.detach()
            if name in self.splits:
                part = self.splits[name].part(part, self.rank, self.ranks)
            else:
                part = part.clone()
            self.register_parameter(name, nn.Parameter(part, whole.requires_grad))

    def check_input(self, tensor: Tensor, wanted: int, hint: str) -> None:
        """Refuse an input of another last dim, before anything is sent."""
        if tensor.shape[-1] != wanted:
            raise ValueError(
                f"{type(self).__name__} on rank {self.rank} of {self.ranks} takes {wanted} "
                f"features; the input has shape {tuple(tensor.shape)}. {hint}"
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
        """The shard of a layer that all ranks have; `options` as those of the class."""
        bias, make = dense.bias is not None, cast(Any, cls)
        layer: Self = make(dense.in_features, dense.out_features, bias, device="meta", **options)
        layer.take(dense)
        return layer

    def extra_repr(self) -> str:
        """Sizes of the dense layer, and who shares it."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, rank {self.rank} of {self.ranks}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """`nn.Linear` of which each rank computes some outputs: [..., in] to [..., out / ranks].

    Args:
        in_features, out_features, bias, device, dtype: of the dense layer. Where the ranks do not
            divide the outputs, the first ones have one more.
        gather_output: give all outputs to all ranks: one more all-gather, which a row parallel
            layer after it does not need.
        sequence_parallel: the input is this rank's tokens, [..., s / ranks, in].
        pieces: sizes of several weights that lie in one, [q; k; v] as it may be: each is shared by
            all ranks. None: there is one.
        group: the ranks that share the weight; None: all.

    Raises: ValueError for fewer outputs than ranks, pieces that are not all outputs or are to be
        gathered, or an input of another size.
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
        split = Split(0, pieces or (out_features,))
        if split.size != out_features or (gather_output and pieces):
            raise ValueError(
                f"ColumnParallelLinear: pieces {pieces} make up {out_features} outputs, and stay "
                "with their ranks: leave gather_output=False."
            )
        self.splits = {"weight": split, "bias": split} if bias else {"weight": split}
        self.take(nn.Linear(in_features, out_features, bias, device, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """This rank's outputs, or all."""
        self.check_input(x, self.in_features, "Column parallel layers take whole features.")
        y: Tensor = _Column.apply(  # type: ignore[no-untyped-call]
            *_as_autocast_has_it(x, self.weight, self.bias), self.group, self.sequence_parallel
        )
        return gather_from_region(y, self.group, self.out_features) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """`nn.Linear` of which each rank has some inputs: [..., in / ranks] to [..., out].

    Args:
        in_features, out_features, bias, device, dtype: of the dense layer. Where the ranks do not
            divide the inputs, the first ones have one more. The bias is whole on every rank.
        input_is_parallel: the input is this rank's part, as a column parallel layer gives it.
            False: it is the same whole input on all ranks.
        sequence_parallel: the output is this rank's tokens, [..., s / ranks, out].
        group: the ranks that share the weight; None: all.

    Raises: ValueError for fewer inputs than ranks, an input of another size, or tokens that the
        ranks do not divide.
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
        self.take(nn.Linear(in_features, out_features, bias, device, dtype))

    def forward(self, x: Tensor) -> Tensor:
        """All outputs, of all tokens or of this rank's."""
        if not self.input_is_parallel:
            self.check_input(x, self.in_features, "input_is_parallel=False takes whole features.")
            x = scatter_to_region(x, self.group)
        hint = (
            f"That is its part of {self.in_features}: do not gather what a column parallel layer "
            "gives, or set input_is_parallel=False."
        )
        self.check_input(x, self.weight.shape[1], hint)
        if self.sequence_parallel:
            check_tokens("RowParallelLinear", x, self.group, TOKENS)
        y: Tensor = _Row.apply(  # type: ignore[no-untyped-call]
            *_as_autocast_has_it(x, self.weight, self.bias), self.group, self.sequence_parallel
        )
        return y


# ----------------------------------------------------------------------------------- the trick


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)  # this rank's tokens: the others' are gathered again
        ctx.group, ctx.sequence = group, sequence
        return F.linear(_start_whole(x, group, sequence)(), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, *_ = ctx.needs_input_grad
        whole = _start_whole(x, ctx.group, ctx.sequence and for_weight)
        of_x = _start_sum(gradient @ weight, ctx.group, ctx.sequence) if for_x else None
        of_weight = _weight_gradient(gradient, whole()) if for_weight else None
        of_bias = _rows(gradient).sum(0) if for_bias else None
        return of_x and of_x(), of_weight, of_bias, None, None


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
        for_x, for_weight, for_bias, *_ = ctx.needs_input_grad
        # Of all tokens: so the bias gets its whole gradient on every rank.
        gradient = _start_whole(gradient, ctx.group, ctx.sequence)()
        of_x = gradient @ weight if for_x else None
        of_weight = _weight_gradient(gradient, x) if for_weight else None
        of_bias = _rows(gradient).sum(0) if for_bias else None
        return of_x, of_weight, of_bias, None, None


def _start_whole(tensor: Tensor, group: Group, sequence: bool) -> Callable[[], Tensor]:
    """All tokens, of this rank's; without sequence parallelism they are there."""
    return start_gather(tensor, TOKENS, group) if sequence else lambda: tensor


def _start_sum(partial: Tensor, group: Group, sequence: bool) -> Callable[[], Tensor]:
    """The sum over ranks, of all tokens or at this rank's. It may take the place of `partial`."""
    if sequence:
        return start_reduce_scatter(partial, TOKENS, group)
    return start_all_reduce(partial, group)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    return _rows(gradient).t() @ _rows(x)


def _as_autocast_has_it(*tensors: Tensor | None) -> list[Tensor | None]:
    """In the dtype that autocast gives to a linear layer: before the node, so its backward too."""
    device = next(each.device.type for each in tensors if each is not None)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    wide = torch.float64  # autocast leaves it alone
    return [each if each is None or each.dtype == wide else each.to(dtype) for each in tensors]
