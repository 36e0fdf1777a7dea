"""10/clip_mesh: clipping by the norm of the dense model, in which each element counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Noted, Seen, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.unseen import inside_marks
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.grading.words import amount
from dtlab.units.unit10.mesh_cases import (
    ANSWER,
    Marked,
    OnMesh,
    place_of,
)

if TYPE_CHECKING:
    from torch import Tensor

_CALLS, _BYTES = 2, 64  # the most collectives of a rank; the most bytes of all of them
_NEAR = 1e-3  # relative tolerance of a norm


@dataclass(frozen=True)
class Clipping(OnMesh):
    """A call of `fn(parameters, max_norm, groups)`; `part` is max_norm over the true norm.

    With the topic "missing", the last pipeline stage has no gradients, and `row.bias` has none on
    any stage.
    """

    part: float = 0.5

    def __str__(self) -> str:
        return f"{super().__str__()}, max_norm {'below' if self.part < 1 else 'above'} the norm"

    def shows(self, criterion: str) -> bool:
        if self.topic == "missing":
            return criterion == "missing"
        of_part = criterion == ("scaled" if self.part < 1 else "kept")
        return criterion in (self.topic, "calls") or of_part

    def before(self, which: Marked, data: int, stage: int, tensor: int) -> Tensor | None:
        """The reduced gradient of a parameter on one rank; None if it is missing."""
        lacks = stage == self.sizes[1] - 1 or which.name == "row.bias"
        return None if self.topic == "missing" and lacks else self.reduced(which, stage, tensor)

    def squares(self, tied: float = 1, copies: float = 1) -> list[list[float]]:
        """The squared norm of the gradients on each tensor rank of each pipeline stage.

        Replicated parameters count once on the first tensor rank and `copies` times on the others;
        the tied table counts once on the first stage and `tied` times on the last.
        """
        _, pipeline, tensor = self.sizes
        found = [[0.0] * tensor for _ in range(pipeline)]
        for stage in range(pipeline):
            for which in self.parameters(stage):
                for rank in range(tensor):
                    gradient = self.before(which, 0, stage, rank)
                    times = copies if which.kind != "sharded" and rank else 1
                    times *= tied if which.tied and stage else 1
                    if gradient is not None:
                        found[stage][rank] += times * float(gradient.double().square().sum())
        return found

    @property
    def norm(self) -> float:
        """The norm of the dense model's gradients."""
        return sqrt(sum(map(sum, self.squares(0, 0))))

    def arguments(self) -> tuple[Any, ...]:
        """The argument `max_norm`."""
        return (self.part * self.norm,)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        norm, factor = self.norm, min(1.0, self.part)
        for rank, result in enumerate(results):
            got = result["returned"]
            if isinstance(got, str):
                yield self.topic, f"{self.where(rank)}: it returns {got}, not the norm."
            elif abs(got - norm) > _NEAR * norm:
                yield (
                    self.topic,
                    f"{self.where(rank)}: the norm returned is {got:.4g}, and the dense model's "
                    f"is {norm:.4g}. {self._known(got, rank)}",
                )
        for rank, result in enumerate(results):
            _, stage, tensor = place_of(rank, self.sizes)
            for which, after in zip(self.parameters(stage), result["after"], strict=True):
                before = self.before(which, 0, stage, tensor)
                name = "scaled" if self.part < 1 else "kept"
                name = "missing" if self.topic == "missing" else name
                if before is None or after is None:
                    if before is not after:
                        yield (
                            name,
                            f"{self.where(rank)}: {which.name} has "
                            f"{'a gradient now' if before is None else 'no gradient any more'}.",
                        )
                elif not close(after, before * factor):
                    yield (
                        name,
                        f"{self.where(rank)}: the gradient of {which.name} should be "
                        f"{factor:.3g} times what it was. Every rank scales by the same factor.",
                    )

    def _known(self, got: float, rank: int) -> str:
        """The message for a known mistake that gives this norm; else a general hint."""
        data, ranks = self.sizes[0], self.sizes[2]
        _, stage, tensor = place_of(rank, self.sizes)
        once, held = self.squares(0, 0), self.squares()
        total, all_held = sum(map(sum, once)), sum(map(sum, held))
        copies = "Parameters that are not sharded count on each tensor rank."
        known = [
            (held[stage][tensor], "That is what this rank holds. Which groups have the rest?"),
            (sum(map(sum, self.squares(0, 1))), copies),
            (sum(map(sum, self.squares(1, 0))), "The tied table counts on both of its stages."),
            (all_held, "All copies count: on each tensor rank, and on both ends of the pipeline."),
            (
                all_held / ranks,
                "Shards count only in part: each tensor rank has other elements, so add all.",
            ),
            (sum(once[stage]), "That is the norm of this pipeline stage. Add up all stages."),
            (
                sum(row[tensor] for row in held),
                "The shards of the other tensor ranks are missing.",
            ),
            (data * total, "Data ranks have the same gradients: they count once, not each."),
            (total**2, "That is the square of the norm."),
            (sum(sqrt(sum(row)) for row in once) ** 2, "Squares add up, not norms."),
            (self.part**2 * total, "That is the norm afterwards. Return what it was before."),
        ]
        fitting = (why for one, why in known if abs(got - sqrt(one)) <= _NEAR * sqrt(one))
        return next(fitting, "Which elements count more than once, and which not at all?")


