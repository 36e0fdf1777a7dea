"""01/mend_1: repair a ring in which all ranks receive before they send."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtlab.grading.checking.criteria import Fault, Noted
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.values import labelled
from dtlab.grading.parts import Part
from dtlab.grading.questions.waits import judge_waits
from dtlab.grading.words import ranks_in_words
from dtlab.units.unit01.mending import (
    BYTES,
    ELEMENTS,
    Returning,
    are_tensors,
    mend,
    name_of,
    same,
    traffic,
)

if TYPE_CHECKING:
    import torch

    from dtlab.trace import Trace


@dataclass(frozen=True)
class Blocks(Returning):
    """A call of `gather_blocks(block)`, which returns the blocks of all ranks in order."""

    seed: int
    size: int

    def __str__(self) -> str:
        return f"blocks of {self.size}"

    def given(self, rank: int, world_size: int) -> tuple[torch.Tensor]:
        return (labelled(self.seed, self.size, rank),)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        blocks = [labelled(self.seed, self.size, rank) for rank in range(len(results))]
        for rank, noted in enumerate(results):
            got = noted["returned"]
            if not are_tensors(got, len(blocks)):
                message = f"return a list of {len(blocks)} blocks, one per rank."
                yield "result", f"rank {rank}: {message}"
                return
            for place, block in enumerate(blocks):
                if not same(got[place], block):
                    name = name_of(got[place], blocks, "the block of rank {}")
                    yield "result", f"rank {rank}: place {place} holds {name}."


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    small = [Trial(ranks, [Blocks(seed, draw.randint(1, 9))]) for ranks in (1, 3, 5)]
    return [*small, Trial(4, [Blocks(seed, ELEMENTS)])]


def _strangers(trace: Trace) -> str:
    """A message if a rank exchanges messages with a rank that is not its neighbour in the ring."""
    ranks = trace.world_size
    for rank in range(ranks):
        others = trace.peers(rank) - {(rank - 1) % ranks, (rank + 1) % ranks}
        if others:
            peers = ranks_in_words(sorted(others))
            return f"rank {rank} exchanges messages with {peers}, but they are not neighbours."
    return ""


PART = Part(
    "01/mend_1",
    3,
    "A ring that stands still",
    10,
    1,
    mend(
        "gather_blocks",
        Trial(5, [Blocks(0, 3)]),
        judge_waits,
        _trials,
        "all blocks are in their places, on 1 to 5 ranks",
        "each rank sends N-1 blocks to its neighbour in the ring",
        traffic(
            ("send", "recv"),
            6,
            lambda ranks, rank: (ranks - 1) * BYTES,
            "In each of N-1 rounds, send one block to the next neighbour.",
            _strangers,
        ),
    ),
)
