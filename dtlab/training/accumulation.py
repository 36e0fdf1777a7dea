"""Gradient accumulation: many small batches, one step, the gradient of one large batch.

effective batch = microbatch x microbatches x data-parallel degree

rank 0:  forward, backward   forward, backward   forward, backward ┐ gradients
rank 1:  forward, backward   forward, backward   forward, backward ┘ travel once, then step
         └──────────── in no_sync() ──────────┘

for micro_batches in per_step(loader, 3):
    losses = accumulate(model, micro_batches, loss_sum)
    optimizer.step()
    optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from dtlab.training.metrics import Mean, device_of

__all__ = ["accumulate", "naive_accumulate", "num_samples", "per_step"]

Batch = TypeVar("Batch")


def per_step(batches: Iterable[Batch], micro_batches: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step, `micro_batches` at a time; the last step may have fewer.

    Raises: ValueError for a number below 1.
    """
    if micro_batches < 1:
        raise ValueError(f"A step has at least one microbatch, not {micro_batches}.")

    def steps() -> Iterator[list[Batch]]:
        left = iter(batches)
        while step := list(itertools.islice(left, micro_batches)):
            yield step

    return steps()


def naive_accumulate(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    loss_mean: Callable[[nn.Module, Batch], Tensor],
) -> None:
    """Add up the gradients of the mean losses, each divided by the number of microbatches.

    That is the mean of means: right only where all microbatches have the same number of samples
    (or tokens), on all ranks. Where `model` is data-parallel, the gradients travel in every
    backward pass.
    """
    for batch in micro_batches:
        loss = loss_mean(model, batch) / len(micro_batches)
        loss.backward()  # type: ignore[no-untyped-call]


def num_samples(batch: Any) -> int:
    """Samples in a batch: the first dim of the tensor, or of the first tensor in a sequence."""
    first = batch if isinstance(batch, Tensor) or not isinstance(batch, Sequence) else batch[0]
    if not isinstance(first, Tensor) or first.ndim == 0:
        raise TypeError(
            f"A batch is a tensor of samples, or a sequence that starts with one, not "
            f"{type(batch).__name__}. For other batches pass count=, a function of the batch."
        )
    return len(first)


def accumulate(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    loss_sum: Callable[[nn.Module, Batch], Tensor],
    *,
    count: Callable[[Batch], Tensor | int] = num_samples,
    backward: Callable[[Tensor], None] = torch.autograd.backward,
    group: ProcessGroup | None = None,
) -> Mean:
    """Leave in the parameters' `grad` the gradient of the mean loss over all samples of all ranks.

    `loss_sum(model, batch)` runs the model and returns the loss added up over the samples (or
    tokens) of a microbatch: reduction="sum". `count(batch)` says how many those are. Batches may
    be uneven, and so may ranks, in samples as in microbatches; a rank that has run out passes
    one of no samples. What is in `grad` already stays, and the new is added.

    Data parallelism divides the sum of the ranks' gradients by their number N, whatever each rank
    holds. So a loss is scaled by N / (samples on all ranks), and the N cancels. To know the
    samples, the ranks all-reduce two whole numbers. Where `model` has `no_sync()`, as PyTorch's
    DistributedDataParallel has, the gradients travel once: in the last backward pass. A model
    without it is left to the caller, who averages the gradients over the ranks.

    `group` holds the ranks that average; left out, it is that of the model, or else all ranks.
    `backward` is for a gradient scaler: `lambda loss: scaler.scale(loss).backward()`. This is not
    for PyTorch's `Join`: a rank that has finished there would not count with the others.

    Returns the mean loss of this rank's samples; `.over_ranks()` is that of all.
    Raises: ValueError on every rank where one has no microbatch, or where nobody has a sample;
    ValueError where `loss_sum` returns more than one number.
    """
    counts = [int(count(batch)) for batch in micro_batches]
    samples, num_ranks = _samples_everywhere(counts, group or _group_of(model))
    losses = Mean()
    for i, batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else _without_sync(model):
            # The forward pass too: it is there that DDP makes up its mind whether to synchronise.
            loss = loss_sum(model, batch)
            if loss.numel() != 1:
                raise ValueError(
                    f"loss_sum returned a tensor of shape {list(loss.shape)}. Return one number: "
                    'the sum over the samples, as with reduction="sum".'
                )
            backward(loss * (num_ranks / samples))
        losses.add(loss.detach(), counts[i])
    return losses


def _samples_everywhere(counts: list[int], group: ProcessGroup | None) -> tuple[int, int]:
    """How many samples all ranks have together, and how many ranks there are."""
    numbers, num_ranks = torch.tensor([sum(counts), int(not counts)]), 1
    if dist.is_initialized():
        # A rank without a microbatch would leave the others waiting for its gradients, for ever.
        # So all of them hear of it, and all of them raise.
        numbers, num_ranks = numbers.to(device_of(group)), dist.get_world_size(group)
        dist.all_reduce(numbers, group=group)
    samples, without = numbers.tolist()
    if without:
        raise ValueError(
            f"{without} of {num_ranks} ranks have no microbatch, and would not take part in "
            "averaging the gradients. Pass one of no samples there: batch[:0]."
        )
    if samples < 1:
        raise ValueError("No rank has a sample, so there is no mean loss and no gradient of it.")
    return samples, num_ranks


def _group_of(model: nn.Module) -> ProcessGroup | None:
    """The ranks that a wrapped model averages over: DDP's `process_group`, dtlab's `group`."""
    found = getattr(model, "process_group", None) or getattr(model, "group", None)
    return found if isinstance(found, ProcessGroup) else None


def _without_sync(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    no_sync = getattr(model, "no_sync", None)
    return no_sync() if no_sync is not None else contextlib.nullcontext()
