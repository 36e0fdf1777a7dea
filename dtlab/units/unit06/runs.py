"""What 06/gather_between, 06/many_biases and 06/drift, the broken trainings, have in common.

The programs are in `runs_scripts`, as the notebook shows them. Symptoms and numbers are measured
in a run of them; the mended ones are judged by what ranks do, and by the losses of one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.checking.unseen import unseen_collectives
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom

if TYPE_CHECKING:
    from torch import Tensor

    from dtlab.trace import Event

__all__ = [
    "COUNTED",
    "GATHERED",
    "SCRIPTS",
    "SYMPTOMS",
    "TIMES",
    "SharedRun",
    "copies_differ",
    "cut_dim",
    "not_shared",
    "other_bytes",
    "other_start",
    "other_training",
    "scene",
    "trials_of",
]

# How a check runs a program of Level III: what it is given, and what one process comes to --------

RATE, _ROWS = 0.1, 16  # as in the scripts; samples in a step, which all ranks see
_CUT = {"wide.weight": 0, "wide.bias": 0, "narrow.weight": 1}


def cut_dim(name: str) -> int | None:
    """The dim of a parameter that ranks share; None for one that all of them have whole."""
    return _CUT.get(name.partition(".")[2].partition(".")[2])


@dataclass(frozen=True)
class SharedRun(Case):
    """`script(model, batches)` on `steps` batches of random images, the same on all ranks."""

    seed: int
    width: int
    inner: int
    depth: int
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.depth} layers of {self.width} and {self.inner} features"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Of the model."""
        return self.width, self.inner, self.depth

    @property
    def activation(self) -> int:
        """Bytes of what goes from layer to layer."""
        return 4 * _ROWS * self.width

    @property
    def between(self) -> int:
        """Bytes of what is between the two halves of a layer, on all ranks together."""
        return 4 * _ROWS * self.inner

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Parameters to begin with, by their names: the same on all ranks."""
        import torch

        from dtlab.units.unit06.runs_scripts import Net

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = Net(*self.sizes)
        return {name: one.detach() for name, one in model.named_parameters()}

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Images and labels of each step."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        return [
            (torch.randn(_ROWS, 64, generator=draw), torch.randint(10, (_ROWS,), generator=draw))
            for _ in range(self.steps)
        ]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {"sizes": self.sizes, "state": self.state, "batches": self.batches}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit06.runs_noted import noted

        return noted(fn, given)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: what is wrong with a run is for the judges to say."""
        return ""

    @cached_property
    def one_process(self) -> tuple[list[float], dict[str, Tensor]]:
        """What one process comes to: losses, and parameters in the end."""
        import torch
        import torch.nn.functional as F

        from dtlab.units.unit06.runs_noted import built

        model, losses = built(self.sizes, self.state), []
        for images, labels in self.batches:
            loss = F.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.data -= RATE * gradient
            losses.append(float(loss.detach()))
        return losses, {name: one.detach() for name, one in model.named_parameters()}


def events_of(one: Observation, *names: str, rank: int = 0) -> list[Event]:
    """What a rank called by these names, in order; all that it sent without a name."""
    events = one.trace.events if one.trace is not None else ()
    return [
        event
        for event in events
        if event.rank == rank and event.kind == "comm" and (not names or event.name in names)
    ]


SCRIPTS = "dtlab.units.unit06.runs_scripts."
_WIDTH, _INNER, _DEPTH = 32, 160, 3  # of the model in the notebook
_LIMIT = 15.0  # seconds: the first optimizer of a machine imports PyTorch's compiler


def scene(ranks: int) -> Trial:
    return Trial(ranks, [SharedRun(0, _WIDTH, _INNER, _DEPTH)], limit=_LIMIT)


