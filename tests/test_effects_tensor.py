"""The claims of the lesson on tensor parallelism: what ranks send, also over a slow link."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size
from torch.nn.functional import linear
from torch.nn.utils import clip_grad_norm_ as clip_what_one_rank_has
from torch.optim import SGD

import dtlab
from dtlab import predict
from dtlab.parallel.gpt import ParallelGPT
from dtlab.parallel.mesh import make_mesh
from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    ParallelBlock,
    ParallelMLP,
    RowParallelLinear,
    clip_grad_norm_,
    copy_to_region,
    reduce_from_region,
)
from dtlab.parallel.tensor.sequence import gather_from_sequence, scatter_to_sequence
from dtlab.training.models import MLP, Block, GPTConfig
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("06")]

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
        sent = on_ranks(step, sequence_parallel, world_size=ranks).trace.bytes_wire()
        for each in sent:
            assert each == pytest.approx(times * once, rel=0.03)


def steps() -> None:
    block = ParallelBlock(WIDTH, 4)
    for name, batch in (("warm", 1), *[("step", BATCH)] * 3):
        x = torch.ones(batch, TOKENS, WIDTH, requires_grad=True)
        with dtlab.span(name):
            block(x).sum().backward()


@pytest.mark.proof
def test_a_slow_link_makes_it_crawl_as_predicted() -> None:
    slow, fast = predict.Link(1e-6, 2e6), predict.Link(1e-6, 1e9)
    took = []
    for link in (slow, fast):
        cluster = dtlab.Cluster(nodes=1, gpus_per_node=2, intra=link)
        events = on_ranks(steps, cluster=cluster).trace.events
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
    for found in on_ranks(halves, world_size=2).values:
        for rows, columns in found:
            assert rows < 1e-6 < 0.05 < columns


# ------------------------------------------------------------------- mistakes, over five seeds


def drawn(*shape: int, seed: int) -> Tensor:
    """A tensor of random numbers that are the same on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def apart(mine: Tensor) -> float:
    """How far this rank's tensor is from the first rank's, relative to its largest number."""
    first = mine.detach().clone()
    dist.broadcast(first, 0)
    return float((mine - first).abs().max() / first.abs().max())


def trained(seed: int, with_f: bool, steps: int = 5) -> float:
    """How far apart the ranks' copies of a replicated layer in front of a sharded MLP are."""
    torch.manual_seed(seed)
    enter, mlp = nn.Linear(8, 16), ParallelMLP(16)
    column, gelu, row = cast(tuple[ColumnParallelLinear, nn.GELU, RowParallelLinear], tuple(mlp))
    assert row.bias is not None
    optimizer = SGD([*enter.parameters(), *mlp.parameters()], lr=0.1)
    for step in range(steps):
        x = enter(drawn(4, 8, seed=100 * seed + step))
        inner = gelu(linear(copy_to_region(x) if with_f else x, column.weight, column.bias))
        loss = (x + reduce_from_region(linear(inner, row.weight)) + row.bias).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return apart(enter.weight)


def hidden(seed: int, in_step: bool) -> float:
    """How far apart hidden states are behind a block with dropout."""
    torch.manual_seed(seed)
    block = ParallelBlock(16, 4, dropout=0.2)
    torch.manual_seed(seed if in_step else seed + 10 * get_rank())
    return apart(block(drawn(2, 4, 16, seed=seed)).detach())


def of_a_norm(seed: int, is_librarys: bool) -> float:
    """How far apart the gradients of a norm are that sees this rank's tokens only."""
    torch.manual_seed(seed)
    block = ParallelBlock(16, 4, sequence_parallel=True)
    if not is_librarys:
        block.mlp_norm = nn.LayerNorm(16)
    x = scatter_to_sequence(drawn(2, 8, 16, seed=seed))
    whole = gather_from_sequence(block(x), then_sharded=False)
    whole.square().sum().backward()
    gradient = block.mlp_norm.weight.grad
    assert gradient is not None
    return apart(gradient)


def norms(seed: int, is_librarys: bool) -> float:
    """The relative error of the gradient norm that a rank computes."""
    torch.manual_seed(seed)
    dense = Block(GPTConfig(width=16, num_heads=4))
    shared = ParallelBlock.from_dense(dense)
    for one in (dense, shared):
        one(drawn(2, 4, 16, seed=seed)).square().sum().backward()
    true = clip_what_one_rank_has(dense.parameters(), 1e9)
    own = clip_grad_norm_(shared, 1e9) if is_librarys else None
    if own is None:  # the squares of all ranks, added up: replicated gradients count twice
        own = clip_what_one_rank_has(shared.parameters(), 1e9).square()
        dist.all_reduce(own)
        own = own.sqrt()
    return float(abs(own / true - 1))


def right_and_wrong(effect: Callable[[int, bool], float]) -> list[tuple[float, float]]:
    return [(effect(seed, True), effect(seed, False)) for seed in range(5)]


@pytest.mark.parametrize("effect", [trained, hidden, of_a_norm, norms])
def test_results_are_wrong_without_each_rule(effect: Callable[[int, bool], float]) -> None:
    """f; the seed that ranks share; the norm for sequence parallelism; the library's clipping."""
    for right, wrong in on_ranks(right_and_wrong, effect, world_size=2, trace=False).values[1]:
        assert right < 1e-5 < 1e-3 < wrong


# ------------------------------------------------------------------- a GPT, divided in two ways

SMALL = GPTConfig(context=32, num_layers=4, width=32)


def steps_of_a_gpt(axis: str, count: int) -> None:
    """Forward and backward passes of a GPT that is divided over one axis."""
    sizes = {"data": 1, "pipeline": 1, "tensor": 1} | {axis: get_world_size()}
    model = ParallelGPT(SMALL, make_mesh(**sizes), microbatches=4 if axis == "pipeline" else 1)
    tokens = torch.arange(4 * 33).view(4, 33)
    for _ in range(count):
        model.forward_backward(tokens[:, :-1], tokens[:, 1:])


def test_tensor_parallelism_sends_more_than_a_pipeline() -> None:
    """In units of bsh: 6 in each of four layers and 3 at both ends; a middle stage sends 2."""
    sent = {}
    for axis in ("tensor", "pipeline"):
        once, twice = (
            on_ranks(steps_of_a_gpt, axis, count, world_size=4).trace.bytes_wire(1)
            for count in (1, 2)
        )
        assert once is not None
        assert twice is not None
        sent[axis] = (twice - once) / (4 * 4 * 32 * 32)
    assert sent["tensor"] > 27 > 3 > sent["pipeline"] > 1.9
