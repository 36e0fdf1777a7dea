"""The claimed effects of split sequences and fields: memory, bytes, and surface to volume."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dtlab
from dtlab.parallel.context import (
    join_sequence,
    ring_attention,
    shard_sequence,
    ulysses_attention,
)
from dtlab.parallel.domain import (
    halo_exchange,
    join_tiles,
    on_tiles,
    own_tile,
    shallow_water_start,
    shallow_water_step,
    step_alone,
)
from dtlab.parallel.expert import ExpertParallel
from dtlab.parallel.mesh import make_mesh
from dtlab.predict.context import (
    halo_elements,
    halo_width,
    ring_attention_elements,
    ring_block_tokens,
    ulysses_elements,
)
from dtlab.training.live import peak_bytes
from dtlab.training.models import UNet
from tests.marks import retried
from tests.staying import on_ranks

TOKENS, HEADS, SIZE = 1024, 4, 16


def inputs(kv_heads: int = HEADS) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(1, heads, TOKENS, SIZE) for heads in (HEADS, kv_heads, kv_heads)]
    return [shard_sequence(torch.randn(shape, generator=draw), zigzag=True) for shape in shapes]


def peak() -> int:
    tensors = [x.requires_grad_() for x in inputs()]
    return peak_bytes(lambda: ring_attention(*tensors, zigzag=True))


@pytest.mark.slow
def test_memory_of_ring_attention_shrinks_with_the_ranks() -> None:
    """Blocks of keys, values and gradients are 1/P of the whole; so are a strip's scores."""
    one, two, four = (max(on_ranks(peak, world_size=ranks).values) for ranks in (1, 2, 4))
    assert two < 0.65 * one
    assert four < 0.4 * one


def sends(kind: str, kv_heads: int) -> None:
    attend = ring_attention if kind == "ring" else ulysses_attention
    attend(*inputs(kv_heads))


@pytest.mark.slow
def test_ulysses_sends_less_than_a_ring_unless_heads_are_grouped() -> None:
    width = HEADS * SIZE
    for kv_heads, ranks, smaller in ((HEADS, 4, "ulysses"), (1, 4, "ring")):
        kv_size = kv_heads * SIZE
        predicted = {
            "ulysses": ulysses_elements(TOKENS, width, ranks, kv_size),
            "ring": ring_attention_elements(TOKENS, kv_size, ranks),
        }
        assert min(predicted, key=lambda kind: predicted[kind]) == smaller
        ring = on_ranks(sends, "ring", kv_heads, world_size=ranks).trace
        assert ring.bytes_sent(0) == 4 * predicted["ring"]
        if kv_heads == HEADS:
            exchanged = on_ranks(sends, "ulysses", kv_heads, world_size=ranks).trace
            sent = sum(event.bytes for event in exchanged.events if event.rank == 0)
            assert sent * (ranks - 1) / ranks == 4 * predicted["ulysses"] < ring.bytes_sent(0)


def exchange(sizes: dict[str, int], side: int) -> None:
    mesh = make_mesh(**sizes)
    halo_exchange(own_tile(torch.zeros(side, side), mesh), mesh, 1, "periodic")


