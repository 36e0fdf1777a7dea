"""Parameter servers whose workers die: `python -m tests.dying_ranks FOLDER` prints the results.

The ranks are forked here and meet through a file in FOLDER: no launcher looks after them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._dynamo  # what the first optimizer imports: once, and not on every rank
import torch.distributed as dist
from torch import nn

from dtlab.parallel.server import ParameterServer, ParameterWorker
from dtlab.parallel.server.shards import PULL, PUSH

SERVERS, WORLD_SIZE, STEPS, LAST = 2, 5, 10, 4
HEARD = 7  # exit status of a worker that met ConnectionError


class _Model(nn.Module):
    """A model with a parameter on each of two servers that counts the pushes of three workers."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.ParameterList(torch.zeros(3) for _ in range(SERVERS))


class _Failing(torch.optim.SGD):
    """Raises in its third step."""

    def step(self, closure: Any = None) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3:
            raise ArithmeticError("this server fails")
        return super().step(closure)


def _serve(folder: Path, consistency: Any, how: str) -> None:
    rank = dist.get_rank()
    fails = how == "a server fails" and rank == 1
    staleness = 1 if consistency == "bounded" else None
    server = ParameterServer(
        _Model(),
        lambda parameters: (_Failing if fails else torch.optim.SGD)(parameters, lr=1.0),
        SERVERS,
        consistency,
        staleness,
    )
    report = server.serve()
    (counts,) = server.parameters.values()
    seen = {"lost": report.lost, "pushes": report.pushes, "seen": counts.tolist()}
    (folder / f"report-{rank}").write_text(json.dumps(seen))


def _work(how: str) -> None:
    model = _Model()
    with ParameterWorker(model, SERVERS) as worker:
        for step in range(STEPS):
            if worker.index == 0 and step == LAST:
                _die(how, worker)
            worker.pull()
            for count in model.counts:
                count.grad = torch.zeros(3)
                count.grad[worker.index] = -1
            worker.push()


def _die(how: str, worker: ParameterWorker) -> None:
    if how == "raises":
        raise ArithmeticError("this worker fails")
    kinds = {"killed in a push": PUSH, "killed in a pull": PULL}
    if how in kinds:  # the servers get the header of a message, and then nothing
        for server in worker._servers:
            server.line.send(server.shard.header(kinds[how], 1, [1]))
        worker._finish()
    if how.startswith("killed"):
        os.kill(os.getpid(), 9)


def _be_rank(rank: int, folder: Path, how: str, consistency: str) -> NoReturn:
    code = 1
    try:
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), WORLD_SIZE)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
        if rank < SERVERS:
            _serve(folder, consistency, how)
        else:
            _work(how)
        code = 0
    except ConnectionError:
        code = HEARD
    except ArithmeticError:
        pass
    except BaseException:  # noqa: BLE001  a forked rank must not run on as its parent
        traceback.print_exc()
        code = 2
    finally:
        os._exit(code)


def _case(folder: Path, how: str, consistency: str) -> tuple[list[int], list[Any]]:
    folder.mkdir()
    pids = []
    for rank in range(WORLD_SIZE):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, folder, how, consistency)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return codes, [json.loads(file.read_text()) for file in sorted(folder.glob("report-*"))]


def main(folder: Path) -> None:
    """Every case, one after the other."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ways = ("killed", "killed in a push", "killed in a pull", "raises")
    cases = {
        f"{how}, {consistency}": (how, consistency)
        for how in ways
        for consistency in ("sync", "bounded", "async")
    } | {"a server fails": ("a server fails", "async")}
    print(json.dumps({name: _case(folder / name, *case) for name, case in cases.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
