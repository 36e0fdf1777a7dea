"""Sharded blocks: parameters that are gathered for a computation and freed after it.

              between steps       forward              backward
    shard     a a|              ─ gather ─► a a a b    ─ gather ─► a a a b
    whole     freed               use, free              use, free
    gradient                                           a a a b ─ reduce-scatter ─► a a|

What is gathered lies in one flat tensor, and the parameters that the module computes with are
views of it. It is freed by giving its storage back: the views stay, and so do those that autograd
has saved for backward, which find their numbers again once the next gather has filled the storage.
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

__all__ = ["FlatShard", "ShardedBlock", "ShardedGradients"]


class FlatShard:
    """Parameters of one kind that are gathered, freed and reduced together.

    They stay the objects that they were, and become this rank's pieces: views of `shard`, in one
    dim, some of them empty. An optimizer steps on those.

    Attributes:
        parameters: this rank's pieces. `whole` are the parameters as the module needs them.
        layout: which element of which parameter lies where.
        shard: this rank's elements, of the dtype that the parameters had.
        flat: the elements of all ranks, of `dtype`; without storage while it is freed.
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
        # .data: what a gather writes shall not count as a change of what autograd has saved
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
        """Whether the storage is there, filled or being filled."""
        return self.flat.untyped_storage().nbytes() > 0

    @torch.no_grad()
    def start_gather(self) -> None:
        """Fill the flat tensor, without waiting; nothing to do where it is there already."""
        if not self.is_gathered:
            self.flat.untyped_storage().resize_(self.nbytes)
            self.layout.shard(self.flat, self.transport.rank).copy_(self.shard)
            self._wait = self.transport.gather(self.flat)

    def finish_gather(self) -> None:
        """Wait until it is filled."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def free(self) -> None:
        """Give the storage back."""
        self.finish_gather()
        self.flat.untyped_storage().resize_(0)

    # ------------------------------------------------------------------ gradients

    @property
    def all_arrived(self) -> bool:
        """Whether the gradients of all parameters have."""
        return self._gradients.num_arrived == len(self.whole)

    @property
    def has_arrived(self) -> bool:
        """Whether there are gradients that have not been sent."""
        return self._gradients.num_arrived > 0

    @property
    def unreduced(self) -> list[Tensor]:
        """Memory of whole gradients: of those that have arrived, and of those on their way."""
        sent = [] if self._reducing is None else [self._reducing.rows]
        return sent if self._gradients.rows is None else [self._gradients.rows, *sent]

    def take(self, index: int) -> None:
        """Take the gradient that backward has left at the whole parameter of this index."""
        whole = self.whole[index]
        if whole.grad is None:
            return
        if whole.grad.is_sparse:
            raise TypeError(
                f"a gradient of shape {tuple(whole.shape)} is sparse, and shards are not. "
                "Make the embedding with sparse=False."
            )
        self._gradients.add(index, in_memory_order(whole.grad, whole))
        whole.grad = None

    def start_reduce(self) -> None:
        """Send all gradients to their owners, without waiting; what has not arrived counts 0."""
        self.finish_reduce()
        rows, arrived = self._gradients.hand_over()
        mine = torch.empty_like(rows[0])
        wait = self.transport.reduce_scatter(rows.view(-1), mine)
        self._reducing = _Reducing(wait, rows, mine, arrived)

    @torch.no_grad()
    def finish_reduce(self) -> None:
        """Wait, and add the means over all ranks to the gradients of this rank's pieces.

        A parameter that no rank has used keeps its gradient, or has none.
        """
        if self._reducing is None:
            return
        self._reducing.wait()
        mine, arrived, self._reducing = self._reducing.mine, self._reducing.arrived, None
        means, used = self._gradients.means(mine, arrived, self.transport.rank)
        for piece in used:
            mean = means[piece.offset : piece.offset + piece.stop - piece.start]
            parameter = self.parameters[piece.index]
            if parameter.grad is None:
                parameter.grad = mean
            else:
                parameter.grad += mean

    def drop_gradients(self) -> None:
        """Forget what has arrived, and what is on its way."""
        if self._reducing is not None:
            self._reducing.wait()
        self._reducing = None
        self._gradients.hand_over()
        for whole in self.whole:
            whole.grad = None


@dataclass
class _Reducing:
    """Gradients on their way: `rows` to all ranks, the sum of what is for this one into `mine`."""

    wait: Wait
    rows: Tensor
    mine: Tensor
    arrived: frozenset[int]


# A block of a module: what is gathered before it computes, and freed after it --------------------


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
