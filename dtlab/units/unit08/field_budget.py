"""08/field_budget: run shallow water on a field that is too large for the memory of a rank.

    trial                  field                      judges
    six ranks, 3 times     small: square, wide, tall  the result, and bytes against the best mesh
    four ranks             138 MB, a tile 35 MB       the memory, which `launch` limits

Under the limit are a tile, its copies with a halo, and a step of some rows at a time. Over the
limit are the whole field with a copy, and a step of the whole tile, which makes seven more tensors
of its size. A tile is larger than the 32 MB below which glibc's malloc keeps freed memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.units.unit08.run_a import collective_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MEMORY", "PART", "Water", "draw_settings"]

MEMORY: Final = 200_000_000  # bytes for a rank of the large field: right answers take 150
_CELL: Final = 3 * 8  # bytes
_NEAR, _MORE, _APART = 1e-12, 1.05, 1.1  # of a value; times the bytes of the best mesh
_LIMIT: Final = 20.0  # seconds: a right answer takes one


@dataclass(frozen=True)
class Water(Faulty):
    """A call of `fn(setting)` on all ranks, each of which returns a tile and its place."""

    also_shows: ClassVar = {"result": ("bytes",)}

    rows: int
    columns: int
    humps: tuple[tuple[float, float, float], ...]
    steps: int
    ranks: int
    topic: str = "result"

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} cells, {counted(self.steps, 'step')}"

    @property
    def setting(self) -> dict[str, Any]:
        """The setting as the dict that the learner's function gets."""
        humps = [list(hump) for hump in self.humps]
        size = {"rows": self.rows, "columns": self.columns}
        return {**size, "humps": humps, "steps": self.steps, "dt": 0.1}

    @cached_property
    def one_process(self) -> Tensor:
        """The field after the last step."""
        from dtlab.units.unit08.water import one_process

        return one_process(self.setting)

    @property
    def by_mesh(self) -> dict[tuple[int, int], int]:
        """For each mesh (y, x), the bytes that a rank sends in a step."""
        meshes = [(y, self.ranks // y) for y in range(1, self.ranks + 1) if self.ranks % y == 0]
        return {
            (y, x): 2 * _CELL * ((y > 1) * self.columns // x + (x > 1) * (self.rows // y + 2))
            for y, x in meshes
        }

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return self.setting

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        tile, (row, column) = fn(given)
        rows, columns = _kept(tile.shape[1]), _kept(tile.shape[2])
        return {
            "place": [int(row), int(column)],
            "shape": list(tile.shape),
            "cells": tile[:, rows][:, :, columns].double(),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        tiles = torch.zeros(self.rows, self.columns, dtype=torch.int8)  # over each cell
        for rank, result in enumerate(results):
            (row, column), (_, height, width) = result["place"], result["shape"]
            rows, columns = range(row, row + height), range(column, column + width)
            if min(row, column) < 0 or rows.stop > self.rows or columns.stop > self.columns:
                yield "result", f"the tile of rank {rank} is not inside the field."
                return
            tiles[row : rows.stop, column : columns.stop] += 1
            right = self.one_process[:, row : rows.stop, column : columns.stop]
            right = right[:, _kept(height)][:, :, _kept(width)]
            off = (result["cells"] - right).abs().nan_to_num(nan=1.0)
            if off.max() > _NEAR:
                which, y, x = (off == off.max()).nonzero()[0].tolist()
                yield (
                    "result",
                    f"{_NAMES[which]} in row {rows[_kept(height)[y]]} and column "
                    f"{columns[_kept(width)[x]]}, on rank {rank}, is "
                    f"{float(result['cells'][which, y, x]):.9f}; in one process it is "
                    f"{float(right[which, y, x]):.9f}.",
                )
                return
        for row, column in (tiles != 1).nonzero()[:1].tolist():
            count = int(tiles[row, column])
            yield "result", f"the cell in row {row} and column {column} is in {count} tiles."

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        trace = observation.trace
        if trace is None or self.topic != "result":
            return
        if called := collective_in(observation):
            yield "bytes", f"{observation.trial.words()}: the ranks call {called}."
        best = self.steps * min(self.by_mesh.values())
        sent = max(trace.bytes_sent())
        if sent > _MORE * best:
            yield (
                "bytes",
                f"{observation.trial.words()}: a rank sends {sent:,} bytes in "
                f"{counted(self.steps, 'step')}. On the best mesh it is {best:,} bytes.",
            )

    def advice(self, trouble: str) -> str:
        if self.topic != "memory" or "asks for" not in trouble:
            return ""
        field = _CELL * self.rows * self.columns
        return (
            f"The whole field takes {amount(field)}, and a rank's share "
            f"{amount(field / self.ranks)}. Which tensors exist at the same time in that line, "
            "and how large is each?"
        )


_NAMES: Final = ("the depth", "the momentum along x", "the momentum along y")


def _kept(size: int) -> list[int]:
    """The rows or columns of a tile that the check compares: the edges, and some between them."""
    edges = {0, 1, size - 2, size - 1} & set(range(size))
    return sorted(edges | set(range(0, size, max(1, size // 16))))


# The settings -----------------------------------------------------------------------------------


def draw_settings(draw: random.Random) -> list[Water]:
    """Draws three small fields on six ranks, square, wide and tall, and a large one on four."""
    small = [_drawn(draw, along_y) for along_y in ((2, 3), (1,), (6,))]
    return [*small, Water(2000, 2880, _humps(draw), 2, 4, "memory")]


def _drawn(draw: random.Random, along_y: Sequence[int]) -> Water:
    """Draws a field that is best cut by one of these numbers of ranks along y, of six ranks.

    Strips are drawn such that tiles with the smallest perimeter would send more.
    """
    for _ in range(1000):
        rows, columns = 12 * draw.randint(2, 8), 12 * draw.randint(2, 8)
        water = Water(rows, columns, _humps(draw), draw.randint(2, 4), 6)
        best = min(water.by_mesh[y, 6 // y] for y in along_y)
        others = [sent for (y, _), sent in water.by_mesh.items() if y not in along_y]
        shortest = min(water.by_mesh, key=lambda mesh: rows // mesh[0] + columns // mesh[1])
        if len(along_y) == 1:
            others.append(water.by_mesh[shortest])
        if min(others) > _APART * best:
            return water
    raise AssertionError(f"no field is best cut by {along_y} ranks along y")


def _humps(draw: random.Random) -> tuple[tuple[float, float, float], ...]:
    return tuple(
        (draw.uniform(0.2, 0.8), draw.uniform(0.2, 0.8), draw.uniform(0.2, 0.5)) for _ in range(2)
    )


def _trials(seed: int) -> list[Trial]:
    """A trial for each field; the memory is limited on the large one."""
    waters = draw_settings(random.Random(seed))
    return [
        Trial(each.ranks, [each], limit=_LIMIT, memory=MEMORY if each.topic == "memory" else None)
        for each in waters
    ]


PART = Part(
    "08/field_budget", 3, "A field within a budget", 25, 3,
    Check(
        trials=_trials,
        rules=(
            rule("result", 4, "each cell once, as in one process"),
            rule("bytes", 3, "no rank sends more than on the best mesh", "result"),
            rule("memory", 4, "the large field fits into the memory of its ranks", "result"),
        ),
    ),
)  # fmt: skip
