"""Sharded blocks: parameters that are gathered for a computation and freed after it.

              between steps       forward              backward         rank 0 of 2
    shard     a a|              ─ gather ─► a a a b    ─ gather ─► a a a b
    whole     freed               use, free              use, free
    gradient                                           a a a b ─ reduce-scatter ─► a a|

Gathered parameters lie in one flat tensor; the parameters that the module computes with are views
of it. The block is freed by releasing the storage of the flat tensor. The views remain, even those
that autograd has saved for backward; they are valid again once the next gather fills the storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.zero.shards import FlatLayout, Piece, Transport, Wait, in_memory_order
from dtlab.parallel.zero.wrap_policy import Owned
from dtlab.torch_internals import own_parameters

__all__ = ["FlatShard", "ShardedBlock", "ShardedGradients"]


class FlatShard:
    """Parameters of one dtype and device that are gathered, freed and reduced together.

    The parameter objects of the module become this rank's pieces: one-dimensional views of
    `shard`, some of them empty. The optimizer steps the pieces.

    Attributes:
        parameters: this rank's pieces.
        whole: the parameters with which the module computes, as views of `flat`.
        layout: the position of each parameter's elements in the flat tensor.
        shard: this rank's elements, in the original dtype of the parameters.
        flat: the elements of all ranks, in `dtype`; has no storage while the block is freed.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        transport: Transport,
        dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
    ) -> None:
        self.parameters, self.transport = list(parameters), transport
        self.layout = FlatLayout(self.parameters, transport.world_size)
        self.requires_grad = self.parameters[0].requires_grad
        flat = self.layout.pack(self.parameters)
        dist.broadcast(flat, group=transport.group, group_src=0)
        self.shard = self.layout.shard(flat, transport.rank).clone()
        is_float = self.layout.dtype.is_floating_point
        self.flat = self.layout.empty(dtype if is_float else None)
        # .data: autograd must not count a gather as a modification of saved tensors
        self.whole = [
            nn.Parameter(view.data, self.requires_grad) for view in self.layout.views(self.flat)
        ]
        self.nbytes = self.flat.nbytes
        self._wait: Wait | None = None
        self.free()
        self._cut_pieces()
        self._gradients = ShardedGradients(self.layout, reduce_dtype or self.flat.dtype)
        self._reducing: _Reducing | None = None

    def _cut_pieces(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
            parameter.data = self.shard[:0]
        for piece in self.layout.pieces(self.transport.rank):
            end = piece.offset + piece.stop - piece.start
            self.parameters[piece.index].data = self.shard[piece.offset : end]

    # ------------------------------------------------------------------ gather and free

    @property
    def is_gathered(self) -> bool:
        """Whether the flat tensor has storage, filled or being filled."""
        return self.flat.untyped_storage().nbytes() > 0

    @torch.no_grad()
    def start_gather(self) -> None:
        """Start to fill the flat tensor, unless it is filled already; do not wait."""
        if not self.is_gathered:
            self.flat.untyped_storage().resize_(self.nbytes)
            self.layout.shard(self.flat, self.transport.rank).copy_(self.shard)
            self._wait = self.transport.gather(self.flat)

    def finish_gather(self) -> None:
        """Wait until the flat tensor is filled."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def free(self) -> None:
        """Release the storage of the flat tensor."""
        self.finish_gather()
        self.flat.untyped_storage().resize_(0)

    # ------------------------------------------------------------------ gradients

    @property
    def all_arrived(self) -> bool:
        """Whether the gradients of all parameters have arrived."""
        return self._gradients.num_arrived == len(self.whole)

    @property
    def has_arrived(self) -> bool:
        """Whether there are gradients that have not been reduced."""
        return self._gradients.num_arrived > 0

    @property
    def unreduced(self) -> list[Tensor]:
        """Buffers of whole gradients: those that have arrived, and those being reduced."""
        sent = [] if self._reducing is None else [self._reducing.rows]
        return sent if self._gradients.rows is None else [self._gradients.rows, *sent]

    def take_gradient(self, index: int) -> None:
        """Take the gradient that backward has stored in the whole parameter of this index."""
        whole = self.whole[index]
        if whole.grad is None:
            return
        if whole.grad.is_sparse:
            raise TypeError(
                f"a gradient of shape {tuple(whole.shape)} is sparse, but shards are dense. "
                "Make the embedding with sparse=False."
            )
        self._gradients.add(index, in_memory_order(whole.grad, whole))
        whole.grad = None

    def start_reduce(self) -> None:
        """Start to reduce all gradients to their owners; missing ones count as 0. Do not wait."""
        self.finish_reduce()
        rows, arrived = self._gradients.hand_over()
        received = torch.empty_like(rows[0])
        wait = self.transport.reduce_scatter(rows.view(-1), received)
        self._reducing = _Reducing(wait, rows, received, arrived)

    @torch.no_grad()
    def finish_reduce(self) -> None:
        """Wait for the reduce, and add the mean gradients to those of this rank's pieces.

        A parameter that no rank has used keeps its gradient, or None.
        """
        if self._reducing is None:
            return
        self._reducing.wait()
        received, arrived, self._reducing = self._reducing.received, self._reducing.arrived, None
        means, used = self._gradients.means(received, arrived, self.transport.rank)
        for piece in used:
            mean = means[piece.offset : piece.offset + piece.stop - piece.start]
            parameter = self.parameters[piece.index]
            if parameter.grad is None:
                parameter.grad = mean
            else:
                parameter.grad += mean

    def drop_gradients(self) -> None:
        """Discard gradients that have arrived or are being reduced."""
        if self._reducing is not None:
            self._reducing.wait()
        self._reducing = None
        self._gradients.hand_over()
        for whole in self.whole:
            whole.grad = None


@dataclass
class _Reducing:
    """A running reduce-scatter: it sends `rows`, and writes this rank's sum to `received`."""

    wait: Wait
    rows: Tensor
    received: Tensor
    arrived: frozenset[int]


# A block of a module, gathered before it computes and freed after it -----------------------------


class ShardedBlock:
    """A module whose parameters are gathered and freed together, grouped by dtype and device.

    Attributes:
        module: the module whose call needs the parameters.
        shards: one `FlatShard` for each dtype and device, and separately for trained and frozen
            parameters.
        index: 0 for the root, 1 for the block that the drawings call block 0, and so on.
        is_leaf: False for the root and for blocks that contain blocks; `ShardedModule` sets it.
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
        for entry in owned:
            key = entry.parameter.dtype, entry.parameter.device, entry.parameter.requires_grad
            kinds.setdefault(key, []).append(entry)
        self.shards: list[FlatShard] = []
        self._places: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        for same in kinds.values():
            parameters = [entry.parameter for entry in same]
            shard = FlatShard(parameters, transport, dtype, reduce_dtype)
            self.shards.append(shard)
            for entry, whole in zip(same, shard.whole, strict=True):
                self._places += [(at, name, entry.parameter, whole) for at, name in entry.places]

    @property
    def trained(self) -> list[FlatShard]:
        """The shards whose parameters need gradients."""
        return [shard for shard in self.shards if shard.requires_grad]

    @property
    def is_gathered(self) -> bool:
        """Whether any shard is gathered or being gathered."""
        return any(shard.is_gathered for shard in self.shards)

    @property
    def has_arrived(self) -> bool:
        """Whether there are gradients that have not been reduced."""
        return any(shard.has_arrived for shard in self.trained)

    def check_frozen(self) -> None:
        """Raise RuntimeError if a piece was frozen or unfrozen since it was made."""
        for shard in self.shards:
            for piece in shard.parameters:
                if piece.requires_grad != shard.requires_grad:
                    raise RuntimeError(
                        f"requires_grad of a parameter in {type(self.module).__name__} has become "
                        f"{piece.requires_grad}. Freeze parameters before the module is wrapped: "
                        "trained and frozen parameters are gathered separately."
                    )

    def trained_parameters(self) -> Iterator[tuple[FlatShard, int, nn.Parameter]]:
        """Yield the whole parameters that need gradients, each with its shard and index."""
        for shard in self.trained:
            for index, whole in enumerate(shard.whole):
                yield shard, index, whole

    def start_gather(self) -> None:
        """Start to gather all shards; do not wait."""
        for shard in self.shards:
            shard.start_gather()

    def gather(self) -> None:
        """Gather all shards, and make the whole parameters the parameters of the module."""
        self.start_gather()
        for shard in self.shards:
            shard.finish_gather()
        for module, name, _, whole in self._places:
            _set(module, name, whole)

    def show_pieces(self) -> None:
        """Make the pieces the parameters of the module."""
        for module, name, piece, _ in self._places:
            _set(module, name, piece)

    def free(self) -> None:
        """Make the pieces the parameters of the module, and release the gathered storage."""
        self.show_pieces()
        for shard in self.shards:
            shard.free()

    def start_reduce(self) -> None:
        """Start to reduce gradients; do not wait."""
        for shard in self.trained:
            shard.start_reduce()

    def finish_reduce(self) -> None:
        """Wait until the pieces have their gradients."""
        for shard in self.trained:
            shard.finish_reduce()

    def drop_gradients(self) -> None:
        """Discard gradients that have not yet been added to `.grad` of the pieces."""
        for shard in self.trained:
            shard.drop_gradients()


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    if type(module).__setattr__ is nn.Module.__setattr__:
        own_parameters(module)[name] = parameter  # skip the checks: this runs at every call
    else:
        setattr(module, name, parameter)


# Gradients to be reduced to the ranks that own them: one flat row for each rank ------------------
#
#     to rank 0    a a a | 1 .      gradients of the pieces of the receiving rank, and a mark for
#     to rank 1    a b b | 1 1      each of these pieces: whether the sending rank used it
#
# A reduce-scatter adds the rows of all ranks. So an owner receives the sums, and the number of
# ranks that used each parameter. A parameter that no rank uses gets no gradient.


class ShardedGradients:
    """Gradients of the parameters of one layout, collected until they are reduced.

    Attributes:
        rows: [world size, shard size + marks], or None before a gradient has arrived.
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
        # A sum of fp16 values may exceed 65504, so divide before the sum; otherwise after it.
        share = 1 / layout.world_size
        self._before, self._after = (share, 1.0) if dtype is torch.float16 else (1.0, share)

    @torch.no_grad()
    def add(self, index: int, gradient: Tensor) -> None:
        """Copy a one-dimensional gradient into `rows`, or add it to an earlier gradient there."""
        if self.rows is None:
            self.rows = self._empty()
        if self._before != 1:
            gradient = gradient * self._before
        for rank, piece in self._targets.get(index, ()):  # none: a parameter without elements
            place = self.rows[rank, piece.offset : piece.offset + piece.stop - piece.start]
            part = gradient[piece.start : piece.stop]
            place.add_(part) if index in self._arrived else place.copy_(part)
        self._arrived.add(index)

    @property
    def num_arrived(self) -> int:
        """The number of parameters whose gradients have arrived."""
        return len(self._arrived)

    @torch.no_grad()
    def hand_over(self) -> tuple[Tensor, frozenset[int]]:
        """Return the rows, with 0 for missing gradients, and the arrived indices; then reset."""
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
        self, received: Tensor, arrived: frozenset[int], rank: int
    ) -> tuple[Tensor, list[Piece]]:
        """Return the mean gradients of this rank's shard, and its pieces that have a gradient.

        A piece has a gradient if backward has computed one on at least one rank.
        """
        size, pieces = self.layout.shard_size, self._pieces[rank]
        means = received[:size].to(self.layout.dtype)
        if self._after != 1:
            means *= self._after
        if not all(piece.index in arrived for piece in pieces):
            marks = received[size:].tolist()
            pieces = [p for p, mark in zip(pieces, marks, strict=False) if mark > 0]
        return means, pieces
