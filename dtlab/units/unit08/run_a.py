"""08/run_a: fix a stencil on tiles that has two faults.

With two ranks on an axis of a periodic field, the ranks before and after a rank are one rank. Its
two messages arrive in the order in which they were sent.

    both faults       the first and last line of a tile are wrong on every axis of two ranks
    only the order    right except for the four corner cells, which lack their diagonal neighbours
    only the corners  as with both faults: the corner cells lie in these lines

The total of the field shows the second fault all along: lines in the wrong place keep it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import Objection, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Case, Observation, Trial
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Tiled", "collective_in"]

_NEAR = 1e-12
_MORE = 1.25  # times the bytes of the halos
_LIMIT = 15.0  # seconds for runs that take a tenth of one


@dataclass(frozen=True)
class Tiled(Case):
    """A run of `program(tile, mesh, steps)` on `mesh` = (y, x) ranks, with tiles of one size."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.simple", "dtlab.parallel.domain.halo")

    seed: int
    mesh: tuple[int, int]
    tile: tuple[int, int]
    steps: int = 1

    def __str__(self) -> str:
        steps = counted(self.steps, "step")
        return f"mesh y={self.mesh[0]}, x={self.mesh[1]}, {steps}"

    @cached_property
    def field(self) -> Tensor:
        """The field before the first step: random numbers from 0 to 1."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        rows, columns = (n * size for n, size in zip(self.mesh, self.tile, strict=True))
        return torch.rand(rows, columns, dtype=torch.float64, generator=draw)

    @cached_property
    def one_process(self) -> Tensor:
        """The field after the last step, in one process."""
        from dtlab.parallel.domain import step_alone
        from dtlab.units.unit08.runs_scripts import smooth

        field = self.field
        for _ in range(self.steps):
            field = step_alone(smooth, field, "periodic")
        return field

    def tile_of(self, field: Tensor, rank: int) -> Tensor:
        """A rank's tile of a field."""
        y, x = divmod(rank, self.mesh[1])
        rows, columns = self.tile
        return field[y * rows : (y + 1) * rows, x * columns : (x + 1) * columns]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        tile = self.tile_of(self.field, rank).clone()
        return {"tile": tile, "mesh": dict(zip("yx", self.mesh, strict=True)), "steps": self.steps}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.parallel.mesh import make_mesh

        mesh = make_mesh(**given["mesh"])
        with finished_calls(*Tiled.finished, refuse=True):
            return {"tile": fn(given["tile"], mesh, given["steps"])}

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`; empty, since objections say what is wrong with a run."""
        return ""

    def wrong(self, results: Sequence[Any], rank: int) -> Tensor:
        """Which cells of a rank's tile are not those of one process: [rows, columns]."""
        right = self.tile_of(self.one_process, rank)
        found = results[rank]["tile"]
        if tuple(found.shape) != self.tile:
            raise ValueError("the result is no tile")
        wrong: Tensor = ~((found - right).abs() <= _NEAR)  # also where it is NaN
        return wrong


def _first_step(most: float) -> Objection:
    """Returns an objection to more wrong cells than this share of a tile after one step."""

    def objection(case: Tiled, results: Sequence[Any], run: Observation) -> str:
        for rank in range(len(results) if case.steps == 1 else 0):
            wrong = case.wrong(results, rank)
            if wrong.sum() > most * wrong.numel():
                rows, columns = (sorted(set(side.tolist())) for side in wrong.nonzero().T)
                return (
                    f"{int(wrong.sum())} of the {counted(wrong.numel(), 'cell')} of rank {rank} "
                    f"differ from one process. They are in {_named('row', rows)}, and in "
                    f"{_named('column', columns)} of its tile."
                )
        return ""

    return objection


def _named(what: str, numbers: Sequence[int]) -> str:
    """The numbers in words; only how many, if there are many: "row 0", "8 columns"."""
    if len(numbers) > 2:
        return f"{len(numbers)} {what}s"
    return f"{what}{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"


def _other_field(case: Tiled, results: Sequence[Any], run: Observation) -> str:
    """A message if a cell is wrong after several steps."""
    for rank in range(len(results)):
        wrong = int(case.wrong(results, rank).sum())
        if wrong:
            cells = counted(wrong, "cell")
            return f"rank {rank} has {cells} unlike one process; after one step, it has none."
    return ""


def collective_in(run: Observation) -> str:
    """The name of a collective that the ranks call; empty if they only send and receive."""
    called = set(run.trace.ops()) if run.trace is not None else set()
    return min(called - {"send", "recv", "barrier"}, default="")


def _too_much_sent(case: Tiled, results: Sequence[Any], run: Observation) -> str:
    """A message if a rank sends more than the lines around its tile, in all cases together."""
    if called := collective_in(run):
        return f"the ranks call {called}. Which cells of other tiles does a rank need?"
    cases: Sequence[Any] = run.trial.cases
    rows, columns = case.tile
    halos = 8 * 2 * (rows + columns + 4) * sum(each.steps for each in cases)
    for rank in range(len(results)):
        sent = run.trace.bytes_sent(rank) if run.trace else 0
        if sent > _MORE * halos:
            return f"rank {rank} sends {amount(sent)}; the halos of all steps are {amount(halos)}."
    return ""


# The part ---------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, float]:
    start = float(scene.case.field.sum())
    end = sum(float(result["tile"].sum()) for result in scene.results)
    return {"change": end - start, "start": start}


def _trials(seed: int) -> list[Trial]:
    """Trials on three meshes, with one step and with several; no tile is the notebook's."""
    draw = random.Random(seed)
    trials = []
    for mesh in ((2, 3), (3, 2), (2, 2)):
        about = draw.randrange(1, 10**6), mesh, (draw.randint(14, 20), draw.randint(14, 20))
        cases = [Tiled(*about), Tiled(*about, draw.randint(3, 5))]
        trials.append(Trial(mesh[0] * mesh[1], cases, limit=_LIMIT))
    return trials


PART = script_part(
    "08/run_a", "Run A", 20, 3,
    "dtlab.units.unit08.runs_scripts.advance",
    Trial(6, [Tiled(0, (2, 3), (6, 8))], limit=_LIMIT),
    _trials,
    (
        rule("most", 2, "after one step, 95 % of the cells are right", by=_first_step(0.05)),
        rule("all", 2, "after one step, all cells are right", by=_first_step(0), after="most"),
        rule("steps", 1, "after several steps, all are right", by=_other_field, after="all"),
        rule("traffic", 1, "a rank sends only the halos", by=_too_much_sent, after="all"),
    ),
    [
        "lines = padded.narrow(1 - dim, 1, tile.shape[1 - dim])",
        "dist.P2POp(dist.isend, first, group=group, group_peer=before),",
        "dist.P2POp(dist.isend, last, group=group, group_peer=after),",
        "dist.P2POp(dist.irecv, from_before, group=group, group_peer=before),",
        "dist.P2POp(dist.irecv, from_after, group=group, group_peer=after),",
    ],
    "For each message, say which cells are in it, and where the receiver puts them.",
    proof=proof(
        _measured,
        "change",
        "Run the program, and add up all cells before and after the first step.",
        {
            "0": "that is the change in one process.",
            "-change": "what is the sign of a loss?",
            "change / ranks": "that is the mean of a rank. Add up all tiles.",
            "change / start": "that is a share of the total. Give the change itself.",
        },
        tolerance=0.005,
    ),
)  # fmt: skip