def _too_many(seen: Seen) -> str:
    """A message if a rank calls more collectives than one sum of one number needs; else ""."""
    for one in seen:
        for rank in range(one.trial.world_size):
            marks = inside_marks(one.trace, rank, ANSWER)
            for number, events in enumerate(marks):
                calls = [event for event in events if event.kind == "comm"]
                total = sum(event.bytes for event in calls)
                if len(calls) > _CALLS or total > _BYTES:
                    return (
                        f"{one.trial.words(number)}: rank {rank} calls {len(calls)} collectives "
                        f"on {amount(total)} in all. Send one number: first add up the squares "
                        "of all that the rank holds, then over one or two groups."
                    )
    return ""


def _trials(seed: int) -> list[Trial]:
    """Trials on each axis, with tied tables of both kinds, and with ranks without gradients."""
    draw = random.Random(seed)

    def case(sizes: tuple[int, int, int], topic: str, table: str, below: bool = True) -> Clipping:
        part = draw.uniform(0.2, 0.8) if below else draw.uniform(1.05, 1.3)
        return Clipping(draw.randrange(10**6), sizes, topic, table, draw.randint(90, 200), part)

    kinds = draw.sample(("sharded", "equal"), 2)
    return [
        Trial(3, [case((3, 1, 1), "data", "equal")]),
        Trial(
            4, [case((2, 1, 2), "tensor", kinds[0]), case((1, 1, 4), "tensor", kinds[1], False)]
        ),
        Trial(3, [case((1, 3, 1), "pipeline", "", False)]),
        Trial(4, [case((2, 2, 1), "tied", kinds[0]), case((1, 2, 2), "tied", kinds[0])]),
        Trial(4, [case((1, 2, 2), "tied", kinds[1])]),
        Trial(2, [case((1, 2, 1), "missing", "")]),
        Trial(1, [case((1, 1, 1), "data", "equal", False)]),
    ]


_NORM = ("data", "tensor", "pipeline", "tied")

PART = Part(
    name="10/clip_mesh",
    level=2,
    title="Clipping over a mesh",
    minutes=18,
    difficulty=3,
    check=Check(
        trials=_trials,
        rules=(
            rule("data", 1, "data ranks count once"),
            rule("tensor", 2, "shards add up, and copies count once", "data"),
            rule("pipeline", 1, "stages add up", "data"),
            rule("tied", 2, "the tied table counts once", "data", "tensor", "pipeline"),
            rule("scaled", 1, "one factor for all gradients", *_NORM),
            rule("kept", 1, "a norm below max_norm changes nothing", *_NORM),
            rule("missing", 1, "ranks without gradients take part", "data", "pipeline", "scaled"),
            rule("calls", 1, "one number travels", *_NORM, also=_too_many),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)
