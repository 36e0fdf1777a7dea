"""Balanced stages against all cuts there are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dtlab.predict import LayerCost, balance_stages


def cuts(layers: int, stages: int):
    for inner in itertools.combinations(range(1, layers), stages - 1):
        ends = [0, *inner, layers]
        yield [range(a, b) for a, b in itertools.pairwise(ends)]


def slowest(costs: list[LayerCost], stages: list[range], limit: float) -> float:
    worst = 0.0
    for number, stage in enumerate(stages):
        own = [costs[layer] for layer in stage]
        flight = len(stages) - number
        if sum(one.held + flight * one.saved for one in own) > limit:
            return math.inf
        worst = max(worst, sum(one.seconds for one in own))
    return worst


def test_the_drawing() -> None:
    assert balance_stages([3, 1, 1, 1, 2, 4], 3) == [range(2), range(2, 5), range(5, 6)]


def test_it_is_the_best_of_all_cuts() -> None:
    draw = np.random.default_rng(0)
    none_fits = 0
    for _ in range(300):
        count = int(draw.integers(1, 9))
        stages = int(draw.integers(1, count + 1))
        costs = [LayerCost(*map(float, draw.integers(0, 9, 5))) for _ in range(count)]
        limit = float(draw.choice([math.inf, 30, 60]))
        best = min(slowest(costs, one, limit) for one in cuts(count, stages))
        if best == math.inf:
            none_fits += 1
            with pytest.raises(ValueError, match="fits"):
                balance_stages(costs, stages, memory_limit=limit)
            continue
        found = balance_stages(costs, stages, memory_limit=limit)
        assert [layer for stage in found for layer in stage] == list(range(count))
        assert all(found) and slowest(costs, found, limit) == pytest.approx(best)
    assert none_fits > 10


def test_greedy_would_be_worse() -> None:
    """Filling each stage up to the mean, 4, gives 3, 3 + 1, and 5 for the last."""
    costs = [3, 3, 1, 1, 4]
    found = balance_stages(costs, 3)
    assert max(sum(costs[layer] for layer in stage) for stage in found) == 5
    assert balance_stages([1, 1, 1, 5], 2) == [range(3), range(3, 4)]


def test_memory_moves_the_cut() -> None:
    costs = [LayerCost(1, saved=10)] * 4
    assert balance_stages(costs, 2) == [range(2), range(2, 4)]
    assert balance_stages(costs, 2, memory_limit=30) == [range(1), range(1, 4)]
    assert balance_stages(costs, 2, memory_limit=30, in_flight=[1, 2]) == [
        range(3),
        range(3, 4),
    ]


def test_impossible_cuts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 layers, 3 stages"):
        balance_stages([1, 1], 3)
    with pytest.raises(ValueError, match="must be 0 or more"):
        balance_stages([1, -1], 1)
    with pytest.raises(ValueError, match="fits 5 bytes"):
        balance_stages([LayerCost(1, held=6)], 1, memory_limit=5)
