"""06/shard_plan: arithmetic is what ranks do; to the byte; drawn so that rules of thumb fail."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dtlab.checks.functions.trials import Trial
from dtlab.units.unit06.plans_rules import (
    KINDS,
    Block,
    Cost,
    Model,
    Plan,
    attention_left_whole,
    draw_models,
    fitting,
    megatron,
)
from dtlab.units.unit06.shard_plan import Carried, spent, steps_of
from tests.staying import BENCH

SEEDS = range(30)
UNEVEN = Model(3, False, 50, 24, 4, (Block(2, 30), Block(4, 13)), 16)  # nothing divides
TIED = replace(UNEVEN, ranks=2, tied=True)
WHOLE = dict.fromkeys(UNEVEN.shapes, "replicated")


def models(seed: int) -> list[Model]:
    return list(draw_models(Random(seed)).values())


def measured(model: Model, plan: Plan) -> Any:
    from dtlab.units.unit06.on_ranks import measure

    trial = Trial(model.ranks, [Carried(model, tuple(plan.items()))], limit=15)
    one = BENCH.observe(trial, measure)
    assert one.error is None, one.trouble
    assert one.trace is not None
    return spent(one.trace, one.results[0])


# Arithmetic, and ranks --------------------------------------------------------------------------


def drawn_plan(model: Model, seed: int) -> Plan:
    """Some allowed plan."""
    draw = Random(seed)
    plan: dict[str, str] = {}
    for pair in model.pairs:
        plan |= zip(pair, draw.choice(list(model.allowed(*pair))), strict=True)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("model", [UNEVEN, TIED], ids=["uneven", "tied"])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_hold_call_and_send_what_the_arithmetic_says(model: Model, seed: int) -> None:
    plan = drawn_plan(model, seed)
    assert not model.objection(plan)
    found = measured(model, plan)
    assert found.off < 1e-5
    assert tuple(found.cost) == pytest.approx(tuple(model.cost(plan)))


def test_a_plan_by_hand() -> None:
    model = Model(2, False, 10, 8, 2, (Block(2, 16),), 4)
    weights = 4 * (2 * 5 * 8 + 3 * 16 + 12 * 9 + 8 * 5 + 8 * 9 + 8 * 9)
    sent = 4 * 4 * (8 + 8 + 8) + 4 * (4 + 2 + 2 * 4) + 4 * 4 * (8 + 8 + 8)
    assert model.cost(megatron(model)) == Cost(weights, 5, 3, sent)


def test_a_sharded_input_needs_a_layer_that_takes_shards() -> None:
    for first in KINDS:
        for second in KINDS:
            plan = {**WHOLE, "1.wide": first, "1.narrow": second}
            fits = second != "column" and (first != "column" or second == "row")
            assert (not UNEVEN.objection(plan)) == fits
    dealt = {**WHOLE, "0.qkv": "column", "0.projection": "row"}
    assert "in whole heads" in UNEVEN.objection(dealt)
    assert not replace(UNEVEN, ranks=2).objection(dealt)


# Draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_few_plans_fit_and_no_rule_of_thumb_finds_all(seed: int) -> None:
    drawn = models(seed)
    assert sorted(model.ranks for model in drawn) == [2, 3, 4]
    for model in drawn:
        plans = fitting(model)
        assert 1 <= len(plans) <= 12
        assert all(model.cost(plan).within(model.budget) for plan in plans)
        assert not any(model.objection(plan) for plan in plans)
        whole = attention_left_whole(model)
        assert not model.cost(whole).within(model.budget)
        assert not model.cost(dict.fromkeys(model.shapes, "replicated")).within(model.budget)
    as_megatron = [dict(megatron(model)) in fitting(model) for model in drawn]
    assert sorted(as_megatron) == [False, False, True]


def test_learners_leave_other_layers_whole_and_some_models_have_several_plans() -> None:
    drawn = [model for seed in SEEDS for model in models(seed)]
    assert any(len(fitting(model)) > 1 for model in drawn)
    whole = {
        tuple(name for name, kind in fitting(model)[0].items() if kind == "replicated")
        for model in drawn
        if model.tied
    }
    assert len(whole) > 2


# To the byte ------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.slow
def test_a_plan_fits_to_the_byte_and_not_with_one_more() -> None:
    model = models(0)[0]
    plan = fitting(model)[0]
    exact = replace(model, budget=model.cost(plan))
    assert [one.status for one in steps_of(exact, plan)] == ["ok"] * 4
    for place, name in enumerate(Cost._fields):
        lower: Any = [most - (at == place) for at, most in enumerate(exact.budget)]
        short = replace(exact, budget=Cost(*lower))
        statuses = [one.status for one in steps_of(short, plan)]
        earned = {"weights": 1, "forward": 2, "backward": 2, "sent": 3}[name]
        assert statuses == ["ok"] * earned + ["lost"]
