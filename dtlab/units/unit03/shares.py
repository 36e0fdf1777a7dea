"""What each microbatch of each rank gives in one step, computed in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.values import RATE, close

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Shares", "loss_sum", "plain_value", "shares_of", "wrong_gradients", "wrong_loss"]

Pair = tuple["Tensor", "Tensor"]


@dataclass(frozen=True)
class Shares:
    """One step of a group of ranks, `members`; ranks beside it are there too.

    By rank and microbatch, `sums` are the gradients of the loss added up over the samples, each
    as one vector over all parameters that have one; `losses` are these losses, and `counts` the
    numbers of samples. `names` and `shapes` are those of the parameters, `there` says which have a
    gradient, and `before` is what was in `.grad`.
    """

    members: tuple[int, ...]
    names: list[str]
    shapes: list[tuple[int, ...]]
    there: list[bool]
    sums: Mapping[int, list[Tensor]]
    losses: Mapping[int, list[float]]
    counts: Mapping[int, list[int]]
    before: Tensor

    def total(self, ranks: Sequence[int]) -> Tensor:
        """The gradient of the loss added up over all samples of these ranks."""
        every = [one for rank in ranks for one in self.sums[rank]]
        return sum(every[1:], every[0])

    def samples(self, ranks: Sequence[int]) -> int:
        """How many samples these ranks have."""
        return sum(sum(self.counts[rank]) for rank in ranks)

    @property
    def mean(self) -> Tensor:
        """The gradient of the mean loss over all samples of the group."""
        return self.total(self.members) / self.samples(self.members)

    @property
    def wanted(self) -> Tensor:
        """What `.grad` should have: that, added to what was there."""
        return self.before + self.mean

    @property
    def loss(self) -> float:
        """The mean loss over all samples of the group."""
        total = sum(sum(self.losses[rank]) for rank in self.members)
        return total / self.samples(self.members)


def loss_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss that learners are given: squared errors, added up over the samples.

    They are weighed by the targets, so that another number comes of swapped arguments.
    """
    return ((outputs - targets).square() * targets.abs()).sum()


def shares_of(
    module: nn.Module,
    steps: Sequence[Mapping[int, Sequence[Pair]]],
    members: tuple[int, ...],
    before: Sequence[Tensor] | None,
) -> list[Shares]:
    """The shares in each step of a module that is trained in steps with what is wanted.

    `steps` are the microbatches of all ranks. The module is another one afterwards.
    """
    import torch
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    found = []
    for batches in steps:
        shares = _shares(module, batches, members, before)
        found.append(shares)
        with torch.no_grad():
            every = zip(module.parameters(), shares.there, strict=True)
            trained = [parameter for parameter, there in every if there]
            vector_to_parameters(parameters_to_vector(trained) - RATE * shares.wanted, trained)
    return found


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
            gradients = [one.grad for one in module.parameters()]
            sums[rank].append(torch.cat([one.flatten() for one in gradients if one is not None]))
            losses[rank].append(loss.item())
    there = [one is not None for one in gradients]
    old = [one.flatten() for one, is_there in zip(before or (), there, strict=False) if is_there]
    return Shares(
        members,
        [name for name, _ in module.named_parameters()],
        [tuple(one.shape) for one in module.parameters()],
        there,
        sums,
        losses,
        {rank: [len(inputs) for inputs, _ in pairs] for rank, pairs in batches.items()},
        torch.cat(old) if old else torch.zeros_like(sums[members[0]][0]),
    )


# What is wrong with an accumulated gradient or a loss, as far as the numbers tell ----------------


