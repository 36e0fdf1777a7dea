"""The models of 06/shard_plan, drawn so that each of their budgets has something to say.

    plain    as Megatron has it: nothing to spare for a gather
    heads    the heads of one block cannot be dealt out: its attention takes calls of its own
    tight    two calls too few in each pass: what is left whole has to be what weighs least

Calls are limited first; the weights are what the best plans within them have; and the bytes what
the most frugal of those send. So a plan has to be right in all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, Final

import numpy as np

from dtlab.units.unit06.plans_rules import PAIRS, Block, Cost, Model, Plan

__all__ = ["NAMES", "attention_left_whole", "draw_models", "fitting", "megatron"]

NAMES: Final = ("a", "b", "c")
_MOST: Final = 12  # plans that fit a model
_ROOM_WEIGHTS, _ROOM_BYTES = 1.01, 1.06  # times the least

_Story = Mapping[str, Any]
_PLAIN: Final[_Story] = {"ranks": 2, "tied": False, "heads": 4, "kv_heads": (2, 4), "spare": 0}
_HEADS: Final[_Story] = {"ranks": 4, "tied": False, "heads": 8, "kv_heads": (2, 8), "spare": 1}
_TIGHT: Final[_Story] = {"ranks": 3, "tied": True, "heads": 6, "kv_heads": (3, 6), "spare": -2}


def draw_models(draw: Random) -> dict[str, Model]:
    """Three models, by name."""
    models = [_drawn(draw, story) for story in (_PLAIN, _HEADS, _TIGHT)]
    draw.shuffle(models)
    return dict(zip(NAMES, models, strict=True))


def _drawn(draw: Random, story: _Story) -> Model:
    """A model of that kind that few plans fit, and not the first ones that come to mind."""
    for _ in range(1000):
        model = _limited(_bare(draw, story), 7 + story["spare"], 5 + story["spare"])
        hasty = not model.objection(attention_left_whole(model)) and model.cost(
            attention_left_whole(model)
        ).within(model.budget)
        if 1 <= len(fitting(model)) <= _MOST and not hasty:
            return model
    raise AssertionError("no draw has a budget that few plans fit")


def _bare(draw: Random, story: _Story) -> Model:
    ranks, heads = story["ranks"], story["heads"]
    hidden = heads * ranks * draw.randint(2, 4 if ranks < 4 else 2)
    kv_heads, inner = list(story["kv_heads"]), [hidden * draw.randint(1, 2), hidden * 4]
    draw.shuffle(kv_heads)
    draw.shuffle(inner)
    blocks = tuple(Block(*each) for each in zip(kv_heads, inner, strict=True))
    vocabulary = draw.randint(6 * hidden, 10 * hidden)
    return Model(ranks, story["tied"], vocabulary, hidden, heads, blocks, 4 * draw.randint(3, 6))


def _limited(model: Model, forward: int, backward: int) -> Model:
    """With so many calls, and the least weights and bytes that go with them."""
    costs = _costs(model)
    left = costs[(costs[:, 1] <= forward) & (costs[:, 2] <= backward)]
    weights = math.ceil(left[:, 0].min() * _ROOM_WEIGHTS)
    sent = math.ceil(left[left[:, 0] <= weights][:, 3].min() * _ROOM_BYTES)
    return replace(model, budget=Cost(weights, forward, backward, sent))


# All plans --------------------------------------------------------------------------------------


def _groups(model: Model) -> list[list[tuple[Cost, Plan]]]:
    """What can be chosen by itself: the ends, and two layers of each half of each block."""
    halves = product(range(len(model.blocks)), PAIRS)
    pairs = [list(model.allowed_pairs(number, pair)) for number, pair in halves]
    return [list(model.allowed_ends()), *pairs]


def _costs(model: Model) -> Any:
    """What each allowed plan takes, [plans, 4], in the order of `itertools.product`."""
    total = np.array([model.norms], dtype=float)
    for group in _groups(model):
        own = np.array([cost for cost, _ in group], dtype=float)
        total = (total[:, None] + own[None]).reshape(-1, 4)
    return total


def fitting(model: Model) -> list[Plan]:
    """All plans within the budget."""
    groups = _groups(model)
    fits = np.flatnonzero((_costs(model) <= np.array(model.budget)).all(axis=1))
    places = zip(*np.unravel_index(fits, [len(group) for group in groups]), strict=True)
    return [
        {
            name: kind
            for group, place in zip(groups, each, strict=True)
            for name, kind in group[int(place)][1].items()
        }
        for each in places
    ]


# Rules of thumb, which are to fail for some -----------------------------------------------------


def megatron(model: Model, whole: Sequence[str] = ()) -> Plan:
    """Column and row in every block, a vocabulary that is shared; but for layers left whole."""
    kinds = {"qkv": "column", "projection": "row", "wide": "column", "narrow": "row",
             "embedding": "vocabulary", "head": "column"}  # fmt: skip
    return {
        name: "replicated" if name in whole else kinds[name.rpartition(".")[2]]
        for name in model.shapes
    }


def attention_left_whole(model: Model) -> Plan:
    """The attention of all blocks whole, all else shared."""
    return megatron(model, [name for name in model.shapes if name.endswith(("qkv", "projection"))])
