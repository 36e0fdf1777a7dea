"""Scaling rules, the schedule against PyTorch's own, and the noise scale where it is known."""

from __future__ import annotations

import io
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from dtlab.training.learning_rate import (
    NoiseScale,
    WarmupThenDecay,
    batch_gradients,
    gradient_noise_scale,
    linear_scaled_lr,
    noise_scale_from_norms,
    sqrt_scaled_lr,
)
from dtlab.training.models import MLP
from tests.staying import on_ranks

# Scaling ------------------------------------------------------------------------------


def test_scaling_rules() -> None:
    assert linear_scaled_lr(0.1, 256, 8192) == pytest.approx(3.2)  # Goyal et al. 2017
    assert sqrt_scaled_lr(0.1, 256, 4096) == pytest.approx(0.4)
    for rule in (linear_scaled_lr, sqrt_scaled_lr):
        assert rule(0.3, 48, 48) == 0.3
        assert rule(rule(0.3, 48, 7), 7, 48) == pytest.approx(0.3)  # down as well as up
        for wrong in ((0, 1, 1), (-1, 1, 1), (math.inf, 1, 1), (math.nan, 1, 1)):
            with pytest.raises(ValueError, match="learning rate must be a number above 0"):
                rule(*wrong)
        with pytest.raises(ValueError, match="base_batch .* not 0"):
            rule(0.1, 0, 1)
        with pytest.raises(ValueError, match="batch .* not -8"):
            rule(0.1, 1, -8)


def test_k_small_steps_are_about_one_large_one() -> None:
    """What the linear rule says, and where: while the gradient hardly changes on the way."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 5, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.randn(5, 1, generator=generator, dtype=torch.float64)

    def moved(rate: float, batch: int) -> Tensor:
        weight = torch.zeros(5, 1, dtype=torch.float64)
        for x, y in zip(inputs.split(batch), targets.split(batch), strict=True):
            weight -= rate * x.T @ (x @ weight - y) / batch
        return weight

    def off(base: float, scaled: float) -> float:
        small = moved(base, 8)
        return float((moved(scaled, 64) - small).norm() / small.norm())

    for base, is_about_one in (0.001, True), (0.3, False):
        linear = off(base, linear_scaled_lr(base, 8, 64))
        assert (linear < 0.02) is is_about_one
    assert off(0.001, sqrt_scaled_lr(0.001, 8, 64)) > 0.5


# Schedule -----------------------------------------------------------------------------


def _optimizer() -> torch.optim.Optimizer:
    groups = [{"params": nn.Parameter(torch.zeros(1)), "lr": rate} for rate in (0.5, 3.0)]
    return torch.optim.SGD(groups)


def _rates(schedule: LRScheduler, steps: int) -> list[list[float]]:
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step()
    return rates


def _composed(warmup: int, total: int, decay: str, start: float, end: float) -> LRScheduler:
    """The same schedule from PyTorch's schedulers: LinearLR, and then one of its decays."""
    optimizer, left = _optimizer(), total - warmup
    after: dict[str, Any] = {
        "linear": partial(lr_scheduler.LinearLR, start_factor=1, end_factor=end, total_iters=left),
        "constant": partial(lr_scheduler.ConstantLR, factor=1.0),
        "cosine": partial(
            lr_scheduler.LambdaLR,
            lr_lambda=lambda k: (
                end + (1 - end) * (1 + math.cos(math.pi * min(k, left) / left)) / 2
            ),
        ),
    }
    if decay == "cosine" and end == 0:
        after["cosine"] = partial(lr_scheduler.CosineAnnealingLR, T_max=left)
    if warmup == 0:
        return after[decay](optimizer)
    up = lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [up, after[decay](optimizer)], [warmup])


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 7), (1, 2), (5, 17), (16, 17)])
@pytest.mark.parametrize(("start", "end"), [(0.1, 0.0), (1.0, 0.25)])
def test_the_schedule_is_a_composition_of_pytorchs(
    warmup: int, total: int, decay: str, start: float, end: float
) -> None:
    ours = WarmupThenDecay(
        _optimizer(), warmup, total, decay=decay, start_factor=start, end_factor=end
    )
    theirs = _composed(warmup, total, decay, start, end)
    for mine, expected in zip(_rates(ours, total + 1), _rates(theirs, total + 1), strict=True):
        assert mine == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_it_stays_at_the_end() -> None:
    schedule = WarmupThenDecay(_optimizer(), 2, 5, end_factor=0.2)
    assert _rates(schedule, 9)[5:] == [pytest.approx([0.1, 0.6])] * 4
    all_warmup = WarmupThenDecay(_optimizer(), 4, 4, start_factor=0.2)
    assert [rates[0] for rates in _rates(all_warmup, 5)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5]
    )