def trials_of(left: int) -> Callable[[int], list[Trial]]:
    """A model of another size; of its features so many are left when three ranks share them."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(6, 12), 3 * draw.randint(16, 32) + left, draw.randint(2, 4)
        return [Trial(3, [SharedRun(draw.randrange(1, 10**6), *sizes)], limit=_LIMIT)]

    return trials


_NEAR, _APART = 1e-4, 1e-6  # of a loss or parameter; of copies, which get the same bits
_MORE, _LESS = 1.05, 0.95
_PASSES = {"all_reduce": 2.0, "broadcast": 2.0}  # times its bytes on a ring, where it is not once
_FORM = "what the ranks return, or leave in the model, is not what is asked for."

_TOO_MANY = "Which of them does the next product need?"
_TOO_FEW = (
    "Nothing is too many here, and something is missing: what does a rank have a part of a sum "
    "of, in forward or in backward, where the whole is needed?"
)

# What a mended run has to do --------------------------------------------------------------------


def other_start(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """The first loss is not that of one process."""
    wanted = case.one_process[0][0]
    for rank, seen in enumerate(results):
        got = seen["losses"][0]
        if not abs(got - wanted) <= _NEAR * wanted:
            return (
                f"the first loss of rank {rank} is {got:.5f}, and in one process {wanted:.5f}. No "
                "step was made yet: what do the ranks add up that is there once?"
            )
    return ""


def copies_differ(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Ranks do not have the same of what all of them have whole."""
    begin = results[0]["after"]
    for name, tensor in begin.items():
        for rank, seen in enumerate(results):
            if cut_dim(name) is None and not _alike(seen["after"][name], tensor, _APART):
                far = float((seen["after"][name] - tensor).abs().max())
                return (
                    f"rank 0 and rank {rank} do not have the same {name} in the end: they are "
                    f"{far:.2g} apart. Which part of its gradient does each of them find?"
                )
    return ""


