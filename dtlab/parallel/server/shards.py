"""The protocol of a parameter server: which server keeps which key, and the message formats.

    pull    worker ── header, row indices of each table ──> server
            worker <── dense keys, rows of each table ───── server
    push    worker ── header, dense gradients, row indices and gradients of each table ──> server

The dense keys of one server share one block of memory, whatever their dtypes, and are sent as one
message. Their gradients are also sent as one message, except large ones: packing a large gradient
would take about as long as sending it, so it is a separate message. A table is the weight of an
`nn.Embedding(sparse=True)`; only the rows that a worker uses are sent.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.messages import Group

__all__ = ["HELLO", "LEAVE", "PULL", "PUSH", "Key", "Line", "Shard", "balanced", "shards_of"]

HELLO, PULL, PUSH, LEAVE = range(4)  # the first number of a header
ALIGNMENT = 64  # bytes: each key begins at a multiple of this in a shard's memory
LARGE = 1 << 18  # bytes: a gradient of at least this size is a separate message


class Key(NamedTuple):
    """Name, shape and dtype of one parameter."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    is_table: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Shard:
    """The keys of one server: the dense keys, large before small, then the tables."""

    def __init__(self, keys: Sequence[Key]) -> None:
        dense = [key for key in keys if not key.is_table]
        self.large = sum(key.nbytes >= LARGE for key in dense)  # keys at the front of `dense`
        self.dense = sorted(dense, key=lambda key: key.nbytes < LARGE)
        self.tables = [key for key in keys if key.is_table]
        self.keys = self.dense + self.tables

    def memory(self) -> Tensor:
        """Allocate bytes for all dense keys."""
        return torch.zeros(sum(_padded_bytes(key) for key in self.dense), dtype=torch.uint8)

    def places(self, memory: Tensor) -> list[Tensor]:
        """Return each dense key in `memory`, as a view of its shape and dtype."""
        places, start = [], 0
        for key in self.dense:
            piece = memory[start : start + key.nbytes]
            places.append(piece.view(key.dtype).view(key.shape))
            start += _padded_bytes(key)
        return places

    def messages(self, memory: Tensor) -> list[Tensor]:
        """Return `memory` as the messages of a push: one per large key, one for all small keys."""
        start = sum(_padded_bytes(key) for key in self.dense[: self.large])
        return [*self.places(memory)[: self.large], memory[start:]]

    def header(self, kind: int, samples: int = 0, counts: Sequence[int] = ()) -> Tensor:
        """Return the header of a request; `counts` has a number per key: of rows, for a table."""
        rest = counts or [0] * len(self.keys)
        return torch.tensor([kind, samples, *rest], dtype=torch.int64)

    def indices(self, counts: Sequence[int]) -> list[Tensor]:
        """Allocate indices for the number of rows of each table that the header states."""
        rows = counts[len(self.dense) :]
        return [torch.empty(count, dtype=torch.int64) for count in rows]

    def hello(self) -> Tensor:
        """Return a worker's first message: a checksum of its keys."""
        keys = repr([(key.name, tuple(key.shape), key.dtype, key.is_table) for key in self.keys])
        return torch.tensor([HELLO, zlib.crc32(keys.encode())], dtype=torch.int64)


def _padded_bytes(key: Key) -> int:
    return -(-key.nbytes // ALIGNMENT) * ALIGNMENT


def shards_of(module: nn.Module, servers: int, group: Group) -> list[Shard]:
    """Return the shard of each server: the parameters of `module` that require a gradient.

    Raises: ValueError if `servers` is below 1 or leaves no worker, or there are fewer parameters
    than servers.
    """
    world_size = dist.get_world_size(group)
    if not 1 <= servers < world_size:
        raise ValueError(
            f"{servers} of {world_size} ranks cannot be servers. Pass servers from 1 to "
            f"{world_size - 1}: the other ranks are workers."
        )
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding) and m.sparse}
    keys = [
        Key(name, parameter.shape, parameter.dtype, id(parameter) in tables)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    ]
    if len(keys) < servers:
        raise ValueError(
            f"{len(keys)} parameters cannot be divided among {servers} servers. Use fewer servers."
        )
    split = balanced({key.name: key.nbytes for key in keys}, servers)
    return [Shard([key for key in keys if key.name in names]) for names in split]


def balanced(sizes: Mapping[str, int], shards: int) -> list[set[str]]:
    """Distribute names over shards by size: the largest first, each to the smallest shard so far.

    No shard gets more than 4/3 of the largest shard of the best split. Graham 1969, "Bounds on
    multiprocessing timing anomalies".
    """
    split: list[set[str]] = [set() for _ in range(shards)]
    loads = [0] * shards
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        lightest = min(range(shards), key=lambda shard: (loads[shard], len(split[shard])))
        split[lightest].add(name)
        loads[lightest] += sizes[name]
    return split


class Line:
    """Messages between this rank and one other rank of the group, in order."""

    def __init__(self, peer: int, group: Group) -> None:
        self.peer = peer
        self._group = group
        self._pending: list[tuple[dist.Work | None, Tensor]] = []
        self._broken: RuntimeError | None = None

    def send(self, *tensors: Tensor) -> None:
        """Start to send; do not change the tensors before `finish` returns."""
        for tensor in _filled(tensors):
            self._start(partial(dist.isend, group_dst=self.peer), tensor)

    def receive(self, *tensors: Tensor) -> None:
        """Start to receive into the tensors."""
        for tensor in _filled(tensors):
            self._start(partial(dist.irecv, group_src=self.peer), tensor)

    def finish(self) -> None:
        """Wait for all sends and receives. Raises: ConnectionError if the other rank has died."""
        pending, self._pending = self._pending, []
        for work, _ in pending:
            with self._storing_errors():
                if work is not None:
                    work.wait()
        if self._broken:
            raise ConnectionError(
                f"rank {self.peer} has died. Look at what it printed or raised before."
            ) from self._broken

    def _start(self, operation: Callable[..., dist.Work | None], tensor: Tensor) -> None:
        with self._storing_errors():
            self._pending.append((operation(tensor, group=self._group), tensor))

    @contextmanager
    def _storing_errors(self) -> Iterator[None]:
        """Store an error of gloo until `finish` raises it as a ConnectionError."""
        try:
            yield
        except RuntimeError as error:
            self._broken = error


def _filled(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    return (tensor for tensor in tensors if tensor.numel())
