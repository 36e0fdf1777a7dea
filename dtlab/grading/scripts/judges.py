"""What a mended training script has to do on ranks, and what is said where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.reference import NEAR, off
from dtlab.grading.words import amount

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = [
    "an_earlier_order_again", "bytes_left", "copies_differ", "not_shared_out", "rest_dropped",
    "too_much_sent", "uneven_epochs",
]  # fmt: skip

_SENT_MORE, _SENT_LESS, _OWN = 1.25, 0.9, 1 << 16  # factors; bytes of gloo's and of the start


# Copies -----------------------------------------------------------------------------------------


def copies_differ(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The parameters of some rank are not, bit by bit, those of rank 0."""
    begin, end = results[0].before, results[0].after
    for rank, other in enumerate(results):
        if other.after.equal(end):
            continue
        if len(other.before) and len(begin) and not other.before[0].equal(begin[0]):
            return (
                f"the copies of rank 0 and rank {rank} differ in their first forward pass: the "
                "ranks begin with different parameters. Who hands rank 0's to all?"
            )
        far = off(other.after, end, case.start(0))
        if far < NEAR:
            return (
                f"the copies of rank 0 and rank {rank} differ, though by rounding only: they add "
                "up the same gradients in different orders. All have to step with the same bits."
            )
        return (
            f"the copies of rank 0 and rank {rank} differ in the end, by {far:.1%} of the way "
            "that the parameters went. Which gradient does each rank step with?"
        )
    return ""


# Samples ----------------------------------------------------------------------------------------


def not_shared_out(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The samples of an epoch are not shared out, or not another way in the next epoch."""
    before: list[list[int]] = []
    for epoch in range(case.epochs):
        taken = []
        for rank, own in enumerate(results):
            if not own.passes or len(own.passes) % case.epochs:
                return uneven_epochs(rank, len(own.passes), case.epochs)
            each = len(own.passes) // case.epochs
            batches = own.passes[epoch * each : (epoch + 1) * each]
            taken.append([sample for batch in batches for sample in batch])
        trouble = _shares(case.samples, taken) or _reshuffled(epoch, before, taken)
        if trouble:
            return trouble
        before = taken
    return ""


def uneven_epochs(rank: int, passes: int, epochs: int) -> str:
    """What to say of passes that are not as many in every epoch."""
    return (
        f"rank {rank} makes {passes} forward passes in {epochs} epochs. Every rank trains in "
        "every epoch, and equally often."
    )


def _shares(samples: int, taken: Sequence[Sequence[int]]) -> str:
    """Why what the ranks have taken is not the data, shared out; padding may repeat a few."""
    ranks, fed = len(taken), [sample for own in taken for sample in own]
    if -1 in fed:
        return "a batch has images that are not in the data."
    if ranks > 1 and all(len(set(own)) == samples for own in taken):
        return (
            f"every rank goes through all {samples} samples in an epoch. How many are there for "
            f"each of {ranks} ranks?"
        )
    missing, repeated = samples - len(set(fed)), len(fed) - len(set(fed))
    if missing:
        return (
            f"in an epoch {missing} of {samples} samples are in no rank's batches. Put together, "
            "the shares of the ranks have to be the whole data."
        )
    if repeated >= ranks:  # it takes fewer to make equal shares
        return (
            f"in an epoch {repeated} samples are taken more than once. Two ranks may share no "
            "more than what makes their shares equally long."
        )
    return ""


def _reshuffled(
    epoch: int, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> str:
    if not before:
        return ""
    if list(before) == list(after):
        return (
            f"epoch {epoch} takes the samples in the order of epoch {epoch - 1}. Something has to "
            "tell the sampler which epoch it is, before its batches are drawn."
        )
    if len(after) > 1 and all(set(a) == set(b) for a, b in zip(before, after, strict=True)):
        return (
            f"in epoch {epoch} each rank has the same samples as before, and only their order is "
            "new. Shuffle all of them, alike on every rank, and then share them out."
        )
    return ""


def an_earlier_order_again(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """An epoch takes its samples in the order of an earlier one, not only of the one before."""
    if any(len(own.passes) % case.epochs for own in results):
        return ""  # that is said elsewhere
    each = len(results[0].passes) // case.epochs
    starts = range(0, each * case.epochs, max(1, each))
    epochs = [[own.passes[start : start + each] for own in results] for start in starts]
    for epoch, batches in enumerate(epochs):
        before = epochs.index(batches)
        if before < epoch:
            return (
                f"epoch {epoch} takes the samples in the order of epoch {before}. Every epoch has "
                "a number of its own: the sampler has to get that one."
            )
    return ""


def rest_dropped(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The few samples that do not divide are in no rank's batches, and all others in one's."""
    if any(len(own.passes) % case.epochs for own in results):
        return ""  # that is said elsewhere
    fed = [
        sample
        for own in results
        for batch in own.passes[: len(own.passes) // case.epochs]
        for sample in batch
    ]
    dropped = case.samples - len(fed)
    if len(set(fed)) < len(fed) or not 0 < dropped == case.samples % len(results):
        return ""
    return (
        f"in an epoch {dropped} of {case.samples} samples are in no rank's batches, so that all "
        "shares are equally long. None is to be left out here: have some repeated instead, as a "
        "sampler does without drop_last."
    )


# What is sent ----------------------------------------------------------------------------------


def too_much_sent(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A rank sends more, or less, than one gradient for each step of the optimizer."""
    assert one.trace is not None
    ranks, steps = len(results), case.steps(len(results))
    gradient = 2 * (ranks - 1) / ranks * 4 * len(results[0].after)
    start = 4 * len(results[0].after) * (ranks - 1)
    for rank in range(ranks):
        left = bytes_left(one.trace, rank)
        if left > _SENT_MORE * steps * gradient + start + _OWN:
            return (
                f"{amount(left)} left rank {rank} in {steps} steps of {case.passes} "
                f"microbatches; a gradient for each step is {amount(steps * gradient)}. Look at "
                "what decides whether a backward pass sends: is it inside `no_sync` by then?"
            )
        if left < _SENT_LESS * steps * gradient:
            return (
                f"{amount(left)} left rank {rank} in {steps} steps; a gradient for each step is "
                f"{amount(steps * gradient)}. Something has to be sent in every step."
            )
    return ""


def bytes_left(trace: Trace, rank: int) -> float:
    """Bytes that left a rank; where the system does not count, what rings would send."""
    counted = trace.bytes_wire(rank)
    if counted is not None:
        return counted
    handed = sum(e.bytes for e in trace.events if (e.rank, e.name) == (rank, "all_reduce"))
    return 2 * (trace.world_size - 1) / trace.world_size * handed
