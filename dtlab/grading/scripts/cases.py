"""A training script as a check runs it: the model and the data that it gets, and what it does.

A forward hook of the model notes which samples a rank takes in each pass, and the parameters that
it has then. So a check knows what was trained on, however a script has come by its batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Case

if TYPE_CHECKING:
    import torch

__all__ = ["CLASSES", "INPUTS", "Script", "Seen", "Training", "flat", "trained"]

INPUTS, CLASSES = 64, 10  # numbers in an image, 8 x 8, and labels

Script = Callable[..., Any]


@dataclass(frozen=True)
class Seen:
    """What a rank did.

    `passes` are the forward passes with gradients, each as the numbers of its samples, -1 for an
    image that is not in the data; `before` the parameters that each of them had, a row for each;
    `after` those in the end; `cards` the numbers of the devices that it asked for; `curve` the
    loss and the rate of each step, where a script of ours says so.
    """

    passes: list[list[int]]
    before: torch.Tensor
    after: torch.Tensor
    cards: list[int]
    curve: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Training(Case):
    """`script(model, data, epochs, *more)` on `samples` random images with random labels.

    The model is an MLP with one hidden layer, and begins differently on each rank. In a step each
    of them makes `passes` forward passes, of `micro_batch` samples.
    """

    seed: int
    samples: int
    epochs: int = 2
    hidden: int = 8
    more: tuple[float, ...] = ()
    passes: int = 1
    micro_batch: int = 16

    def __str__(self) -> str:
        return f"{self.samples} samples, {self.epochs} epochs"

    # ------------------------------------------------------------------ what goes in

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images [samples, 1, 8, 8] and labels of all ranks."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        images = torch.randn(self.samples, 1, 8, 8, generator=draw)
        return images, torch.randint(CLASSES, (self.samples,), generator=draw)

    def start(self, rank: int) -> torch.Tensor:
        """The parameters with which the model of a rank begins, as one row."""
        from dtlab.training.models import MLP

        return flat(MLP(INPUTS, self.hidden, CLASSES, seed=1000 * self.seed + rank))

    def share(self, rank: int) -> slice:
        """The samples of the data that a rank is given."""
        return slice(0, self.samples)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        images, labels = self.data
        return {
            "images": images[self.share(rank)],
            "labels": labels[self.share(rank)],
            "start": self.start(rank),
            "hidden": self.hidden,
            "epochs": self.epochs,
            "more": list(self.more),
        }

    def steps(self, ranks: int) -> int:
        """How many steps so many ranks make together, where their shares come out even."""
        return self.epochs * (self.samples // (ranks * self.passes * self.micro_batch))

    # ------------------------------------------------------------------ what a rank does

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        return trained(fn, given, given["more"])[0]

    # ------------------------------------------------------------------ what comes out

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {name: number for number, name in enumerate(_digests(self.data[0]))}

    def opened(self, result: Any) -> Seen:
        """See `Case`. Raises anything where it is not what `on_rank` returns."""
        passes = [[self._numbers.get(int(one), -1) for one in batch] for batch in result["passes"]]
        rows, after = result["before"].double(), result["after"].double()
        before = rows[[int(place) for place in result["places"]]]
        before.view(len(passes), len(after))
        if after.shape != self.start(0).shape:
            raise ValueError("another model")
        cards = [int(card) for card in result.get("cards", [])]
        curve = [(float(loss), float(rate)) for loss, rate in result.get("curve", [])]
        return Seen(passes, before, after, cards, curve)

    def mistake(self, results: Sequence[Seen]) -> str:
        """See `Case`: what is wrong with a training is for the judges to say."""
        return ""


def trained(fn: Script, given: dict[str, Any], more: Sequence[Any]) -> tuple[dict[str, Any], Any]:
    """Runs on a rank: the script, what is noted of it, and what it returns.

    Parameters are noted where they have changed: in the microbatches of a step they do not.
    """
    import torch
    from torch.utils.data import TensorDataset

    from dtlab.training.models import MLP

    model = MLP(INPUTS, given["hidden"], CLASSES)
    sizes = [one.numel() for one in model.parameters()]
    for own, part in zip(model.parameters(), given["start"].split(sizes), strict=True):
        own.data.copy_(part.view_as(own))
    passes: list[list[int]] = []
    before: list[torch.Tensor] = []
    places: list[int] = []

    def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            passes.append(_digests(inputs[0]))
            now = flat(model)
            if not before or not before[-1].equal(now):
                before.append(now)
            places.append(len(before) - 1)

    model.register_forward_pre_hook(note)
    data = TensorDataset(given["images"], given["labels"])
    returned = fn(model, data, given["epochs"], *more)
    after = flat(model)
    rows = torch.stack(before) if before else after.new_empty(0, len(after))
    return {"passes": passes, "before": rows, "places": places, "after": after}, returned


def flat(model: torch.nn.Module) -> torch.Tensor:
    """A copy of all parameters in one row."""
    import torch

    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).clone()


def _digests(images: torch.Tensor) -> list[int]:
    """A number for each image, by its pixels."""
    rows = images.detach().cpu().float().flatten(1).contiguous().numpy()
    found = (hashlib.blake2b(row.tobytes(), digest_size=7).digest() for row in rows)
    return [int.from_bytes(one) for one in found]
