"""A layer that has a part of a dense layer's parameters, and knows which part.

Split(0, (4, 2, 2)) on 2 ranks: queries, keys and values in one weight of 8 rows

dense     q q q q | k k | v v
rank 0    q q     | k   | v
rank 1        q q |   k |   v
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.messages import Group
from dtlab.parallel.tensor_moves import share

__all__ = ["ShardedLayer", "Split"]


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
