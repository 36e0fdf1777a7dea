"""The gradient and the loss of each microbatch of each rank in a step, computed in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.values import RATE
from dtlab.checks.words import Explanation

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Shares", "loss_sum", "plain_value", "shares_of", "wrong_gradients", "wrong_loss"]

Pair = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Shares:
    """One step of a group of ranks, `members`. It includes the ranks outside the group.

    By rank and microbatch: `sums` are the gradients of the loss summed over the samples, each as
    one vector over all parameters that have a gradient; `losses` are these summed losses, and
    `counts` the numbers of samples. `names` and `shapes` describe the parameters, `has_gradient`
    says which of them have a gradient, and `before` is the old content of `.grad`.
    """

    members: tuple[int, ...]
    names: list[str]
    shapes: list[tuple[int, ...]]
    has_gradient: list[bool]
    sums: Mapping[int, list[Tensor]]
    losses: Mapping[int, list[float]]
    counts: Mapping[int, list[int]]
    before: Tensor

    def total(self, ranks: Sequence[int]) -> Tensor:
        """The gradient of the loss summed over all samples of these ranks."""
        every = [vector for rank in ranks for vector in self.sums[rank]]
        return sum(every[1:], every[0])

    def samples(self, ranks: Sequence[int]) -> int:
        """The number of samples that these ranks have."""
        return sum(sum(self.counts[rank]) for rank in ranks)

    @property
    def mean(self) -> Tensor:
        """The gradient of the mean loss over all samples of the group."""
        return self.total(self.members) / self.samples(self.members)

    @property
    def wanted(self) -> Tensor:
        """The expected content of `.grad`: `mean` added to `before`."""
        return self.before + self.mean

    @property
    def loss(self) -> float:
        """The mean loss over all samples of the group."""
        total = sum(sum(self.losses[rank]) for rank in self.members)
        return total / self.samples(self.members)


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss function given to learners: squared errors, summed over the samples.

    They are weighted by the targets, so that swapped arguments give another number.
    """
    return ((outputs - targets).square() * targets.abs()).sum()


def shares_of(
    module: nn.Module,
    steps: Sequence[Mapping[int, Sequence[Pair]]],
    members: tuple[int, ...],
    before: Sequence[Tensor] | None,
) -> list[Shares]:
    """The shares in each step of a module that is trained with the expected gradients.

    `steps` holds the microbatches of all ranks. The module is modified.
    """
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    all_shares = []
    for batches in steps:
        shares = _shares(module, batches, members, before)
        all_shares.append(shares)
        with torch.no_grad():
            every = zip(module.parameters(), shares.has_gradient, strict=True)
            trained = [parameter for parameter, has_gradient in every if has_gradient]
            vector_to_parameters(parameters_to_vector(trained) - RATE * shares.wanted, trained)
    return all_shares


