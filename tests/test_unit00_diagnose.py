"""What Level III of unit 00 measures is what PyTorch's own optimizers and operators make."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam

from dtlab.training.live import held_bytes
from dtlab.units.unit00 import cure
from dtlab.units.unit00.dies import QUESTIONS
from dtlab.units.unit00.measured import (
    AdamByHand,
    Watch,
    batch_of,
    build,
    one_thread,
    peaks,
    train,
)
from dtlab.units.unit00.settings import KINDS, PLAN, draw_setting

PLAIN: dict[str, Any] = {
    "widths": [32, 64, 48, 16],
    "batch": 32,
    "samples": 4,
    "dtype": "fp32",
    "optimizer": "Adam",
    "frozen": 0,
    **PLAN,
}


def trained(optimizer: Any, layers: nn.ModuleList, **plan: Any) -> dict[str, int]:
    setting = PLAIN | plan
    batches = [batch_of(setting, number) for number in range(2)]
    there = [*layers.parameters(), *(each for pair in batches for each in pair)]
    with one_thread(), Watch(*there) as watch:
        train(layers, optimizer, batches, setting, watch)
    return watch.peaks


def test_our_adam_is_pytorchs_in_numbers_and_in_bytes() -> None:
    ours, theirs = build(PLAIN), build(PLAIN)
    by_hand = trained(AdamByHand(list(ours.parameters())), ours)
    pytorchs = trained(Adam(theirs.parameters(), lr=1e-3, foreach=False), theirs)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    for phase in ("forward", "backward", "step", "second"):
        assert by_hand[phase] == pytest.approx(pytorchs[phase], abs=256)  # steps are tensors there


def test_all_that_is_there_is_counted() -> None:
    layers = build(PLAIN)
    optimizer = AdamByHand(list(layers.parameters()))
    inputs = torch.ones(32, 32)
    with Watch(*layers.parameters(), inputs) as watch:
        assert watch.bytes == held_bytes(layers, inputs)
        layers[0](inputs).sum().backward()
        optimizer.step()
        assert watch.bytes == held_bytes(layers, inputs, list(optimizer.moments.values()))


@pytest.mark.parametrize(
    "plan", [{"microbatches": 4}, {"checkpoint": True}, {"clear": "before backward"}], ids=str
)
def test_a_cure_leaves_the_results_as_they_are(plan: dict[str, Any]) -> None:
    plain, cured = build(PLAIN), build(PLAIN)
    trained(AdamByHand(list(plain.parameters())), plain)
    trained(AdamByHand(list(cured.parameters())), cured, **plan)
    for one, other in zip(plain.parameters(), cured.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_models_die_where_their_kind_says(kind: str) -> None:
    where = {"activations": "backward", "weights": "step", "late": "second", "frozen": "forward"}
    for seed in range(3):
        sizes = peaks(draw_setting(random.Random(seed), kind))
        most = max(sizes.values())
        first = next(phase for phase in sizes if sizes[phase] == most)
        assert kind not in where or first == where[kind]


def test_models_are_drawn_alike_each_time() -> None:
    one, other = (dict(QUESTIONS.given("dies", "somebody")) for _ in range(2))
    assert one == other
    assert all("peaks" not in model for model in one.values())


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_cheapest_plan_is_the_one_of_the_topic(seed: int) -> None:
    (trial,) = cure._trials(seed)
    for case in trial.cases:
        assert isinstance(case, cure.Curing)
        setting = case.setting
        fitting = [
            plan
            for plan in cure.plans_for(setting)
            if max(peaks(setting | plan).values()) <= setting["limit"]
        ]
        cheapest = cure.cost(fitting[0]) if fitting else None
        assert cheapest == cure.NEEDED.get(case.cure), case.cure
