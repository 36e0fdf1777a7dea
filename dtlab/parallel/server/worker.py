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
    """A rank that computes gradients of `module`; the first `servers` ranks keep its parameters.

    Use it as a context manager, or call `leave` after the last batch: until then other workers may
    wait for this one. `index` counts workers from 0 to `num_workers` - 1, for example for a
    sampler. Raises: ValueError on a server's rank or for an invalid `servers`; ConnectionError,
    here and in later calls, if a server has died.
    """

    def __init__(self, module: nn.Module, servers: int = 1, group: Group = None) -> None:
        shards, rank = shards_of(module, servers, group), dist.get_rank(group)
        if rank < servers:
            raise ValueError(
                f"rank {rank} is one of {servers} servers. Make a ParameterServer on it."
            )
        self.index, self.num_workers = rank - servers, dist.get_world_size(group) - servers
        parameters = dict(module.named_parameters())
        self._servers = [
            _Remote(Line(peer, group), shard, parameters) for peer, shard in enumerate(shards)
        ]
        self._tables = {key.name: key.shape[0] for shard in shards for key in shard.tables}
        for server in self._servers:
            server.line.send(server.shard.hello())
        self._finish()

    def pull(self, rows: Mapping[str, Tensor] | None = None) -> None:
        """Update the module's parameters from the servers.

        `rows` maps the name of a table, the weight of an `nn.Embedding(sparse=True)`, to the rows
        needed: integers of any shape, possibly repeated. Other rows are not updated.
        Raises: ValueError for a name that is not a table; IndexError for a row outside the table.
        """
        requested = {name: self._distinct(name, index) for name, index in (rows or {}).items()}
        for server in self._servers:
            server.start_pull(requested)
        self._finish()
        for server in self._servers:
            server.unpack()

    def push(self, samples: int = 1) -> None:
        """Send the gradients of the module to the servers, and clear them on this worker.

        With "sync" the servers weight each worker's gradient by its `samples`: pass the batch size
        if batch sizes differ. Raises: ValueError if `samples` is below 1.
        """
        if samples < 1:
            raise ValueError(f"push needs a number of samples of 1 or more, not {samples}.")
        for server in self._servers:
            server.start_push(samples)
        self._finish()

    def leave(self) -> None:
        """Tell the servers that this worker has finished; a second call does nothing."""
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
        with contextlib.suppress(*[ConnectionError] if error else []):  # do not replace `error`
            self.leave()

    def _distinct(self, name: str, index: Tensor) -> Tensor:
        if name not in self._tables:
            tables = f"The tables are {', '.join(self._tables)}." if self._tables else (
                "This module has none: use nn.Embedding(sparse=True) to make one."
            )  # fmt: skip
            raise ValueError(f"{name!r} is not a table. {tables}")
        rows: Tensor = torch.unique(index.detach().cpu().to(torch.int64))
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self._tables[name]:
            raise IndexError(
                f"{name} has {self._tables[name]} rows, but pull got the rows {rows.tolist()}."
            )
        return rows

    def _finish(self, servers: list[_Remote] | None = None) -> None:
        """Wait for every server; after that, raise ConnectionError if a server has died."""
        lost: ConnectionError | None = None
        for server in self._servers if servers is None else servers:
            try:
                server.line.finish()
            except ConnectionError as error:
                server.lost, lost = True, error
        if lost:
            raise lost


class _Remote:
    """A worker's connection to one server, and the tensors that its messages use."""

    def __init__(self, line: Line, shard: Shard, parameters: Mapping[str, nn.Parameter]) -> None:
        self.line, self.shard, self.lost = line, shard, False
        self._dense = [parameters[key.name] for key in shard.dense]
        self._tables = [parameters[key.name] for key in shard.tables]
        self._parameters, self._gradients = shard.memory(), shard.memory()
        self._values = shard.places(self._parameters)
        for parameter, value in zip(self._dense, self._values, strict=True):
            value.copy_(parameter.detach())
            if not parameter.is_cuda:
                parameter.data = value  # a pull receives directly into the parameter
        self._rows: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def start_pull(self, requested: Mapping[str, Tensor]) -> None:
        """Start a pull."""
        none = torch.empty(0, dtype=torch.int64)
        indices = [requested.get(key.name, none) for key in self.shard.tables]
        counts = [0] * len(self._dense) + [len(index) for index in indices]
        self.line.send(self.shard.header(PULL, 0, counts), *indices)
        self._rows = [
            (table, index, torch.empty(len(index), *table.shape[1:], dtype=table.dtype))
            for table, index in zip(self._tables, indices, strict=True)
        ]
        self.line.receive(self._parameters, *(rows for _, _, rows in self._rows))

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy the result of a pull into parameters that do not share its memory."""
        for parameter, value in zip(self._dense, self._values, strict=True):
            if parameter.data_ptr() != value.data_ptr():
                parameter.copy_(value)
        for table, index, rows in self._rows:
            table.index_copy_(0, index.to(table.device), rows.to(table.device))

    def start_push(self, samples: int) -> None:
        """Start a push of the dense gradients, and of the table rows that have a gradient."""
        places = self.shard.places(self._gradients)
        dense = self.shard.messages(self._gradients)
        for number, (parameter, place) in enumerate(zip(self._dense, places, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if number < self.shard.large and _can_send_directly(gradient, place):
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


def _can_send_directly(gradient: Tensor, place: Tensor) -> bool:
    """Return whether a gradient can be sent directly, without a copy to `place`."""
    equal = gradient.dtype == place.dtype and gradient.layout == place.layout
    return gradient.is_cpu and equal and gradient.is_contiguous()


def _rows_of(table: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Return the indices of the rows of a table that have a gradient, and their gradients."""
    if table.grad is None:
        return torch.empty(0, dtype=torch.int64), table.new_empty(0, *table.shape[1:]).cpu()
    # The gradient of a tied table is dense.
    gradient = table.grad if table.grad.is_sparse else table.grad.to_sparse(1)
    gradient = gradient.coalesce().cpu()
    return gradient.indices()[0].contiguous(), gradient.values().contiguous()
