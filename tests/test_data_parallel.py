"""What is particular to data parallelism; test_parity.py compares its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.parallel.data import (
    DataParallel,
    NaiveDataParallel,
    assert_replicas_equal,
)
from tests.marks import retried
from tests.parity import batch, convolutional, mlp, share_of
from tests.staying import on_ranks

TINY = 0.0003  # MiB: some parameters a bucket


WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": NaiveDataParallel,
    "one bucket": DataParallel,
    "many buckets": lambda module: DataParallel(module, bucket_cap_mb=TINY),
}


def buffers(wrap: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    """Those of batch normalisation, after three forward passes with this rank's samples."""
    torch.manual_seed(dist.get_rank())
    inner = convolutional()
    model = wrap(inner)
    for step in range(3):
        model(share_of(batch(step, 12))[0]).sum().backward()
    return list(inner.buffers())


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPS)
def test_buffers_are_as_with_pytorchs_own(wrap: str) -> None:
    got = on_ranks(buffers, WRAPS[wrap], world_size=3).values
    torch.testing.assert_close(
        got, on_ranks(buffers, DistributedDataParallel, world_size=3).values
    )


# no_sync, and backward passes of other kinds ------------------------------------------------


def accumulate(wrap: Callable[[nn.Module], Any]) -> None:
    """Three small batches, of which only the last one communicates."""
    model = wrap(mlp())
    with model.no_sync():
        for step in range(2):
            model(batch(step, 4)[0]).sum().backward()
    model(batch(2, 4)[0]).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPS)
def test_gradients_of_microbatches_travel_once(wrap: str) -> None:
    run = on_ranks(accumulate, WRAPS[wrap], world_size=3)
    assert run.trace.ops(0)["all_reduce"] == {"naive": 6, "one bucket": 1, "many buckets": 3}[wrap]


def loaded(wrap: Callable[[nn.Module], nn.Module]) -> tuple[Any, bool]:
    """What loading the state of another model says, and whether the two are then equal."""
    source, model = mlp(), wrap(mlp())
    told = model.load_state_dict({**source.state_dict(), "other": torch.ones(1)}, strict=False)
    pairs = zip(source.state_dict().values(), model.state_dict().values(), strict=True)
    return told.unexpected_keys, all(torch.equal(*pair) for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["naive", "one bucket"])
def test_the_state_of_a_plain_module_is_loaded(wrap: str) -> None:
    assert on_ranks(loaded, WRAPS[wrap]).values == [(["other"], True)] * 2


def two_blocks(wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
    """Gradients and buffers of this rank after a backward pass in each of two nested blocks."""
    torch.manual_seed(1)
    inner = convolutional()
    model = wrap(inner)
    parts = [share_of(batch(step, 4 * dist.get_world_size())) for step in range(2)]
    with model.no_sync():
        for n, (inputs, labels) in enumerate(parts):
            with model.no_sync() if n == 0 else nullcontext():
                nn.functional.cross_entropy(model(inputs), labels).backward()
    return [*(p.grad.clone() for p in inner.parameters() if p.grad is not None), *inner.buffers()]


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["naive", "many buckets"])
def test_nothing_travels_inside_nested_no_sync_blocks(wrap: str) -> None:
    run, ddp = on_ranks(two_blocks, WRAPS[wrap]), on_ranks(two_blocks, DistributedDataParallel)
    for mine, its in zip(run.values, ddp.values, strict=True):
        for one, other in zip(mine, its, strict=True):
            torch.testing.assert_close(one, other)
    assert "all_reduce" not in run.trace.ops(0)


# Batches that run out ------------------------------------------------------------------------


