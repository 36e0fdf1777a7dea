"""The sign of each effect in the lesson on precision: fp16 with and without scaling, bf16 with and
without master weights.

Each effect is measured over five seeds. Runs do not communicate, so two ranks divide them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from dtlab.training.datasets import Split, batches, digits
from dtlab.training.models import MLP
from dtlab.training.precision import DynamicLossScaler, MasterWeights, kept
from tests.marks import first
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("04")]

SEEDS = range(5)


@cache
def data() -> Split:
    return digits()


def on_two_ranks(work: Callable[..., Any], todo: Sequence[tuple[Any, ...]]) -> dict[Any, Any]:
    """What `work` gives for each item; two ranks share them."""

    def mine() -> dict[Any, Any]:
        return {each: work(*each) for each in todo[dist.get_rank() :: 2]}

    first, second = on_ranks(mine, world_size=2, timeout=100).values
    return dict(first | second)


def drawn(seed: int, batch: int, updates: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        for images, labels in batches(data().train, batch, generator=generator):
            if not updates:
                return
            updates -= 1
            yield images, labels


def error_of(model: nn.Module) -> float:
    """The test error in percent; guessing gives about 90."""
    images, labels = data().test.tensors
    logits = model(images.to(next(model.parameters()).dtype))
    return 100 * float((logits.argmax(1) != labels).float().mean())


def mlp(seed: int) -> MLP:
    return MLP(64, 128, 10, seed=seed)


# fp16 ---------------------------------------------------------------------------------

TINY = 1e-6


def in_fp16(factor: float, init_scale: float | None, seed: int) -> tuple[float, list[float]]:
    """The error after 150 updates under autocast, and the scale of each.

    The loss is `factor` times as large and the rate 1/factor: in exact numbers all is the same.
    """
    model, scaler, scales = mlp(seed), DynamicLossScaler(init_scale or 1.0), []
    optimizer = SGD(model.parameters(), lr=0.1 / factor, momentum=0.9)
    for images, labels in drawn(seed, 64, 150):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(images), labels) * factor
        if init_scale is None:
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            continue
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
    return error_of(model), scales


@pytest.fixture(scope="module")
def fp16_runs() -> dict[Any, tuple[float, list[float]]]:
    settings = (1.0, None), (TINY, None), (TINY, 2.0**16), (1.0, 2.0**24)
    return on_two_ranks(in_fp16, [(*each, seed) for each in settings for seed in SEEDS])


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_a_tiny_loss_is_lost_in_fp16_but_not_with_scaling(
    fp16_runs: Any, seed: int
) -> None:
    ordinary, _ = fp16_runs[1.0, None, seed]
    lost, _ = fp16_runs[TINY, None, seed]
    scaled, scales = fp16_runs[TINY, 2.0**16, seed]
    assert lost > 70
    assert max(ordinary, scaled) < 35
    assert set(scales) == {2.0**16}  # far from overflow


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_too_large_a_scale_overflows_skips_and_settles(fp16_runs: Any, seed: int) -> None:
    error, scales = fp16_runs[1.0, 2.0**24, seed]
    assert scales[:3] == [2.0**24, 2.0**23, 2.0**22]  # each of them a step that was skipped
    assert scales == sorted(scales, reverse=True)  # nothing grows within 2000 steps
    skipped = [one / 2 == other for one, other in itertools.pairwise(scales)]
    assert 3 <= sum(skipped) <= 10
    assert 2.0**13 <= scales[-1] <= 2.0**20
    assert error < 35


@pytest.mark.parametrize("seed", first(SEEDS))
def test_the_gradients_of_a_tiny_loss_are_too_small_for_fp16_and_not_for_bf16(seed: int) -> None:
    model = mlp(seed)
    images, labels = next(drawn(seed, 64, 1))
    (cross_entropy(model(images), labels) * TINY).backward()  # type: ignore[no-untyped-call]
    alone, scaled = kept(model), kept(model, scale=2.0**16)
    assert alone.underflow > 0.9 * (1 - alone.zero)
    assert scaled.underflow < 0.1
    assert scaled.overflow == 0
    assert kept(model, torch.bfloat16).underflow == 0


# Master weights -----------------------------------------------------------------------

RECIPES: dict[str, tuple[type[Optimizer], dict[str, Any], int]] = {
    "AdamW 1e-3": (AdamW, {"lr": 1e-3}, 300),
    "AdamW 3e-5": (AdamW, {"lr": 3e-5}, 900),
    "SGD 0.01": (SGD, {"lr": 0.01, "momentum": 0.9}, 300),
}


def in_bf16(recipe: str, masters: bool, seed: int) -> float:
    """The test error of a model that is bf16 throughout."""
    optimizer_class, arguments, updates = RECIPES[recipe]
    model = mlp(seed).bfloat16()
    optimizer = (
        MasterWeights(model.parameters(), optimizer_class, **arguments, fused=True)
        if masters
        else optimizer_class(model.parameters(), **arguments, fused=True)
    )
    for images, labels in drawn(seed, 32, updates):
        optimizer.zero_grad()
        loss = cross_entropy(model(images.bfloat16()).float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return error_of(model)


@pytest.fixture(scope="module")
def bf16_runs() -> dict[Any, float]:
    todo = [(name, masters, seed) for name in RECIPES for masters in (True, False)
            for seed in SEEDS]  # fmt: skip
    return on_two_ranks(in_bf16, todo)


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_bf16_stalls_at_small_rates_and_not_with_masters(bf16_runs: Any, seed: int) -> None:
    for name, good in ("AdamW 3e-5", 77), ("SGD 0.01", 35):
        with_masters, without = (bf16_runs[name, masters, seed] for masters in (True, False))
        assert with_masters < good < 80 < without


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_at_a_large_rate_it_learns_either_way(bf16_runs: Any, seed: int) -> None:
    assert max(bf16_runs["AdamW 1e-3", masters, seed] for masters in (True, False)) < 30
