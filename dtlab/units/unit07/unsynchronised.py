"""07/unsynchronised: find out why the copies of a stage drift apart.

Rank r is in pipeline r // stages, and has stage r % stages:

            stage 0   1        a column holds the copies of a stage
pipeline 0        0   1
pipeline 1        2   3
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.run import (
    Program,
    TrainingRun,
    copies_differ,
    events_of,
    other_losses,
    other_parameters,
)
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptoms, unmoved
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "SYMPTOMS", "Replica"]

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce")
_NEAR = 1e-3  # of a loss
_MORE = 1.25  # times the gradient of a step: allows an extra tensor for a loss or a norm
_LIMIT = 20.0  # seconds for runs that take half a second


@dataclass(frozen=True)
class Replica(TrainingRun):
    """Runs `program(stages, batches)`: a pipeline per `num_stages` ranks, each on its batches."""

    width: int
    num_stages: int = 2

    looks: ClassVar[tuple[str, str]] = (
        "What do these ranks send each other in a step?",
        "The copies agree: on what mean?",
    )

    def __str__(self) -> str:
        return f"{self.num_stages} stages, {self.width} wide, {self.steps} steps"

    @property
    def sizes(self) -> tuple[int, int]:
        return self.width, self.num_stages

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


def _reduced(one: Observation, rank: int) -> int:
    """The bytes that a rank passes to collectives in the whole run."""
    return sum(event.bytes for event in events_of(one, *_COLLECTIVES, rank=rank))


def _too_much_sent(case: Replica, results: Sequence[Any], one: Observation) -> str:
    """Objects if a rank passes more to collectives than its stage's gradient once per step."""
    for rank in range(len(results)):
        stage, sent = case.bytes_of(rank % case.num_stages), _reduced(one, rank)
        if sent > _MORE * case.steps * stage + stage:  # and its parameters once, at the start
            return (
                f"rank {rank} has {amount(sent)} in collectives in {case.steps} steps. The "
                f"gradient of its stage, {case.width} wide here and not 32 as in the notebook, is "
                f"{amount(stage)}: once in a step is enough, without gradients of other stages."
            )
    return ""


# Symptoms, as the notebook lists them -----------------------------------------------------------

SYMPTOMS = Symptoms()


def _copies(scene: Scene, wanted: Callable[[list[bool]], bool]) -> Finding:
    """Says which stages have copies that differ, and whether that is as `wanted`."""
    apart = [False] * scene.case.num_stages
    for rank, result in enumerate(scene.results):
        for name, first in scene.results[rank % len(apart)]["after"].items():
            if stage_of(name) == rank % len(apart):
                apart[stage_of(name)] |= not result["after"][name].equal(first)
    states = (f"of stage {n} they {'differ' if x else 'agree'}" for n, x in enumerate(apart))
    return Finding(wanted(apart), f"hashes of the copies: {', '.join(states)}")


@SYMPTOMS.add(
    "first apart",
    "copies of the first stage end with different hashes, those of the last with the same",
)
def _first_apart(scene: Scene) -> Finding:
    return _copies(scene, lambda apart: apart[0] and not apart[-1])


@SYMPTOMS.add(
    "last apart",
    "copies of the last stage end with different hashes, those of the first with the same",
)
def _last_apart(scene: Scene) -> Finding:
    return _copies(scene, lambda apart: apart[-1] and not apart[0])


@SYMPTOMS.add("all apart", "copies of every stage end with different hashes")
def _all_apart(scene: Scene) -> Finding:
    return _copies(scene, all)


@SYMPTOMS.add("mixed", "an all-reduce has ranks of different stages in it")
def _mixed(scene: Scene) -> Finding:
    mixed = sum(
        any((peer - rank) % scene.case.num_stages for peer in event.peers)
        for rank in range(len(scene.results))
        for event in events_of(scene.one, "all_reduce", rank=rank)
    )
    return Finding(mixed > 0, f"{mixed} all-reduces had ranks of other stages in them")


@SYMPTOMS.add("too often", "a gradient is all-reduced more than once in a step")
def _often(scene: Scene) -> Finding:
    case, ranks = scene.case, range(len(scene.results))
    gradients = [case.steps * case.bytes_of(rank % case.num_stages) for rank in ranks]
    most = max(_reduced(scene.one, rank) / gradients[rank] for rank in ranks)
    words = f"a rank all-reduced its stage's gradient at most {most:.2g} times in a step"
    return Finding(most > 1.5, words)


@SYMPTOMS.add("stands", "a stage does not move")
def _stands(scene: Scene) -> Finding:
    count = scene.case.num_stages
    still = {
        rank % count
        for rank in range(len(scene.results))
        if rank % count in map(stage_of, unmoved(scene, rank))
    }
    return Finding(bool(still), f"{len(still)} stages stayed where they began")


# The part ---------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, float]:
    first, second = (_reduced(scene.one, rank) / scene.case.steps for rank in (0, 1))
    return {"bytes": scene.case.bytes_of(0) - first, "other": second}


def _trials(seed: int) -> list[Trial]:
    """Trials with two pipelines of two stages and of three; no width is the notebook's."""
    draw = random.Random(seed)
    cases = [Replica(draw.randrange(10**6), draw.randint(9, 24), stages) for stages in (2, 3)]
    return [Trial(2 * case.num_stages, [case], limit=_LIMIT) for case in cases]


PART = script_part(
    "07/unsynchronised",
    "One stage goes its own way",
    15,
    2,
    "dtlab.units.unit07.replicas_script.train_replicas",
    Trial(4, [Replica(0, 32)], limit=_LIMIT),
    _trials,
    (
        criterion("copies", 2, "all copies have the same hash", copies_differ),
        criterion(
            "training", 1, "as one process", other_parameters, other_losses(_NEAR), after="copies"
        ),
        criterion("traffic", 1, "no more than each gradient once", _too_much_sent, after="copies"),
    ),
    SYMPTOMS,
    [
        "if result.loss is not None:",
        "for parameter in stage.module.parameters():",
        "dist.all_reduce(parameter.grad, group=replicas)",
    ],
    "Which ranks reach the all-reduce at all?",
    proof=proof(
        _measured,
        "bytes",
        "Which ranks have events called all_reduce, and which have none? For a rank that has "
        "none: how many bytes are the gradients of its stage?",
        {
            "bytes / 4": "those are elements: a gradient has 4 bytes each.",
            "bytes * case.steps": "that is the whole run. Divide by steps.",
            "other": "those are the gradients of another stage, which are sent.",
            "bytes + other": "some of these are sent.",
            "bytes / 2": "a rank passes its whole gradient, not a half.",
            "0": "that is what it sends. What should it send?",
        },
        unit="B",
    ),
)