def test_a_users_decay() -> None:
    schedule = WarmupThenDecay(
        _optimizer(), 1, 5, decay=lambda progress: (1 - progress) ** 2, start_factor=0
    )
    factors = [rates[0] / 0.5 for rates in _rates(schedule, 6)]
    assert factors == pytest.approx([0, 1, 9 / 16, 4 / 16, 1 / 16, 0])


def test_the_drawing_in_its_docstring() -> None:
    """Start, warm-up and total are where the drawing has them."""
    schedule = WarmupThenDecay(_optimizer(), 4, 9, start_factor=0.3, end_factor=0.1)
    factors = [schedule.factor(step) for step in range(13)]
    assert factors[0] == 0.3
    assert factors[4] == max(factors) == 1
    assert factors[9:] == pytest.approx([0.1] * 4)
    assert factors[:5] == sorted(factors[:5])
    assert factors[4:] == sorted(factors[4:], reverse=True)


@pytest.mark.parametrize("decay", ["cosine", lambda progress: 1 - progress**2])
def test_a_stopped_schedule_continues_where_it_was(decay: Any) -> None:
    make = partial(WarmupThenDecay, warmup_steps=4, total_steps=15, decay=decay)
    expected = _rates(make(_optimizer()), 16)
    for stop in (0, 2, 4, 9, 15):
        schedule = make(_optimizer())
        _rates(schedule, stop)
        file = io.BytesIO()
        torch.save([schedule.state_dict(), schedule.optimizer.state_dict()], file)
        file.seek(0)
        state, of_optimizer = torch.load(file, weights_only=True)
        resumed = make(_optimizer())
        resumed.optimizer.load_state_dict(of_optimizer)
        resumed.load_state_dict(state)
        assert _rates(resumed, 16 - stop) == expected[stop:]


def test_last_epoch_continues_as_in_pytorchs() -> None:
    expected = _rates(WarmupThenDecay(_optimizer(), 3, 9), 10)
    optimizer = _optimizer()
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    assert _rates(WarmupThenDecay(optimizer, 3, 9, last_epoch=5), 4) == expected[6:]


def test_schedules_that_cannot_be() -> None:
    for warmup, total in (-1, 5), (6, 5), (0, 0):
        with pytest.raises(ValueError, match=f"{warmup} steps does not fit into {total}"):
            WarmupThenDecay(_optimizer(), warmup, total)
    for name in ("start_factor", "end_factor"):
        for factor in (-0.1, 1.1, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be from 0 to 1"):
                WarmupThenDecay(_optimizer(), 1, 5, **{name: factor})
    with pytest.raises(ValueError, match="cosine, linear, constant, or a function, not 'step'"):
        WarmupThenDecay(_optimizer(), 1, 5, decay="step")  # type: ignore[arg-type]


# Noise scale --------------------------------------------------------------------------


def _random_gradients(count: int, seed: int = 0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4), (5,), ())
    return [
        [0.5 + torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for _ in range(count)
    ]


def test_from_single_samples_it_is_the_sample_variance() -> None:
    gradients = _random_gradients(9)
    scale = gradient_noise_scale(gradients, batch=1)
    rows = torch.stack([torch.cat([part.flatten() for part in each]) for each in gradients])
    variance = rows.var(0, correction=1).sum().item()
    assert scale.variance == pytest.approx(variance)
    assert scale.gradient_squared == pytest.approx(
        rows.mean(0).square().sum().item() - variance / 9
    )
    assert scale.batch == pytest.approx(scale.variance / scale.gradient_squared)


@pytest.mark.slow
def test_linear_regression_where_the_truth_is_known() -> None:
    """x ~ N(0, L), y = x.w + e, loss (x.v - y)^2 / 2, so a sample's gradient is x (x.d - e) with
    d = v - w. Its mean is L d; by Isserlis' theorem the trace of its covariance is
    tr(L) (d'Ld + s^2) + |L d|^2."""
    covariance = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.2, 0.1], dtype=torch.float64)
    d, noise = torch.tensor([1.0, -0.5, 0.3, 0.0, 2.0, 1.0], dtype=torch.float64), 0.7
    signal = (covariance * d).square().sum().item()
    spread = (d * covariance * d).sum() + noise**2
    variance = (covariance.sum() * spread).item() + signal

    model = nn.Linear(6, 1, bias=False, dtype=torch.float64)
    model.weight.data = d[None]  # w = 0
    generator = torch.Generator().manual_seed(0)

    def batch() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(4, 6, generator=generator, dtype=torch.float64) * covariance.sqrt()
        return inputs, noise * torch.randn(4, 1, generator=generator, dtype=torch.float64)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean() / 2

    scales = [
        gradient_noise_scale(batch_gradients(model, (batch() for _ in range(8)), loss), batch=4)
        for _ in range(300)
    ]
    for name, truth in ("variance", variance), ("gradient_squared", signal):
        values = torch.tensor([getattr(scale, name) for scale in scales])
        error = values.std().item() / math.sqrt(len(values))
        assert abs(values.mean().item() - truth) < 3 * error
        assert error < 0.05 * truth
    assert NoiseScale.mean(scales).batch == pytest.approx(variance / signal, rel=0.1)
    # The mean of the quotients is another number: |G|^2 is small by chance here and there.
    quotients = sum(scale.batch for scale in scales) / len(scales)
    assert quotients > 1.1 * variance / signal


