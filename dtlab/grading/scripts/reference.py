"""What a training comes to in one process: the judge of all that ranks do together.

Every step is written as the weights of its samples in the loss, so the whole batch, a sum instead
of a mean, or one rank alone are steps with other weights. All of it is float64, and the optimizers
are their formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from dtlab.grading.checking.criteria import Objection
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.run import fill

if TYPE_CHECKING:
    import torch

__all__ = [
    "NEAR", "Optimizer", "Step", "Weights", "averaged_after_each_step", "gradient_of",
    "in_one_process", "mean", "not_as_one_process", "off", "steps_of",
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

    def run(
        self,
        start: torch.Tensor,
        gradients: Callable[[torch.Tensor, int], torch.Tensor],
        n: int,
        after: Callable[[torch.Tensor], torch.Tensor] = lambda now: now,
    ) -> torch.Tensor:
        """Parameters after `n` steps with `gradients(parameters, step)`; `after` ends each."""
        rates = self.rate if isinstance(self.rate, Sequence) else [self.rate]
        now = start.double()
        first = second = 0 * now
        for step in range(n):
            gradient = gradients(now, step)
            if self.adam:
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                root = (second / (1 - 0.999 ** (step + 1))).sqrt()
                way = first / (1 - 0.9 ** (step + 1)) / (root + self.eps)
            else:
                first = way = self.momentum * first + gradient
            now = after(now - rates[min(step, len(rates) - 1)] * way)
        return now


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

    def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
        pairs = zip(now, steps[step], strict=True)
        return torch.stack([gradient_of(case, own, mean([rank])) for own, rank in pairs])

    start = case.start(0).repeat(len(steps[0]) if steps else 1, 1)
    middle = optimizer.run(start, gradients, len(steps), lambda now: now.mean(0).expand_as(now))
    return middle[0]


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
    share = torch.tensor([weights[sample] for sample in samples], dtype=torch.float64)
    model = fill(case.build(*case.sizes).double(), now)
    logits = model(images[samples].double())
    losses = F.cross_entropy(logits, labels[samples], reduction="none")
    gradients = torch.autograd.grad((losses * share).sum(), list(model.parameters()))
    return torch.cat([one.reshape(-1) for one in gradients])


# Whether ranks have trained so, or what they did ------------------------------------------------


def not_as_one_process(optimizer: Optimizer | Callable[[Training, int], Optimizer]) -> Objection:
    """The parameters are not those of one process that takes all ranks' samples in each step.

    The optimizer may depend on the case and the number of ranks.
    """

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        steps = steps_of(case, results)
        known = optimizer if isinstance(optimizer, Optimizer) else optimizer(case, len(results))
        wanted = in_one_process(case, [mean(step) for step in steps], known)
        far = [off(each.after, wanted, case.start(0)) for each in results]
        if max(far) < NEAR:
            return ""
        rank = far.index(max(far))
        why = _what_else(case, steps, results[rank], known)
        return (
            f"rank {rank}'s parameters are not those of one process that takes all these samples: "
            f"they are off by {far[rank]:.1%} of the way that those went. {why}"
        )

    return objection


def _what_else(case: Training, steps: list[Step], got: Seen, optimizer: Optimizer) -> str:
    """What the ranks did instead, where it is something that people do."""
    if off(got.after, case.start(0), got.after + 1) == 0:
        return "They are those of the beginning: is there a gradient when the optimizer steps?"
    for words, parameters in _known(case, steps, optimizer):
        if off(got.after, parameters(), case.start(0)) < NEAR:
            return words
    return (
        "Is every step made with the mean of all ranks' gradients, those of this step alone, and "
        "with the rate and the optimizer of the script?"
    )


def _known(
    case: Training, steps: list[Step], optimizer: Optimizer
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    ranks = len(steps[0]) if steps else 0
    means = [mean(step) for step in steps]
    sums = {
        ranks: "They step with the sum of the ranks' gradients: divide it by their number.",
        len(steps[0][0]) if steps else 0: (
            "They step with the sum over the microbatches: divide by how many there are."
        ),
    }
    for factor, words in sums.items():
        if factor > 1:
            larger = [{k: factor * share for k, share in one.items()} for one in means]
            yield words, partial(in_one_process, case, larger, optimizer)
    yield (
        "Gradients of earlier steps are in every step.",
        partial(in_one_process, case, means, optimizer, piled_up=True),
    )
    yield (
        "They are averaged after each rank has made its own step. The optimizer does not forget "
        "the gradients that it was given: average those, before the step.",
        partial(averaged_after_each_step, case, steps, optimizer),
    )
    for rank in range(ranks):
        own = [mean([step[rank]]) for step in steps]
        for first in {0, rank}:
            yield (
                f"They are those of training on rank {rank}'s samples alone: what the other ranks "
                "compute is thrown away.",
                partial(in_one_process, case, own, optimizer, first=first),
            )
    last = [mean([own[-1:] for own in step]) for step in steps]
    yield (
        "They step with the last microbatch of each step alone.",
        partial(in_one_process, case, last, optimizer),
    )
