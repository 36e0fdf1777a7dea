"""10/clip_mesh: clip by the norm of the dense model, in which each element counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import Known, close, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import inside_marks
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.units.unit10.mesh_cases import ANSWER, Marked, Place, WithGradients, place_of

if TYPE_CHECKING:
    from torch import Tensor

_CALLS, _BYTES = 2, 64  # the most collectives of a rank; the most bytes of all of them
_COUNTS = "Which elements count more than once, and which not at all?"


@dataclass(frozen=True)
class Clipping(WithGradients):
    """A call of `fn(parameters, max_norm, groups)`; `part` is max_norm over the true norm.

    With the topic "missing", the last pipeline stage has no gradients, and `row.bias` has none on
    any stage.
    """

    part: float = 0.5

    def __str__(self) -> str:
        return f"{super().__str__()}, max_norm {'below' if self.part < 1 else 'above'} the norm"

    def shows(self, criterion: str) -> bool:
        return criterion in (self.topic, self.factor_topic) or (
            criterion == "calls" and self.topic != "missing"
        )

    @property
    def factor_topic(self) -> str:
        """The criterion that judges the factor of the gradients."""
        if self.topic == "missing":
            return "missing"
        return "scaled" if self.part < 1 else "kept"

    def before(self, which: Marked, place: Place) -> Tensor | None:
        """The reduced gradient of a parameter on one rank; None if it is missing."""
        lacks = place[1] == self.sizes[1] - 1 or which.name == "row.bias"
        return None if self.topic == "missing" and lacks else self.reduced(which, place)

    def squares(self, tied: float = 1, copies: float = 1) -> list[list[float]]:
        """The squared norm of the gradients on each tensor rank of each pipeline stage.

        Replicated parameters count once on the first tensor rank and `copies` times on the others;
        the tied table counts once on the first stage and `tied` times on the last.
        """
        _, pipeline, tensor = self.sizes
        totals = [[0.0] * tensor for _ in range(pipeline)]
        for stage, rank in product(range(pipeline), range(tensor)):
            for which in self.parameters(stage):
                gradient = self.before(which, (0, stage, rank))
                times = copies if which.kind != "sharded" and rank else 1
                times *= tied if which.tied and stage else 1
                if gradient is not None:
                    totals[stage][rank] += times * float(gradient.double().square().sum())
        return totals

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
            elif wrong := difference(got, norm, self._known(rank), hint=_COUNTS):
                yield self.topic, f"{self.where(rank)}: the norm that you return " + wrong
        for rank, place, which, after in self.gradients(results):
            before = self.before(which, place)
            if before is None or after is None:
                wrong = "has a gradient now." if before is None else "has lost its gradient."
                is_right = before is after
            else:
                wrong = (
                    f"has a gradient that should be {factor:.3g} times what it was. Every rank "
                    "scales by the same factor."
                )
                is_right = close(after, before * factor)
            if not is_right:
                yield self.factor_topic, f"{self.where(rank)}: {which.name} {wrong}"

    def _known(self, rank: int) -> Known:
        """The norms that known mistakes give."""
        _, stage, tensor = place_of(rank, self.sizes)
        once, held = self.squares(0, 0), self.squares()
        total, all_held = sum(map(sum, once)), sum(map(sum, held))
        squares: dict[str, tuple[float, str]] = {
            "is the norm of what this rank holds": (
                held[stage][tensor], "Which groups have the rest?"
            ),
            "counts each replicated parameter on every tensor rank": (
                sum(map(sum, self.squares(0, 1))), ""
            ),
            "counts the tied table on both of its stages": (
                sum(map(sum, self.squares(1, 0))), ""
            ),
            "counts all copies: on each tensor rank, and on both ends of the pipeline": (
                all_held, ""
            ),
            "counts shards only in part": (
                all_held / self.sizes[2], "Each tensor rank has other elements, so add all."
            ),
            "is the norm of this pipeline stage": (sum(once[stage]), "Add up all stages."),
            "lacks the shards of the other tensor ranks": (sum(row[tensor] for row in held), ""),
            "counts the gradients once for each data rank": (
                self.sizes[0] * total, "All data ranks have the same gradients: count them once."
            ),
            "is the square of the norm": (total**2, ""),
            "is a sum of norms": (
                sum(sqrt(sum(row)) for row in once) ** 2, "Squares add up, not norms."
            ),
            "is the norm after clipping": (
                self.part**2 * total, "Return the norm from before clipping."
            ),
        }  # fmt: skip
        return {fact: (sqrt(square), advice) for fact, (square, advice) in squares.items()}

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        """Yields a fault for a rank that calls more collectives than summing a number takes."""
        for rank in range(observation.trial.world_size):
            for number, events in enumerate(inside_marks(observation.trace, rank, ANSWER)):
                calls = [event for event in events if event.kind == "comm"]
                total = sum(event.bytes for event in calls)
                if len(calls) > _CALLS or total > _BYTES:
                    yield (
                        "calls",
                        f"{observation.trial.words(number)}: rank {rank} calls {len(calls)} "
                        f"collectives on {amount(total)} in all. Send one number: first add up "
                        "the squares of all that the rank holds, then over one or two groups.",
                    )


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
    title="Clip by the norm of the dense model",
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
            rule("calls", 1, "a rank sends one number", *_NORM),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)