def not_shared(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """A rank has more of a layer than its part."""
    for name, start in case.state.items():
        dim = cut_dim(name)
        parts = start.tensor_split(len(results), dim) if dim is not None else ()
        for rank, part in enumerate(parts):
            shape = tuple(results[rank]["after"][name].shape)
            if shape != tuple(part.shape):
                return (
                    f"{name} has shape {shape} on rank {rank}; its part is {tuple(part.shape)}. "
                    "The ranks go on sharing the layers, as share_out cuts them."
                )
    return ""


def other_bytes(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Ranks send each other more than two all-reduces for each layer and step, or less."""
    ranks, steps = len(results), case.steps
    goal = 2 * 2 * case.depth * case.activation * steps
    for rank in range(ranks):
        events = events_of(one, rank=rank)
        sent = sum(_PASSES.get(event.name, 1.0) * event.bytes for event in events)
        if not goal * _LESS <= sent <= goal * _MORE:
            return (
                f"what rank {rank} calls in a step takes {sent / goal:.2f} times what two "
                f"all-reduces of {case.activation:,} bytes for each layer take: "
                f"{_called(events, steps)}. {_TOO_FEW if sent < goal else _TOO_MANY}"
            )
    return unseen_collectives(one)


def _called(events: Sequence[Any], steps: int) -> str:
    counts: dict[str, int] = {}
    for event in events:
        counts[event.name] = counts.get(event.name, 0) + event.bytes
    said = (f"{count // steps:,} bytes in {name}" for name, count in counts.items())
    return " and ".join(said) or "nothing is sent"


def other_training(case: SharedRun, results: Sequence[Any], one: Observation) -> str:
    """Losses, or parameters in the end, are not those of one process."""
    losses, after = case.one_process
    for rank, seen in enumerate(results):
        if len(seen["losses"]) != len(losses):
            return f"rank {rank} returns {len(seen['losses'])} losses; there are {len(losses)}."
        for step, (got, wanted) in enumerate(zip(seen["losses"], losses, strict=True)):
            if not abs(got - wanted) <= _NEAR * wanted:
                return (
                    f"rank {rank}, step {step}: the loss is {got:.5f}, and in one process "
                    f"{wanted:.5f}. Only what is broken has to change."
                )
        for name, whole in after.items():
            dim = cut_dim(name)
            part = whole if dim is None else whole.tensor_split(len(results), dim)[rank]
            if not _alike(seen["after"][name], part, _NEAR):
                return (
                    f"{name} of rank {rank} is not what one process ends with. Its gradient is "
                    "not the whole one, or is there more than once."
                )
    return ""


def _alike(one: Tensor, other: Tensor, near: float) -> bool:
    if one.shape != other.shape:
        return False
    return bool(((one - other).abs().max() <= near * other.abs().max().clamp(min=1e-2)).item())


# What is measured -------------------------------------------------------------------------------


def _case(scene: Scene) -> SharedRun:
    (case,) = scene.one.trial.cases
    assert isinstance(case, SharedRun)
    return case


def _all(scene: Scene) -> list[Any]:
    found: list[Any] = scene.one.results[0]
    return found


def _sent(scene: Scene, name: str) -> int:
    return sum(one.bytes for one in events_of(scene.one, name))


def _gathers(scene: Scene) -> Finding:
    gathered, reduced = (_sent(scene, name) for name in ("all_gather", "all_reduce"))
    words = f"rank 0 had {gathered:,} bytes in all-gathers and {reduced:,} in all-reduces"
    return Finding(gathered > reduced, words)


def _wrong_start(scene: Scene) -> Finding:
    own, wanted = _all(scene)[0]["losses"][0], _case(scene).one_process[0][0]
    words = f"the first loss was {own:.5f}, and in one process {wanted:.5f}"
    return Finding(abs(own - wanted) > _NEAR * wanted, words)


def _drift(scene: Scene) -> Finding:
    first, *others = [seen["after"] for seen in _all(scene)]
    whole = [name for name in first if cut_dim(name) is None]
    far = max(float((other[name] - first[name]).abs().max()) for other in others for name in whole)
    words = f"copies of a parameter that all ranks have were up to {far:.2g} apart in the end"
    return Finding(far > _NEAR, words)


def _explodes(scene: Scene) -> Finding:
    losses = _all(scene)[0]["losses"]
    words = f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return Finding(not losses[-1] <= 2 * losses[0], words)


def _whole(scene: Scene) -> Finding:
    (wide,) = {tuple(seen["after"]["layers.0.wide.weight"].shape) for seen in _all(scene)}
    words = f"each rank had {wide[0]} of {_case(scene).inner} features of the first layer"
    return Finding(wide[0] == _case(scene).inner, words)


def _stands(scene: Scene) -> Finding:
    start, after = _case(scene).state, _all(scene)[0]["after"]
    still = [
        name for name in after if cut_dim(name) is None and bool(after[name].equal(start[name]))
    ]
    return Finding(bool(still), f"{len(still)} of the parameters that all ranks have stood still")


SYMPTOMS: dict[str, Symptom] = {
    "gathers": Symptom("a rank has more bytes in all-gathers than in all-reduces", _gathers),
    "wrong start": Symptom("the first loss is not that of one process", _wrong_start),
    "drift": Symptom("copies of a parameter that all ranks have whole differ in the end", _drift),
    "explodes": Symptom("the last loss is more than twice the first", _explodes),
    "whole": Symptom("each rank has all weights of a layer", _whole),
    "stands": Symptom("a parameter that all ranks have whole never moves", _stands),
}

# The numbers ------------------------------------------------------------------------------------


def _of_gathers(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    return {
        "right": _sent(scene, "all_gather") / case.steps,
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
        "depth": case.depth,
        "reduced": _sent(scene, "all_reduce") / case.steps,
    }


def _of_biases(scene: Scene) -> Mapping[str, Any]:
    return {"right": _all(scene)[0]["times"], "depth": _case(scene).depth}


def _of_reduces(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    called = len(events_of(scene.one, "all_reduce"))
    return {
        "right": called / case.steps,
        "needed": 2 * case.depth,
        "steps": case.steps,
        "ranks": scene.one.trial.world_size,
    }


def _right(given: Mapping[str, Any]) -> float:
    return float(given["right"])


GATHERED = Proof(
    _of_gathers,
    Number(
        _right,
        (
            Mistake(lambda g: g["right"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["right"] / 2, "that is one of the two passes: see backward, too."),
            Mistake(lambda g: g["right"] / g["depth"], "that is one layer."),
            Mistake(lambda g: g["right"] / (2 * g["depth"]), "that is one all-gather."),
            Mistake(lambda g: g["right"] / 4, "those are elements, of 4 bytes each."),
            Mistake(lambda g: g["reduced"], "that is what is all-reduced, as it should be."),
            Mistake(lambda g: g["right"] + g["reduced"], "some of these are all-reduces."),
        ),
        "Add up the bytes of rank 0's events called all_gather, and divide by the steps.",
        tolerance=0,
    ),
)

TIMES = Proof(
    _of_biases,
    Number(
        _right,
        (
            Mistake(lambda g: g["right"] - 1, "that is how often it is there too many."),
            Mistake(lambda g: 1, "so it would be in one process. Divide what is printed."),
            Mistake(lambda g: g["right"] * g["depth"], "that is all layers: asked for is one."),
            Mistake(lambda g: 1 / g["right"], "the other way round."),
        ),
        "Divide what the layer adds too much by its bias, and count the one that belongs there.",
        tolerance=0.01,
    ),
)

COUNTED = Proof(
    _of_reduces,
    Number(
        _right,
        (
            Mistake(lambda g: g["needed"], "that is what a step takes. What does this one call?"),
            Mistake(lambda g: g["right"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["right"] * g["ranks"] * g["steps"], "those are of all ranks."),
            Mistake(lambda g: 1, "that is one layer's."),
            Mistake(lambda g: 0, "that is the backward pass alone."),
        ),
        "Count rank 0's events called all_reduce, and divide by the steps.",
        tolerance=0,
    ),
)
