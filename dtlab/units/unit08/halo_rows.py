"""08/halo_rows: rows of the neighbours' tiles around this rank's rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.units.unit08.tiles import Cell, OnTiles


@dataclass(frozen=True)
class Rows(OnTiles):
    """A call of `fn(tile, width, boundary)` on a field that is split by rows."""

    halo_of = (True, False)

    def __str__(self) -> str:
        boundary = "periodic" if self.periodic else "zero"
        return f"width {self.width}, {boundary} boundary"

    def shows(self, criterion: str) -> bool:
        shown = {"halo": ("halo", "edge", "bytes"), "periodic": ("periodic",), "few": ("few",)}
        return criterion in shown[self.topic]

    def arguments(self) -> tuple[Any, ...]:
        return self.width, "periodic" if self.periodic else "zero"

    def criterion(self, rank: int, cell: Cell) -> str:
        outside = not 0 <= cell[0] < self.sizes[0]
        return "edge" if outside and self.topic == "halo" else self.topic

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        hint = "Send the rows next to the neighbour's tile, and no others."
        yield from (("bytes", text) for text in self.wrong_bytes(observation, hint))


def _trials(seed: int) -> list[Trial]:
    """Both boundaries on 3 and 4 ranks, then on 1 and 2, where both neighbours are one rank."""
    draw = random.Random(seed)

    def case(topic: str, ranks: int, periodic: bool = False, columns: int = 0) -> Rows:
        width = draw.randint(2, 3)
        rows = ranks * width + draw.randint(1, 5) + (40 if columns else 0)
        sizes = rows, columns or draw.randint(3, 6)
        return Rows(draw.randrange(10**6), topic, (ranks, 1), sizes, width, periodic)

    def few(ranks: int) -> Trial:
        return Trial(ranks, [case("few", ranks, periodic) for periodic in (True, False)])

    return [
        Trial(3, [case("halo", 3), case("halo", 3)]),
        Trial(4, [case("halo", 4, columns=3000)]),
        Trial(3, [case("periodic", 3, True), case("periodic", 3, True)]),
        few(2),
        few(1),
    ]


PART = Part(
    "08/halo_rows", 2, "A halo of rows", 15, 2,
    Check(
        trials=_trials,
        rules=(
            rule("halo", 2, "the neighbours' rows are above and below the tile"),
            rule("edge", 1, "the halo is zero at the edge of the field", "halo"),
            rule("bytes", 2, "each rank sends its border rows only", "halo", "edge"),
            rule("periodic", 2, "a periodic field continues at its other edge", "halo"),
            rule("few", 1, "the same on one and two ranks", "halo", "edge", "periodic"),
        ),
    ),
    reference="dtlab.simple.halo_exchange",
    stretch=True,
)  # fmt: skip
