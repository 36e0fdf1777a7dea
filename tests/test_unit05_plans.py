"""05/plans: to the byte; by hand; and drawn so that rules of thumb fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import dtlab
from dtlab.units.unit05.plans import (
    LEFT_OUT,
    PLANS,
    Model,
    Plan,
    Row,
    draw_models,
    model_of,
    steps_of,
)

SEEDS = range(40)
SMALL = Model(
    layers=4, hidden=64, heads=2, sequence=32, microbatch=2, batch=32, nodes=2, gpus_per_node=4,
    least_ranks=4, card=10**7, reserve=1000, demand="master",
)  # fmt: skip


def models(seed: int) -> list[Model]:
    return list(draw_models(Random(seed)).values())


def best_of(model: Model) -> Row:
    best = model.best()
    assert best is not None
    return best


def statuses(model: Model, plan: Any) -> list[str]:
    return [one.status for one in steps_of(model, plan)]


def as_dict(plan: Plan) -> dict[str, Any]:
    return plan._asdict()


# To the byte ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_a_plan_fits_to_the_byte_and_not_with_one_more(seed: int) -> None:
    for model in models(seed):
        best = best_of(model)
        full, short = (replace(model, card=best.total - over) for over in (0, 1))
        assert statuses(full, as_dict(best.plan)) == ["ok"] * 4
        assert "0 bytes left" in steps_of(full, as_dict(best.plan))[1].message
        refused = steps_of(short, as_dict(best.plan))
        assert [one.status for one in refused] == ["ok", "lost"]
        assert f"it takes 1 byte more than the GPU's {short.card:,}" in refused[1].message


def test_a_plan_by_hand() -> None:
    params, tokens = 4 * (12 * 64**2 + 13 * 64), 32 * 2 * 64
    kept = 32 * tokens + 2 * 2 * 32**2 * 2
    row = SMALL.row(Plan(3, 8, "mixed_fp32_grads", "full"))
    assert row.needs == {
        "states": 18 * params // 8,
        "blocks": (2 * 2 + 4) * params // 4,
        "activations": 3 * 2 * tokens + kept,
        "reserve": 1000,
    }
    assert row.sent == 2 * (2 * 2 + 4) * params * 7 / 8  # two microbatches
    row = SMALL.row(Plan(2, 4, "mixed", "none"))
    assert row.needs["states"] == 2 * params + 14 * params // 4
    assert row.needs["blocks"] == 2 * params // 4
    assert row.needs["activations"] == 4 * kept
    assert row.sent == (2 + 4 * 2) * params * 3 / 4  # four of them, and weights once
    assert SMALL.row(Plan(0, 4, "fp32", "none")).needs["blocks"] == 0


def test_stage_1_sends_less_than_stage_0_where_gradients_are_in_fp32() -> None:
    sent = [SMALL.row(Plan(stage, 8, "mixed_fp32_grads", "none")).sent for stage in (0, 1)]
    assert sent[1] / sent[0] == 6 / 8


# What is allowed, and what is said --------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stage": 4}, "there is no stage 4"),
        ({"ranks": 6}, "6 ranks would not fill whole nodes of 4"),
        ({"ranks": 12}, "12 ranks, but 4 to 8 are allowed"),
        ({"policy": "half_only"}, "does not keep in fp32 what the model demands"),
        ({"policy": "bf16"}, "has 'bf16': write one of 'fp32', 'mixed'"),
        ({"recompute": True}, "has 'true': write one of 'none', 'selective', 'full'"),
        ({"ranks": "all"}, "has 'all' for 'ranks': write a whole number"),
    ],
)
def test_the_message_on_a_forbidden_plan_says_why(change: dict[str, Any], words: str) -> None:
    plan = {"stage": 1, "ranks": 8, "policy": "mixed", "recompute": "none"}
    assert SMALL.objection(Plan(**plan)) == ""  # type: ignore[arg-type]
    (told,) = steps_of(SMALL, plan | change)
    assert (told.status, words in told.message) == ("lost", True), told


def test_a_batch_that_does_not_divide_is_named() -> None:
    (told,) = steps_of(replace(SMALL, batch=24), Plan(1, 8, "mixed", "none")._asdict())
    assert "microbatches of 2 do not divide a batch of 24" in told.message


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_every_plan_passes_until_its_first_fault(seed: int) -> None:
    for model in models(seed):
        best = best_of(model)
        for row in model.rows():
            fits, little = row.total <= model.card, row.sent <= best.sent
            steps = [True, fits, little, row.recomputation <= best.recomputation]
            passed = steps.index(False) if False in steps else 4
            assert statuses(model, as_dict(row.plan)).count("ok") == passed


def test_points_are_given_for_steps() -> None:
    given = PLANS.given("plans", "ada")
    plans = {name: best_of(model_of(given[name])).plan._asdict() for name in "abc"}
    assert dtlab.check("05/plans", plans, learner="ada").score == 12
    name = next(name for name in "abc" if plans[name]["recompute"] != "full")
    plans[name] = plans[name] | {"recompute": "full"}
    report = dtlab.check("05/plans", plans, learner="ada")
    assert report.score == 11
    assert [one.earned for one in report.criteria if one.status == "lost"] == [3]


# What is drawn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_each_learner_meets_three_stages_and_a_near_miss(seed: int) -> None:
    three = models(seed)
    best = [best_of(model) for model in three]
    assert sorted(row.plan.stage for row in best) == [1, 2, 3]
    assert len({row.plan.recompute for row in best}) > 1
    for model, row in zip(three, best, strict=True):
        better = model.rows()[: model.rows().index(row)]
        assert 0 < min(one.total for one in better) - model.card <= 10**8


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("piece", LEFT_OUT)
def test_leaving_a_piece_out_leads_to_a_plan_that_does_not_fit(piece: str) -> None:
    for seed in SEEDS[:20]:
        found = [
            next(row for row in model.rows() if row.total - row.needs[piece] <= model.card)
            for model in models(seed)
        ]
        over = [row.total > model.card for row, model in zip(found, models(seed), strict=True)]
        assert any(over), seed


RULES: dict[str, Callable[[Model, Row], bool]] = {
    "stage 3": lambda model, row: row.plan.stage == 3,
    "all ranks": lambda model, row: row.plan.ranks == model.ranks()[-1],
    "fewest ranks": lambda model, row: row.plan.ranks == model.ranks()[0],
    "nothing twice": lambda model, row: row.recomputation == 0,
    "all twice": lambda model, row: row.recomputation == 2,
    "mixed": lambda model, row: row.plan.policy == "mixed",
}


@pytest.mark.slow
def test_no_rule_of_thumb_finds_all_three() -> None:
    """Stages, ranks, precision or recomputation fixed in advance."""
    found: Counter[str] = Counter()
    for seed in SEEDS[:20]:
        three = models(seed)
        for rule, wanted in RULES.items():
            fitting = (
                (row for row in model.rows() if row.total <= model.card and wanted(model, row))
                for model in three
            )
            got = [next(rows, None) for rows in fitting]
            found[rule] += got == [best_of(model) for model in three]
    assert found.pop("all ranks") < 10  # where a small cluster leaves no choice, it does no harm
    assert not any(found.values()), found
