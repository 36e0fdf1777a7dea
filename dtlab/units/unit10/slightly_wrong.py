"""10/slightly_wrong: fix a run over three axes with two faults, which partly hide each other.

With t tensor ranks:

gather_from_sequence    its backward sums t equal gradients: all layers before it get t times the
                        right gradient
/ (data x tensor)       divides by t too: every gradient is 1/t of the right one

both faults        layers before the gather: t/t, so right; the head after it: 1/t
only the gather    layers before the gather: t; the head: right
only the division  every gradient: 1/t
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dtlab.checks.functions.checks import UNANSWERED, Check, Verdict, blocked, lost, ok
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.checks.programs.broken import FixProgram
from dtlab.checks.programs.lines import judge_line
from dtlab.checks.programs.run import TrainingRun, named, other_losses, other_parameters
from dtlab.checks.questions.quantities import short
from dtlab.predict.units import counted
from dtlab.units.unit10.mesh_cases import AXES, Place, place_of

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "MeshRun"]

_VOCAB: Final = 20
_NEAR, _FACTOR = 1e-4, 0.02  # tolerances: of a loss, relative; of an update's factor
_LIMIT = 60.0  # seconds: a right answer takes two, and three times as long on a slow machine
_HEAD: Final = "head.weight"


@dataclass(frozen=True)
class MeshRun(TrainingRun):
    """A run of `program(model, batches, sizes)`: some training steps of a `Net` over a mesh."""

    mesh: Place  # data, pipeline, tensor
    width: int = 16
    tokens: int = 8
    num_steps: int = 4

    rows: ClassVar[int] = 4
    looks: ClassVar[tuple[str, str]] = ("", "Compare its updates step by step.")

    def __str__(self) -> str:
        axes = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, self.mesh, strict=True))
        return f"{axes}, {counted(self.num_steps, 'step')}"

    @property
    def sizes(self) -> tuple[int, int, int]:
        return _VOCAB, self.width, 4

    @property
    def steps(self) -> int:
        return self.num_steps

    @staticmethod
    def build(*sizes: int) -> nn.Module:
        from dtlab.units.unit10.slightly_wrong_script import Net

        return Net(*sizes)

    def batch(self, replica: int, step: int) -> tuple[Tensor, Tensor]:
        """Draws token ids and, as targets, the token that follows each of them."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + replica) * 97 + step)
        tokens = torch.randint(_VOCAB, (self.rows, self.tokens + 1), generator=draw)
        return tokens[:, :-1], tokens[:, 1:]

    def replica(self, rank: int) -> int:
        return place_of(rank, self.mesh)[0]

    def has_loss(self, rank: int) -> bool:
        return place_of(rank, self.mesh)[1] == self.mesh[1] - 1

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        sizes = dict(zip(AXES, self.mesh, strict=True))
        return {**super().inputs(rank, world_size), "more": [sizes]}

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor | None:
        """This rank's shard of a parameter; None if the parameter is on another pipeline stage."""
        stages, layers = self.mesh[1], self.sizes[2]
        stage = 0 if name.startswith("embedding") else stages - 1
        if name.startswith("blocks."):
            number = int(name.split(".")[1])
            stage = next(s for s in range(stages) if number < layers * (s + 1) // stages)
        _, own_stage, tensor = place_of(rank, self.mesh)
        return _shard(name, whole, tensor, self.mesh[2]) if stage == own_stage else None

    @cached_property
    def first_step(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Each parameter by name, before and after the first step of training in one process."""
        _, (after, *_) = self.one_process(prod(self.mesh))
        before = named(self.model())
        return {name: (whole, after[name]) for name, whole in before.items()}

    def factor(self, name: str, rank: int, after: Tensor) -> float | None:
        """The rank's first update of a parameter as a multiple of that of one process.

        None if the two updates do not have the same direction.
        """
        start, right = (self.part(name, whole, rank, 0) for whole in self.first_step[name])
        assert start is not None and right is not None
        moved, wanted = after - start, right - start
        factor = float((moved * wanted).sum() / wanted.square().sum())
        far = (moved - factor * wanted).norm() / wanted.norm()
        return None if far > _FACTOR * max(1.0, abs(factor)) else factor


def _shard(name: str, whole: Tensor, rank: int, ranks: int) -> Tensor:
    """A rank's part: column-parallel layers are cut along dim 0, row-parallel ones along dim 1."""
    import torch

    if "queries_keys_values" in name:  # each of the three is cut on its own
        return torch.cat([part.chunk(ranks)[rank] for part in whole.chunk(3)])
    if "mlp.0" in name:
        return whole.chunk(ranks)[rank]
    if name.endswith(("projection.weight", "mlp.2.weight")):
        return whole.chunk(ranks, 1)[rank]
    return whole


# Criteria of the fixed program -------------------------------------------------------------------


def _factors(
    case: MeshRun, results: Sequence[Any]
) -> Iterator[tuple[str, int, float | None]]:
    """Yields (name, rank, factor) for every parameter on every rank; see `MeshRun.factor`.

    Yields nothing for several steps, after which a parameter is not its first update.
    """
    if case.num_steps == 1:
        for rank, result in enumerate(results):
            for name, tensor in result["after"].items():
                yield name, rank, case.factor(name, rank, tensor)


def _wrong_scale(case: MeshRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the head's first update is wrong: it needs only the mean over data ranks."""
    for name, rank, factor in _factors(case, results):
        if name == _HEAD and (factor is None or abs(factor - 1) > _FACTOR):
            how = "has another direction than" if factor is None else f"is {factor:.3g} times"
            return (
                f"the first update of {_HEAD} on rank {rank} {how} that of one process. Which "
                "ranks have other samples, and by how many is this gradient divided?"
            )
    return ""


def _out_of_balance(case: MeshRun, results: Sequence[Any], run: Observation) -> str:
    """A message if the factor of a parameter before the gather differs from that of the head."""
    factors = list(_factors(case, results))
    head = next((factor for name, _, factor in factors if name == _HEAD), None)
    for name, rank, factor in factors:
        if not head or factor is None or abs(factor / head - 1) > _FACTOR:
            size = "another direction" if factor is None else f"{factor:.3g} times the right size"
            base = "another direction" if head is None else f"{head:.3g} times"
            return (
                f"the first update of {name} on rank {rank} has {size}, that of {_HEAD} {base}. "
                "Between the two is a collective: what does its backward pass do with gradients "
                "that are equal on all tensor ranks?"
            )
    return ""


_FIXED = (
    rule("scale", 2, "gradients are means over the right ranks", by=_wrong_scale),
    rule("balance", 2, "the same factor before and after the gather", by=_out_of_balance),
    rule("training", 2, "losses and parameters are those of one process",
         by=(other_losses(_NEAR), other_parameters), after=("scale", "balance")),
)  # fmt: skip


# The diagnosis -----------------------------------------------------------------------------------

_LINES = (
    "x = stage.head(gather_from_sequence(stage.norm(x), tensor)).transpose(1, 2)",
    "parameter.grad /= data.size() * tensor.size()",
)
_LOOK = "Follow a gradient from the loss back to the optimizer: where is it added up or divided?"


def _diagnosed(run: Observation, diagnosis: Mapping[str, Any]) -> Verdict:
    """Judges the parameter, its factor, and the two lines."""
    from dtlab.units.unit10.slightly_wrong_script import train

    if run.error is not None:
        return blocked("the machine is too busy to run the program. Run the check again.")
    if any(diagnosis[key] is None for key in ("parameter", "factor", "lines")):
        return UNANSWERED
    triples = _factors(run.trial.cases[0], run.results[0])  # type: ignore[arg-type]
    factors = {name: factor for name, _, factor in triples}
    name = diagnosis["parameter"]
    if name not in factors:
        return lost(f"{short(name)} is no parameter. They are called {_HEAD}, norm.weight, ...")
    right = factors[name]
    if right is not None and abs(right - 1) <= _FACTOR:
        return lost(f"the first update of {name} is that of one process. Compare them all.")
    if right is None or abs(float(diagnosis["factor"]) - right) > _FACTOR:
        factor = short(diagnosis["factor"])
        return lost(f"the first update of {name} is not {factor} times that of one process.")
    lines = list(diagnosis["lines"])
    if len(lines) != 2:
        count = counted(len(lines), "line")
        return lost(f"you name {count}. There are two faults, each in one line.")
    verdicts = [judge_line(train, line, _LINES, _LOOK) for line in lines]
    wrong = next((verdict for verdict in verdicts if verdict.status != "ok"), None)
    if wrong is None and verdicts[0] == verdicts[1]:
        return lost(f"both lines belong to the same fault. {_LOOK}")
    return wrong or ok("both lines")


def _trials(seed: int) -> list[Trial]:
    """A trial of four ranks in three meshes: on each mesh a run of one step, then of several."""
    draw = random.Random(seed)
    cases = []
    for mesh in ((2, 1, 2), (1, 2, 2), (1, 1, 4)):
        fields = draw.randrange(1, 10**6), mesh, 8 * draw.randint(1, 3), 4 * draw.randint(1, 3)
        cases += [MeshRun(*fields, steps) for steps in (1, draw.randint(3, 4))]
    return [Trial(4, cases, limit=_LIMIT)]


PART = Part(
    name="10/slightly_wrong",
    level=3,
    title="Run C",
    minutes=20,
    difficulty=3,
    check=FixProgram(
        program="dtlab.units.unit10.slightly_wrong_script.train",
        scene=Trial(8, [MeshRun(0, (2, 2, 2), num_steps=1)], limit=_LIMIT),
        judge=_diagnosed,
        check=Check(_trials, _FIXED, compiles=True),
    ),
)
