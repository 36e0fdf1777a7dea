"""Flat tensors that ranks share: which elements each rank has, and how they are sent."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dtlab import collectives
from dtlab.messages import AVG
from dtlab.parallel.reduce_scatter import exchange_reduce_scatter
from dtlab.parallel.zero import shards
from dtlab.parallel.zero.shards import (
    FlatLayout,
    Transport,
    clip_sharded_grad_norm_,
    in_memory_order,
    in_packs,
)
from tests.marks import slow
from tests.staying import on_ranks

# Which rank has which elements -------------------------------------------------------------------


def test_the_picture() -> None:
    """The picture in the module's docstring is right, letter by letter."""
    assert shards.__doc__ is not None
    line = next(row for row in shards.__doc__.splitlines() if row.startswith("    flat"))
    drawn = [group.split() for group in line.removeprefix("    flat").split("|")]
    layout = FlatLayout([torch.zeros(2, 2), torch.zeros(3), torch.zeros(())], 3)
    for rank, letters in enumerate(drawn):
        mine = ["."] * layout.shard_size
        for piece in layout.pieces(rank):
            length = piece.stop - piece.start
            mine[piece.offset : piece.offset + length] = "abc"[piece.index] * length
        assert mine == letters
    assert (layout.num_elements, layout.padding, layout.shard_size) == (8, 1, 3)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=6), st.integers(1, 7)
)
def test_every_element_belongs_to_one_rank(shapes: list[list[int]], world_size: int) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    tensors = [one.t() if one.ndim == 2 else one for one in tensors]
    layout = FlatLayout(tensors, world_size)
    flat = layout.pack(tensors)
    assert len(flat) == layout.num_elements + layout.padding == world_size * layout.shard_size
    assert layout.padding < max(world_size, 2) or layout.num_elements == 0
    assert not flat[layout.num_elements :].any()
    pieces: list[list[Tensor]] = [[] for _ in tensors]
    for rank in range(world_size):
        shard = layout.shard(flat, rank)
        for piece in layout.pieces(rank):
            part = shard[piece.offset : piece.offset + piece.stop - piece.start]
            whole = in_memory_order(tensors[piece.index], tensors[piece.index])
            assert torch.equal(part, whole[piece.start : piece.stop])
            pieces[piece.index].append(part)
    assert [sum(map(len, found)) for found in pieces] == [one.numel() for one in tensors]
    for view, tensor in zip(layout.views(flat), tensors, strict=True):
        assert torch.equal(view, tensor)
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def test_memory_order_is_that_of_another_tensor() -> None:
    rows = torch.arange(6.0).view(2, 3)
    columns = rows.t().contiguous().t()
    assert in_memory_order(rows, rows).tolist() == [0, 1, 2, 3, 4, 5]
    assert in_memory_order(rows, columns).tolist() == [0, 3, 1, 4, 2, 5]
    assert in_memory_order(columns, columns).data_ptr() == columns.data_ptr()
    assert in_memory_order(rows[1], rows[1]).tolist() == [3, 4, 5]  # begins within a storage


def test_packs_are_closed_by_size_and_kind() -> None:
    sizes = [(10, torch.float32), (10, torch.float32), (3, torch.float64), (10, torch.float32),
             (9, torch.float32), (1, torch.float32)]  # fmt: skip
    tensors = [torch.zeros(n, dtype=dtype) for n, dtype in sizes]
    packs = in_packs(tensors, 40, 80)
    numbers = [[next(i for i, t in enumerate(tensors) if t is one) for one in p] for p in packs]
    assert numbers == [[0], [2], [1, 3], [4, 5]]


def test_kinds_do_not_mix() -> None:
    with pytest.raises(ValueError, match="one dtype and one device, not: torch.float16 on cpu, "):
        FlatLayout([torch.zeros(2), torch.zeros(2, dtype=torch.float16)], 2)
    with pytest.raises(ValueError, match="not: none"):
        FlatLayout([], 2)


# How elements are sent ---------------------------------------------------------------------------

CHOICES: dict[str, tuple[Any, Any]] = {
    "default": (None, None),
    "ring": (collectives.ring_all_gather, collectives.ring_reduce_scatter),
}


def round_trip(choice: str) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
    transport = Transport(None, *CHOICES[choice])
    rank, size = transport.rank, transport.world_size
    results = []
    for shapes in ([(5, 3), (4,)], [(1,)], [(2, 2)]):  # the last two: fewer elements than ranks
        layout = FlatLayout([torch.zeros(shape) for shape in shapes], size)
        flat = layout.pack(torch.full(shape, 1.0 + rank) for shape in shapes)
        shard = torch.empty(layout.shard_size)
        waits = [transport.reduce_scatter(flat, shard)]
        other = layout.empty()
        layout.shard(other, rank).fill_(rank)
        waits.append(transport.gather(other))  # both are under way
        for wait in waits:
            wait()
        results.append((shard, other, transport.whole(layout, shard)))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [slow(1), slow(2), 3, slow(4)])