def _shares(
    module: nn.Module,
    batches: Mapping[int, Sequence[Pair]],
    members: tuple[int, ...],
    before: Sequence[Tensor] | None,
) -> Shares:
    import torch

    sums: dict[int, list[Tensor]] = {}
    losses: dict[int, list[float]] = {}
    for rank, pairs in batches.items():
        sums[rank], losses[rank] = [], []
        for inputs, targets in pairs:
            module.zero_grad()
            loss = loss_sum(module(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [parameter.grad for parameter in module.parameters()]
            sums[rank].append(
                torch.cat([grad.flatten() for grad in gradients if grad is not None])
            )
            losses[rank].append(loss.item())
    used = [grad is not None for grad in gradients]
    old = [grad.flatten() for grad, is_used in zip(before or (), used, strict=False) if is_used]
    return Shares(
        members,
        [name for name, _ in module.named_parameters()],
        [tuple(parameter.shape) for parameter in module.parameters()],
        used,
        sums,
        losses,
        {rank: [len(inputs) for inputs, _ in pairs] for rank, pairs in batches.items()},
        torch.cat(old) if old else torch.zeros_like(sums[members[0]][0]),
    )


# Mistakes that the values of an accumulated gradient or of a loss show ---------------------------


def plain_value(value: Any) -> float | str:
    """Returns a number as float, and names the type of any other value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return "None" if value is None else f"a {type(value).__name__}"


def wrong_gradients(got: Sequence[Tensor | None], shares: Shares, rank: int) -> str:
    """A message about the gradients of a rank, one for each parameter; empty if they are right."""
    import torch

    vectors = []
    every = zip(got, shares.names, shares.shapes, shares.has_gradient, strict=True)
    for gradient, name, shape, is_used in every:
        if gradient is not None and not is_used and not shares.before.any():
            return f"{name} had no gradient, and should have none afterwards."
        if gradient is None and is_used:
            return f"{name} has no gradient. Call backward for every microbatch."
        if gradient is not None and tuple(gradient.shape) != shape:
            return f"the gradient of {name} is {tuple(gradient.shape)} now."
        if gradient is not None and is_used:
            vectors.append(gradient.flatten())
    vector = torch.cat(vectors)
    hint = "Every sample counts the same, whichever microbatch it is in: how many are there?"
    wrong = difference(
        vector, shares.wanted, _known(vector, shares, rank), hint=hint,
        not_finite="Is there a division by zero?",
    )  # fmt: skip
    return wrong and "the gradient " + wrong


def _known(got: Tensor, shares: Shares, rank: int) -> Known:
    """The gradients that known mistakes give."""
    times = float(got @ shares.wanted) / float(shares.wanted @ shares.wanted)
    multiple = f"is {times:.3g} times the expected one"
    return {
        **_of_old_content(got, shares),
        **(_of_groups(shares) if len(shares.members) < len(shares.sums) else {}),
        **(_of_ranks(shares, rank) if len(shares.members) > 1 else {}),
        **_of_one_rank(shares),
        Explanation(multiple, "is a multiple of the expected one"): (
            [times * shares.wanted] if times > 0 else [], "By what are the losses divided?"
        ),
    }  # fmt: skip


def _of_old_content(got: Tensor, shares: Shares) -> Known:
    """Mistakes that lose or scale the old content of `.grad`, if the new part is right."""
    old, size = shares.before, len(shares.members)
    if not old.any():
        return {}
    times = float((got - shares.mean) @ old) / float(old @ old)
    fact: str
    if abs(times) < 1e-3:
        fact, advice = "lacks the old content of .grad", "Leave it there, and backward adds to it."
    elif size > 1 and math.isclose(times, size, rel_tol=1e-3):
        fact = Explanation(
            f"counts the old content of .grad {times:.0f} times, once for each rank",
            "counts the old content of .grad once for each rank",
        )
        advice = "Do not sum or scale .grad. Scale the losses, and let the wrapper average."
    else:
        fact = Explanation(
            f"contains the old content of .grad, scaled by {times:.2g}",
            "contains the old content of .grad, scaled",
        )
        advice = "Scale the losses, and not .grad."
    return {fact: (shares.mean + times * old, advice)}


def _of_groups(shares: Shares) -> Known:
    """Mistakes that use all ranks instead of the group."""
    ratio = len(shares.sums) / len(shares.members)
    of_all = shares.total(shares.members) / shares.samples(list(shares.sums))
    return {
        "is divided by the number of samples of all ranks, not of those in the model's group": (
            of_all, ""
        ),
        "is multiplied by the number of all ranks, not of those in the model's group": (
            ratio * shares.mean, ""
        ),
        "is divided by the number of samples of all ranks and multiplied by the number of all "
        "ranks, not of those in the model's group": (ratio * of_all, ""),
    }  # fmt: skip


def _of_ranks(shares: Shares, rank: int) -> Known:
    """Mistakes that are possible only with several ranks."""
    size, samples = len(shares.members), shares.samples(shares.members)
    shortest = min(len(shares.sums[member]) for member in shares.members)
    early = [
        _averaged(shares, lambda sums, counts, n=number: sum(sums[:n]))
        + sum(shares.sums[rank][number:])
        for number in range(1, shortest)
    ]
    scales = (size / samples, 1 / samples, 1 / max(1, sum(shares.counts[rank])))
    return {
        "is divided by the number of ranks once too often": (
            shares.mean / size,
            "The wrapper averages over them, so multiply every loss by their number.",
        ),
        "is the right value times the number of ranks": (
            shares.mean * size,
            "Divide by the samples of all ranks, not by this rank's own.",
        ),
        "is the mean of the ranks' means": (
            _averaged(shares, lambda sums, counts: sum(sums) / max(1, sum(counts))),
            "A sample counts for more on a rank with few. Divide by the samples of all ranks.",
        ),
        "was averaged before the last microbatch, and later gradients stay on their rank": (
            [each * size / samples for each in early], ""
        ),
        "is from the rank's own samples alone": (
            [shares.total([rank]) * scale for scale in scales],
            "Run the last microbatch outside no_sync and through the wrapper, not its `.module`. "
            "Then the wrapper averages all that has been accumulated.",
        ),
    }  # fmt: skip


def _of_one_rank(shares: Shares) -> Known:
    """Mistakes that one process can make too; wrappers average their results over the ranks."""
    size = len(shares.members)
    scale = size / shares.samples(shares.members)

    def averaged(of_rank: Callable[[Any, Any], Any]) -> Tensor:
        return _averaged(shares, of_rank)

    by_ranks = (
        "is that of the summed losses, divided by the number of ranks, not by that of samples"
    )
    return {
        "is the sum over the samples, not the mean" if size == 1 else by_ranks: (
            averaged(lambda sums, counts: sum(sums)),
            "Divide by the number of samples." * (size == 1),
        ),
        "is the mean of the microbatches' means": (
            averaged(lambda sums, counts: sum(_means(sums, counts)) / len(sums)),
            "A sample counts for more in a small microbatch. Divide the sum of each microbatch by "
            "the same number, that of all samples.",
        ),
        "is the sum of the microbatches' means": (
            averaged(lambda sums, counts: sum(_means(sums, counts))),
            "Divide every sum by the number of all samples, not by that of its microbatch.",
        ),
        "is divided by the number of microbatches, not by the number of samples": (
            averaged(lambda sums, counts: sum(sums) / len(sums)), ""
        ),
        "would be right if all microbatches had as many samples as the first": (
            averaged(lambda sums, counts: sum(sums) / max(1, counts[0] * len(sums))),
            "Count the samples of each microbatch.",
        ),
        "comes from the last microbatch only": (
            averaged(lambda sums, counts: scale * sums[-1]),
            "Call backward for every one, and do not clear .grad in between.",
        ),
        "comes from the first microbatch only": (
            averaged(lambda sums, counts: scale * sums[0]), ""
        ),
        "lacks the last microbatch": (
            averaged(lambda sums, counts: scale * (sum(sums) - sums[-1])), ""
        ),
    }  # fmt: skip


def _averaged(shares: Shares, of_rank: Callable[..., Any]) -> Tensor:
    """The mean over the members of `of_rank(sums, counts)`."""
    each = [of_rank(shares.sums[rank], shares.counts[rank]) for rank in shares.members]
    total: Tensor = sum(each) / len(each)
    return total


def _means(sums: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [total / max(1, count) for total, count in zip(sums, counts, strict=True)]


def wrong_loss(got: float | str, shares: Shares, rank: int) -> str:
    """A message about the mean loss that a rank returned; empty if it is right."""
    if isinstance(got, str):
        return f"your function returns {got}, not a float; loss.item() converts a tensor."
    sums = {member: sum(shares.losses[member]) for member in shares.members}
    means = {
        member: sums[member] / max(1, sum(shares.counts[member])) for member in shares.members
    }
    micro = {
        member: _means(shares.losses[member], shares.counts[member]) for member in shares.members
    }
    every = [mean for each in micro.values() for mean in each]
    known: dict[str, Any] = {"is the sum of the losses, not their mean": (sum(sums.values()), "")}
    of_micro = [sum(micro[rank]) / len(micro[rank])]
    if len(shares.members) > 1:
        known |= {
            "is the sum of the losses of this rank": sums[rank],
            "is the mean over the rank's own samples, not over those of all ranks": (
                means[rank], ""
            ),
            "is the mean of the ranks' means": sum(means.values()) / len(means),
        }  # fmt: skip
        of_micro.append(sum(every) / len(every))
    known["is the mean of the microbatches' means"] = of_micro
    hint = "It should be the mean over the samples."
    wrong = difference(got, shares.loss, known, hint=hint, near=1e-4)
    return wrong and "the loss that your function returns " + wrong
