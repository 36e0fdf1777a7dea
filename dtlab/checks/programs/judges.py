"""Objections to a fixed training script that does not train correctly on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dtlab.checks.comparison import same
from dtlab.checks.functions.trials import Observation
from dtlab.checks.programs.cases import Seen, Training
from dtlab.checks.programs.reference import NEAR, off
from dtlab.checks.words import amount
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = [
    "bytes_left", "copies_differ", "not_shared_out", "too_large_passes", "too_much_sent",
    "uneven_epochs",
]  # fmt: skip

_SENT_MORE, _SENT_LESS, _OWN = 1.25, 0.9, 1 << 16  # factors; bytes of gloo and of the start


def copies_differ(case: Training, results: Sequence[Seen], observation: Observation) -> str:
    """A message if the final parameters of a rank are not bitwise equal to rank 0's."""
    begin, end = results[0].before, results[0].after
    for rank, other in enumerate(results):
        if same(other.after, end):
            continue
        copies = f"the copies of rank 0 and rank {rank} differ"
        if len(other.before) and len(begin) and not same(other.before[0], begin[0]):
            return (
                f"{copies} in their first forward pass: the ranks begin with different "
                "parameters. What gives rank 0's parameters to all ranks?"
            )
        far = off(other.after, end, case.start(0))
        if far < NEAR:
            return (
                f"{copies}, though by rounding only: they add up the same gradients in different "
                "orders. All ranks must step with bitwise equal gradients."
            )
        return (
            f"{copies} in the end, by {far:.1%} of the distance that the parameters moved. Which "
            "gradient does each rank step with?"
        )
    return ""


# Samples ----------------------------------------------------------------------------------------


def not_shared_out(case: Training, results: Sequence[Seen], observation: Observation) -> str:
    """A message if an epoch's samples are not distributed, or not differently in each epoch."""
    uneven = uneven_epochs(case, results)
    if uneven:
        return uneven
    epochs: list[list[list[int]]] = []
    for batches in zip(*(result.by_epoch(case.epochs) for result in results), strict=True):
        taken = [[sample for batch in rank for sample in batch] for rank in batches]
        trouble = _shares(case.samples, taken) or _reshuffled(epochs, taken)
        if trouble:
            return trouble
        epochs.append(taken)
    return ""


def uneven_epochs(case: Training, results: Sequence[Seen]) -> str:
    """A message if a rank does not make the same number of passes in every epoch."""
    for rank, result in enumerate(results):
        if not result.passes or len(result.passes) % case.epochs:
            passes = counted(len(result.passes), "forward pass", "forward passes")
            return (
                f"rank {rank} makes {passes} in {counted(case.epochs, 'epoch')}. "
                "Every rank trains in every epoch, and equally often."
            )
    return ""


def _shares(samples: int, taken: Sequence[Sequence[int]]) -> str:
    """Says why the data are not distributed over the ranks; padding may repeat a few samples."""
    ranks, fed = len(taken), [sample for samples_ in taken for sample in samples_]
    if -1 in fed:
        return "a batch has images that are not in the data."
    if ranks > 1 and all(len(set(samples_)) == samples for samples_ in taken):
        return (
            f"every rank goes through all {counted(samples, 'sample')} in an epoch. How many are "
            f"there for each of {counted(ranks, 'rank')}?"
        )
    missing, repeated = samples - len(set(fed)), len(fed) - len(set(fed))
    if missing:
        advice = "Together, the shares of all ranks must contain every sample."
        if not repeated and missing == samples % ranks:
            advice = (
                "None may be left out: have some repeated instead, as a sampler does without "
                "drop_last."
            )
        return f"in an epoch {missing} of {samples} samples are in no rank's batches. {advice}"
    if repeated >= ranks:  # equal shares need fewer
        return (
            f"an epoch takes {counted(repeated, 'sample')} more than once. Repeat only as many as "
            f"equal shares need."
        )
    return ""


def _reshuffled(epochs: Sequence[list[list[int]]], taken: list[list[int]]) -> str:
    """Says why the samples `taken` in an epoch are not in a new order, compared with `epochs`."""
    epoch = len(epochs)
    if taken in epochs:
        before = epochs.index(taken)
        advice = (
            "Pass the number of the epoch to the sampler before its batches are drawn."
            if before == epoch - 1
            else "Each epoch has a different number. Pass that number to the sampler."
        )
        return f"epoch {epoch} takes the samples in the order of epoch {before}. {advice}"
    last = epochs[-1:] if len(taken) > 1 else []
    if any(all(set(a) == set(b) for a, b in zip(old, taken, strict=True)) for old in last):
        return (
            f"in epoch {epoch} each rank has the same samples as before, and only their order is "
            "new. Shuffle all samples, in the same way on every rank, and then distribute them."
        )
    return ""


def too_large_passes(case: Training, results: Sequence[Seen], observation: Observation) -> str:
    """A message if a forward pass takes more samples than a microbatch has."""
    largest = max((len(batch) for result in results for batch in result.passes), default=0)
    if largest <= case.micro_batch:
        return ""
    return (
        f"a forward pass takes {counted(largest, 'sample')} at once. A microbatch has "
        f"{case.micro_batch}: with accumulation, memory for one microbatch must be enough."
    )


# Bytes sent -------------------------------------------------------------------------------------


_EACH_PASS = (
    "Look at what decides whether a backward pass sends: is it inside `no_sync` by then?"
)
_TWICE = "DDP averages the gradients in backward: do you send them again?"


def too_much_sent(case: Training, results: Sequence[Seen], observation: Observation) -> str:
    """A message if a rank sends more, or less, than one gradient for each optimizer step."""
    assert observation.trace is not None
    ranks, steps, size = len(results), case.updates(len(results)), 4 * len(results[0].after)
    gradients = 2 * (ranks - 1) / ranks * size * steps
    for rank in range(ranks):
        left = bytes_left(observation.trace, rank)
        summary = (
            f"{amount(left)} left rank {rank} in {steps} steps of "
            f"{counted(case.passes, 'microbatch', 'microbatches')}; one "
            f"gradient for each step is {amount(gradients)} in all."
        )
        if left > _SENT_MORE * gradients + size * (ranks - 1) + _OWN:
            return f"{summary} {_EACH_PASS if case.passes > 1 else _TWICE}"
        if left < _SENT_LESS * gradients:
            return f"{summary} Something must be sent in every step."
    return ""


def bytes_left(trace: Trace, rank: int) -> float:
    """Returns the bytes that left a rank; if not counted, those of ring all-reduces."""
    counted = trace.bytes_wire(rank)
    if counted is not None:
        return counted
    reduced = sum(e.bytes for e in trace.events if (e.rank, e.name) == (rank, "all_reduce"))
    return 2 * (trace.world_size - 1) / trace.world_size * reduced
