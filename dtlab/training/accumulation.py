"""Gradient accumulation: several microbatches give the gradient of one large batch for one step.

effective batch = microbatch x microbatches x data-parallel degree

rank 0:  forward, backward   forward, backward   forward, backward ┐ gradients
rank 1:  forward, backward   forward, backward   forward, backward ┘ reduced once, then step
         └──────────── in no_sync() ──────────┘

for micro_batches in per_step(loader, 3):
    losses = accumulate(model, micro_batches, loss_sum)
    optimizer.step()
    optimizer.zero_grad()

`accumulate` in `dtlab/simple.py` is the idea. The one here also works with wrappers
that average gradients and with loss scaling, adds to gradients that are there already, finds ranks
without a microbatch, and returns the mean loss.
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
    """Yield the batches of each optimizer step, `micro_batches` of them; the last may have fewer.

    Raises: ValueError if `micro_batches` is below 1.
    """
    if micro_batches < 1:
        raise ValueError(f"A step needs at least one microbatch, not {micro_batches}.")

    def steps() -> Iterator[list[Batch]]:
        remaining = iter(batches)
        while step := list(itertools.islice(remaining, micro_batches)):
            yield step

    return steps()


def naive_accumulate(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    loss_mean: Callable[[nn.Module, Batch], Tensor],
) -> None:
    """Accumulate the gradients of the mean losses, each divided by the number of microbatches.

    This gives the mean of means, which is right only if all microbatches have the same number of
    samples (or tokens), on all ranks. If `model` is data-parallel, every backward pass
    communicates.
    """
    for batch in micro_batches:
        loss = loss_mean(model, batch) / len(micro_batches)
        loss.backward()  # type: ignore[no-untyped-call]


def num_samples(batch: Any) -> int:
    """Return the number of samples in a batch: the size of the first dim of its (first) tensor.

    Raises: TypeError if the batch is neither a tensor nor a sequence that begins with a tensor.
    """
    first = batch if isinstance(batch, Tensor) or not isinstance(batch, Sequence) else batch[0]
    if not isinstance(first, Tensor) or first.ndim == 0:
        raise TypeError(
            f"A batch must be a tensor of samples, or a sequence that begins with one, not "
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
    """Accumulate in `.grad` the gradient of the mean loss over all samples of all ranks.

    `loss_sum(model, batch)` runs the model and returns the sum of the losses of a microbatch's
    samples (or tokens): reduction="sum". `count(batch)` returns their number. Batches may differ
    in size, and ranks in their numbers of samples and microbatches; a rank without data passes one
    empty batch. The result is added to gradients that are already in `.grad`.

    Data parallelism divides the sum of the ranks' gradients by the number of ranks N, whatever
    their numbers of samples. So each loss is scaled by N / (samples on all ranks), and N cancels.
    To find the total of samples, the ranks all-reduce two integers. If `model` has `no_sync()`, as
    PyTorch's DistributedDataParallel has, gradients are reduced once, in the last backward pass.
    Otherwise the caller must average the gradients over the ranks.

    `group` has the ranks that average; by default the model's group, or else all ranks.
    `backward` is for a gradient scaler: `lambda loss: scaler.scale(loss).backward()`. Do not use
    this with PyTorch's `Join`: a rank that has finished does not take part in the count.

    Returns the mean loss of this rank's samples; `.over_ranks()` returns the mean of all ranks.
    Raises: ValueError on every rank if any rank has no microbatch, or if no rank has a sample;
    ValueError if `loss_sum` does not return one number.
    """
    counts = [int(count(batch)) for batch in micro_batches]
    samples, num_ranks = _samples_everywhere(counts, group or _group_of(model))
    losses = Mean()
    for i, batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else _without_sync(model):
            # Includes the forward pass, in which DDP decides whether to synchronize.
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
    """Return the number of samples on all ranks, and the number of ranks."""
    numbers, num_ranks = torch.tensor([sum(counts), int(not counts)]), 1
    if dist.is_initialized():
        # The other ranks would wait forever for the gradients of a rank without a microbatch. So
        # all ranks check the sums, and all raise.
        numbers, num_ranks = numbers.to(device_of(group)), dist.get_world_size(group)
        dist.all_reduce(numbers, group=group)
    samples, without = numbers.tolist()
    if without:
        raise ValueError(
            f"{without} of {num_ranks} ranks have no microbatch, and would not take part in "
            "averaging the gradients. Pass an empty microbatch on these ranks: batch[:0]."
        )
    if samples < 1:
        raise ValueError("No rank has a sample, so there is no mean loss and no gradient of it.")
    return samples, num_ranks


def _group_of(model: nn.Module) -> ProcessGroup | None:
    """Return the group of a wrapped model: DDP's `process_group`, or dtlab's `group`."""
    group = getattr(model, "process_group", None) or getattr(model, "group", None)
    return group if isinstance(group, ProcessGroup) else None


def _without_sync(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    no_sync = getattr(model, "no_sync", None)
    return no_sync() if no_sync is not None else contextlib.nullcontext()
