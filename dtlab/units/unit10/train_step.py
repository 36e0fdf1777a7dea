"""10/train_step: one step of a model spread over data, pipeline and tensor ranks, from parts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.checking.values import close
from dtlab.grading.parts import Part
from dtlab.units.unit10.mesh_cases import AXES, Sizes, place_of

if TYPE_CHECKING:
    from torch import Tensor, nn

_RATE, _CLIPPED = 0.2, 0.7  # learning rate; max_norm divided by the first step's gradient norm
_STEPS, _LIMIT = 3, 6.0  # seconds
_NEAR = 1e-4  # relative tolerance of a loss


@dataclass(frozen=True)
class Training(Faulty):
    """Training steps of `fn` on one stage per rank, compared with one process that has all stages.

    rank r    records, in order: F and B of each microbatch, reduce, clip, step
              returns its loss and its parameters after each step
    """

    finished: ClassVar[tuple[str, ...]] = ("dtlab.parallel.gpt",)
    topic = "first"

    seed: int
    sizes: Sizes
    microbatches: int
    width: int

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in zip(AXES, self.sizes, strict=True))
        return f"{mesh}, {self.microbatches} microbatches"

    @property
    def samples(self) -> int:
        """The number of samples in the whole batch."""
        return 2 * self.microbatches * self.sizes[0]

    def stages(self) -> list[nn.Sequential]:
        """The pipeline stages of the dense model."""
        import torch
        from torch import nn

        found = []
        draw = torch.Generator().manual_seed(self.seed)
        for _ in range(self.sizes[1]):
            inner = 2 * self.width
            found.append(
                nn.Sequential(
                    nn.Linear(self.width, inner), nn.GELU(), nn.Linear(inner, self.width)
                )
            )
            for parameter in found[-1].parameters():
                parameter.data = 0.5 * torch.randn(parameter.shape, generator=draw)
        return found

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Inputs and targets of the whole batch, for each step."""
        import torch

        draw = torch.Generator().manual_seed(self.seed + 1)
        pairs = torch.randn(_STEPS, 2, self.samples, self.width, generator=draw)
        return [(inputs, 2 * targets) for inputs, targets in pairs]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        stage = self.stages()[place_of(rank, self.sizes)[1]]
        return {
            "sizes": self.sizes,
            "state": [parameter.detach() for parameter in stage.parameters()],
            "batches": self.batches(),
            "microbatches": self.microbatches,
            "max_norm": self.max_norm,
            "rate": _RATE,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit10.stages import train

        with finished_calls(*Training.finished, refuse=True) as finished:
            return {**train(fn, given), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        _, losses, states = self._one_process(self.max_norm)
        for rank, result in enumerate(results):
            _, stage, tensor = place_of(rank, self.sizes)
            for step, (log, samples) in enumerate(
                zip(result["log"], result["samples"], strict=True)
            ):
                yield from self._course(f"rank {rank}, step {step + 1}", log, samples)
            for step, state in enumerate(result["states"]):
                wanted = _part(states[step][stage], tensor, self.sizes[2])
                if not all(map(close, state, wanted)):
                    yield (
                        "steps" if step else "first",
                        f"rank {rank} (pipeline {stage}, tensor {tensor}): after step {step + 1} "
                        f"its parameters are not those of one process. {_WHY[step > 0]}",
                    )
                    break
            loss = losses[0] if stage == self.sizes[1] - 1 else None
            wrong = self._wrong_loss(result["losses"][0], loss)
            if wrong:
                yield "loss", f"rank {rank} (pipeline {stage}), step 1: {wrong}"

    def _course(self, where: str, log: str, samples: int) -> Iterator[Fault]:
        """Yields what is wrong with the samples and the order of actions of a rank in one step."""
        share, forwards = self.samples // self.sizes[0], log.count("F")
        if (samples, forwards) != (share, self.microbatches):
            yield (
                "share",
                f"{where}: its stage sees {samples} samples in {forwards} forward passes. "
                f"Its data coordinate has {share} of {self.samples} samples, in "
                f"{self.microbatches} microbatches.",
            )
        if not re.fullmatch("[FB]*rcs", log):
            names = {"r": "reduce", "c": "clip", "s": "step"}
            calls = re.findall("[FB]+|.", log[:60])
            done = ", ".join(names.get(one, "forward and backward") for one in calls)
            yield (
                "order",
                f"{where}: {done or 'nothing'}. After all backward passes of a step come one "
                "reduce_gradients, one clip_mesh and one optimizer step.",
            )

    def _wrong_loss(self, got: Any, right: float | None) -> str:
        """What is wrong with the loss that a rank returns; empty if nothing is."""
        if right is None:
            last = f"only pipeline stage {self.sizes[1] - 1} has a loss"
            return "" if got is None else f"it returns {got}, and {last}. Return None."
        if not isinstance(got, float):
            return f"it returns {got}. Its stage is the last one: return the loss."
        if abs(got - right) <= _NEAR * right:
            return ""
        is_sum = abs(got - right * self.sizes[0]) <= _NEAR * got
        why = "That is the sum over the data group, not the mean." if is_sum else _MEAN
        return f"the loss is {got:.4g}, and one process has {right:.4g}. {why}"

    @cached_property
    def max_norm(self) -> float:
        """A limit below the gradient norm of the first step, so that clipping has an effect."""
        return _CLIPPED * self._one_process(inf)[0][0]

    def _one_process(
        self, max_norm: float
    ) -> tuple[list[float], list[float], list[list[list[Tensor]]]]:
        """Three lists by step: gradient norms, losses, and parameters of each stage afterwards."""
        import torch
        from torch import nn
        from torch.nn.functional import mse_loss

        stages, norms, losses, states = self.stages(), [], [], []
        model = nn.Sequential(*stages)
        for inputs, targets in self.batches():
            loss: Any = mse_loss(model(inputs), targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norms.append(float(torch.stack([one.norm() for one in gradients]).norm()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(_RATE * min(1.0, max_norm / norms[-1]) * gradient)
            losses.append(loss.item())
            states.append([[one.detach().clone() for one in each.parameters()] for each in stages])
        return norms, losses, states


_MEAN = "Each data rank has the mean of its own samples: average over the data group."
_WHY = (
    "Which gradients does the optimizer step with?",
    "After step 1 they are. What is left over from the step before?",
)


def _part(state: Sequence[Tensor], rank: int, ranks: int) -> list[Tensor]:
    """A tensor rank's part of a stage: its shards, and the row bias, which is not sharded."""
    wide, bias, narrow, last = state
    return [wide.chunk(ranks)[rank], bias.chunk(ranks)[rank], narrow.chunk(ranks, 1)[rank], last]


def _trials(seed: int) -> list[Trial]:
    """Trials on each pair of axes, with two ranks per axis; then on a single rank."""
    draw = random.Random(seed)

    def case(*sizes: Any) -> Training:
        count, width = draw.randint(3, 5), 2 * draw.randint(2, 4)
        return Training(draw.randrange(10**6), sizes, count, width)

    pairs = [case(2, 2, 1), case(1, 2, 2), case(2, 1, 2)]
    return [Trial(4, pairs, limit=_LIMIT), Trial(1, [case(1, 1, 1)], limit=_LIMIT)]


PART = Part(
    name="10/train_step",
    level=2,
    title="The step of a model in three dimensions",
    minutes=22,
    difficulty=2,
    check=Check(
        trials=_trials,
        compiles=True,  # the executor's first backward from a given gradient imports the compiler
        rules=(
            rule("share", 2, "microbatches of the samples of its data coordinate"),
            rule("order", 2, "backward, reduce once, clip, step"),
            rule("first", 3, "parameters of one process after a step", "order"),
            rule("steps", 1, "and after three steps", "order", "first"),
            rule("loss", 2, "the mean over the batch, on the last stage only"),
        ),
    ),
    reference="dtlab.parallel.gpt.ParallelGPT",
)
