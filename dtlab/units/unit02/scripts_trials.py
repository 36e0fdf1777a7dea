"""The trials of mended training scripts: ranks, samples and shards, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import Objection, judge_by
from dtlab.grading.checking.trials import Trial
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import (
    an_earlier_order_again,
    copies_differ,
    not_shared_out,
    rest_dropped,
)
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.training import not_as_one_process
from dtlab.units.unit02.scripts_cases import OnCards, OnShards
from dtlab.units.unit02.scripts_judges import (
    no_such_card,
)

__all__ = [
    "ADAM",
    "AS_ONE",
    "COPIES",
    "FAST",
    "FORWARD",
    "MOMENTUM",
    "SCRIPTS",
    "SGD",
    "accumulated",
    "copies_check",
    "for_long",
    "on_nodes",
    "samples_check",
    "shards",
    "shared",
    "two_criteria",
]

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


Trials = Callable[[random.Random, int], Sequence[Trial]]

SCRIPTS = "dtlab.units.unit02.scripts."
FORWARD = "loss = F.cross_entropy(replica(images), labels)"
COPIES = "the copies are equal, bit by bit"
AS_ONE = "every rank has the parameters of one process that takes all their samples"


def two_criteria(
    trials: Trials,
    subject: tuple[str, float, str, Sequence[Objection]],
    other: tuple[str, float, str, Sequence[Objection]],
) -> Check:
    """Two criteria, each (name, points, what is said where it is right, objections)."""
    begin = judge_by(subject[2], *subject[3], trouble=no_such_card)
    rules = (
        Rule(subject[0], subject[1], begin),
        Rule(other[0], other[1], judge_by(other[2], *other[3]), after=subject[0]),
    )
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def copies_check(optimizer: Optimizer, *more: Objection) -> Check:
    return two_criteria(
        shared,
        ("copies", 1, f"{COPIES}, on 2 and 3 ranks", [copies_differ]),
        ("training", 2, AS_ONE, [not_shared_out, not_as_one_process(optimizer), *more]),
    )


def samples_check(optimizer: Optimizer, name: str, right: str, trials: Trials = shared) -> Check:
    return two_criteria(
        trials,
        (name, 2, right, [rest_dropped, not_shared_out, an_earlier_order_again]),
        ("training", 1, AS_ONE, [copies_differ, not_as_one_process(optimizer)]),
    )


ADAM, SGD = Optimizer(2e-3, adam=True, eps=1e-3), Optimizer(0.1)
MOMENTUM, FAST = Optimizer(0.05, momentum=0.9), Optimizer(0.5)
