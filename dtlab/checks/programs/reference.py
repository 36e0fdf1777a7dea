"""The result of a training in one process, with which the ranks' training is compared.

A step is described by the weight of each sample in the loss. So a step with the whole batch, one
with the sum instead of the mean, and one with a single rank's samples differ only in their
weights. All computations are in float64, with the formulas of the optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from dtlab.checks.functions.criteria import Objection
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.run import fill

if TYPE_CHECKING:
    import torch

__all__ = [
    "NEAR", "Optimizer", "Step", "Weights", "averaged_after_each_step", "gradient_of",
    "in_one_process", "mean", "not_as_one_process", "off", "steps_of",
]  # fmt: skip

NEAR = 1e-3  # relative to the parameters' total change: rounding errors are 100 times smaller

Step = Sequence[Sequence[Sequence[int]]]  # for each rank: the samples of its passes in this step
Weights = Mapping[int, float]  # of samples in the loss of a step


@dataclass(frozen=True)
class Optimizer:
    """SGD with momentum, or Adam with PyTorch's betas; `rate` is the learning rate.

    `rate` may also be a sequence with a rate for each step; further steps use the last rate. If
    `clip` is set, a longer gradient is scaled down to this length.
    """

    rate: float | Sequence[float]
    momentum: float = 0.0
    adam: bool = False
    eps: float = 1e-8
    clip: float = 0.0

    def run(
        self,
        start: torch.Tensor,
        gradients: Callable[[torch.Tensor, int], torch.Tensor],
        n: int,
        after: Callable[[torch.Tensor], torch.Tensor] = lambda now: now,
    ) -> torch.Tensor:
        """Returns the parameters after `n` optimizer steps from `start`.

        `gradients(parameters, step)` returns the gradients of a step. `after` is applied to the
        parameters at the end of each step.
        """
        rates = self.rate if isinstance(self.rate, Sequence) else [self.rate]
        now = start.double()
        first = second = 0 * now
        for step in range(n):
            gradient = gradients(now, step)
            if self.clip:
                length = gradient.norm(dim=-1, keepdim=True)
                gradient = gradient * (self.clip / (length + 1e-6)).clamp(max=1)
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
    """Returns the ranks' steps, with `case.passes` passes of each rank per step.

    A rank without further passes in an epoch has none in the remaining steps of the epoch.
    """
    steps: list[Step] = []
    for epoch in zip(*(result.by_epoch(case.epochs) for result in results), strict=True):
        by_rank = [
            [passes[at : at + case.passes] for at in range(0, len(passes), case.passes)]
            for passes in epoch
        ]
        steps += map(list, zip_longest(*by_rank, fillvalue=[]))
    return steps


def mean(step: Step) -> Weights:
    """Returns the weights of the mean over ranks of the means over their passes.

    This is the mean over all samples if all batches have the same size.
    """
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
    """Returns the parameters after the steps, beginning with those of rank `first`.

    With `piled_up`, each step also has the gradients of all earlier steps.
    """
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
    """Returns the parameters if each rank steps alone, and then the parameters are averaged."""
    import torch

    def gradients(now: torch.Tensor, step: int) -> torch.Tensor:
        pairs = zip(now, steps[step], strict=True)
        return torch.stack([gradient_of(case, row, mean([rank])) for row, rank in pairs])

    start = case.start(0).repeat(len(steps[0]) if steps else 1, 1)
    middle = optimizer.run(start, gradients, len(steps), lambda now: now.mean(0).expand_as(now))
    return middle[0]


def off(got: torch.Tensor, wanted: torch.Tensor, start: torch.Tensor) -> float:
    """Returns the distance from `got` to `wanted`, relative to that from `start` to `wanted`."""
    way = float((wanted - start.double()).norm())
    return float((got.double() - wanted).norm()) / max(way, 1e-12)


def gradient_of(case: Training, now: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Returns the gradient of the weighted sum of the samples' losses at the parameters `now`."""
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
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


# Compares the ranks' training with one process, and recognizes common mistakes -------------------


