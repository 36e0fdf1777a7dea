"""01/fix_1: fix a ring that uses local ranks where it needs global ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import Fault, Noted
from dtlab.checks.functions.trials import Trial
from dtlab.checks.functions.values import labelled
from dtlab.checks.parts import Part
from dtlab.checks.questions.waits import judge_waits
from dtlab.predict.units import counted
from dtlab.units.unit01.fixes import (
    BYTES,
    ELEMENTS,
    Returning,
    are_tensors,
    fix_program,
    name_of,
    strangers,
    traffic,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Blocks(Returning):
    """A call of `gather_blocks(block, per_node)`, which returns the blocks of the rank's node."""

    seed: int
    size: int
    per_node: int

    def __str__(self) -> str:
        return f"{self.per_node} on a node, blocks of {self.size}"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor, int]:
        return labelled(self.seed, self.size, rank), self.per_node

    def advice(self, trouble: str) -> str:
        """Advice on a rank that is alone on its node."""
        if "itself" not in trouble or self.per_node > 1:
            return ""
        return (
            "Here each rank is alone on its node and has all blocks: with N ranks on a node there "
            "are N-1 rounds, here none."
        )

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        blocks = [labelled(self.seed, self.size, rank) for rank in range(len(results))]
        for rank, noted in enumerate(results):
            got, first = noted["returned"], rank - rank % self.per_node
            if not are_tensors(got, self.per_node):
                goal = counted(self.per_node, "block")
                message = f"return a list of {goal}, one per rank of the node."
                yield "result", f"rank {rank}: {message}"
                return
            for place, block in enumerate(blocks[first : first + self.per_node]):
                if not same(got[place], block, dtype=True):
                    name = name_of(got[place], blocks, "the block of rank {}")
                    yield "result", f"rank {rank}: place {place} holds {name}."


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    sizes = ((2, draw.randint(1, 9), 1), (6, draw.randint(1, 9), 3), (4, ELEMENTS, 4))
    return [Trial(ranks, [Blocks(seed, size, per_node)]) for ranks, size, per_node in sizes]


PART = Part(
    "01/fix_1",
    3,
    "The blocks of a node",
    12,
    2,
    fix_program(
        "gather_blocks",
        Trial(6, [Blocks(0, 3, 3)]),
        judge_waits,
        _trials,
        "all blocks are in their places, on nodes of 1, 3 and 4 ranks",
        "each rank sends N-1 blocks to its neighbour in the ring",
        traffic(
            ("send", "recv"),
            6,
            lambda ranks, rank: (ranks - 1) * BYTES,
            "In each of N-1 rounds, send one block to the next neighbour.",
            strangers,
        ),
    ),
)
