"""The parameter server against bare sends and receives of the same bytes in the same pattern.

2 servers, 4 workers. In each round every worker gets 4 MB from each server, waits for both, and
gives 4 MB to each; a server has a thread for each worker. Ours: pull and push of a module of 8 MB
in four parameters, and SGD on the servers. Figures are medians of interleaved pairs; the goal is
0.6 of bare.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.bench.measure import seconds_per_call
from dtlab.parallel.server import ParameterServer, ParameterWorker

SERVERS, WORKERS = 2, 4
MESSAGE = 4_194_304  # bytes
ROUNDS, PAIRS = 10, 7
MODES = ("sync", "bounded", "async")


class _Model(nn.Module):
    """Parameters of 2 x MESSAGE bytes, of which each of two servers keeps half."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(MESSAGE // 8) for _ in range(4))


def _bare() -> None:
    """Send the same messages without headers, copies and updates."""
    if dist.get_rank() >= SERVERS:
        parameters, gradients = (torch.zeros(SERVERS, MESSAGE // 4) for _ in range(2))
        for _ in range(ROUNDS):
            _wait([dist.irecv(parameters[server], server) for server in range(SERVERS)])
            _wait([dist.isend(gradients[server], server) for server in range(SERVERS)])
        return
    workers = range(SERVERS, SERVERS + WORKERS)
    threads = [threading.Thread(target=_bare_pair, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _bare_pair(worker: int) -> None:
    parameters, gradients = (torch.zeros(MESSAGE // 4) for _ in range(2))
    for _ in range(ROUNDS):
        dist.send(parameters, worker)
        dist.recv(gradients, worker)


def _wait(works: list[dist.Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def _ours(consistency: str) -> Callable[[], object]:
    """This rank's part, ready to begin."""
    module = _Model()
    if dist.get_rank() < SERVERS:
        sgd = partial(torch.optim.SGD, lr=0.1)
        staleness = 1 if consistency == "bounded" else None
        return ParameterServer(module, sgd, SERVERS, consistency, staleness).serve  # type: ignore[arg-type]
    gradients = [torch.zeros_like(p) for p in module.parameters()]
    return partial(_work, module, gradients)


def _work(module: nn.Module, gradients: list[torch.Tensor]) -> None:
    with ParameterWorker(module, SERVERS) as worker:
        for _ in range(ROUNDS):
            worker.pull()
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.grad = gradient
            worker.push()


def _rate(call: Callable[[], object]) -> float:
    """Bytes per second of parameters and gradients, by the slowest rank."""
    return 2 * SERVERS * WORKERS * ROUNDS * MESSAGE / seconds_per_call(call, 1)


def measure(pairs: int = PAIRS) -> dict[str, tuple[float, float]]:
    """Return on every rank {consistency: (median bytes/s, median share of bare)}."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # imports, which take a second or two
    table = {}
    for mode in MODES:
        seen = [(_rate(_ours(mode)), _rate(_bare)) for _ in range(pairs)]
        rates, shares = [ours for ours, _ in seen], [ours / bare for ours, bare in seen]
        table[mode] = statistics.median(rates), statistics.median(shares)
    return table


def main() -> None:
    """Print the table. The watcher is off, as in the other benchmarks."""
    os.environ["DTLAB_UNWATCHED"] = "1"
    print(f"parameter server: {WORKERS} workers, {SERVERS} servers, messages of 4 MB (goal: 0.60)")
    run = dtlab.launch(measure, world_size=SERVERS + WORKERS, trace=False, timeout=120)
    for mode, (rate, share) in run.values[0].items():
        print(f"{mode:>8} {rate / 1e9:6.2f} GB/s {share:6.2f} of bare sends and receives")


if __name__ == "__main__":
    main()