def test_from_two_squared_norms() -> None:
    variance, signal = 30.0, 2.0
    scale = noise_scale_from_norms(signal + variance / 4, signal + variance / 20, 4, 20)
    assert (scale.variance, scale.gradient_squared) == pytest.approx((variance, signal))
    assert scale.batch == pytest.approx(15)
    for sizes in (4, 4), (8, 4), (0, 4):
        with pytest.raises(ValueError, match=f"these are {sizes[0]} and {sizes[1]}"):
            noise_scale_from_norms(1.0, 1.0, *sizes)


def test_noise_that_drowns_the_gradient_and_no_noise() -> None:
    assert NoiseScale(3.0, -0.1).batch == NoiseScale(3.0, 0.0).batch == math.inf
    assert NoiseScale(-0.1, 3.0).batch == 0
    gradient = _random_gradients(1)[0]
    assert gradient_noise_scale([gradient] * 3, batch=5).batch == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="no noise scale"):
        NoiseScale.mean([])


@pytest.mark.slow
def test_ranks_measure_what_one_process_does() -> None:
    gradients = _random_gradients(6)

    def ranks(shares: list[int]) -> NoiseScale:
        me = dist.get_rank()
        start = sum(shares[:me])
        return gradient_noise_scale(gradients[start : start + shares[me]], batch=3)

    expected = gradient_noise_scale(gradients, batch=3)
    for shares in [6], [1, 5], [2, 3, 1]:
        for scale in on_ranks(ranks, shares, world_size=len(shares)).values:
            assert scale.variance == pytest.approx(expected.variance)
            assert scale.gradient_squared == pytest.approx(expected.gradient_squared)


def test_subgroups_measure_alone() -> None:
    gradients = _random_gradients(3)

    def ranks() -> float | None:
        group, me = dist.new_group([0, 2]), dist.get_rank()
        if me == 1:
            return None
        return gradient_noise_scale([gradients[me]], 3, group).variance

    expected = gradient_noise_scale([gradients[0], gradients[2]], batch=3).variance
    values = on_ranks(ranks, world_size=3).values
    assert values == [pytest.approx(expected), None, pytest.approx(expected)]


@pytest.mark.slow
def test_too_few_gradients_are_an_error_on_every_rank() -> None:
    def ranks() -> None:
        mine = _random_gradients(2) if dist.get_rank() == 0 else []
        with pytest.raises(ValueError, match="2 gradients in total, and 1 ranks passed none"):
            gradient_noise_scale(mine, batch=3)

    on_ranks(ranks, world_size=2)
    for few in (0, 1):
        with pytest.raises(ValueError, match=f"{few} gradients.* two in total"):
            gradient_noise_scale(_random_gradients(few), batch=3)


def test_gradients_of_batches_do_not_change_the_model() -> None:
    model, generator = MLP(3, 4, 2), torch.Generator().manual_seed(0)
    model.layers[0].weight.requires_grad_(False)
    inputs = [torch.randn(5, 3, generator=generator) for _ in range(2)]
    found = list(batch_gradients(model, inputs, lambda model, batch: model(batch).square().mean()))
    assert all(parameter.grad is None for parameter in model.parameters())
    for batch, gradients in zip(inputs, found, strict=True):
        model.zero_grad()
        model(batch).square().mean().backward()
        expected = [each.grad for each in model.parameters() if each.requires_grad]
        assert len(gradients) == 3
        assert all(map(torch.equal, gradients, expected))
