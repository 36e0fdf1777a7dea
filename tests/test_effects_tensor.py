"""What the lesson on tensor parallelism claims: what is sent, and what a slow link does to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size

import dtlab
from dtlab import predict
from dtlab.parallel.tensor import ColumnParallelLinear, ParallelBlock
from dtlab.training.models import MLP

pytestmark = pytest.mark.slow

BATCH, TOKENS, WIDTH = 8, 64, 64
ACTIVATIONS = 4 * BATCH * TOKENS * WIDTH  # bytes of [b, s, h]


def step(sequence_parallel: bool = False) -> None:
    block = ParallelBlock(WIDTH, 4, sequence_parallel=sequence_parallel)
    tokens = TOKENS // get_world_size() if sequence_parallel else TOKENS
    x = torch.ones(BATCH, tokens, WIDTH, requires_grad=True)
    with dtlab.span("step"):
        block(x).sum().backward()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_sends_8bsh_and_with_sequence_parallelism_a_quarter_more(ranks: int) -> None:
    once = ACTIVATIONS * (ranks - 1) / ranks
    for sequence_parallel, times in ((False, 8), (True, 10)):  # two inputs are gathered again
        sent = dtlab.launch(step, sequence_parallel, world_size=ranks).trace.bytes_wire()
        for each in sent:
            assert each == pytest.approx(times * once, rel=0.03)


def steps() -> None:
    block = ParallelBlock(WIDTH, 4)
    for name, batch in (("warm", 1), *[("step", BATCH)] * 3):
        x = torch.ones(batch, TOKENS, WIDTH, requires_grad=True)
        with dtlab.span(name):
            block(x).sum().backward()


def test_a_slow_link_makes_it_crawl_as_predicted() -> None:
    slow, fast = predict.Link(1e-6, 2e6), predict.Link(1e-6, 1e9)
    took = []
    for link in (slow, fast):
        cluster = dtlab.Cluster(nodes=1, gpus_per_node=2, intra=link)
        events = dtlab.launch(steps, cluster=cluster).trace.events
        took.append([e.end - e.start for e in events if e.name == "step" and e.rank == 0])
    predicted = 4 * predict.ring_all_reduce_seconds(ACTIVATIONS, 2, slow)
    assert predicted * 0.95 < min(took[0])  # a busy machine adds to it
    assert min(took[0]) > 2 * min(took[1])


def half(seed: int, weight: Callable[[Tensor], Tensor]) -> float:
    """How far from the dense layer's the outputs are, of half a weight [out, in]."""
    dense = MLP(6, 6, seed=seed).layers[0]
    assert isinstance(dense, nn.Linear)
    layer = ColumnParallelLinear.from_dense(dense)
    layer.weight.data = weight(dense.weight.detach()).contiguous()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    wanted = dense(x)[:, 3 * get_rank() : 3 * get_rank() + 3]
    got = torch.nn.functional.linear(x, layer.weight)
    return float((got + layer.bias - wanted).abs().max())


def halves() -> list[tuple[float, float]]:
    own = slice(3 * get_rank(), 3 * get_rank() + 3)
    return [(half(s, lambda w: w[own]), half(s, lambda w: w.t()[own])) for s in range(5)]


def test_column_parallel_cuts_the_rows_of_what_linear_stores() -> None:
    for found in dtlab.launch(halves, world_size=2).values:
        for rows, columns in found:
            assert rows < 1e-6 < 0.05 < columns
