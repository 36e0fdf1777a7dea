"""The models of 04/fit: their tables against real steps, their best plans, and that rules fail."""

from __future__ import annotations

import itertools
import random

import pytest

from dtlab.units.unit04.fit import (
    MARGIN,
    Layer,
    Model,
    Plan,
    draw_model,
    rules_of_thumb,
)
from dtlab.units.unit04.fit_training import measure

SEEDS = range(8)
SCALARS = 8  # bytes: a loss and its gradient


def plans(count: int) -> list[Plan]:
    sizes = range(count + 1)
    return [plan for size in sizes for plan in itertools.combinations(range(count), size)]


def test_a_model_by_hand() -> None:
    model = Model((Layer(4, 10, 2, 6), Layer(6, 8, 1, 1)), rows=3, limit=1000)
    assert model.table == [
        {"input": 48, "kept": 12 * (4 + 30), "peak": 12 * (4 + 40 + 6), "work": 240},
        {"input": 72, "kept": 12 * (6 + 16), "peak": 12 * (6 + 24 + 1), "work": 288},
    ]
    assert model.peaks(()) == [600, 408 + 372]
    assert model.peaks((0,)) == [600, 48 + 372]
    assert model.peaks((1,)) == model.peaks(())  # a checkpoint of the last layer is no use
    assert (model.work((0, 1)), model.best) == (528, ((), 0, 240))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_tells_what_a_real_step_takes(seed: int) -> None:
    draw = random.Random(seed)
    model = draw_model(draw, 8)
    some = tuple(sorted(draw.sample(range(8), 4)))
    for plan in (), model.best[0], some, tuple(range(8)):
        real = measure(model.layers, plan, model.rows)
        assert real == {"peak": model.peak(plan) + SCALARS, "work": model.work(plan)}


@pytest.mark.parametrize("seed", SEEDS)
def test_one_plan_is_best_and_no_rule_of_thumb_finds_it(seed: int) -> None:
    model = draw_model(random.Random(seed), 8, exact=seed % 2 == 1)
    best, least, following = model.best
    fitting = {plan: model.work(plan) for plan in plans(8) if model.fits(plan)}
    assert fitting[best] == least == min(fitting.values())
    assert [plan for plan, work in fitting.items() if work <= MARGIN * least] == [best]
    assert following == min(work for plan, work in fitting.items() if plan != best)
    found = rules_of_thumb(model)
    assert len(found) == 12
    for plan in found.values():
        assert plan is None or (plan in fitting and fitting[plan] > MARGIN * least)
    assert (model.peak(best) == model.limit) == (seed % 2 == 1)


def test_where_nothing_fits_there_is_no_best_plan() -> None:
    model = draw_model(random.Random(0), 8)
    with pytest.raises(ValueError, match="no plan fits"):
        assert Model(model.layers, model.rows, model.peak(tuple(range(8))) - 1).best
