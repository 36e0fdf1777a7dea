"""A parameter server: some ranks keep the parameters, the other ranks compute gradients.

        worker 2     worker 3     worker 4     worker 5        the last ranks of the group
           │╲           │╲           │╲           │╲           pull: parameters to the workers
           │ ╲──────────┼─╲──────────┼─╲──────────┼─╲          push: gradients to the servers
        server 0: half of the keys       server 1: other half  the first ranks of the group

    def train():
        model = make_model()                                   # the same parameters on every rank
        if dist.get_rank() < 2:
            return ParameterServer(model, partial(SGD, lr=0.1), servers=2).serve()
        with ParameterWorker(model, servers=2) as worker:
            for inputs, targets in my_batches():
                worker.pull()
                cross_entropy(model(inputs), targets).backward()
                worker.push()

`serve` and `work` in `dtlab/simple.py` are one server that waits for all workers. The classes here
add several servers, tables of which only some rows are sent, workers that need not wait for each
other, and workers that die.

Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server". A server has one
thread per worker, and each thread receives from its worker only. With gloo, such a receive fails
at once if the worker has died; a receive from any worker would not report this. So the death of a
worker ends only its threads on the servers. If the worker had pushed to one server and not yet to
the other, only the first server's keys are updated.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.messages import Group
from dtlab.parallel.server.shards import LEAVE, PULL, Line, shards_of
from dtlab.parallel.server.worker import ParameterWorker

__all__ = ["ParameterServer", "ParameterWorker", "ServerReport"]

Consistency = Literal["sync", "bounded", "async"]


@dataclass
class ServerReport:
    """Statistics of one server. Workers are identified by their rank in the group.

    `delays` counts gradients by their delay: the number of updates of this shard between the pull
    before the gradient's computation and the update with this gradient. `leads` counts pulls by
    their lead: how many steps the worker was ahead of the slowest worker when the server answered.
    """

    updates: int = 0
    pushes: Counter[int] = field(default_factory=Counter)
    delays: Counter[int] = field(default_factory=Counter)
    leads: Counter[int] = field(default_factory=Counter)
    bytes_received: int = 0  # payload: gradients and row indices
    bytes_sent: int = 0  # payload: parameters
    lost: list[int] = field(default_factory=list)  # workers that ended without leaving


class _Push(NamedTuple):
    """A worker's push: a gradient for each key, or None for a key without a gradient."""

    samples: int
    gradients: list[Tensor | None]


@dataclass
class _Client:
    """What a server stores about a worker."""

    line: Line
    buffer: Tensor  # for dense parameters to be sent, and for gradients until their update
    steps: int = 0  # pushes so far
    version: int = 0  # number of updates at its last pull


