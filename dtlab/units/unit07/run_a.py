"""07/run_a: fix the training of several pipelines, which has two faults.

    both faults             copies of the first stage drift apart; the last stage moves half as far
    all stages averaged     all copies agree, and every stage moves half as far
    divided once            copies of the first stage drift apart

Rank r is in pipeline r // stages, and has stage r % stages:

            stage 0   1        a column holds the copies of a stage
pipeline 0        0   1
pipeline 1        2   3
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.run import (
    Program,
    TrainingRun,
    copies_differ,
    events_of,
    other_losses,
    other_parameters,
)
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "Replica"]

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce")
_NEAR = 1e-3  # of a loss
_MORE = 1.25  # times the gradient of a step: allows an extra tensor for a loss or a norm
_LIMIT = 20.0  # seconds for runs that take half a second


@dataclass(frozen=True)
class Replica(TrainingRun):
    """Runs `program(stages, batches)`: a pipeline per `num_stages` ranks, each on its batches."""

    width: int
    num_stages: int = 2
    num_steps: int = 4

    looks: ClassVar[tuple[str, str]] = (
        "What do these ranks send each other in a step?",
        "The copies agree: compare their updates with those of a single pipeline.",
    )

    def __str__(self) -> str:
        stages = counted(self.num_stages, "stage")
        return f"{stages}, {self.width} wide, {counted(self.steps, 'step')}"

    @property
    def sizes(self) -> tuple[int, int]:
        return self.width, self.num_stages

    @property
    def steps(self) -> int:
        return self.num_steps

    @staticmethod
    def build(*sizes: int) -> nn.Module:
        from torch import nn

        from dtlab.units.unit07.replicas_script import build

        return nn.Sequential(*build(*sizes))

    def bytes_of(self, stage: int) -> int:
        """The bytes of a stage's parameters, and of their gradients."""
        inputs = self.width if stage else 64
        outputs = self.width if stage < self.num_stages - 1 else 10
        return 4 * (inputs + 1) * outputs

    def replica(self, rank: int) -> int:
        return rank // self.num_stages

    def has_loss(self, rank: int) -> bool:
        return rank % self.num_stages == self.num_stages - 1

    def label(self, name: str) -> str:
        return f"stage {stage_of(name)}"

    def part(self, name: str, whole: Tensor, rank: int, ranks: int) -> Tensor | None:
        return whole if stage_of(name) == rank % self.num_stages else None

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        return super().run(lambda _, batches: fn(list(model), batches), model, given)


def stage_of(name: str) -> int:
    """The stage of a parameter: "0.1.weight" belongs to stage 0."""
    return int(name.partition(".")[0])


def _reduced(run: Observation, rank: int) -> int:
    """The bytes that a rank passes to collectives in the whole run."""
    return sum(event.bytes for event in events_of(run, *_COLLECTIVES, rank=rank))


def _too_much_sent(case: Replica, results: Sequence[Any], run: Observation) -> str:
    """A message if a rank passes more to collectives than its stage's gradient once per step."""
    for rank in range(len(results)):
        stage, sent = case.bytes_of(rank % case.num_stages), _reduced(run, rank)
        if sent > _MORE * case.steps * stage + stage:  # and its parameters once, at the start
            return (
                f"rank {rank} passes {amount(sent)} to collectives in "
                f"{counted(case.steps, 'step')}. The "
                f"gradient of its stage, {case.width} wide here and not 32 as in the notebook, is "
                f"{amount(stage)}: once in a step is enough, without gradients of other stages."
            )
    return ""


# The part ---------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, float]:
    last = scene.case.num_stages - 1
    return {"times": scene.case.first_update(scene.results, f"{last}.bias", last)[0]}


def _trials(seed: int) -> list[Trial]:
    """Trials with two pipelines of two stages and of three; no width is the notebook's."""
    draw = random.Random(seed)
    cases = [Replica(draw.randrange(10**6), draw.randint(9, 24), stages) for stages in (2, 3)]
    return [Trial(2 * case.num_stages, [case], limit=_LIMIT) for case in cases]


PART = script_part(
    "07/run_a",
    "Run A",
    20,
    3,
    "dtlab.units.unit07.replicas_script.train_replicas",
    Trial(4, [Replica(0, 32, num_steps=1)], limit=_LIMIT),
    _trials,
    (
        rule("copies", 2, "all copies have the same hash", by=copies_differ),
        rule(
            "training",
            2,
            "it trains as one process does",
            by=(other_parameters, other_losses(_NEAR)),
            after="copies",
        ),
        rule("traffic", 1, "each gradient is sent once", by=_too_much_sent, after="copies"),
    ),
    [
        "if result.loss is not None:",
        "for parameter in stage.module.parameters():",
        "dist.all_reduce(parameter.grad, group=replicas)",
        "return F.cross_entropy(outputs, labels) / replicas.size()",
        "parameter.grad /= replicas.size()",
    ],
    "Follow the gradient of each stage: which ranks change it after backward, and by what factor?",
    proof=proof(
        _measured,
        "times",
        "Run the program, and read the size of the first update on a rank of the last stage.",
        {
            "1": "that is the size of a right update.",
            "1 / times": "that is the inverse.",
            "times / 2": "that is only one half of it.",
            "times * 3 / 2": "compare with one pipeline that gets the batches of both.",
        },
        tolerance=0.01,
    ),
)
