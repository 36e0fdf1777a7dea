"""What the lesson on three dimensions claims: which axis belongs inside the node."""

from __future__ import annotations

import time
from statistics import median

import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.parallel.gpt import ParallelGPT
from dtlab.parallel.mesh import group_of, make_mesh
from dtlab.predict import LINKS
from dtlab.training.models import GPTConfig
from tests.marks import first
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("10")]

CONFIG = GPTConfig(vocab_size=64, context=64, num_layers=4, num_heads=4, width=64)
ORDERS = {  # the outermost axis first: the last one is inside the node
    "tensor": {"data": 2, "pipeline": 1, "tensor": 2},
    "data": {"tensor": 2, "pipeline": 1, "data": 2},
}


def steps(sizes: dict[str, int], seed: int) -> float:
    """The median time of a step without the first."""
    draw = torch.Generator().manual_seed(seed)
    batch = torch.randint(0, CONFIG.vocab_size, (32, 65), generator=draw)
    mesh = make_mesh(**sizes)
    model = ParallelGPT(CONFIG, mesh)
    mine = batch.chunk(sizes["data"])[mesh.get_local_rank("data")]
    seconds = []
    for _ in range(4):
        dist.barrier()
        begin = time.perf_counter()
        model.forward_backward(mine[:, :-1], mine[:, 1:])
        seconds.append(time.perf_counter() - begin)
    return median(seconds[1:])


@pytest.mark.parametrize("seed", first(range(3)))
def test_tensor_parallelism_inside_the_node_is_faster_and_sends_as_much(seed: int) -> None:
    cluster = dtlab.Cluster(
        nodes=2, gpus_per_node=2, intra=LINKS["NVLink 3"], inter=LINKS["InfiniBand HDR"],
        slowdown=1000,
    )  # fmt: skip
    took, sent = {}, {}
    for inside, sizes in ORDERS.items():
        run = on_ranks(steps, sizes, seed, world_size=4, cluster=cluster)
        took[inside] = max(run.values)
        group = tuple(group_of(0, "tensor", sizes))
        sent[inside] = sum(
            event.bytes for event in run.trace.events
            if event.rank == 0 and event.extra.get("group") == group
        )  # fmt: skip
    assert took["tensor"] < took["data"] / 1.2
    assert sent["tensor"] == sent["data"] > 0
