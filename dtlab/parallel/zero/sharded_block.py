"""A block of a module: what is gathered before it computes, and freed after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dtlab.parallel.zero.flat_shard import FlatShard
from dtlab.parallel.zero.shards import FlatLayout, Piece, Transport
from dtlab.parallel.zero.wrap_policy import Owned

__all__ = ["ShardedBlock", "ShardedGradients"]


class ShardedBlock:
    """A module that gathers and frees together; its parameters sorted by kind.

    Attributes:
        module: the one whose call needs the parameters.
        shards: one `FlatShard` for each dtype and device, trained and frozen apart.
        index: its number; the root has 0.
        is_leaf: whether it has no other block inside; set by the module that has all blocks.
    """

    def __init__(
        self,
        index: int,
        module: nn.Module,
        owned: Sequence[Owned],
        transport: Transport,
        dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
    ) -> None:
        self.index, self.module = index, module
        self.is_leaf = index > 0
        kinds: dict[object, list[Owned]] = {}
        for one in owned:
            key = one.parameter.dtype, one.parameter.device, one.parameter.requires_grad
            kinds.setdefault(key, []).append(one)
        self.shards: list[FlatShard] = []
        self._places: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        for same in kinds.values():
            parameters = [one.parameter for one in same]
            shard = FlatShard(parameters, transport, dtype, reduce_dtype)
            self.shards.append(shard)
            for one, whole in zip(same, shard.whole, strict=True):
                self._places += [(at, name, one.parameter, whole) for at, name in one.places]

    @property
    def trained(self) -> list[FlatShard]:
        """Those whose parameters need gradients."""
        return [one for one in self.shards if one.requires_grad]

    @property
    def is_gathered(self) -> bool:
        """Whether any of it has its storage, filled or being filled."""
        return any(one.is_gathered for one in self.shards)

    @property
    def has_arrived(self) -> bool:
        """Whether there are gradients that have not been sent."""
        return any(one.has_arrived for one in self.trained)

    def check_frozen(self) -> None:
        """Raise RuntimeError where somebody has frozen or thawed a piece since it was made."""
        for shard in self.shards:
            for one in shard.parameters:
                if one.requires_grad != shard.requires_grad:
                    raise RuntimeError(
                        f"requires_grad of a parameter in {type(self.module).__name__} has become "
                        f"{one.requires_grad}. Freeze parameters before the module is wrapped: "
                        "what is trained is gathered and reduced apart from what is not."
                    )

    def trained_parameters(self) -> Iterator[tuple[FlatShard, int, nn.Parameter]]:
        """Whole parameters that need gradients, each with its shard and its index there."""
        for shard in self.trained:
            for index, whole in enumerate(shard.whole):
                yield shard, index, whole

    def start_gather(self) -> None:
        """Without waiting."""
        for one in self.shards:
            one.start_gather()

    def gather(self) -> None:
        """Wait until all is there, and let the module see the whole parameters."""
        self.start_gather()
        for one in self.shards:
            one.finish_gather()
        for module, name, _, whole in self._places:
            _set(module, name, whole)

    def hide(self) -> None:
        """Let the module, and whoever asks it for its parameters, see the pieces."""
        for module, name, piece, _ in self._places:
            _set(module, name, piece)

    def free(self) -> None:
        """Hide, and give the storage back."""
        self.hide()
        for one in self.shards:
            one.free()

    def start_reduce(self) -> None:
        """Send gradients, without waiting."""
        for one in self.trained:
            one.start_reduce()

    def finish_reduce(self) -> None:
        """Wait until the pieces have their gradients."""
        for one in self.trained:
            one.finish_reduce()

    def drop_gradients(self) -> None:
        """Forget gradients that have not become those of pieces."""
        for one in self.trained:
            one.drop_gradients()


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = parameter  # without its checks: this happens at every call
    else:
        setattr(module, name, parameter)


# Gradients on the way to the ranks that own them: one flat row for each rank ---------------------
#
#     to rank 0    a a a | 1 .      a, b: gradients of the pieces of rank 0, and of rank 1
#     to rank 1    a b b | 1 1      a mark for each of its pieces: used by this rank, or not
#
# A reduce-scatter adds up the rows of all ranks. So an owner gets the sums, and learns whether any
# rank has used a parameter: one that nobody uses gets no gradient, as in one process.


class ShardedGradients:
    """Gradients of the parameters of one layout, collected until they are sent; then empty again.

    Attributes:
        rows: [world size, shard size + marks], or None while nothing has arrived.
    """

    def __init__(self, layout: FlatLayout, dtype: torch.dtype) -> None:
        self.layout = layout
        self.rows: Tensor | None = None
        self._pieces = [layout.pieces(rank) for rank in range(layout.world_size)]
        self._marks = max(map(len, self._pieces))
        self._targets: dict[int, list[tuple[int, Piece]]] = {}
        for rank, pieces in enumerate(self._pieces):
            for piece in pieces:
                self._targets.setdefault(piece.index, []).append((rank, piece))
        self._arrived: set[int] = set()
        self._empty = partial(
            torch.empty, layout.world_size, layout.shard_size + self._marks,
            dtype=dtype, device=layout.device,
        )  # fmt: skip
        # A sum of fp16 numbers may exceed 65504; of others it is divided once it is complete.
        share = 1 / layout.world_size
        self._before, self._after = (share, 1.0) if dtype is torch.float16 else (1.0, share)

    @torch.no_grad()
    def add(self, index: int, gradient: Tensor) -> None:
        """Put the gradient of a parameter, in one dim, into its place, or add it there."""
        if self.rows is None:
            self.rows = self._empty()
        if self._before != 1:
            gradient = gradient * self._before
        for rank, piece in self._targets.get(index, ()):  # none: a parameter of no elements
            place = self.rows[rank, piece.offset : piece.offset + piece.stop - piece.start]
            part = gradient[piece.start : piece.stop]
            place.add_(part) if index in self._arrived else place.copy_(part)
        self._arrived.add(index)

    @property
    def num_arrived(self) -> int:
        """Parameters whose gradients are there."""
        return len(self._arrived)

    @torch.no_grad()
    def hand_over(self) -> tuple[Tensor, frozenset[int]]:
        """The rows, zero where nothing has arrived, and the indices of what has; then empty."""
        rows = self._empty() if self.rows is None else self.rows
        for row, pieces in zip(rows, self._pieces, strict=True):
            end = 0
            for piece in pieces:
                start, end = piece.offset, piece.offset + piece.stop - piece.start
                if piece.index not in self._arrived:
                    row[start:end] = 0
            row[end:] = 0
            marks = [float(piece.index in self._arrived) for piece in pieces]
            row[self.layout.shard_size :][: len(marks)] = row.new_tensor(marks)
        arrived, self._arrived, self.rows = frozenset(self._arrived), set(), None
        return rows, arrived

    def means(
        self, mine: Tensor, arrived: frozenset[int], rank: int
    ) -> tuple[Tensor, list[Piece]]:
        """Gradients of this rank's shard, and which of its pieces some rank has used."""
        size, pieces = self.layout.shard_size, self._pieces[rank]
        means = mine[:size].to(self.layout.dtype)
        if self._after != 1:
            means *= self._after
        if not all(piece.index in arrived for piece in pieces):
            marks = mine[size:].tolist()
            pieces = [p for p, mark in zip(pieces, marks, strict=False) if mark > 0]
        return means, pieces
