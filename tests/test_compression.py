"""Compressed gradients against PyTorch's hooks, against one process, and by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from dtlab.parallel.data import DataParallel
from dtlab.training.compression import (
    Bf16,
    Compressor,
    PowerSGD,
    TopK,
    power_sgd_elements,
)
from tests.staying import on_ranks

STEPS = 5
# torchvision's resnet18 as changed for CIFAR-10: a 3x3 convolution first, ten classes.
WIDTHS = (64, 128, 256, 512)


def gradients_of(step: int, rank: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(97 * step + rank)
    shapes = [(13, 9), (9,), (6, 4, 3, 3), (1, 5)]
    return [torch.randn(shape, generator=draw, dtype=dtype) for shape in shapes]


def summed(make: Callable[[], Compressor]) -> list[list[Tensor]]:
    """The sums of several steps."""
    compressor, results = make(), []
    for step in range(STEPS):
        gradients = gradients_of(step, dist.get_rank())
        compressor.sum(gradients)
        results.append(gradients)
    return results


def exact(step: int, ranks: int) -> list[Tensor]:
    every = [gradients_of(step, rank) for rank in range(ranks)]
    return [torch.stack(parts).sum(0) for parts in zip(*every, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_nothing_is_lost_where_everything_is_sent(ranks: int) -> None:
    for make in (lambda: TopK(1.0), lambda: PowerSGD(16)):
        for results in on_ranks(summed, make, world_size=ranks).values:
            for step, gradients in enumerate(results):
                for gradient, right in zip(gradients, exact(step, ranks), strict=True):
                    torch.testing.assert_close(gradient, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: TopK(0.05), lambda: PowerSGD(1)])
def test_error_feedback_loses_nothing_over_time(make: Callable[[], Any]) -> None:
    """What was sent in all steps and what is left in the errors add up to all gradients."""

    def left() -> tuple[list[Tensor], dict[Any, Tensor]]:
        compressor, sent = make(), [torch.zeros_like(g) for g in gradients_of(0, 0)]
        for step in range(STEPS):
            gradients = gradients_of(step, dist.get_rank())
            compressor.sum(gradients)
            sent = [a + b for a, b in zip(sent, gradients, strict=True)]
        return sent, compressor.errors

    values = on_ranks(left, world_size=3).values
    for place in range(4):
        total = sum(exact(step, 3)[place] for step in range(STEPS))
        errors = [errors[place] for _, errors in values if place in errors]
        whole = values[0][0][place] + sum(errors)
        torch.testing.assert_close(whole, total, rtol=1e-5, atol=1e-5)


# As hooks of DDP and in DataParallel -------------------------------------------------------------


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.Linear(30, 4))


def train(wrap: Callable[[nn.Module], nn.Module]) -> list[Tensor]:
    wrapped = wrap(model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        wrapped(torch.randn(6, 20, generator=draw)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in wrapped.parameters()]


def ours(compressor: Compressor) -> Callable[[nn.Module], nn.Module]:
    return lambda module: DataParallel(module, compression=compressor)


def in_ddp(compressor: Compressor) -> Callable[[nn.Module], nn.Module]:
    return with_hook(None, compressor.hook)


def with_hook(state: Any, hook: Callable[..., Any]) -> Callable[[nn.Module], nn.Module]:
    def wrap(module: nn.Module) -> nn.Module:
        ddp = DistributedDataParallel(module)
        ddp.register_comm_hook(state, hook)
        return ddp

    return wrap


def theirs_bf16(group, bucket):  # type: ignore[no-untyped-def]
    """DDP refuses `bf16_compress_hook` itself without NCCL, by its name, and all annotations."""
    return bf16_compress_hook(group, bucket)


def theirs_power_sgd(rank: int) -> Callable[[nn.Module], nn.Module]:
    return with_hook(PowerSGDState(None, rank, start_powerSGD_iter=2), powerSGD_hook)


class LatePowerSGD(PowerSGD):
    """Begins with two plain all-reduces, as PyTorch's must: later its buckets stay the same."""

    calls = 0

    def sum(self, tensors: Any, *more: Any) -> None:
        self.calls += 1
        if self.calls > 2:
            super().sum(tensors, *more)
        else:
            for tensor in tensors:
                dist.all_reduce(tensor)


def late_power_sgd(rank: int) -> Compressor:
    """Starts with PyTorch's Q, whose seed comes from NumPy."""
    return LatePowerSGD(rank, seed=int(np.random.RandomState(0).randint(1_000_000_000)))


WAYS: dict[str, tuple[Callable[[], Compressor], Callable[[], Any], float]] = {
    "bf16": (Bf16, lambda: with_hook(None, theirs_bf16), 5e-3),
    "PowerSGD(1)": (lambda: late_power_sgd(1), lambda: theirs_power_sgd(1), 1e-5),
    "PowerSGD(3)": (lambda: late_power_sgd(3), lambda: theirs_power_sgd(3), 1e-5),
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("way", WAYS)
def test_training_equals_that_with_pytorchs_hook(way: str, ranks: int) -> None:
    make, theirs, tolerance = WAYS[way]

    def three() -> list[list[Tensor]]:
        return [train(wrap) for wrap in (ours(make()), in_ddp(make()), theirs())]

    for mine, in_theirs, right in on_ranks(three, world_size=ranks).values:
        torch.testing.assert_close(mine, right, rtol=10 * tolerance, atol=tolerance)
        torch.testing.assert_close(in_theirs, right, rtol=10 * tolerance, atol=tolerance)


def test_a_failure_in_a_hook_is_raised_in_backward() -> None:
    class Fails(Bf16):
        def sum(self, *_: Any) -> None:
            raise RuntimeError("no space left")

    def fails() -> str:
        with pytest.raises(Exception, match="no space left"):
            train(in_ddp(Fails()))
        return "raised"

    assert on_ranks(fails, world_size=2).values == ["raised"] * 2


# Bytes -------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_formula() -> None:
    shape, ranks = (640, 480), 2

    def send(compressor: Compressor | None) -> None:
        gradient = torch.ones(shape)
        dist.all_reduce(gradient) if compressor is None else compressor.sum([gradient])

    def sent(compressor: Compressor | None) -> int:
        return on_ranks(send, compressor, world_size=ranks).trace.bytes_wire(0)

    plain, count = sent(None), 640 * 480
    factors = power_sgd_elements([shape], 8)
    assert factors == 8 * (640 + 480)
    assert sent(Bf16()) == pytest.approx(plain / 2, rel=0.02)
    assert sent(PowerSGD(8)) == pytest.approx(plain * factors / count, rel=0.1)
    assert sent(TopK(0.05)) == pytest.approx(8 * int(0.05 * count), rel=0.1)


def resnet18() -> list[tuple[int, ...]]:
    """The shapes of ResNet-18's parameters for CIFAR-10."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in WIDTHS:
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if block == 0 and width != before:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (10, 512), (10,)]


@pytest.mark.parametrize(("rank", "ratio"), [(1, 243), (2, 136), (4, 72)])
def test_published_compression_of_resnet18(rank: int, ratio: int) -> None:
    """Vogels et al. 2019, table 3."""
    elements = sum(int(np.prod(shape)) for shape in resnet18())
    assert elements / power_sgd_elements(resnet18(), rank) == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("make", [lambda: TopK(0), lambda: TopK(1.5), lambda: PowerSGD(0)])
def test_wrong_arguments_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        make()
