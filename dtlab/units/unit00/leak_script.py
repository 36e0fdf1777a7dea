"""The training script of 00/train_within, as level-3.ipynb shows it. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Batch", "broken", "fixed"]

Batch = tuple[Tensor, Tensor]


def broken(
    model: nn.Module, optimizer: Any, batches: Sequence[Batch], held_out: Batch
) -> tuple[Any, list[Any]]:
    """Train. Return the mean of all outputs, and the held-out loss after each step."""
    inputs, targets = held_out
    outputs, losses = [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        outputs.append(output)
        losses.append(F.mse_loss(model(inputs), targets).item())
    return torch.cat(outputs).mean().item(), losses


def fixed(
    model: nn.Module,
    optimizer: Any,
    batches: Sequence[Batch],
    held_out: Batch,
    *,
    fault: str = "",
) -> tuple[Any, list[Any]]:
    """Compute the results of `broken` in less memory; `fault` names one fault to put back.

    "steps" keeps all outputs with their graphs, "rows" records a graph for the held-out
    rows, and "weights" clears the gradients only after the next forward pass.
    """
    inputs, targets = held_out
    kept, total, count, losses = [], 0.0, 0, []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        if fault == "weights":
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if fault != "weights":
            optimizer.zero_grad()
        total, count = total + output.detach().double().sum().item(), count + output.numel()
        kept += [output] if fault == "steps" else []
        del output, loss
        with torch.set_grad_enabled(fault == "rows"):
            losses.append(F.mse_loss(model(inputs), targets).item())
    return total / count, losses
