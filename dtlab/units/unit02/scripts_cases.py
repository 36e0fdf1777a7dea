"""How else a check runs training scripts of unit 02: on uneven shards, on nodes with cards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dtlab.grading.scripts.cases import Script, Training, trained
from dtlab.grading.words import nodes_of
from dtlab.predict import Cluster

if TYPE_CHECKING:
    import torch

__all__ = ["OnCards", "OnShards"]


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

        return {**trained(fn, given, [card])[0], "cards": asked}
