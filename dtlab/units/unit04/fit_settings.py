"""The models of 04/fit, as numbers: what layers take, what fits, and which plan costs least.

    layer           0         1         2          under a checkpoint: 1
    backward is     at 2:     kept 0 + input 1 + peak 2
    at 1:           kept 0 + peak 1                 it was run again, and is whole
    at 0:           peak 0

A layer is Linear(width, hidden), so many GELUs, Linear(hidden, next width). `fit_training` builds
and runs it; `tests/test_unit04_fit.py` compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

__all__ = ["MARGIN", "Layer", "Model", "Plan", "draw_model", "rules_of_thumb"]

Plan = tuple[int, ...]  # the layers under a checkpoint, by their numbers

MARGIN = 1.01  # of the least work: the next plan that fits costs more
_NEXT = 1.015


class Layer(NamedTuple):
    """Sizes of a layer: what goes in, what is within, how many GELUs, what comes out."""

    width: int
    hidden: int
    gelus: int
    out: int


@dataclass(frozen=True)
class Model:
    """Layers for a batch of `rows`, and a `limit` in bytes."""

    layers: tuple[Layer, ...]
    rows: int
    limit: int = 0

    @cached_property
    def table(self) -> list[dict[str, int]]:
        """For each layer: bytes of its input, bytes kept, bytes at its peak, operations."""
        return [
            {
                "input": 4 * self.rows * one.width,
                "kept": 4 * self.rows * (one.width + (one.gelus + 1) * one.hidden),
                # Beside what is kept: the gradients of the output and of what is within.
                "peak": 4 * self.rows * (one.width + (one.gelus + 2) * one.hidden + one.out),
                "work": 2 * self.rows * one.width * one.hidden,  # the last product is not needed
            }
            for one in self.layers
        ]

    def peaks(self, plan: Plan) -> list[int]:
        """Bytes in memory while backward is at each layer."""
        kept = [one["input" if n in plan else "kept"] for n, one in enumerate(self.table)]
        before = accumulate(kept, initial=0)
        return [there + one["peak"] for there, one in zip(before, self.table, strict=False)]

    def peak(self, plan: Plan) -> int:
        """The most of them."""
        return max(self.peaks(plan))

    def work(self, plan: Plan) -> int:
        """Operations to run the layers of a plan again."""
        return sum(self.table[number]["work"] for number in plan)

    def fits(self, plan: Plan) -> bool:
        """Whether the peak is within the limit."""
        return self.peak(plan) <= self.limit

    @cached_property
    def best(self) -> tuple[Plan, int, int]:
        """Of all plans that fit the one of least work; its work, and the next larger one."""
        count = len(self.layers)
        chosen = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
        column = {name: np.array([one[name] for one in self.table]) for name in self.table[0]}
        kept = np.where(chosen, column["input"], column["kept"])
        before = np.cumsum(kept, axis=1) - kept
        fits = (before + column["peak"]).max(axis=1) <= self.limit
        if not fits.any():
            raise ValueError("no plan fits")
        work = np.where(fits, chosen @ column["work"], np.iinfo(np.int64).max)
        least = int(work.min())
        above = work[work > least]
        plan = tuple(np.flatnonzero(chosen[int(work.argmin())]).tolist())
        is_only = int((work == least).sum()) == 1
        return plan, least, int(above.min()) if is_only and above.size else least


# Rules of thumb, which are to fail ------------------------------------------------------------


def rules_of_thumb(model: Model) -> dict[str, Plan | None]:
    """What plain rules come to, by name; None where they do not fit."""
    table, every = model.table, range(len(model.layers))

    def saved(number: int) -> int:
        return table[number]["kept"] - table[number]["input"]

    orders: dict[str, Callable[[int], float]] = {
        "the largest first": lambda n: -saved(n),
        "the least work first": lambda n: table[n]["work"],
        "the least work for a byte first": lambda n: table[n]["work"] / saved(n),
        "from the front": lambda n: n,
        "from the back": lambda n: -n,
    }
    found: dict[str, Plan | None] = {"all": tuple(every)}
    for name, key in orders.items():
        plan = _until_it_fits(model, sorted(every, key=key))
        found[name] = plan
        found[f"{name}, then what is not needed out"] = plan and _thinned(model, plan)
    found["as if all peaked at once"] = _cautious(model)
    return found


def _until_it_fits(model: Model, order: Sequence[int]) -> Plan | None:
    for count in range(len(order) + 1):
        plan = tuple(sorted(order[:count]))
        if model.fits(plan):
            return plan
    return None


def _thinned(model: Model, plan: Plan) -> Plan:
    """Without what it fits without, the most work first."""
    for number in sorted(plan, key=lambda n: -model.table[n]["work"]):
        fewer = tuple(n for n in plan if n != number)
        if model.fits(fewer):
            plan = fewer
    return plan


def _cautious(model: Model) -> Plan | None:
    """The best, where what is kept of all layers has to fit beside the largest peak."""
    largest = max(model.table, key=lambda one: one["peak"])
    table = model.table
    best: tuple[int, Plan] | None = None
    for bits in range(1 << len(table)):
        plan = tuple(n for n in range(len(table)) if bits >> n & 1)
        kept = sum(one["input" if n in plan else "kept"] for n, one in enumerate(table))
        if kept + largest["peak"] <= model.limit:
            best = min(best or (model.work(plan), plan), (model.work(plan), plan))
    return best[1] if best else None


# Draws ------------------------------------------------------------------------------------------


def draw_model(draw: random.Random, count: int, exact: bool = False) -> Model:
    """A model with a limit that one plan fits best, and that no rule of thumb finds.

    With `exact`, the best plan has not a byte to spare.
    """
    for _ in range(1000):
        model = _limited(_drawn(draw, count), draw.uniform(0.3, 0.7))
        if exact:
            model = Model(model.layers, model.rows, model.peak(model.best[0]))
        _, least, following = model.best
        if least == 0 or following < _NEXT * least:
            continue
        found = rules_of_thumb(model).values()
        if any(one is not None and model.work(one) <= _NEXT * least for one in found):
            continue
        return model
    raise AssertionError("no draw has a single best plan that rules of thumb miss")


def _drawn(draw: random.Random, count: int) -> Model:
    # Few numbers come out at last: a loss has copies of them, which no layer's row counts.
    widths = [*(8 * draw.randint(2, 10) for _ in range(count)), 8 * draw.randint(1, 2)]
    layers = [
        Layer(width, 8 * draw.randint(4, 28), draw.randint(1, 4), out)
        for width, out in pairwise(widths)
    ]
    return Model(tuple(layers), 8 * draw.randint(2, 4))


def _limited(model: Model, share: float) -> Model:
    """With a limit between the least that there can be and what it takes without checkpoints."""
    least, most = model.peak(tuple(range(len(model.layers)))), model.peak(())
    return Model(model.layers, model.rows, int(least + share * (most - least)))
