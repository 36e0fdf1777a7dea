"""Gradients on the way to the ranks that own them: one flat row for each rank.

    to rank 0    a a a | 1 .      a, b: gradients of the pieces of rank 0, and of rank 1
    to rank 1    a b b | 1 1      a mark for each of its pieces: used by this rank, or not

A reduce-scatter adds up the rows of all ranks. So an owner gets the sums, and learns whether any
rank has used a parameter: one that nobody uses gets no gradient, as in one process.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dtlab.parallel.shards import FlatLayout, Piece

__all__ = ["ShardedGradients"]


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
