"""08/halo_corners: a halo on all four sides of a tile, with corners."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import confirmed
from dtlab.checks.parts import Part
from dtlab.checks.words import ranks_in_words
from dtlab.units.unit08.tiles import Cell, OnTiles


@dataclass(frozen=True)
class Corners(OnTiles):
    """A call of `fn(tile, grid, width)`."""

    def __str__(self) -> str:
        return f"grid {self.grid[0]} x {self.grid[1]}, width {self.width}"

    def arguments(self) -> tuple[Any, ...]:
        return self.grid, self.width

    def criterion(self, rank: int, cell: Cell) -> str:
        if any(not 0 <= at < size for at, size in zip(cell, self.sizes, strict=True)):
            return "edge"
        beside = sum(at not in self.span(rank, dim) for dim, at in enumerate(cell))
        return "corners" if beside == 2 else "sides"

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        hint = "Each side needs a strip of the tile's border."
        yield from (("bytes", text) for text in self.wrong_bytes(observation, hint))
        yield from confirmed("peers", observation, self._wrong_peers(observation))

    def _wrong_peers(self, observation: Observation) -> Iterator[Fault]:
        trace, where = observation.trace, observation.trial.words(0)
        for rank in range(observation.trial.world_size if trace is not None else 0):
            assert trace is not None
            others = sorted({*trace.ops(rank)} - {"send", "recv"})
            if others:
                yield "peers", f"{where}: rank {rank} calls {others[0]}. Send to neighbours only."
            beside = {*self.neighbours(rank).values()}
            far = sorted(trace.peers(rank) - beside)
            if far:
                yield (
                    "peers",
                    f"{where}: rank {rank} exchanges messages with {ranks_in_words(far)}. Beside "
                    f"it {'are' if len(beside) != 1 else 'is'} {ranks_in_words(sorted(beside))}. "
                    "A neighbour has the corner already, if it has exchanged its rows first.",
                )


def _trials(seed: int) -> list[Trial]:
    """Square, long and single grids; then one that is large enough to count bytes."""
    draw = random.Random(seed)

    def trial(rows: int, columns: int, height: int = 0, breadth: int = 0) -> Trial:
        width = draw.randint(2, 3)
        least = (rows, height or width), (columns, breadth or width)
        sizes = [count * size + draw.randint(1, 5) for count, size in least]
        case = Corners(
            draw.randrange(10**6), "sides", (rows, columns), (sizes[0], sizes[1]), width
        )
        return Trial(prod(case.grid), [case])

    return [trial(2, 2), trial(2, 3), trial(3, 1), trial(1, 2), trial(1, 1), trial(2, 2, 30, 8000)]


PART = Part(
    "08/halo_corners", 2, "Four sides and the corners", 20, 3,
    Check(
        trials=_trials,
        rules=(
            rule("sides", 3, "the halo has the cells of all four neighbours"),
            rule("corners", 3, "its corners come from the diagonal neighbours' tiles", "sides"),
            rule("edge", 1, "the halo is zero outside the field", "sides"),
            rule(
                "peers",
                1,
                "each rank talks to the ranks beside it only",
                "sides",
                "corners",
                "edge",
            ),
            rule("bytes", 2, "each rank sends its border only", "sides", "corners", "edge"),
        ),
    ),
    reference="dtlab.parallel.domain.halo_exchange",
    stretch=True,
)  # fmt: skip
