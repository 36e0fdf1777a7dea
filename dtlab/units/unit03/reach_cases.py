"""What ranks of ours do with a plan of 03/reach: a rehearsal, and whole trainings."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.trials import Case, Trial
from dtlab.units.unit03.reach_plans import Setting

# What level-3.ipynb gives: the samples of an update, those of eight epochs of 12942 digits, data-
# parallel ranks, the samples that one of them has memory for in a forward pass.
BATCH, SAMPLES, RANKS, MEMORY = 512, 8 * 12942, 2, 64
REHEARSED = 40  # updates

_SEEDS, _LAUNCHES = 6, 3
_LIMIT = 30.0  # seconds for a launch of trainings, which takes one


class _OfOurs(Case):
    """What our ranks do with a plan."""

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
        return ""


@dataclass(frozen=True)
class Rehearsal(_OfOurs):
    """The first updates of a plan, at a low rate: what travels, and whether copies stay equal."""

    plan: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{REHEARSED} updates"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        return {**self.plan, "updates": REHEARSED, "warmup": 0, "rate": 0.05}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        """See `Case`."""
        from dtlab.training.datasets import digits

        return fn(given, digits(), 0)[2]


@dataclass(frozen=True)
class Trainings(_OfOurs):
    """A whole training by the plan for each seed, on one rank: test errors in %.

    A rank takes the samples of an update at once, which comes to the same up to rounding.
    """

    plan: Mapping[str, Any]
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.plan['updates']} updates"

    def given(self, rank: int, world_size: int) -> tuple[dict[str, Any], list[int]]:
        """See `Case`."""
        at_once = {"micro_batch": BATCH, "micro_batches": 1, "travel_in": [0]}
        return {**self.plan, **at_once}, list(self.seeds[rank::world_size])

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[dict[str, Any], list[int]]) -> Any:
        """See `Case`."""
        import torch.distributed as dist

        from dtlab.training.datasets import digits

        (plan, seeds), data = given, digits()
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return [fn(plan, data, seed, alone[dist.get_rank()])[0] for seed in seeds]


def _train_by(*given: Any) -> Any:
    from dtlab.units.unit03.reach_training import train_by

    return train_by(*given)


def trials_for(seed: int) -> list[Trial]:
    """The setting of the notebook, and four that are drawn; some have memory for all at once."""
    draw = random.Random(seed)
    seeds = tuple(draw.randrange(1000, 1 << 30) for _ in range(_SEEDS))
    drawn = [
        _drawn(draw, ranks, micro_batches)
        for ranks, micro_batches in ((1, 4), (draw.choice((4, 8)), 8), (2, 2), (4, 1))
    ]
    return [Trial(1, [Setting(BATCH, SAMPLES, RANKS, MEMORY, seeds), *drawn])]


def _drawn(draw: random.Random, ranks: int, micro_batches: int) -> Setting:
    memory = draw.choice((8, 16, 32))
    batch = ranks * micro_batches * memory
    if micro_batches == 1:
        memory += draw.choice((4, 8, 24))  # there is room for more than the share of a rank
    updates, rest = draw.randint(150, 900), draw.randint(1, batch - 1)
    return Setting(batch, updates * batch + rest, ranks, memory)


def trainings_of(
    setting: Setting, plan: Mapping[str, Any]
) -> list[tuple[Trial, Callable[..., Any]]]:
    """What was planned for the digits, to be carried out with each seed."""
    shares = [setting.seeds[k::_LAUNCHES] for k in range(_LAUNCHES)]
    cases = [Rehearsal(plan), *(Trainings(plan, seeds) for seeds in shares)]
    return [(Trial(RANKS, [case], limit=_LIMIT), _train_by) for case in cases]
