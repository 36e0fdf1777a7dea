"""Data-parallel training on a data set: the inputs of a script, and the samples that ranks take.

A forward pre-hook on the model records the samples of each forward pass and the parameters at that
time. So a check knows the training samples, no matter how a script makes its batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import same
from dtlab.checks.programs.run import Program, TrainingRun, flat
from dtlab.predict.units import counted

if TYPE_CHECKING:
    import torch

__all__ = ["OnDigits", "Seen", "Training"]


@dataclass(frozen=True)
class Seen:
    """The recorded training of one rank.

    `passes` are the forward passes with gradients, each as the indices of its samples, -1 for an
    image that is not in the data. `before` are the parameters in each pass, one row per pass;
    `after` those at the end. `cards` are the numbers of the requested devices. `curve` are two
    numbers for each step, the first of them the loss, if a script of the library returns them.
    """

    passes: list[list[int]]
    before: torch.Tensor
    after: torch.Tensor
    cards: Sequence[int] = ()
    curve: Sequence[tuple[float, float]] = ()

    def by_epoch(self, epochs: int) -> list[list[list[int]]]:
        """Splits the passes into epochs of equal numbers of passes."""
        each = len(self.passes) // epochs
        return [self.passes[epoch * each : (epoch + 1) * each] for epoch in range(epochs)]


@dataclass(frozen=True)
class Training(TrainingRun):
    """A run of `script(model, data, epochs, *more)` on `samples` random images and labels.

    The model is an MLP with one hidden layer, with different initial parameters on each rank. In a
    step each rank makes `passes` forward passes, of `micro_batch` samples each.
    """

    samples: int
    epochs: int = 2
    hidden: int = 8
    more: tuple[float, ...] = ()
    passes: int = 1
    micro_batch: int = 16

    def __str__(self) -> str:
        return f"{counted(self.samples, 'sample')}, {counted(self.epochs, 'epoch')}"

    def updates(self, ranks: int) -> int:
        """Returns the number of steps of this many ranks, if their shares are equal."""
        return self.epochs * (self.samples // (ranks * self.passes * self.micro_batch))

    # Inputs -------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 64, self.hidden, 10

    @staticmethod
    def build(*sizes: int, seed: int = 0) -> Any:
        from dtlab.training.models import MLP

        return MLP(*sizes, seed=seed)

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images [samples, 1, 8, 8] and labels of all ranks."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        images = torch.randn(self.samples, 1, 8, 8, generator=draw)
        return images, torch.randint(10, (self.samples,), generator=draw)

    def start(self, rank: int) -> torch.Tensor:
        return flat(self.build(*self.sizes, seed=1000 * self.seed + rank))

    def share(self, rank: int) -> slice:
        """Returns which samples of the data a rank is given."""
        return slice(0, self.samples)

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        images, labels = (tensor[self.share(rank)] for tensor in self.data)
        return {"data": [images, labels], "epochs": self.epochs, "more": list(self.more)}

    # On a rank ----------------------------------------------------------------------------------

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        """See `TrainingRun`. Records parameters only if they have changed."""
        import torch
        from torch.utils.data import TensorDataset

        passes: list[list[int]] = []
        rows, places = [flat(model)[:0]], []

        def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            if torch.is_grad_enabled():
                passes.append(_digests(inputs[0]))
                now = flat(model)
                if not same(rows[-1], now):
                    rows.append(now)
                places.append(len(rows) - 2)

        model.register_forward_pre_hook(note)
        returned = fn(model, TensorDataset(*given["data"]), given["epochs"], *given["more"])
        after = flat(model)
        before = torch.stack(rows[1:]) if rows[1:] else after.new_empty(0, len(after))
        noted = {"passes": passes, "before": before, "places": places, "after": after}
        return {**noted, **cls.returned(returned)}

    @staticmethod
    def returned(value: Any) -> dict[str, Any]:
        """Returns the data to record from a script's return value."""
        return {}

    # Results ------------------------------------------------------------------------------------

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {name: number for number, name in enumerate(_digests(self.data[0]))}

    def opened(self, result: Any) -> Seen:
        """See `Case`. May raise any exception if the result is not one of `on_rank`."""
        passes = [[self._numbers.get(int(key), -1) for key in batch] for batch in result["passes"]]
        rows, after = result["before"].double(), result["after"].double()
        before = rows[[int(place) for place in result["places"]]]
        before.view(len(passes), len(after))
        if after.shape != self.start(0).shape:
            raise ValueError("the parameters are those of another model")
        cards = [int(card) for card in result.get("cards", [])]
        curve = [(float(loss), float(other)) for loss, other in result.get("curve", [])]
        return Seen(passes, before, after, cards, curve)


@dataclass(frozen=True)
class OnDigits(Training):
    """The training run of a library script on `samples` digits in a shuffled order.

    The script returns the loss and another number for each step.
    """

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        from dtlab.training.datasets import digits

        train = digits().train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))
        images, labels = train[order[: self.samples]]
        return images, labels

    @staticmethod
    def returned(value: Any) -> dict[str, Any]:
        return {"curve": [[float(loss), float(other)] for loss, other in value]}


def _digests(images: torch.Tensor) -> list[int]:
    """Returns a hash of the pixels of each image."""
    rows = images.detach().cpu().float().flatten(1).contiguous().numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=7).digest() for row in rows)
    return [int.from_bytes(digest) for digest in digests]
