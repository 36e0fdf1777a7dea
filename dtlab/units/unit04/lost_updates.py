"""Weights in bf16 and their updates: the last questions of 04/representable."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dtlab.grading.questions.answers import Values
from dtlab.grading.questions.declared import choices, number
from dtlab.predict.formats import BF16

__all__ = ["LOST", "MASTER", "draw_weights", "weight_rows"]

_WEIGHTS = ("p", "q", "r", "s")


def draw_weights(draw: Random) -> Values:
    """Weights and updates whose sizes mislead: the largest update is lost, smaller ones are not.

    No weight is a power of two, or as near to one as its update goes.
    """
    while True:
        # exponent of the weight, and its update as a share of the spacing there
        cases = {
            "heavy": (draw.choice((4, 5)), draw.uniform(0.2, 0.4)),
            "rounded up": (0, draw.uniform(0.6, 0.9)),
            "short": (draw.choice((0, 1)), draw.uniform(0.05, 0.15)),
            "light": (draw.choice((-5, -4)), draw.uniform(1.6, 3)),
        }
        order = draw.sample(list(cases), len(cases))
        weights = [draw.choice((1.25, 1.5, 1.75)) * 2.0 ** cases[one][0] for one in order]
        updates = [
            float(f"{cases[one][1] * BF16.spacing(weight):.1e}")
            for one, weight in zip(order, weights, strict=True)
        ]
        drawn = {"weights": weights, "updates": updates, "short": _WEIGHTS[order.index("short")]}
        if 0.15 < _spacings(drawn) / 2 % 1 < 0.85:  # clear of half-way between two numbers
            return drawn


def weight_rows(given: Values) -> list[tuple[str, str]]:
    """The weights in words."""
    updates = zip(_WEIGHTS, given["weights"], given["updates"], strict=True)
    return [
        (f"weight {name}", f"{weight:.9g} in bf16, update lr x g = {update:g}")
        for name, weight, update in updates
    ]


def _shares(given: Values) -> dict[str, float]:
    """Updates as shares of the spacing of bf16 around their weights."""
    pairs = zip(given["weights"], given["updates"], strict=True)
    shares = (update / BF16.spacing(weight) for weight, update in pairs)
    return dict(zip(_WEIGHTS, shares, strict=True))


def _spacings(given: Values) -> float:
    """How many updates of the weight `short` make a spacing."""
    return 1 / _shares(given)[given["short"]]


def _below(share: float) -> Callable[[Values], frozenset[str]]:
    """The weights whose updates are less than that share of the spacing."""
    return lambda given: frozenset(name for name, its in _shares(given).items() if its < share)


def _smallest_updates(given: Values) -> frozenset[str]:
    updates = dict(zip(_WEIGHTS, given["updates"], strict=True))
    return frozenset(sorted(updates, key=lambda name: updates[name])[:2])


LOST = choices(
    "lost",
    "which of the weights p, q, r, s bf16 leaves as they are: w - lr x g rounds to w",
    _WEIGHTS,
    _below(0.5),
    "For each weight: the power of two below it, the spacing there, and half of that.",
    {
        _smallest_updates: "these have the smallest updates. What counts is how large an update "
        "is beside the spacing at its own weight.",
        _below(1): "the updates of these are smaller than the spacing. Some are still more than "
        "half of it: where does rounding to the nearest take those?",
        lambda given: frozenset(_WEIGHTS) - _below(0.5)(given): "this is upside down: the updates "
        "of these take their weights somewhere else.",
    },
)

MASTER = number(
    "master",
    "weight {short} gets a master weight in fp32, and step after step the same update: after how "
    "many steps is its bf16 copy another number for the first time?",
    lambda given: int(_spacings(given) / 2) + 1,
    "How far does the master weight have to get, for another number to be nearer?",
    {
        lambda given: int(_spacings(given)) + 1: "by then the master weight is past the next "
        "number. Its copy is rounded to the nearest.",
        "answer - 1": "after so many steps the master weight is not yet half-way.",
        "1": "one update moves the master weight, but not its copy.",
    },
    exact=True,
)
