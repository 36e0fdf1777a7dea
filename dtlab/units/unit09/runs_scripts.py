"""The broken programs of 09/run_a and 09/run_b, as level-3.ipynb shows them.

This file imports torch, so it is imported only when a check runs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F

import dtlab

__all__ = ["feed", "learn"]


def feed(read, step, steps, batch, workers):
    """Train on `steps` batches, and load the next one while the GPU computes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pool, ahead = ThreadPoolExecutor(workers), ThreadPoolExecutor(1)

    def load(number_of_batch):
        first = number_of_batch * batch * ranks
        numbers = range(first, first + batch * ranks)
        whole = [pool.submit(read, number).result() for number in numbers]
        return torch.stack(whole)[rank::ranks]

    coming = ahead.submit(load, 0)
    for number in range(steps):
        with dtlab.span("input"):
            samples = coming.result()
        if number + 1 < steps:
            coming = ahead.submit(load, number + 1)
        step(samples)


def learn(model, batches, k):
    """Train with the k largest elements of each gradient; keep for later what is not sent."""
    ranks, losses = dist.get_world_size(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        for parameter, error in zip(model.parameters(), kept, strict=True):
            whole = (parameter.grad + error).flatten()
            places = parameter.grad.flatten().abs().topk(k).indices
            values = whole[places]
            error.copy_(parameter.grad)
            error.view(-1)[places] = 0
            all_places = [torch.empty_like(places) for _ in range(ranks)]
            all_values = [torch.empty_like(values) for _ in range(ranks)]
            dist.all_gather(all_places, places)
            dist.all_gather(all_values, values)
            total = torch.zeros_like(whole)
            total.index_add_(0, torch.cat(all_places), torch.cat(all_values))
            parameter.grad = (total / ranks).view_as(parameter)
        optimizer.step()
        losses.append(loss.item())
    return losses
