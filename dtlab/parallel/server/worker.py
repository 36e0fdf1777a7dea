"""A worker of a parameter server: pulls parameters, pushes gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.messages import Group
from dtlab.parallel.server.shards import LEAVE, PULL, PUSH, Line, Shard, shards_of

__all__ = ["ParameterWorker"]


class ParameterWorker:
    """A rank that computes gradients of `module`, whose parameters the first `servers` ranks keep.

    Leave it when you have no more batches: as a context manager, or by `leave`. Others may wait
    for a worker that is still there. `index` is 0 for the first of `num_workers`: what a sampler
    wants to know.
    Raises: ValueError on a server's rank; ConnectionError, here and later, where a server is gone.
    """

    def __init__(self, module: nn.Module, servers: int = 1, group: Group = None) -> None:
        shards, me = shards_of(module, servers, group), dist.get_rank(group)
        if me < servers:
            raise ValueError(f"rank {me} of {servers} servers is to make a ParameterServer.")
        self.index, self.num_workers = me - servers, dist.get_world_size(group) - servers
        parameters = dict(module.named_parameters())
        self._servers = [
            _Remote(Line(rank, group), shard, parameters) for rank, shard in enumerate(shards)
        ]
        self._tables = {key.name: key.shape[0] for shard in shards for key in shard.tables}
        for server in self._servers:
            server.line.send(server.shard.hello())
        self._finish()

    def pull(self, rows: Mapping[str, Tensor] | None = None) -> None:
        """Bring the module's parameters to what the servers have.

        `rows` names the rows of each table, the weight of an `nn.Embedding(sparse=True)`, that are
        wanted: integers of any shape, repeated or not. What is not named stays as it is.
        Raises: ValueError for a name that is no table; IndexError for a row that it does not have.
        """
        wanted = {name: self._distinct(name, index) for name, index in (rows or {}).items()}
        for server in self._servers:
            server.ask(wanted)
        self._finish()
        for server in self._servers:
            server.unpack()

    def push(self, samples: int = 1) -> None:
        """Hand the gradients of the module to the servers, and clear them here.

        With "sync" the servers average, each worker counting as often as it has `samples`: pass
        the size of the batch where sizes differ.
        """
        if samples < 1:
            raise ValueError(f"push takes a number of samples from 1 on, not {samples}.")
        for server in self._servers:
            server.hand_over(samples)
        self._finish()

    def leave(self) -> None:
        """Tell the servers that nothing more will come; a second time says nothing."""
        servers, self._servers = self._servers, []
        for server in servers:
            if not server.lost:
                server.line.send(server.shard.header(LEAVE))
        self._finish(servers)

    def __enter__(self) -> ParameterWorker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(*[ConnectionError] if error else []):  # `error` came first
            self.leave()

    def _distinct(self, name: str, index: Tensor) -> Tensor:
        if name not in self._tables:
            known = ", ".join(self._tables) or "none: nn.Embedding(sparse=True) makes one"
            raise ValueError(f"{name!r} is no table. Tables are {known}.")
        rows: Tensor = torch.unique(index.detach().cpu().to(torch.int64))
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self._tables[name]:
            raise IndexError(f"{name} has {self._tables[name]} rows; asked for {rows.tolist()}.")
        return rows

    def _finish(self, servers: list[_Remote] | None = None) -> None:
        """Wait for every server; those that are left are heard before one that is gone is told."""
        gone: ConnectionError | None = None
        for server in self._servers if servers is None else servers:
            try:
                server.line.finish()
            except ConnectionError as error:
                server.lost, gone = True, error
        if gone:
            raise gone


class _Remote:
    """One server as a worker sees it: messages under way, and where they come from or go to."""

    def __init__(self, line: Line, shard: Shard, parameters: Mapping[str, nn.Parameter]) -> None:
        self.line, self.shard, self.lost = line, shard, False
        self._dense = [parameters[key.name] for key in shard.dense]
        self._tables = [parameters[key.name] for key in shard.tables]
        self._parameters, self._gradients = shard.memory(), shard.memory()
        self._values = shard.places(self._parameters)
        for parameter, value in zip(self._dense, self._values, strict=True):
            value.copy_(parameter.detach())
            if not parameter.is_cuda:
                parameter.data = value  # a pull arrives right where it belongs
        self._rows: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def ask(self, wanted: Mapping[str, Tensor]) -> None:
        """Start a pull."""
        none = torch.empty(0, dtype=torch.int64)
        indices = [wanted.get(key.name, none) for key in self.shard.tables]
        counts = [0] * len(self._dense) + [len(index) for index in indices]
        self.line.send(self.shard.header(PULL, 0, counts), *indices)
        self._rows = [
            (table, index, torch.empty(len(index), *table.shape[1:], dtype=table.dtype))
            for table, index in zip(self._tables, indices, strict=True)
        ]
        self.line.receive(self._parameters, *(rows for _, _, rows in self._rows))

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy what a pull brought into the module, where it did not arrive there already."""
        for parameter, value in zip(self._dense, self._values, strict=True):
            if parameter.data_ptr() != value.data_ptr():
                parameter.copy_(value)
        for table, index, rows in self._rows:
            table.index_copy_(0, index.to(table.device), rows.to(table.device))

    def hand_over(self, samples: int) -> None:
        """Start a push of the dense gradients, and of the rows of tables that have some."""
        places = self.shard.places(self._gradients)
        dense = self.shard.messages(self._gradients)
        for number, (parameter, place) in enumerate(zip(self._dense, places, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if number < self.shard.large and _can_travel(gradient, place):
                dense[number] = gradient.detach()
            else:
                place.copy_(gradient)
        tables = [_rows_of(table) for table in self._tables]
        counts = [int(parameter.grad is not None) for parameter in self._dense]
        counts += [len(index) for index, _ in tables]
        self.line.send(self.shard.header(PUSH, samples, counts), *dense)
        for index, rows in tables:
            self.line.send(index, rows)
        for parameter in (*self._dense, *self._tables):
            parameter.grad = None


def _can_travel(gradient: Tensor, place: Tensor) -> bool:
    """Whether it can be sent from where it lies, in place of a copy in `place`."""
    alike = gradient.dtype == place.dtype and gradient.layout == place.layout
    return gradient.is_cpu and alike and gradient.is_contiguous()


def _rows_of(table: nn.Parameter) -> tuple[Tensor, Tensor]:
    """The rows of a table that have a gradient, and their gradients."""
    if table.grad is None:
        return torch.empty(0, dtype=torch.int64), table.new_empty(0, *table.shape[1:]).cpu()
    gradient = table.grad if table.grad.is_sparse else table.grad.to_sparse(1)  # tied: dense
    gradient = gradient.coalesce().cpu()
    return gradient.indices()[0].contiguous(), gradient.values().contiguous()