class ParameterServer:
    """Keeps one shard of a module's parameters, for workers that pull them and push gradients.

    The group's first `servers` ranks are servers; every other rank makes a `ParameterWorker` of
    the same module. A key is the name of a parameter that requires a gradient; the keys are
    balanced over the servers by size. `optimizer` is a function that makes a torch optimizer from
    a list of parameters. `consistency` limits how many steps a worker may be ahead of the slowest:

        "sync"      no steps: each update uses one gradient of every worker, averaged by samples
        "bounded"   at most `staleness` steps; each gradient is an update. Ho et al. 2013, "More
                    Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
        "async"     no limit; each gradient is an update. Dean et al. 2012, "Large Scale
                    Distributed Deep Networks"

    With a bound of s and W workers, at most (2s + 1)(W - 1) updates of the other workers lie
    between a pull and its push. Buffers, such as BatchNorm's, stay on each worker. The group needs
    a backend for CPU tensors, such as gloo.
    Raises: ValueError for an invalid rank or option.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        servers: int = 1,
        consistency: Consistency = "sync",
        staleness: int | None = None,
        group: Group = None,
    ) -> None:
        self._bound, self._averages = _bound(consistency, staleness), consistency == "sync"
        shards, rank = shards_of(module, servers, group), dist.get_rank(group)
        if rank >= servers:
            raise ValueError(
                f"rank {rank} is not one of {servers} servers. Make a ParameterWorker on it."
            )
        self._shard = shards[rank]
        self._memory = self._shard.memory()
        tables = [torch.empty(table.shape, dtype=table.dtype) for table in self._shard.tables]
        places = [*self._shard.places(self._memory), *tables]
        names = [key.name for key in self._shard.keys]
        for name, place in zip(names, places, strict=True):
            place.copy_(module.get_parameter(name).detach())
        self.parameters = dict(zip(names, map(nn.Parameter, places), strict=True))
        self.optimizer = optimizer(list(self.parameters.values()))
        self.report = ServerReport()
        self._clients = {
            rank: _Client(Line(rank, group), self._shard.memory())
            for rank in range(servers, dist.get_world_size(group))
        }
        self._pushed: dict[int, _Push] = {}  # pushes for the next update
        self._failure: BaseException | None = None
        self._change = threading.Condition()  # guards all attributes above

    def serve(self) -> ServerReport:
        """Serve the workers until the last worker has left, then return statistics.

        After this, `parameters` has the final values. Raises: errors of the optimizer; ValueError
        if a worker has another module.
        """
        for rank in list(self._clients):
            threading.Thread(target=self._serve_worker, args=(rank,), daemon=True).start()
        with self._change:
            self._change.wait_for(lambda: self._failure or not self._clients)
        if self._failure:
            raise self._failure
        return self.report

    # ------------------------------------------------------------------ a thread for each worker

    def _serve_worker(self, rank: int) -> None:
        """Handle one worker's requests until it leaves or is lost; then stop waiting for it."""
        lost, failure = False, None
        try:
            self._greet(self._clients[rank].line)
            while self._answer(self._clients[rank]):
                pass
        except ConnectionError:
            lost = True
        except BaseException as error:  # noqa: BLE001  `serve` raises it, in the main thread
            failure = error
        with self._change:
            self._failure = self._failure or failure
            self.report.lost += [rank] * lost
            del self._clients[rank]
            if not self._failure:
                self._update_if_complete()
            self._change.notify_all()

    def _greet(self, line: Line) -> None:
        """Check that the worker has the same keys as this server."""
        expected = self._shard.hello()
        hello = torch.empty_like(expected)
        line.receive(hello)
        line.finish()
        if not hello.equal(expected):
            raise ValueError(
                f"rank {line.peer} has other parameters than this server. Pass the same module "
                "and the same `servers` on every rank."
            )

    def _answer(self, client: _Client) -> bool:
        """Handle one request. Returns False if the worker leaves."""
        header = torch.empty_like(self._shard.header(LEAVE))
        client.line.receive(header)
        client.line.finish()
        kind, samples, *counts = header.tolist()
        if kind == LEAVE:
            return False
        with self._change:  # a worker that is too far ahead waits here for the slowest
            self._change.wait_for(lambda: self._lead(client) <= self._bound)
        if kind == PULL:
            self._send_parameters(client, counts)
        else:
            self._take_gradients(client, samples, counts)
        return True

    def _lead(self, client: _Client) -> int:
        return client.steps - min(each.steps for each in self._clients.values())

    def _send_parameters(self, client: _Client, counts: list[int]) -> None:
        """Answer a pull with all dense keys, of one version, and the requested rows."""
        indices = self._shard.indices(counts)
        client.line.receive(*indices)
        client.line.finish()
        tables = list(self.parameters.values())[len(self._shard.dense) :]
        with self._change:
            self.report.leads[self._lead(client)] += 1
            client.version = self.report.updates
            dense = self._memory  # with "sync" no update begins before all pulls are answered
            if not self._averages:
                dense = client.buffer.copy_(self._memory)
            rows = [table.detach()[i] for table, i in zip(tables, indices, strict=True)]
            self.report.bytes_received += sum(index.nbytes for index in indices)
            self.report.bytes_sent += dense.nbytes + sum(row.nbytes for row in rows)
        client.line.send(dense, *rows)  # without the lock: the worker may be slow, or dead
        client.line.finish()

    def _take_gradients(self, client: _Client, samples: int, counts: list[int]) -> None:
        """Receive a push, and update the parameters if it completes an update."""
        indices = self._shard.indices(counts)
        tables = list(zip(self._shard.tables, indices, strict=True))
        rows = [torch.empty(len(i), *key.shape[1:], dtype=key.dtype) for key, i in tables]
        client.line.receive(*self._shard.messages(client.buffer))
        for index, values in zip(indices, rows, strict=True):
            client.line.receive(index, values)
        client.line.finish()
        gradients: list[Tensor | None] = list(self._shard.places(client.buffer))
        for (key, i), values in zip(tables, rows, strict=True):
            table = torch.sparse_coo_tensor(i[None], values, key.shape, check_invariants=True)
            gradients.append(table)
        present = [g if count else None for g, count in zip(gradients, counts, strict=True)]
        with self._change:
            self.report.bytes_received += sum(t.nbytes for t in (client.buffer, *indices, *rows))
            self.report.pushes[client.line.peer] += 1
            self.report.delays[self.report.updates - client.version] += 1
            client.steps += 1
            self._pushed[client.line.peer] = _Push(samples, present)
            self._update_if_complete()
            self._change.notify_all()

    # ------------------------------------------------------------------ updates

    def _update_if_complete(self) -> None:
        """Update the parameters with each push or, with "sync", once every worker has pushed."""
        missing = self._averages and any(rank not in self._pushed for rank in self._clients)
        if missing or not self._pushed:
            return
        pushed = [self._pushed[rank] for rank in sorted(self._pushed)]  # in a reproducible order
        for number, parameter in enumerate(self.parameters.values()):
            parameter.grad = _mean([(p.samples, p.gradients[number]) for p in pushed])
        self.optimizer.step()
        self._pushed.clear()
        self.report.updates += 1


def _mean(parts: list[tuple[int, Tensor | None]]) -> Tensor | None:
    """Return the mean by samples; a missing gradient counts as 0. None if all are missing."""
    if len(parts) == 1:
        return parts[0][1]
    counts = [samples for samples, _ in parts]
    equal, mean = len(set(counts)) == 1, None
    for samples, gradient in parts:
        if gradient is not None:
            part = gradient if equal else gradient.mul_(samples / sum(counts))
            mean = part if mean is None else mean.add_(part)
    return mean if mean is None or not equal else mean.div_(len(parts))


def _bound(consistency: str, staleness: int | None) -> float:
    """Return how many steps a worker may be ahead of the slowest worker."""
    bounds = {"sync": 0, "bounded": staleness, "async": math.inf}
    if consistency not in bounds:
        raise ValueError(f"consistency {consistency!r} is unknown. Pass one of {[*bounds]}.")
    if (consistency == "bounded") != (staleness is not None):
        raise ValueError(
            f"consistency={consistency!r} does not go with staleness={staleness}. Pass staleness "
            'if and only if consistency="bounded".'
        )
    bound = bounds[consistency]
    if bound is None or bound < 0:
        raise ValueError(f"staleness must be a number of steps, 0 or more, not {staleness}.")
    return bound
