"""How a check runs the four training runs: on digits as the notebook does, and on small data."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Trial
from dtlab.grading.scripts.cases import Script, Training, trained

if TYPE_CHECKING:
    import torch

__all__ = ["BASE_BATCH", "BASE_RATE", "OnDigits", "accumulated", "one_recipe", "schedule"]

BASE_BATCH, BASE_RATE = 32, 0.05  # the recipe of one process: samples of an update, and its rate
_WARM_UP = 3, 8  # of the updates, as a fraction
_EPOCHS, _HIDDEN = 3, 256  # a model large enough to be seen on the wire


@dataclass(frozen=True)
class OnDigits(Training):
    """`script(model, data, epochs, *more)` on the first `samples` digits of a shuffled order.

    It is one of ours, and returns the loss and the rate of each update.
    """

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images [samples, 1, 8, 8] and labels of all ranks."""
        import torch

        from dtlab.training.datasets import digits

        train = digits().train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))
        images, labels = train[order[: self.samples]]
        return images, labels

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        seen, curve = trained(fn, given, given["more"])
        return {**seen, "curve": [[float(loss), float(rate)] for loss, rate in curve]}


def schedule(
    peak: float, updates: int, start_factor: float, warm: int | None = None
) -> list[float]:
    """The rate of each update as the scripts have it: a warm-up, then a cosine to 0.

    `warm` updates long, if not as long as the scripts have it.
    """
    warm = _WARM_UP[0] * updates // _WARM_UP[1] if warm is None else warm
    rising = [start_factor + (1 - start_factor) * step / warm for step in range(warm)]
    falling = [
        (1 + math.cos(math.pi * step / (updates - warm))) / 2 for step in range(updates - warm)
    ]
    return [peak * factor for factor in rising + falling]


# Trials of mended scripts -----------------------------------------------------------------------


def accumulated(draw: random.Random, seed: int) -> list[Trial]:
    """`script(model, data, epochs, micro, accumulate)` on three ranks and on two.

    The batch is as many times 32 as neither ranks nor microbatches nor both are, nor its root.
    And neither of the first trial's is 2: rates come to be off by that in other ways too.
    """

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 28))
        samples = ranks * accumulate * micro * steps
        given = _training(seed + number, samples, (micro, accumulate), accumulate, micro)
        return Trial(ranks, [given])

    return [case(3, 4, draw.randint(2, 3), 0), case(2, 3, 3, 1)]


def one_recipe(draw: random.Random, seed: int) -> list[Trial]:
    """`script(model, data, epochs, batch, rate, accumulate)`: one GPU's batch, shared out."""

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 24, 28))
        batch, rate = ranks * accumulate * micro, draw.choice((0.06, 0.08, 0.1))
        more = (batch, rate, accumulate)
        return Trial(ranks, [_training(seed + number, batch * steps, more, accumulate, micro)])

    return [case(2, draw.choice((3, 4)), 3, 0), case(3, 2, draw.randint(2, 3), 1)]


def _training(
    seed: int, samples: int, more: tuple[float, ...], passes: int, micro: int
) -> Training:
    return Training(seed, samples, _EPOCHS, _HIDDEN, more, passes, micro)
