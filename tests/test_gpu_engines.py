"""Engines on a GPU, with NCCL and one rank: they train as one process does, and are recorded.

On a GPU backward runs on a thread of C++. Collectives that DDP or FSDP2 issue there have no
Python caller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import dtlab

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
Engine = tuple[nn.Module, Optimizer]


def plain(module: nn.Module) -> Engine:
    return module, Adam(module.parameters(), foreach=False)


def ddp(module: nn.Module) -> Engine:
    return plain(nn.parallel.DistributedDataParallel(module))


def ours(name: str, module: nn.Module) -> Engine:
    from dtlab.parallel import data

    return plain(getattr(data, name)(module))


def fsdp(module: nn.Sequential) -> Engine:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (1,))
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return plain(module)


def sharded_optimizer(name: str, module: nn.Module) -> Engine:
    from dtlab.parallel import zero

    return module, getattr(zero, name)(module.parameters(), Adam, foreach=False)


def zero_3(module: nn.Module) -> Engine:
    from dtlab.parallel.zero import Zero3

    return plain(Zero3(module))


def losses(wrap: Callable[[Any], Engine], net: nn.Module, inputs: Iterable[Tensor]) -> list[float]:
    model, optimizer = wrap(net)
    losses = []
    for batch in inputs:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def both(wrap: Callable[[Any], Engine]) -> tuple[list[float], list[float]]:
    """Losses of the engine, and of one process."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(17, 33), nn.GELU(), nn.Linear(33, 5)).to("cuda")
    inputs = list(torch.randn(4, 7, 17, device="cuda"))
    expected = losses(plain, copy.deepcopy(net), inputs)
    return losses(wrap, net, inputs), expected


@pytest.mark.parametrize(
    "wrap",
    [
        ddp, fsdp, partial(ours, "NaiveDataParallel"), partial(ours, "DataParallel"),
        partial(sharded_optimizer, "Zero1"), partial(sharded_optimizer, "Zero2"), zero_3,
    ],
    ids=["DDP", "FSDP2", "NaiveDataParallel", "DataParallel", "Zero1", "Zero2", "Zero3"],
)  # fmt: skip
def test_engines_on_a_gpu(wrap: Callable[[Any], Engine]) -> None:
    run = dtlab.launch(both, wrap, world_size=1)
    assert "nccl" in run.backend
    ((trained, expected),) = run.values
    assert trained == pytest.approx(expected, rel=1e-5)
    assert trained[-1] < trained[0]
    assert run.trace is not None
    assert run.trace.ops(0) or wrap is fsdp  # FSDP2 sends nothing to itself
