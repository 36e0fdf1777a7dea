"""02/script_8: samples are divided by the local rank, so each node takes all samples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.data_parallel import SGD, trained
from dtlab.checks.programs.judges import copies_differ, not_shared_out
from dtlab.checks.programs.reference import not_as_one_process
from dtlab.checks.programs.run import Program
from dtlab.checks.programs.training import script_part
from dtlab.checks.words import nodes_of, ranks_in_words
from dtlab.predict import Cluster

if TYPE_CHECKING:
    import torch

__all__ = ["PART", "OnCards", "wrong_cards"]


@dataclass(frozen=True)
class OnCards(Training):
    """Calls `script(model, data, epochs, card)` on nodes with two GPUs; ranks have a LOCAL_RANK.

    Ranks fill one node after the other or, with `round`, are assigned to the nodes in turn, as by
    some launchers.
    """

    advices: ClassVar = {
        "device ordinal": "This rank requests a card that its node does not have. On every node, "
        "the numbers of cards begin at 0."
    }

    nodes: int = 1
    round: bool = False

    def __str__(self) -> str:
        nodes = nodes_of(Cluster(self.nodes, 2))
        spread = "ranks assigned to nodes in turn" if self.round else "one node after the other"
        return f"{nodes}" + (f", {spread}" if self.nodes > 1 else "")

    def place(self, rank: int) -> tuple[int, int]:
        """The node of a rank, and the rank's LOCAL_RANK."""
        local, node = divmod(rank, self.nodes)
        return (node, local) if self.round else divmod(rank, 2)

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        node, local = map(str, self.place(rank))
        places = {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": node}
        return {**super().inputs(rank, world_size), "environment": places}

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        import operator
        import os

        import torch

        os.environ.update(given["environment"])
        requested: list[int] = []

        def card(index: Any) -> torch.device:
            requested.append(operator.index(index))
            if requested[-1] not in (0, 1):
                raise RuntimeError(f"CUDA error: invalid device ordinal ({index})")
            return torch.device("cpu")

        return {**super().run(fn, model, {**given, "more": [card]}), "cards": requested}


def _trials(seed: int) -> list[Trial]:
    """Trials on one node, and on two nodes with both ways to place ranks."""
    draw = random.Random(seed)
    samples = 4 * draw.randint(12, 16)
    two = OnCards(seed + 1, samples + 4, nodes=2)
    dealt = OnCards(seed + 2, samples + 8, nodes=2, round=True)
    return [Trial(2, [OnCards(seed, samples)]), Trial(4, [two, dealt])]


def wrong_cards(case: OnCards, results: Sequence[Seen], run: Observation) -> str:
    """A message if a rank uses another GPU than that of its LOCAL_RANK."""
    for rank, result in enumerate(results):
        node, local = case.place(rank)
        if not result.cards:
            return f"rank {rank} requests no card: keep `device = card(...)`."
        wrong = set(result.cards) - {local}
        if not wrong:
            continue
        others = [
            other
            for other, each in enumerate(results)
            if other != rank and min(wrong) in each.cards and case.place(other)[0] == node
        ]
        shared = f", which {ranks_in_words(others)} on its node has too" if others else ""
        return (
            f"rank {rank} requests card {min(wrong)}{shared}. Which number does a launcher give "
            "each rank of a node, however the ranks are placed?"
        )
    return ""


PART = script_part(
    "02/script_8",
    "Script 8",
    8,
    1,
    "dtlab.units.unit02.scripts.train_8",
    Trial(4, [OnCards(0, 128, nodes=2)]),
    _trials,
    (
        rule(
            "samples",
            2,
            "in every epoch each sample goes to one rank of all nodes",
            by=not_shared_out,
        ),
        trained(1, "samples", wrong_cards, copies_differ, not_as_one_process(SGD)),
    ),
    lines=[
        'rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])',
        "sampler = DistributedSampler(data, num_replicas=size, rank=rank, seed=8)",
    ],
    look="Compare one node with two: which ranks take the same samples?",
)
