"""09/run_b: fix a training run that sends the k largest elements of each gradient.

It has two faults: two lines use the gradient where they need the gradient plus the error.

    places    of the largest gradients    what is kept at other places is never sent
    error     set to the gradient         only what the last step left out is kept

While the same places are sent in each step, the first fault hides the second one, since what is
kept elsewhere is not used. With one fault fixed alone, the run learns hardly better. After two
steps only the places can be wrong, since until then the last step is the only one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.criteria import Objection, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.run import (
    Program,
    TrainingRun,
    named,
    other_losses,
    other_parameters,
)
from dtlab.checks.programs.training import Scene, proof, script_part
from dtlab.checks.words import amount

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PART", "Sparse"]

_PLACE, _VALUE = 8, 4  # bytes
_MORE, _OWN = 1.5, 20_000  # times these bytes; bytes of gloo for a hundred small messages
_LIMIT = 20.0  # seconds for runs that take one


@dataclass(frozen=True)
class Sparse(TrainingRun):
    """A run of `program(model, batches, k)` on linear layers without biases.

    In a `steady` run the batches are all the same, and the columns of the images have different
    sizes, so that the same places have the largest gradients in each step.
    """

    widths: tuple[int, ...]
    k: int
    num_steps: int
    steady: bool = False

    near: ClassVar[float] = 1e-3
    looks: ClassVar[tuple[str, str]] = (
        "", "Write down for one element what is sent and what is kept in each step.",
    )  # fmt: skip

    def __str__(self) -> str:
        layers = " and ".join(f"{n} x {m}" for m, n in pairwise(self.widths))
        return f"{layers}, k = {self.k}, {self.num_steps} steps"

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.widths

    @staticmethod
    def build(*sizes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(*[nn.Linear(*each, bias=False) for each in pairwise(sizes)])

    @property
    def steps(self) -> int:
        return self.num_steps

    def batch(self, replica: int, step: int) -> tuple[Tensor, Tensor]:
        import torch

        draw = torch.Generator().manual_seed(
            (1009 * self.seed + replica) * 97 + (0 if self.steady else step)
        )
        images = torch.randn(self.rows, self.widths[0], generator=draw)
        if self.steady:
            images *= 4 * 0.7 ** torch.arange(self.widths[0])
        return images, torch.randint(self.widths[-1], (self.rows,), generator=draw)

    def inputs(self, rank: int, world_size: int) -> dict[str, Any]:
        return {**super().inputs(rank, world_size), "more": [self.k]}

    @classmethod
    def run(cls, fn: Program, model: Any, given: dict[str, Any]) -> dict[str, Any]:
        """See `TrainingRun`."""
        with finished_calls("dtlab.training.compression", "dtlab.simple", refuse=True):
            return super().run(fn, model, given)

    def one_process(self, ranks: int) -> tuple[list[list[float]], list[dict[str, Tensor]]]:
        """Train as the ranks should, in one process; see `TrainingRun`."""
        return _sparse(self, ranks)


@lru_cache(maxsize=16)
def _sparse(case: Sparse, ranks: int) -> tuple[list[list[float]], list[dict[str, Tensor]]]:
    import torch
    import torch.nn.functional as F

    model, after = case.model(), []
    parameters = list(model.parameters())
    errors = [[torch.zeros_like(each) for each in parameters] for _ in range(ranks)]
    losses: list[list[float]] = [[] for _ in range(ranks)]
    for step in range(case.steps):
        totals = [torch.zeros_like(each) for each in parameters]
        for rank in range(ranks):
            images, labels = case.batch(rank, step)
            loss = F.cross_entropy(model(images), labels)
            losses[rank].append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, parameters)
            for error, gradient, total in zip(errors[rank], gradients, totals, strict=True):
                whole = error + gradient
                kept = whole.flatten().clone()
                kept[whole.flatten().abs().topk(case.k).indices] = 0
                error.copy_(kept.view_as(whole))
                total += whole - error
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.data = parameter.data - case.rate * total / ranks
        after.append(named(model))
    return losses, after


# Criteria of the fixed program -------------------------------------------------------------------


def _after(steps: range, layers: int) -> Objection:
    """Returns an objection to other losses and parameters than those of one process."""
    objections = (other_parameters, other_losses(1e-4))

    def objection(case: Sparse, results: Sequence[Any], run: Observation) -> str:
        if case.num_steps not in steps or len(case.widths) - 1 != layers:
            return ""
        return next(filter(None, (each(case, results, run) for each in objections)), "")

    return objection


def _too_much_sent(case: Sparse, results: Sequence[Any], run: Observation) -> str:
    """A message if a rank sends more than its places and values to every other rank."""
    cases: Sequence[Any] = run.trial.cases
    layers = sum(each.num_steps * (len(each.widths) - 1) * each.k for each in cases)
    due = (_PLACE + _VALUE) * layers * (len(results) - 1)
    for rank in range(len(results)):
        sent = run.trace.bytes_wire(rank) if run.trace is not None else None
        if sent is not None and sent > _MORE * due + _OWN:
            return (
                f"in all runs rank {rank} sends {amount(sent)}; places and values take "
                f"{amount(due)}."
            )
    return ""


# The part ----------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, int]:
    import torch

    start, after = named(scene.case.model()), scene.results[0]["after"]
    same = sum(int(torch.eq(start[name], part).sum()) for name, part in after.items())
    count = sum(part.numel() for part in after.values())
    return {"same": same, "count": count, "k": scene.case.k}


def _trials(seed: int) -> list[Trial]:
    """Trials with one layer and with two equal ones, after two steps and after several."""
    draw = random.Random(seed)
    trials = []
    for ranks in (2, 3):
        width = draw.randint(60, 70)
        shape, more = ((width, width), draw.randint(40, 60)), draw.randint(6, 8)
        cases = [
            Sparse(draw.randrange(1, 10**6), widths, k, steps)
            for widths, k, steps in (
                (*shape, 2), (*shape, more), ((width, width, width), shape[1], more)
            )
        ]  # fmt: skip
        trials.append(Trial(ranks, cases, limit=_LIMIT))
    return trials


PART = script_part(
    "09/run_b", "Run B", 20, 3,
    "dtlab.units.unit09.runs_scripts.learn",
    Trial(2, [Sparse(0, (12, 8), 6, 60, steady=True)], limit=_LIMIT),
    _trials,
    (
        rule("two", 2, "right after two steps", by=(_after(range(3), 1),)),
        rule("more", 2, "right after several steps", by=(_after(range(3, 99), 1),), after="two"),
        rule("layers", 1, "right for two layers", by=(_after(range(99), 2),), after="more"),
        rule("bytes", 1, "only places and values are sent", by=_too_much_sent),
    ),
    [
        "places = parameter.grad.flatten().abs().topk(k).indices",
        "error.copy_(parameter.grad)",
    ],
    "Take an element that is not sent in the first step. What becomes of it in the second?",
    proof=proof(
        _measured,
        "same",
        "Run the program, and count the weights that are equal before and after.",
        {
            "count - same": "that many have changed. How many have not?",
            "0": "with error feedback it would be none. Count them.",
            "count - k": "the ranks do not all send the same places.",
            "same / count": "that is a share. Write the number of weights.",
        },
    ),
)  # fmt: skip
