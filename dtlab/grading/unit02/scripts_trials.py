"""The trials of mended training scripts: ranks, samples and shards, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from dtlab.grading.checking.trials import Trial
from dtlab.grading.scripts.cases import Training
from dtlab.grading.unit02.scripts_cases import OnCards, OnShards

__all__ = ["accumulated", "for_long", "on_nodes", "shards", "shared"]

_EPOCHS = 6


def shared(draw: random.Random, seed: int) -> list[Trial]:
    """On two ranks as it fits, and on three so that shares have to be made equal."""
    uneven = 3 * draw.choice((13, 14, 15, 18, 19)) + draw.choice((1, 2))
    return [
        Trial(2, [Training(seed, 2 * draw.choice((24, 32, 40)), epochs=3)]),
        Trial(3, [Training(seed + 1, uneven)]),
    ]


def for_long(draw: random.Random, seed: int) -> list[Trial]:
    """As `shared`, with as many epochs as it takes to see orders that come back."""
    longer, uneven = shared(draw, seed)
    cases = [replace(case, epochs=_EPOCHS) for case in longer.cases if isinstance(case, Training)]
    return [replace(longer, cases=cases), uneven]


def shards(draw: random.Random, seed: int) -> list[Trial]:
    """Two ranks, then three, whose shards make unequal numbers of batches of 8."""
    long, short = 8 * draw.randint(3, 4) + draw.randint(1, 8), 8 * draw.randint(1, 2)
    middle = short + 8 + draw.randint(1, 7)
    return [
        Trial(2, [OnShards(seed, sizes=(short, long))]),
        Trial(3, [OnShards(seed + 1, sizes=(long, short, middle))]),
    ]


def accumulated(draw: random.Random, seed: int) -> list[Trial]:
    """Microbatches of 8 that make whole steps, of a model large enough to be seen on the wire."""

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        samples = ranks * accumulate * 8 * steps
        size: dict[str, Any] = {"more": (accumulate,), "passes": accumulate, "micro_batch": 8}
        return Trial(ranks, [Training(seed + number, samples, hidden=256, **size)])

    return [case(2, 4, draw.randint(2, 3), 0), case(3, draw.choice((2, 3)), 3, 1)]


def on_nodes(draw: random.Random, seed: int) -> list[Trial]:
    """One node; two that are filled one after the other; two that ranks are dealt round."""
    samples = 4 * draw.randint(12, 16)
    return [
        Trial(2, [OnCards(seed, samples)]),
        Trial(
            4,
            [
                OnCards(seed + 1, samples + 4, nodes=2),
                OnCards(seed + 2, samples + 8, nodes=2, round=True),
            ],
        ),
    ]