def plain_value(value: Any) -> float | str:
    """What a function returned, as a rank sends it: a number, or what it is in words."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return "None" if value is None else f"a {type(value).__name__}"


def wrong_gradients(got: Sequence[Tensor | None], shares: Shares, rank: int) -> str:
    """What is wrong with the gradients of a rank, one for each parameter; empty if nothing."""
    import torch

    kept = []
    every = zip(got, shares.names, shares.shapes, shares.there, strict=True)
    for gradient, name, shape, there in every:
        if gradient is not None and not there and not shares.before.any():
            return f"{name} had no gradient, and should have none afterwards."
        if gradient is None and there:
            return f"{name} has no gradient. Call backward for every microbatch."
        if gradient is not None and tuple(gradient.shape) != shape:
            return f"the gradient of {name} is {tuple(gradient.shape)} now."
        if gradient is not None and there:
            kept.append(gradient.flatten())
    vector = torch.cat(kept)
    if close(vector, shares.wanted):
        return ""
    if not vector.isfinite().all():
        return "not all of it are finite numbers: what is divided by nothing?"
    known = _known(vector, shares, rank)
    return next(
        (words for value, words in known if close(vector, value)), _unknown(vector, shares)
    )


def _unknown(got: Tensor, shares: Shares) -> str:
    times = float(got @ shares.wanted) / float(shares.wanted @ shares.wanted)
    if times > 0 and close(got, times * shares.wanted):
        return (
            f"this is {times:.3g} times the gradient that is wanted: by what are the losses "
            "divided?"
        )
    worst = float((got - shares.wanted).abs().max())
    return (
        f"this is off the gradient that is wanted by up to {worst:.2g}. Every sample counts the "
        "same, whichever microbatch it is in: how many are there?"
    )


def _known(got: Tensor, shares: Shares, rank: int) -> Iterator[tuple[Tensor, str]]:
    """Vectors that come of known mistakes, and what is said of each."""
    yield from _of_what_was_before(got, shares)
    if len(shares.members) < len(shares.sums):
        yield from _of_groups(shares)
    if len(shares.members) > 1:
        yield from _of_ranks(shares, rank)
    yield from _of_one_rank(shares)


def _of_what_was_before(got: Tensor, shares: Shares) -> Iterator[tuple[Tensor, str]]:
    """The new is right, and the old is not: whatever it has been multiplied by."""
    old, rest = shares.before, got - shares.mean
    if old.any():
        times = float(rest @ old) / float(old @ old)
        words = "is gone: leave it there, and backward adds to it"
        if abs(times) > 1e-3:
            words = f"is scaled too, by {times:.2g}: scale the losses, and not .grad"
        yield shares.mean + times * old, f"what was in .grad before {words}."


def _of_groups(shares: Shares) -> Iterator[tuple[Tensor, str]]:
    """What comes of all ranks where a group is meant."""
    counted = "the samples of all ranks are counted"
    ratio = len(shares.sums) / len(shares.members)
    of_all = shares.total(shares.members) / shares.samples(list(shares.sums))
    yield of_all, f"{counted}, not those of the model's group."
    yield ratio * shares.mean, "this is multiplied by the number of all ranks, not of the group's."
    yield ratio * of_all, f"{counted}, and all ranks too, not those of the model's group."


def _of_ranks(shares: Shares, rank: int) -> Iterator[tuple[Tensor, str]]:
    """Mistakes that it takes several ranks for."""
    size, samples = len(shares.members), shares.samples(shares.members)
    yield (
        shares.mean / size,
        "this is divided by the number of ranks once too often: the wrapper averages over them, "
        "so multiply every loss by their number.",
    )
    yield (
        shares.mean * size,
        "this is the number of ranks times what it should be: divide by the samples of all ranks, "
        "not by this rank's own.",
    )
    yield (
        _averaged(shares, lambda sums, counts: sum(sums) / max(1, sum(counts))),
        "this is the mean of the ranks' means: a sample counts for more on a rank with few. "
        "Divide by the samples of all ranks.",
    )
    for journey in range(1, min(len(shares.sums[one]) for one in shares.members)):
        early = _averaged(shares, lambda sums, counts, j=journey: sum(sums[:j]))
        yield (
            (early + sum(shares.sums[rank][journey:])) * size / samples,
            "gradients travel before the last microbatch, and what comes after their journey "
            "stays on its rank.",
        )
    for scale in (size / samples, 1 / samples, 1 / max(1, sum(shares.counts[rank]))):
        yield (
            shares.total([rank]) * scale,
            "this comes from the rank's own samples alone: the last microbatch has to be outside "
            "no_sync, and with it the wrapper averages all that has come together.",
        )


def _of_one_rank(shares: Shares) -> Iterator[tuple[Tensor, str]]:
    """Mistakes that one process makes as well; wrappers give the mean of what ranks make."""
    size = len(shares.members)
    scale = size / shares.samples(shares.members)
    known: dict[str, Callable[[Any, Any], Any]] = {
        "this is the sum over the samples, not the mean: divide by the number of samples."
        if size == 1
        else "the losses added up are divided by the number of ranks, not by the number of "
        "samples.": lambda sums, counts: sum(sums),
        "this is the mean of the microbatches' means: a sample counts for more in a small one. "
        "Divide the sum of every microbatch by the same number, that of all samples.": (
            lambda sums, counts: sum(_means(sums, counts)) / len(sums)
        ),
        "these are the means of the microbatches, added up: divide every sum by the number of "
        "all samples, not by that of its microbatch.": (
            lambda sums, counts: sum(_means(sums, counts))
        ),
        "this is divided by the number of microbatches, not by the number of samples.": (
            lambda sums, counts: sum(sums) / len(sums)
        ),
        "this is right where all microbatches have as many samples as the first: count those of "
        "each.": lambda sums, counts: sum(sums) / max(1, counts[0] * len(sums)),
        "only the last microbatch is in it: call backward for every one, and let .grad stay in "
        "between.": lambda sums, counts: scale * sums[-1],
        "only the first microbatch is in it.": lambda sums, counts: scale * sums[0],
        "the last microbatch is not in it.": lambda sums, counts: scale * (sum(sums) - sums[-1]),
    }
    yield from ((_averaged(shares, of_rank), words) for words, of_rank in known.items())


def _averaged(shares: Shares, of_rank: Callable[..., Any]) -> Tensor:
    """The mean over the members of what each makes of its sums and counts."""
    each = [of_rank(shares.sums[rank], shares.counts[rank]) for rank in shares.members]
    total: Tensor = sum(each) / len(each)
    return total


def _means(sums: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    return [one / max(1, count) for one, count in zip(sums, counts, strict=True)]


def wrong_loss(got: float | str, shares: Shares, rank: int) -> str:
    """What is wrong with the mean loss that a rank returned; empty if nothing."""
    if isinstance(got, str):
        return f"your function returns {got}, not a float; loss.item() makes one of a tensor."
    if _same(got, shares.loss):
        return ""
    sums = {one: sum(shares.losses[one]) for one in shares.members}
    means = {one: sums[one] / max(1, sum(shares.counts[one])) for one in shares.members}
    micro = {one: _means(shares.losses[one], shares.counts[one]) for one in shares.members}
    every = [mean for each in micro.values() for mean in each]
    known = [(sum(sums.values()), "the sum of the losses, not their mean")]
    if len(shares.members) > 1:
        known += [
            (sums[rank], "the sum of the losses of this rank"),
            (means[rank], "the mean over the rank's own samples, not over those of all ranks"),
            (sum(means.values()) / len(means), "the mean of the ranks' means"),
            (sum(every) / len(every), "the mean of the microbatches' means"),
        ]
    known.append((sum(micro[rank]) / len(micro[rank]), "the mean of the microbatches' means"))
    plain = f"{got:.4g}, where the mean over the samples is {shares.loss:.4g}"
    what = next((words for value, words in known if _same(got, value)), plain)
    return f"your function returns {what}."


def _same(got: float, wanted: float) -> bool:
    return math.isclose(got, wanted, rel_tol=1e-4)  # rounding takes 1e-6