def not_as_one_process(optimizer: Optimizer | Callable[[Training, int], Optimizer]) -> Objection:
    """Returns an objection if the training differs from one process that takes all ranks' samples.

    The optimizer may depend on the case and the number of ranks.
    """

    def objection(case: Training, results: Sequence[Seen], observation: Observation) -> str:
        steps = steps_of(case, results)
        known = optimizer if isinstance(optimizer, Optimizer) else optimizer(case, len(results))
        wanted = in_one_process(case, [mean(step) for step in steps], known)
        far = [off(result.after, wanted, case.start(0)) for result in results]
        if max(far) < NEAR:
            return ""
        rank = far.index(max(far))
        why = _what_else(case, steps, results[rank], known)
        return (
            f"rank {rank}'s parameters are not those of one process that takes all these samples: "
            f"they are off by {far[rank]:.1%} of the distance from the start. {why}"
        )

    return objection


def _what_else(case: Training, steps: list[Step], got: Seen, optimizer: Optimizer) -> str:
    """Describes what the ranks did instead, if it is a common mistake."""
    if off(got.after, case.start(0), got.after + 1) == 0:
        return "They are the initial parameters: is there a gradient when the optimizer steps?"
    for description, parameters in _known(case, steps, optimizer):
        if off(got.after, parameters(), case.start(0)) < NEAR:
            return description
    clipped = ", clipped once and as a whole" * bool(optimizer.clip)
    return (
        f"Is every step made with the mean of all ranks' gradients{clipped}, those of this step "
        "alone, and with the rate and the optimizer of the script?"
    )


def _scaled(
    case: Training, means: list[Weights], optimizer: Optimizer, ranks: int, passes: int
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Known mistakes that multiply the mean gradient of every step by one factor."""
    factors = {}
    if passes > 1:
        for factor in (passes / ranks, 1 / passes, ranks, 1 / ranks, ranks * passes):
            factors[factor] = (
                f"They step with {factor:.3g} times the mean over all microbatches of all ranks: "
                "by which number do you divide the loss, and is the rate the script's?"
            )
        factors[passes] = "They step with the sum over the microbatches, not with the mean."
    elif optimizer.clip:
        # Any large factor gives each step the length of the limit.
        factors |= dict.fromkeys(
            (1e6, ranks),
            "Steps that should be shorter than the limit are made longer. Divide the sum of the "
            "gradients by the number of ranks first; the limit may only shorten a gradient.",
        )
    else:
        name = "the ranks' gradients"
        factors[ranks] = f"They step with the sum of {name}: divide it by their number."
        factors[1 / ranks] = f"They step with the mean of {name}, divided by their number again."
    for factor, description in factors.items():
        if factor != 1:
            scaled = [{k: factor * share for k, share in weights.items()} for weights in means]
            yield description, partial(in_one_process, case, scaled, optimizer)
    limits = {
        0.0: "They are not clipped: limit the length of the whole gradient, before the step.",
        optimizer.clip / ranks: "They clip the sum, and then divide it: divide first.",
    }
    for limit, description in limits.items() if optimizer.clip else ():
        limited = replace(optimizer, clip=limit)
        yield description, partial(in_one_process, case, means, limited)


def _known(
    case: Training, steps: list[Step], optimizer: Optimizer
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    ranks = len(steps[0]) if steps else 0
    means = [mean(step) for step in steps]
    if steps:
        yield from _scaled(case, means, optimizer, ranks, len(steps[0][0]))
    yield (
        "Gradients of earlier steps are in every step.",
        partial(in_one_process, case, means, optimizer, piled_up=True),
    )
    own_steps = (
        "They are averaged after each rank has made its own step. The optimizer does not forget "
        "the gradients that it was given: average those, before the step."
    )
    if optimizer.clip:
        own_steps = "They step with the mean of gradients that each rank has clipped by itself."
    yield (
        own_steps,
        partial(averaged_after_each_step, case, steps, optimizer),
    )
    for rank in range(ranks):
        alone = [mean([step[rank]]) for step in steps]
        for first in {0, rank}:
            yield (
                f"They are those of training on rank {rank}'s samples alone: what the other ranks "
                "compute is thrown away.",
                partial(in_one_process, case, alone, optimizer, first=first),
            )
    last = [mean([passes[-1:] for passes in step]) for step in steps]
    part = [{k: share / case.passes for k, share in weights.items()} for weights in last]
    for weights, more in ((last, ""), (part, ", and it counts as one of several")):
        yield (
            f"They step with the last microbatch of each step alone{more}.",
            partial(in_one_process, case, weights, optimizer),
        )