@pytest.mark.slow
def test_square_tiles_send_less_than_strips() -> None:
    side = 64
    strips = on_ranks(exchange, {"y": 4}, side, world_size=4).trace
    squares = on_ranks(exchange, {"y": 2, "x": 2}, side, world_size=4).trace
    assert strips.bytes_sent(0) == 4 * 2 * side
    assert squares.bytes_sent(0) == 4 * halo_elements([side // 2, side // 2], 1)
    assert strips.bytes_sent(0) == 4 * halo_elements([side // 4], 1, channels=side)
    # With four ranks both send about as much; with sixteen, strips send twice as much.
    assert halo_elements([side // 4] * 2, 1) < 0.6 * halo_elements([side // 16], 1, channels=side)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(SIZE)
    return scores.softmax(-1) @ v


@pytest.mark.slow
def test_scores_take_four_times_the_memory_for_twice_the_tokens() -> None:
    peaks = [
        peak_bytes(plain, *(torch.randn(1, HEADS, tokens, SIZE).requires_grad_() for _ in "qkv"))
        for tokens in (128, 256)
    ]
    assert 3.5 < peaks[1] / peaks[0] < 4.5


def volume(kind: str, ranks: int) -> float:
    """The elements that rank 0 sends, by its all-to-alls' buffers."""
    trace = on_ranks(sends, kind, HEADS, world_size=ranks).trace
    handed = sum(event.bytes for event in trace.events if event.rank == 0)
    return handed * (ranks - 1) / ranks / 4


@pytest.mark.slow
def test_ulysses_sends_less_with_more_ranks() -> None:
    assert volume("ulysses", 4) == 0.75 * volume("ulysses", 2)


def added() -> tuple[Tensor, Tensor]:
    """This rank's result of all blocks, each with its own softmax, added; and the right one."""
    q, *kv = (shard_sequence(x) for x in whole())
    k, v = map(join_sequence, kv)
    ranks = dist.get_world_size()
    blocks = zip(k.chunk(ranks, -2), v.chunk(ranks, -2), strict=True)
    return sum((plain(q, *block) for block in blocks), torch.zeros_like(q)), plain(q, k, v)


def whole() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, 64, SIZE, generator=draw) for _ in "qkv"]


def test_blocks_added_without_rescaling_are_wrong_by_the_number_of_ranks() -> None:
    for ranks in (1, 2, 4):
        result, right = on_ranks(added, world_size=ranks).values[-1]
        times = (result * right).sum() / right.square().sum()
        assert times == pytest.approx(ranks, rel=0.1)


def travel(tokens: int, width: int, flops: float) -> None:
    """The rounds of a ring: a block is on its way during the time of a round's compute."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    block = torch.zeros(2, tokens, width, dtype=torch.bfloat16)
    for _ in range(ranks - 1):
        works = [dist.isend(block, (rank + 1) % ranks)]
        works.append(dist.irecv(torch.empty_like(block), (rank - 1) % ranks))
        dtlab.compute(4 * tokens**2 * width / flops)
        for work in works:
            work.wait()


@retried
@pytest.mark.slow
def test_a_ring_hides_its_messages_with_enough_tokens_per_rank() -> None:
    flops, bandwidth = 256e9, 1e9
    link = dtlab.Link(latency=1e-6, bandwidth=bandwidth)
    cluster = dtlab.Cluster(gpus_per_node=4, intra=link, slowdown=300)
    least = ring_block_tokens(flops, bandwidth)
    shares = {}
    for tokens in (least / 4, 1.5 * least):
        trace = on_ranks(travel, int(tokens), 512, flops, world_size=4, cluster=cluster).trace
        waits, computes = (sum(map(of, range(4))) for of in (trace.exposed_comm, trace.busy))
        shares[tokens] = waits / (waits + computes)
    assert shares[least / 4] > 0.4
    assert shares[1.5 * least] < 0.15


def mixture(capacity_factor: float | None) -> tuple[int, Tensor]:
    torch.manual_seed(0)
    layer = ExpertParallel(
        nn.ModuleList(nn.Linear(16, 16) for _ in range(8)),
        nn.Linear(16, 8, bias=False),
        capacity_factor=capacity_factor,
    )
    common = torch.randn(16)
    layer(common + torch.randn(64, 16))
    assert layer.routing is not None
    chosen = layer.routing.experts[layer.routing.kept]
    return layer.routing.dropped, torch.bincount(chosen, minlength=8).view(4, 2).sum(1)


def test_a_capacity_drops_tokens_and_relieves_the_busiest_rank() -> None:
    counts = {factor: on_ranks(mixture, factor, world_size=4).values for factor in (None, 1.25)}
    dropped = {factor: sum(count for count, _ in values) for factor, values in counts.items()}
    busiest = {
        factor: sum(arrived for _, arrived in values).max() for factor, values in counts.items()
    }
    assert dropped[None] == 0 < dropped[1.25]
    assert busiest[1.25] < busiest[None]


def without_exchange(steps: int) -> Tensor:
    mesh = make_mesh(y=2, x=2)
    tile = own_tile(shallow_water_start(32, 32), mesh)
    for _ in range(steps):
        tile = shallow_water_step(F.pad(tile, (1, 1, 1, 1), mode="replicate"), 0.2)
    return join_tiles(tile, mesh)


def test_without_halo_exchange_the_error_travels_one_cell_a_step() -> None:
    for steps in (1, 3, 5):
        field = shallow_water_start(32, 32)
        for _ in range(steps):
            field = step_alone(lambda padded: shallow_water_step(padded, 0.2), field, "periodic")
        broken = on_ranks(without_exchange, steps, world_size=4).values[0]
        wrong = (broken != field)[0, 8].nonzero().flatten().tolist()
        edges = [*range(steps), *range(16 - steps, 16)]
        assert wrong == [*edges, *(16 + column for column in edges)]


def test_convolutions_in_a_row_look_as_far_as_the_sum_of_their_halos() -> None:
    layers = [nn.Conv2d(1, 1, 3, padding=d, dilation=d, dtype=torch.float64) for d in (1, 2, 4)]
    field = torch.randn(1, 1, 32, 32, dtype=torch.float64).requires_grad_()
    nn.Sequential(*layers)(field)[0, 0, 16, 16].backward()
    assert field.grad is not None
    rows = field.grad[0, 0].abs().sum(1).nonzero().flatten()
    assert 16 - rows[0] == rows[-1] - 16 == halo_width((3, 1), (3, 2), (3, 4))


def one_layer(layer: nn.Module) -> None:
    on_tiles(nn.Sequential(layer), make_mesh(y=2, x=2))(torch.ones(1, 8, 8, 8))


def test_a_norm_needs_a_collective_and_a_convolution_messages_to_neighbours() -> None:
    layers = {
        "conv": nn.Conv2d(8, 8, 3, padding=1), "pool": nn.MaxPool2d(2), "norm": nn.GroupNorm(4, 8),
    }  # fmt: skip
    ops = {
        name: set(on_ranks(one_layer, layer, world_size=4).trace.ops(0))
        for name, layer in layers.items()
    }
    assert ops == {"conv": {"send", "recv"}, "pool": set(), "norm": {"all_reduce"}}


def peak_of_unet(sizes: dict[str, int]) -> int:
    mesh = make_mesh(**sizes)
    field = torch.zeros(1, 1, 32, 32)
    return peak_bytes(on_tiles(UNet(), mesh), own_tile(field, mesh).requires_grad_())


@pytest.mark.slow
def test_a_unet_on_four_tiles_needs_little_more_than_a_quarter_of_the_memory() -> None:
    one = on_ranks(peak_of_unet, {"y": 1, "x": 1}, world_size=1).values[0]
    four = max(on_ranks(peak_of_unet, {"y": 2, "x": 2}, world_size=4).values)
    assert 0.25 * one < four < 0.35 * one
