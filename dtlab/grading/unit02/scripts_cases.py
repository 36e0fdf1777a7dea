"""A training script as a check runs it: the model and the data that it gets, and what it does.

A forward hook of the model notes which samples a rank takes in each pass, and the parameters that
it has then. So a check knows what was trained on, however a script has come by its batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.grading.trials import Case
from dtlab.grading.words import nodes_of
from dtlab.predict import Cluster

if TYPE_CHECKING:
    import torch

__all__ = ["CLASSES", "INPUTS", "OnCards", "OnShards", "Script", "Seen", "Training", "flat"]

INPUTS, CLASSES = 64, 10  # numbers in an image, 8 x 8, and labels

Script = Callable[..., Any]


@dataclass(frozen=True)
class Seen:
    """What a rank did.

    `passes` are the forward passes with gradients, each as the numbers of its samples, -1 for an
    image that is not in the data; `before` the parameters that each of them had, a row for each;
    `after` those in the end; `cards` the numbers of the devices that it asked for.
    """

    passes: list[list[int]]
    before: torch.Tensor
    after: torch.Tensor
    cards: list[int]


@dataclass(frozen=True)
class Training(Case):
    """`script(model, data, epochs, *more)` on `samples` random images with random labels.

    The model is an MLP with one hidden layer, and begins differently on each rank.
    """

    seed: int
    samples: int
    epochs: int = 2
    hidden: int = 8
    more: tuple[int, ...] = ()

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

    # ------------------------------------------------------------------ what a rank does

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        return trained(fn, given, given["more"])

    # ------------------------------------------------------------------ what comes out

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {name: number for number, name in enumerate(digests(self.data[0]))}

    def opened(self, result: Any) -> Seen:
        """See `Case`. Raises anything where it is not what `on_rank` returns."""
        passes = [[self._numbers.get(int(one), -1) for one in batch] for batch in result["passes"]]
        before, after = result["before"].double(), result["after"].double()
        before.view(len(passes), len(after))
        if after.shape != self.start(0).shape:
            raise ValueError("another model")
        return Seen(passes, before, after, [int(card) for card in result.get("cards", [])])

    def mistake(self, results: Sequence[Seen]) -> str:
        """See `Case`: what is wrong with a training is for the judges to say."""
        return ""


@dataclass(frozen=True)
class OnShards(Training):
    """`script(model, shard, epochs)`: rank r has `sizes[r]` samples that nobody else has."""

    samples: int = field(default=0, init=False)
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", sum(self.sizes))

    def __str__(self) -> str:
        return f"shards of {', '.join(map(str, self.sizes))} samples, {self.epochs} epochs"

    def share(self, rank: int) -> slice:
        """See `Training`."""
        first = sum(self.sizes[:rank])
        return slice(first, first + self.sizes[rank])


@dataclass(frozen=True)
class OnCards(Training):
    """`script(model, data, epochs, card)` on nodes with cards, and a LOCAL_RANK for each rank.

    Ranks fill one node after the other, or go `round` the nodes as some launchers have it.
    """

    nodes: int = 1
    per_node: int = 2
    cards: int = 2
    round: bool = False

    def __str__(self) -> str:
        nodes = nodes_of(Cluster(self.nodes, self.per_node))
        spread = "ranks dealt round the nodes" if self.round else "one node after the other"
        return f"{nodes}" + (f", {spread}" if self.nodes > 1 else "")

    def seat(self, rank: int) -> int:
        """The LOCAL_RANK of a rank."""
        return rank // self.nodes if self.round else rank % self.per_node

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        node = rank % self.nodes if self.round else rank // self.per_node
        places = {
            "LOCAL_RANK": str(self.seat(rank)),
            "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(node),
        }
        own = super().given(rank, world_size)
        return {**own, "environment": places, "cards": self.cards}

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        import operator
        import os

        import torch

        os.environ.update(given["environment"])
        asked: list[int] = []

        def card(index: Any) -> torch.device:
            asked.append(operator.index(index))
            if not 0 <= asked[-1] < given["cards"]:
                raise RuntimeError(f"CUDA error: invalid device ordinal ({index})")
            return torch.device("cpu")

        return {**trained(fn, given, [card]), "cards": asked}


def trained(fn: Script, given: dict[str, Any], more: Sequence[Any]) -> dict[str, Any]:
    """Runs on a rank: the script, and what is noted of it."""
    import torch
    from torch.utils.data import TensorDataset

    from dtlab.training.models import MLP

    model = MLP(INPUTS, given["hidden"], CLASSES)
    sizes = [one.numel() for one in model.parameters()]
    for own, part in zip(model.parameters(), given["start"].split(sizes), strict=True):
        own.data.copy_(part.view_as(own))
    passes: list[list[int]] = []
    before: list[torch.Tensor] = []

    def note(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            passes.append(digests(inputs[0]))
            before.append(flat(model))

    model.register_forward_pre_hook(note)
    fn(model, TensorDataset(given["images"], given["labels"]), given["epochs"], *more)
    after = flat(model)
    rows = torch.stack(before) if before else after.new_empty(0, len(after))
    return {"passes": passes, "before": rows, "after": after}


def flat(model: torch.nn.Module) -> torch.Tensor:
    """A copy of all parameters in one row."""
    import torch

    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).clone()


def digests(images: torch.Tensor) -> list[int]:
    """A number for each image, by its pixels."""
    rows = images.detach().cpu().float().flatten(1).contiguous().numpy()
    found = (hashlib.blake2b(row.tobytes(), digest_size=7).digest() for row in rows)
    return [int.from_bytes(one) for one in found]
