"""The models of 05/plans, drawn so that each teaches something, and no rule of thumb finds all.

    small     gradients in fp32: stage 1 sends less than stage 0, which fits as well
    middle    stage 2 fits if layers are computed twice; stage 3 would fit with less of that
    large     stage 3 alone fits, and sends least on all ranks

In each of them a plan that would be better misses its card by little: the reserve is drawn last.
Who leaves a kind of bytes out takes one that does not fit, in one of the three at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from dtlab.units.unit05.plans_rules import Model, Row

__all__ = ["LEFT_OUT", "NAMES", "draw_models"]

_Sizes = Mapping[str, Sequence[Any]]

NAMES: Final = ("a", "b", "c")
LEFT_OUT: Final = ("blocks", "activations", "reserve")
_STEP, _LEAST, _MOST = 10**8, 10, 100  # bytes of a reserve: a tenth of a GB, 1 to 10 GB
_SMALL: Final[_Sizes] = {
    "hidden": (2048, 2304, 2560), "layers": (24, 28, 32, 36, 40), "sequence": (2048, 4096),
    "microbatch": (1, 2, 4), "nodes": (2, 4, 8), "gpus_per_node": (4, 8), "least_nodes": (1, 2),
    "micro_batches": (1, 2, 4), "card": (40, 48, 80), "demand": ("gradients",),
}  # fmt: skip
_MIDDLE: Final[_Sizes] = {
    "hidden": (5632, 6144, 6656, 7168), "layers": (40, 44, 48, 52, 56), "sequence": (2048,),
    "microbatch": (1, 2), "nodes": (4, 8), "gpus_per_node": (8,), "least_nodes": (1, 2),
    "micro_batches": (1, 2), "card": (80, 141), "demand": ("master",),
}  # fmt: skip
_LARGE: Final[_Sizes] = {
    "hidden": (8192, 9216, 10240, 12288), "layers": (60, 64, 72, 80), "sequence": (2048,),
    "microbatch": (1,), "nodes": (8, 16, 32), "gpus_per_node": (8,), "least_nodes": (4, 8),
    "micro_batches": (1, 2), "card": (80, 141), "demand": ("master",),
}  # fmt: skip


def draw_models(draw: Random) -> dict[str, Model]:
    """Three models, by name."""
    while True:
        models = [_drawn(draw, *story) for story in _STORIES]
        draw.shuffle(models)
        again = {best.twice for model in models if (best := model.best())}
        pieces = all(any(_misleads(model, piece) for model in models) for piece in LEFT_OUT)
        if pieces and len(again) > 1:
            return dict(zip(NAMES, models, strict=True))


def _drawn(draw: Random, sizes: _Sizes, teaches: Callable[[Sequence[Row], Row], bool]) -> Model:
    """A model of that kind, with a reserve that a better plan just does not leave."""
    while True:
        bare = _model({name: draw.choice(choices) for name, choices in sizes.items()})
        found = []
        for reserve in dict.fromkeys(_reserves(bare)):
            fitting = [row for row in bare.rows() if row.total <= bare.card - reserve]
            if fitting and teaches(fitting, fitting[0]):
                found.append(reserve)
        if found:
            return replace(bare, reserve=draw.choice(found))


def _reserves(bare: Model) -> Iterator[int]:
    """The least reserves with which a plan of less bytes than all before it misses the card."""
    least = math.inf
    for row in bare.rows():
        if row.total < least:
            least = row.total
            reserve = (bare.card - row.total) // _STEP + 1
            if _LEAST <= reserve <= _MOST:
                yield reserve * _STEP


def _model(size: dict[str, Any]) -> Model:
    """One of these sizes, with nothing reserved."""
    node = size["gpus_per_node"]
    return Model(
        layers=size["layers"],
        hidden=size["hidden"],
        heads=size["hidden"] // 128,
        sequence=size["sequence"],
        microbatch=size["microbatch"],
        batch=size["nodes"] * node * size["microbatch"] * size["micro_batches"],
        nodes=size["nodes"],
        gpus_per_node=node,
        least_ranks=size["least_nodes"] * node,
        card=size["card"] * 10**9,
        reserve=0,
        demand=size["demand"],
    )


# What a model teaches ---------------------------------------------------------------------------


def _small(fitting: Sequence[Row], best: Row) -> bool:
    return best.plan.stage == 1 and any(row.plan.stage == 0 for row in fitting)


def _middle(fitting: Sequence[Row], best: Row) -> bool:
    """Of what sends more, something computes less twice."""
    return best.plan.stage == 2 and any(
        row.plan.stage == 3 and row.twice < best.twice for row in fitting
    )


def _large(fitting: Sequence[Row], best: Row) -> bool:
    return best.plan.stage == 3 and best.twice > 0


_STORIES = ((_SMALL, _small), (_MIDDLE, _middle), (_LARGE, _large))


def _misleads(model: Model, piece: str) -> bool:
    """Whether a search that leaves this piece out finds what does not fit."""
    found = next(row for row in model.rows() if row.total - row.needs[piece] <= model.card)
    return found.total > model.card
