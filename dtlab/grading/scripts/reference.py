"""What a training comes to in one process: the judge of all that ranks do together.

Every step is written as the weights of its samples in the loss, so the whole batch, a sum instead
of a mean, or one rank alone are steps with other weights. All of it is float64, and the optimizers
are their formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from dtlab.grading.scripts.cases import CLASSES, INPUTS, Seen, Training

if TYPE_CHECKING:
    import torch

__all__ = [
    "NEAR", "Optimizer", "Step", "Weights", "averaged_after_each_step", "gradient_of",
    "in_one_process", "mean", "off", "steps_of",
]  # fmt: skip

NEAR = 1e-3  # of the way that the parameters go: rounding takes a hundredth of it

Step = Sequence[Sequence[Sequence[int]]]  # for each rank: the samples of its passes in this step
Weights = Mapping[int, float]  # of samples in the loss of a step


@dataclass(frozen=True)
class Optimizer:
    """SGD with momentum, or Adam with betas as in PyTorch; `rate` is its lr, or that of each step.

    With rates for each step there are as many as steps; a step beyond them has the last one.
    """

    rate: float | Sequence[float]
    momentum: float = 0.0
    adam: bool = False
    eps: float = 1e-8

    def rate_of(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if isinstance(self.rate, Sequence):
            return self.rate[min(step, len(self.rate) - 1)]
        return self.rate

    def run(
        self, start: torch.Tensor, gradients: Callable[[torch.Tensor, int], torch.Tensor], n: int
    ) -> torch.Tensor:
        """Parameters after `n` steps with `gradients(parameters, step)`."""
        state = _State(self, start)
        for step in range(n):
            state.step(gradients(state.now, step))
        return state.now


class _State:
    """Parameters on their way, and what the optimizer remembers."""

    def __init__(self, optimizer: Optimizer, start: torch.Tensor) -> None:
        self._optimizer, self.now = optimizer, start.double()
        self._first, self._second = self.now * 0, self.now * 0
        self._count = 0

    def step(self, gradient: torch.Tensor) -> None:
        """One step with this gradient."""
        one, rate = self._optimizer, self._optimizer.rate_of(self._count)
        self._count += 1
        if not one.adam:
            self._first = one.momentum * self._first + gradient
            self.now = self.now - rate * self._first
            return
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient**2
        first = self._first / (1 - 0.9**self._count)
        second = self._second / (1 - 0.999**self._count)
        self.now = self.now - rate * first / (second.sqrt() + one.eps)


def steps_of(case: Training, results: Sequence[Seen]) -> list[Step]:
    """The steps that the ranks made together; the case says how many passes a step has on each.

    A rank that has no more passes in an epoch has none in the steps that are left of it.
    """
    steps: list[Step] = []
    for epoch in zip(*(one.by_epoch(case.epochs) for one in results), strict=True):
        own = [
            [passes[at : at + case.passes] for at in range(0, len(passes), case.passes)]
            for passes in epoch
        ]
        steps += map(list, zip_longest(*own, fillvalue=[]))
    return steps


def mean(step: Step) -> Weights:
    """The mean over the ranks of the means over their passes: that of all samples, where even."""
    weights: dict[int, float] = {}
    for rank in step:
        for batch in rank:
            for sample in batch:
                share = 1 / (len(step) * len(rank) * len(batch))
                weights[sample] = weights.get(sample, 0.0) + share
    return weights


def in_one_process(
    case: Training,
    steps: Sequence[Weights],
    optimizer: Optimizer,
    *,
    first: int = 0,
    piled_up: bool = False,
) -> torch.Tensor:
    """Parameters after the steps, from those of rank `first`; `piled_up` keeps all gradients."""
    left: list[torch.Tensor] = []

    def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
        new = gradient_of(case, now, steps[step])
        if piled_up and left:
            new = new + left.pop()
        left.append(new)
        return new

    return optimizer.run(case.start(first), gradients, len(steps))


def averaged_after_each_step(
    case: Training, steps: Sequence[Step], optimizer: Optimizer
) -> torch.Tensor:
    """Parameters where each rank steps by itself, and then the parameters are averaged."""
    import torch

    ranks = range(len(steps[0])) if steps else range(1)
    states = [_State(optimizer, case.start(0)) for _ in ranks]
    for step in steps:
        for state, rank in zip(states, step, strict=True):
            state.step(gradient_of(case, state.now, mean([rank])))
        middle = torch.stack([state.now for state in states]).mean(0)
        for state in states:
            state.now = middle
    return states[0].now


def off(got: torch.Tensor, wanted: torch.Tensor, start: torch.Tensor) -> float:
    """How far `got` is from `wanted`, as a share of the way from the start."""
    way = float((wanted - start.double()).norm())
    return float((got.double() - wanted).norm()) / max(way, 1e-12)


def gradient_of(case: Training, now: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Of the weighted sum of the samples' losses, at the parameters `now`."""
    import torch
    import torch.nn.functional as F

    samples = [sample for sample in weights if sample >= 0]
    if not samples:
        return torch.zeros_like(now)
    images, labels = case.data
    inputs = images[samples].flatten(1).double()
    share = torch.tensor([weights[sample] for sample in samples], dtype=torch.float64)
    row = now.clone().requires_grad_()
    sizes = [case.hidden * INPUTS, case.hidden, CLASSES * case.hidden, CLASSES]
    w1, b1, w2, b2 = row.split(sizes)  # type: ignore[no-untyped-call]
    hidden = F.relu(F.linear(inputs, w1.view(case.hidden, INPUTS), b1))
    logits = F.linear(hidden, w2.view(CLASSES, case.hidden), b2)
    losses = F.cross_entropy(logits, labels[samples], reduction="none")
    (gradient,) = torch.autograd.grad((losses * share).sum(), row)
    return gradient
