"""Test cases on a field of which each rank has a tile, for the second half of Level II.

    grid (2, 3)      rank 0   rank 1   rank 2        tiles differ in size if the ranks do not
                     rank 3   rank 4   rank 5        divide the field

Each cell of the field has another number, so a wrong cell of a halo shows whose it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Observation
from dtlab.checks.words import amount

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "Cell", "OnTiles"]

FINISHED = (
    "dtlab.simple",
    "dtlab.parallel.domain.halo", "dtlab.parallel.domain.layers", "dtlab.parallel.domain.stencils",
)  # fmt: skip

Cell = tuple[int, int]  # row and column in the field; outside of it, one is negative or too large


@dataclass(frozen=True)
class OnTiles(Faulty):
    """A call that returns this rank's tile with a halo of `width` cells."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    topic: str
    grid: tuple[int, int]
    sizes: tuple[int, int]  # rows and columns of the field
    width: int
    periodic: bool = False
    halo_of: ClassVar[tuple[bool, bool]] = (True, True)  # whether rows and columns get a halo

    @cached_property
    def field(self) -> Tensor:
        """The whole field, in which each number from 1 on occurs once."""
        import torch

        rows, columns = self.sizes
        order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(self.seed))
        return (order + 1.0).view(rows, columns)

    def span(self, rank: int, dim: int) -> range:
        """The rows (dim 0) or columns (dim 1) of a rank's tile, in the field."""
        count, place = self.grid[dim], divmod(rank, self.grid[1])[dim]
        size, rest = divmod(self.sizes[dim], count)  # as tensor_split cuts
        first = place * size + min(place, rest)
        return range(first, first + size + (place < rest))

    def tile(self, rank: int) -> Tensor:
        """The tile of a rank."""
        rows, columns = (self.span(rank, dim) for dim in (0, 1))
        return self.field[rows.start : rows.stop, columns.start : columns.stop].clone()

    @abstractmethod
    def arguments(self) -> tuple[Any, ...]:
        """The arguments after the tile."""

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.tile(rank), *self.arguments()

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished:
            padded = fn(*given)
        return {"padded": padded, "finished": sorted(finished)}

    def advice(self, trouble: str) -> str:
        waits = "did not finish" in trouble and " in recv" in trouble
        return "Does each rank post all that it sends before it waits for anything?" * waits

    @abstractmethod
    def criterion(self, rank: int, cell: Cell) -> str:
        """The criterion of a cell, by its place in the field."""

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, result in enumerate(results):
            first, wanted = self.wanted(rank)
            got = result["padded"]
            if got is None or got.shape != wanted.shape:
                what = "None" if got is None else f"a tensor of shape {list(got.shape)}"
                yield (
                    self.topic,
                    f"rank {rank} returns {what}. Its tile is {list(self.tile(rank).shape)}, so "
                    f"with the halo it is {list(wanted.shape)}.",
                )
                continue
            criteria = set[str]()
            for row, column in (got != wanted).nonzero().tolist():
                name = self.criterion(rank, (first[0] + row, first[1] + column))
                if name not in criteria:
                    criteria.add(name)
                    found, right = (self._whose(float(one[row, column])) for one in (got, wanted))
                    yield (
                        name,
                        f"rank {rank}: row {row}, column {column} of what it returns {found}. "
                        f"There belongs {right.removeprefix('is ')}.",
                    )

    def wanted(self, rank: int) -> tuple[Cell, Tensor]:
        """The right result of a rank, and the place of its first cell in the field."""
        import torch
        from torch.nn.functional import pad

        widths = [self.width * has for has in self.halo_of]
        parts = [self.span(rank, dim) for dim in (0, 1)]
        around = self.field
        if self.periodic:
            around = torch.cat([around[-self.width :], around, around[: self.width]])
        else:
            around = pad(around, (widths[1], widths[1], widths[0], widths[0]))
        rows, columns = (
            slice(part.start, part.stop + 2 * width)
            for part, width in zip(parts, widths, strict=True)
        )
        first = parts[0].start - widths[0], parts[1].start - widths[1]
        return first, around[rows, columns]

    def _whose(self, value: float) -> str:
        """Where a number of a result comes from."""
        if value == 0:
            return "is zero"
        places = (self.field == value).nonzero().tolist()
        if not places:
            return f"is {value:g}, which no tile has"
        (row, column), *_ = places
        for rank in range(self.grid[0] * self.grid[1]):
            rows, columns = self.span(rank, 0), self.span(rank, 1)
            if row in rows and column in columns:
                where = f"row {row - rows.start}, column {column - columns.start}"
                return f"is {where} of rank {rank}'s tile"
        raise AssertionError("each cell belongs to a tile")

    # What the trace shows ------------------------------------------------------------------------

    def neighbours(self, rank: int) -> dict[str, int]:
        """The ranks above, below, to the left and to the right, as far as there are any."""
        (row, column), (rows, columns) = divmod(rank, self.grid[1]), self.grid
        found = {}
        steps = {"above": (-1, 0), "below": (1, 0), "left": (0, -1), "right": (0, 1)}
        for side, (down, across) in steps.items():
            there = row + down, column + across
            if self.periodic and rows > 1:
                there = there[0] % rows, there[1]
            if 0 <= there[0] < rows and 0 <= there[1] < columns:
                found[side] = there[0] * columns + there[1]
        return found

    def due(self, rank: int) -> int:
        """Bytes that a rank sends: rows, then columns that include the received rows' halos."""
        height, breadth = (len(self.span(rank, dim)) for dim in (0, 1))
        sides = {"above": breadth, "below": breadth}
        tall = height + 2 * self.width * self.halo_of[0]
        return sum(4 * self.width * sides.get(side, tall) for side in self.neighbours(rank))

    def wrong_bytes(self, seen: Observation, hint: str) -> Iterator[str]:
        """Yields a sentence for each rank that sends more than its border."""
        cases = [case for case in seen.trial.cases if isinstance(case, OnTiles)]
        for rank in range(seen.trial.world_size):
            goal = sum(case.due(rank) for case in cases)
            if (sent := seen.sent_beyond(rank, goal)) is not None:
                yield (
                    f"{seen.trial.words(0)}: {amount(sent)} left rank {rank}, and the cells that "
                    f"its neighbours need are {amount(goal)}. {hint}"
                )
