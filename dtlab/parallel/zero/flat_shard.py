"""Parameters that are kept in shards, and are whole only while they are used.

              between steps       forward              backward
    shard     a a|              ─ gather ─► a a a b    ─ gather ─► a a a b
    whole     freed               use, free              use, free
    gradient                                           a a a b ─ reduce-scatter ─► a a|

What is gathered lies in one flat tensor, and the parameters that the module computes with are
views of it. It is freed by giving its storage back: the views stay, and so do those that autograd
has saved for backward, which find their numbers again once the next gather has filled the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.parallel.zero.sharded_block import ShardedGradients
from dtlab.parallel.zero.shards import FlatLayout, Transport, Wait, in_memory_order

__all__ = ["FlatShard"]


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
