"""07/unsynchronised: copies of a stage that drift apart."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import MendScript, Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "SYMPTOMS", "Replica"]

# How a check runs a program of 07/unsynchronised, and what one process comes to ------------------
#
# rank r is in pipeline r // stages, and has stage r % stages
#
#             stage 0   1        a column are the replicas of a stage
# pipeline 0        0   1
# pipeline 1        2   3

RATE, _ROWS = 0.1, 8  # as in the script; samples of a pipeline in a step
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "reduce")


class Trained(NamedTuple):
    """What a rank was left with: its losses, and the parameters of its stage in one row."""

    losses: list[float]
    own: Tensor


@dataclass(frozen=True)
class Replica(Case):
    """`script(stages, batches)` on `steps` batches of random images for each pipeline."""

    seed: int
    width: int
    num_stages: int = 2
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.num_stages} stages, {self.width} wide, {self.steps} steps"

    def bytes_of(self, stage: int) -> int:
        """Bytes of a stage's parameters, and of their gradients."""
        inputs = self.width if stage else 64
        outputs = self.width if stage < self.num_stages - 1 else 10
        return 4 * (inputs + 1) * outputs

    def start(self) -> list[list[Tensor]]:
        """Parameters to begin with, by stage: the same on all ranks."""
        import torch

        from dtlab.units.unit07.replicas_script import build

        draw = torch.Generator().manual_seed(self.seed)
        return [
            [torch.randn(one.shape, generator=draw) * 0.2 for one in stage.parameters()]
            for stage in build(self.width, self.num_stages)
        ]

    def batch(self, pipeline: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of a pipeline."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + pipeline) * 97 + step)
        images = torch.randn(_ROWS, 64, generator=draw)
        return images, torch.randint(10, (_ROWS,), generator=draw)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        pipeline, place = divmod(rank, self.num_stages)
        return {
            "sizes": (self.width, self.num_stages),
            "place": place,
            "start": self.start(),
            "batches": [self.batch(pipeline, step) for step in range(self.steps)],
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.units.unit07.replicas_script import build

        stages = build(*given["sizes"])
        for stage, start in zip(stages, given["start"], strict=True):
            for parameter, numbers in zip(stage.parameters(), start, strict=True):
                parameter.data.copy_(numbers)
        losses = fn(stages, iter([tuple(batch) for batch in given["batches"]]))
        own = [one.detach().flatten() for one in stages[given["place"]].parameters()]
        return {"losses": [float(one) for one in losses], "own": torch.cat(own).clone()}

    def opened(self, result: Any) -> Trained:
        return Trained([float(one) for one in result["losses"]], result["own"].float())

    def mistake(self, results: Sequence[Trained]) -> str:
        """See `Case`; what is wrong with a run is for its judges to say."""
        return ""


def hash_of(numbers: Tensor) -> str:
    """Of the bits of a tensor, in a few letters."""
    return hashlib.blake2b(numbers.contiguous().numpy().tobytes(), digest_size=4).hexdigest()


def reduced(one: Observation, rank: int) -> int:
    """Bytes that a rank has in collectives, in the whole run."""
    events = one.trace.events if one.trace is not None else ()
    return sum(e.bytes for e in events if e.rank == rank and e.name in _COLLECTIVES)


def one_process(case: Replica, replicas: int) -> tuple[list[list[float]], list[Tensor]]:
    """What one process comes to with all batches: losses by pipeline, parameters by stage."""
    import torch
    import torch.nn.functional as F

    from dtlab.units.unit07.replicas_script import build

    model = torch.nn.Sequential(*build(case.width, case.num_stages))
    parameters = list(model.parameters())
    start = [one for stage in case.start() for one in stage]
    for parameter, numbers in zip(parameters, start, strict=True):
        parameter.data = numbers
    losses: list[list[float]] = [[] for _ in range(replicas)]
    for step in range(case.steps):
        every = []
        for pipeline in range(replicas):
            images, labels = case.batch(pipeline, step)
            every.append(F.cross_entropy(model(images), labels))
            losses[pipeline].append(float(every[-1].detach()))
        gradients = torch.autograd.grad(torch.stack(every).mean(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.data = parameter.data - RATE * gradient
    rows = [torch.cat([one.detach().flatten() for one in stage.parameters()]) for stage in model]
    return losses, rows


# What a mended program of 07/unsynchronised has to do on ranks, and what is said of others -------

_NEAR = 1e-3  # of a loss, and of the way that parameters went
_MORE = 1.25  # times the gradient of a step: a tensor more for a loss or a norm is no matter

def copies_differ(case: Replica, results: list[Trained], one: Observation) -> str:
    """The replicas of some stage are not, bit by bit, the same."""
    for stage in range(case.num_stages):
        ranks = range(stage, len(results), case.num_stages)
        hashes = {rank: hash_of(results[rank].own) for rank in ranks}
        if len(set(hashes.values())) > 1:
            said = ", ".join(f"{each} on rank {rank}" for rank, each in hashes.items())
            return (
                f"the copies of stage {stage} end with other hashes: {said}. What do these ranks "
                "send each other in a step?"
            )
    return ""


def other_training(case: Replica, results: list[Trained], one: Observation) -> str:
    """It does not train as one process with the batches of all pipelines does."""
    import torch

    losses, wanted = one_process(case, len(results) // case.num_stages)
    starts = [torch.cat([part.flatten() for part in stage]) for stage in case.start()]
    for rank, seen in enumerate(results):
        pipeline, stage = divmod(rank, case.num_stages)
        way = float((wanted[stage] - starts[stage]).norm())
        off = float((seen.own - wanted[stage]).norm())
        if not off <= _NEAR * way:
            return (
                f"stage {stage} on rank {rank} ends {off / way:.0%} of its way from where one "
                "process with the batches of all pipelines is. The copies agree: on what mean?"
            )
        if stage == case.num_stages - 1 and not _alike(seen.losses, losses[pipeline]):
            return (
                f"rank {rank} returns the losses {_short(seen.losses)}; in one process those of "
                f"its batches are {_short(losses[pipeline])}. Only what is broken has to change."
            )
    return ""


def _alike(got: list[float], wanted: list[float]) -> bool:
    near = (abs(a - b) <= _NEAR * b for a, b in zip(got, wanted, strict=False))
    return len(got) == len(wanted) and all(near)


def _short(losses: list[float]) -> str:
    return "[" + ", ".join(f"{loss:.3f}" for loss in losses) + "]"


def too_much_sent(case: Replica, results: list[Trained], one: Observation) -> str:
    """A rank has more in collectives than the gradient of its stage once in a step."""
    for rank in range(len(results)):
        stage = case.bytes_of(rank % case.num_stages)
        least, sent = case.steps * stage, reduced(one, rank)
        if sent > _MORE * least + stage:  # and its parameters once, at the start
            return (
                f"rank {rank} has {amount(sent)} in collectives in {case.steps} steps. The "
                f"gradient of its stage, {case.width} wide here and not 32 as in the notebook, is "
                f"{amount(stage)}: once in a step is enough, and no other stage's belongs into it."
            )
    return ""


# Symptoms of replicated pipelines, as the notebook lists them, and the number that proves one ----


def _case(scene: Scene) -> Replica:
    (case,) = scene.one.trial.cases
    assert isinstance(case, Replica)
    return case


def _by_stage(scene: Scene) -> list[list[Trained]]:
    """What the replicas of each stage were left with."""
    results: list[Any] = scene.one.results[0]
    count = _case(scene).num_stages
    return [results[stage::count] for stage in range(count)]


def _apart(scene: Scene) -> list[bool]:
    """Of each stage, whether the hashes of its copies differ."""
    return [len({hash_of(one.own) for one in copies}) > 1 for copies in _by_stage(scene)]


def _copies(wanted: Callable[[list[bool]], bool]) -> Callable[[Scene], Finding]:
    def measure(scene: Scene) -> Finding:
        apart = _apart(scene)
        said = (f"of stage {n} they {'differ' if one else 'agree'}" for n, one in enumerate(apart))
        return Finding(wanted(apart), f"hashes of the copies: {', '.join(said)}")

    return measure


def _mixed(scene: Scene) -> Finding:
    assert scene.one.trace is not None
    count = _case(scene).num_stages
    mixed = [
        event
        for event in scene.one.trace.events
        if event.name == "all_reduce" and any((peer - event.rank) % count for peer in event.peers)
    ]
    return Finding(bool(mixed), f"{len(mixed)} all-reduces had ranks of other stages in them")


def _often(scene: Scene) -> Finding:
    case, ranks = _case(scene), range(len(scene.one.results[0]))
    times = [
        reduced(scene.one, rank) / (case.steps * case.bytes_of(rank % case.num_stages))
        for rank in ranks
    ]
    words = f"a rank all-reduced its stage's gradient at most {max(times):.2g} times in a step"
    return Finding(max(times) > 1.5, words)


def _stands(scene: Scene) -> Finding:
    import torch

    case = _case(scene)
    starts = [torch.cat([one.flatten() for one in stage]) for stage in case.start()]
    still = [
        stage
        for stage, copies in enumerate(_by_stage(scene))
        if any(bool(one.own.equal(starts[stage])) for one in copies)
    ]
    return Finding(bool(still), f"{len(still)} stages stayed where they began")


SYMPTOMS: dict[str, Symptom] = {
    "first apart": Symptom(
        "copies of the first stage end with different hashes, those of the last with the same",
        _copies(lambda apart: apart[0] and not apart[-1]),
    ),
    "last apart": Symptom(
        "copies of the last stage end with different hashes, those of the first with the same",
        _copies(lambda apart: apart[-1] and not apart[0]),
    ),
    "all apart": Symptom("copies of every stage end with different hashes", _copies(all)),
    "mixed": Symptom("an all-reduce has ranks of different stages in it", _mixed),
    "too often": Symptom("a gradient is all-reduced more than once in a step", _often),
    "stands": Symptom("a stage does not move", _stands),
}


# The number -------------------------------------------------------------------------------------


def _of_gradients(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    sent = reduced(scene.one, 0) / case.steps
    return {
        "bytes": case.bytes_of(0) - sent,
        "other": reduced(scene.one, 1) / case.steps,
        "steps": case.steps,
    }


UNSENT = Proof(
    _of_gradients,
    Number(
        lambda g: float(g["bytes"]),
        (
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a gradient has 4 bytes each."),
            Mistake(lambda g: g["bytes"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["other"], "those are what another stage has, and they are sent."),
            Mistake(lambda g: g["bytes"] + g["other"], "some of these are sent."),
            Mistake(lambda g: g["bytes"] / 2, "a rank hands its whole gradient in, not a half."),
            Mistake(0, "that is what it sends. What should it be?"),
        ),
        "Which ranks have events called all_reduce, and which have none? Of a rank that has none: "
        "how many bytes have the gradients of its stage?",
        unit="B",
        tolerance=0,
    ),
)


# The part ----------------------------------------------------------------------------------------

_LIMIT = 20.0  # seconds for what takes half of one


def _trials(seed: int) -> list[Trial]:
    """Two pipelines of two stages, and two of three: of other widths than the notebook's."""
    draw = random.Random(seed)
    cases = [Replica(draw.randrange(10**6), draw.randint(9, 24), stages) for stages in (2, 3)]
    return [Trial(2 * case.num_stages, [case], limit=_LIMIT) for case in cases]


PART = Part(
    name="07/unsynchronised",
    level=3,
    title="One stage goes its own way",
    minutes=15,
    difficulty=2,
    check=MendScript(
        "dtlab.units.unit07.replicas_script.train_replicas",
        Trial(4, [Replica(0, 32)], limit=_LIMIT),
        Check(
            _trials,
            (
                Rule("copies", 2, judge_by("all copies have the same hash", copies_differ)),
                Rule("training", 1, judge_by("as one process", other_training), after="copies"),
                Rule(
                    "traffic",
                    1,
                    judge_by("no more than each gradient once", too_much_sent),
                    after="copies",
                ),
            ),
            compiles=True,
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "if result.loss is not None:",
            "for parameter in stage.module.parameters():",
            "dist.all_reduce(parameter.grad, group=replicas)",
        ],
        look="Which ranks come to the all-reduce at all?",
        proof=UNSENT,
    ),
)
