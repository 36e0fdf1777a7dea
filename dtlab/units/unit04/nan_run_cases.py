"""How a check runs the training run in fp16, and what of it can be worked out in one process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.trials import Trial
from dtlab.grading.scripts.cases import Script, Seen, Training, trained
from dtlab.grading.scripts.reference import gradient_of, mean, steps_of

if TYPE_CHECKING:
    import torch

__all__ = ["MOMENTUM", "Made", "OnDigits", "made_steps", "scene", "trials"]

MOMENTUM = 0.9
_SAMPLES, _EPOCHS, _HIDDEN, _BATCH = 4096, 2, 128, 128  # of the digits, as in the notebook
_RATE, _MAX_NORM = 4.0, 0.1
_LIMIT = 30.0  # seconds for the broken run, which takes one


@dataclass(frozen=True)
class OnDigits(Training):
    """`script(model, data, epochs, *more)` on the first `samples` digits of a shuffled order.

    It is ours, and returns the loss and the scale of each step.
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
        return {**seen, "curve": [[float(loss), float(scale)] for loss, scale in curve]}


def scene() -> Trial:
    """The run of the notebook, on two ranks."""
    more = (_BATCH, _RATE, _MAX_NORM)
    digits = OnDigits(0, _SAMPLES, _EPOCHS, _HIDDEN, more, micro_batch=_BATCH // 2)
    return Trial(2, [digits], limit=_LIMIT)


def trials(seed: int) -> list[Trial]:
    """Two ranks where every gradient is clipped, and three where none is."""
    draw = random.Random(seed)

    def case(ranks: int, max_norm: float, number: int) -> Trial:
        micro, rate = draw.choice((10, 12, 14)), draw.choice((0.01, 0.015, 0.02))
        more = (ranks * micro, rate, max_norm)
        samples = ranks * micro * 14
        given = Training(seed + number, samples, 2, 16, more, micro_batch=micro)
        return Trial(ranks, [given])

    return [case(2, draw.choice((0.5, 0.7, 1.0)), 0), case(3, draw.choice((11.0, 12.0, 13.0)), 1)]


# What happened ----------------------------------------------------------------------------------


class Made(NamedTuple):
    """A step that moved the parameters: its number, its gradient, and the true one.

    Both are of the sum over a rank's samples, averaged over the ranks, as one row.
    """

    number: int
    got: torch.Tensor
    true: torch.Tensor


def made_steps(case: Training, results: Sequence[Seen]) -> list[Made]:
    """The steps in which rank 0's parameters moved, where they and the gradient are finite.

    The gradient that SGD got follows from where the parameters went.
    """
    _, rate, _ = case.more
    seen, found = results[0], []
    ends = [*seen.before[1:], seen.after]
    velocity = 0 * seen.after
    for number, (begin, end, step) in enumerate(
        zip(seen.before, ends, steps_of(case, results), strict=False)
    ):
        if end.equal(begin):
            continue
        got = (begin - end) / rate - MOMENTUM * velocity
        velocity = (begin - end) / rate
        weights = {sample: case.micro_batch * share for sample, share in mean(step).items()}
        true = gradient_of(case, begin, weights)
        if not bool(got.isfinite().all() and true.isfinite().all()):
            break
        found.append(Made(number, got, true))
    return found