@pytest.mark.parametrize("choice", CHOICES)
def test_shards_are_sums_and_are_gathered(choice: str, ranks: int) -> None:
    run = on_ranks(round_trip, choice, world_size=ranks)
    total = sum(range(1, ranks + 1))
    for rank, results in enumerate(run.values):
        for (shard, gathered, whole), shapes in zip(
            results, ([(5, 3), (4,)], [(1,)], [(2, 2)]), strict=True
        ):
            elements = sum(math.prod(shape) for shape in shapes)
            owned = max(0, min(len(shard), elements - rank * len(shard)))
            assert shard.tolist() == [total] * owned + [0] * (len(shard) - owned)
            assert gathered.view(ranks, -1)[:, 0].tolist() == list(range(ranks))
            assert [tuple(one.shape) for one in whole] == shapes
            assert all((one == total).all() for one in whole)


def sums(op: Any, dtype: torch.dtype, theirs: bool) -> Tensor:
    size = dist.get_world_size()
    draw = torch.Generator().manual_seed(dist.get_rank())
    flat = torch.randn(size * 5, generator=draw).to(dtype)
    shard = torch.empty(5, dtype=dtype)
    reduce = dist.reduce_scatter_single if theirs else exchange_reduce_scatter
    reduce(shard, flat, op=op)
    return shard


@pytest.mark.slow
@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, slow(AVG)])
def test_an_exchange_is_a_reduce_scatter(op: Any) -> None:
    got = on_ranks(sums, op, torch.float32, False, world_size=3).values
    wanted = on_ranks(sums, dist.ReduceOp.SUM, torch.float32, True, world_size=3).values
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other / 3 if op == AVG else other)


@pytest.mark.slow
def test_sixteen_bits_are_rounded_once() -> None:
    ranks = 4
    got = on_ranks(sums, dist.ReduceOp.SUM, torch.bfloat16, False, world_size=ranks).values
    inputs = [torch.randn(ranks * 5, generator=torch.Generator().manual_seed(rank)).bfloat16()
              for rank in range(ranks)]  # fmt: skip
    exact = torch.stack(inputs).double().sum(0).bfloat16()
    assert torch.equal(torch.cat(got), exact)


def moved(choice: str, what: str) -> None:
    transport = Transport(None, *CHOICES[choice])
    flat = torch.ones(transport.world_size * 50_000)
    if what == "gather":
        transport.gather(flat)()
    else:
        transport.reduce_scatter(flat, torch.empty(50_000))()


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("what", ["gather", slow("reduce_scatter")])
def test_no_more_bytes_than_a_rings(choice: str, what: str) -> None:
    """(N-1)/N S from each rank, as the operating system counted them."""
    sent = on_ranks(moved, choice, what, world_size=4).trace.bytes_wire()
    assert all(one == pytest.approx(3 * 50_000 * 4, rel=0.01) for one in sent)


def test_an_exchange_only_adds() -> None:
    with pytest.raises(ValueError, match="ops SUM and AVG"):
        exchange_reduce_scatter(torch.zeros(1), torch.zeros(1), dist.ReduceOp.MAX)


# The norm of all shards ----------------------------------------------------------------------


def clipped(norm_type: float, max_norm: float) -> tuple[Tensor, list[Tensor]]:
    """Gradients 0, 1, 2, ... of three parameters; the last of three ranks has none."""
    rank = dist.get_rank()
    gradients = [torch.arange(4.0), torch.arange(4.0, 6.0)][rank : rank + 1]
    total = clip_sharded_grad_norm_(gradients, max_norm, norm_type)
    return total, gradients


@pytest.mark.slow
@pytest.mark.parametrize("norm_type", [2.0, slow(1.0), slow(3.0), math.inf])
@pytest.mark.parametrize("max_norm", [2.5, slow(100.0)])
def test_clips_by_the_norm_of_the_whole(norm_type: float, max_norm: float) -> None:
    whole = nn.Parameter(torch.zeros(6))
    whole.grad = torch.arange(6.0)
    norm = nn.utils.clip_grad_norm_([whole], max_norm, norm_type)
    run = on_ranks(clipped, norm_type, max_norm, world_size=3)
    torch.testing.assert_close(torch.cat([g for _, own in run.values for g in own]), whole.grad)
    for total, _ in run.values:
        torch.testing.assert_close(total, norm)