def uneven(wrap: Callable[[nn.Module], Any], by_all: bool) -> dict[str, Tensor]:
    """Rank r has r + 1 batches."""
    torch.manual_seed(1)
    inner = convolutional()
    model = wrap(inner)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(dist.get_rank() + 1):
            inputs, labels = batch(10 * dist.get_rank() + step, 4)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return dict(inner.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("cap", [None, TINY])
def test_uneven_batches_join_as_pytorchs_do(by_all: bool, cap: float | None) -> None:
    got = on_ranks(uneven, lambda m: DataParallel(m, cap), by_all, world_size=3).values
    wanted = on_ranks(uneven, DistributedDataParallel, by_all, world_size=3).values
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# What it costs -------------------------------------------------------------------------------


def held() -> tuple[int, int]:
    inner = mlp()
    model = DataParallel(inner, TINY)
    for step in range(2):
        inner.zero_grad()
        model(batch(step, 4)[0]).sum().backward()
    gradients = [p.grad for p in inner.parameters()]
    flat = [bucket.flat for bucket in model._buckets]
    return sum(g.numel() * 4 for g in gradients), dtlab.held_bytes(gradients, flat)


@pytest.mark.slow
def test_gradients_take_their_memory_once() -> None:
    for needed, taken in on_ranks(held, world_size=2).values:
        assert needed <= taken <= needed + 100


def slow_backward(cap: float) -> None:
    """Layers whose backward takes 20 ms each, without a core."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            dtlab.compute(0.02)
            return gradient

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(Slow.apply(x))

    model = DataParallel(nn.Sequential(*(Layer(64, 64) for _ in range(6))), cap)
    for _ in range(2):
        loss = model(torch.ones(2, 64)).sum()
        with dtlab.span("backward"):
            loss.backward()


@pytest.fixture
def slow_wire() -> Iterator[dtlab.Cluster]:
    yield dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(1e-3, 2e6))


@pytest.mark.slow
@retried
def test_buckets_are_sent_while_backward_continues(slow_wire: dtlab.Cluster) -> None:
    """16 kB take 9 ms on this wire: each fits into the next layer's 20 ms."""
    trace = on_ranks(slow_backward, 64 * 64 * 4 / 2**20, world_size=2, cluster=slow_wire).trace
    for rank in (0, 1):
        passes = [e for e in trace.events if e.rank == rank and e.name == "backward"]
        reduced = [e for e in trace.events if e.rank == rank and e.name == "all_reduce"]
        assert len(passes) == 2 and len(reduced) == 12
        for one in passes:
            inside = [e for e in reduced if one.start <= e.start <= one.end]
            assert inside[0].start < one.start + 0.06
            assert one.end - one.start < 6 * 0.02 + 0.06


# What is said -------------------------------------------------------------------------------


def wrong_start() -> str:
    inner = mlp()
    model = DataParallel(inner)
    with torch.no_grad():
        inner[2].bias[0] += dist.get_rank()  # type: ignore[index, operator]
    try:
        assert_replicas_equal(model.module)
    except dtlab.DtlabError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_replicas_that_differ_are_named() -> None:
    for text in on_ranks(wrong_start, world_size=3).values:
        assert "differ in 1 of 6 tensors" in text
        assert "2.bias: ranks 1, 2 differ from rank 0, by at most 2" in text


@pytest.mark.slow
def test_a_state_has_the_names_of_the_module() -> None:
    def states() -> tuple[list[str], list[str]]:
        inner = mlp()
        model = DataParallel(inner)
        model.load_state_dict(inner.state_dict())
        return list(model.state_dict()), list(inner.state_dict())

    for mine, its in on_ranks(states, world_size=2).values:
        assert mine == its


def refused(wrap: Callable[[], object]) -> str:
    try:
        wrap()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def sparse() -> None:
    model = DataParallel(nn.Embedding(5, 3, sparse=True))
    model(torch.tensor([1])).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        (lambda: DataParallel(mlp(), 0), "bucket_cap_mb=0 is not above 0. Pass"),
        (lambda: DataParallel(mlp().requires_grad_(False)), "no parameter of this module needs"),
        (sparse, "a gradient of shape (5, 3) is sparse"),
    ],
)
def test_unsupported_modules_are_refused(wrap: Callable[[], object], says: str) -> None:
    assert all(says in text for text in on_ranks(refused, wrap, world_size=2).values)
