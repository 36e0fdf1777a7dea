"""Measured costs of layers, and stand-ins for stages that only take time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dtlab.parallel.pipeline.split_backward import Halves
from dtlab.predict.balance import LayerCost
from dtlab.training.saved import saved_bytes

__all__ = ["StandIn", "measure_costs"]


def measure_costs(
    layers: Iterable[nn.Module], inputs: Tensor, *, repeats: int = 5
) -> list[LayerCost]:
    """Measure seconds and bytes of each layer for `predict.balance_stages`.

    Layers are called one after the other, as in `nn.Sequential`; `inputs` is one microbatch.
    Seconds are the median of `repeats` runs, after one that is not counted. Gradients of
    parameters are left unchanged.
    """
    costs = []
    for layer in layers:
        gradients = [(parameter, parameter.grad) for parameter in layer.parameters()]
        runs = [_times(layer, inputs) for _ in range(repeats + 1)][1:]
        for parameter, gradient in gradients:
            parameter.grad = gradient
        forward, first, second = (median(each) for each in zip(*runs, strict=True))
        held = sum(parameter.nbytes for parameter in layer.parameters())
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point())
        saved = saved_bytes(layer, inputs).total
        costs.append(LayerCost(forward, first, second, held, saved))
        with torch.no_grad():
            inputs = layer(inputs)
    return costs


def _times(layer: nn.Module, inputs: Tensor) -> tuple[float, float, float]:
    """Return the seconds of F, I and W."""
    leaf = inputs.detach().requires_grad_(inputs.is_floating_point())
    start = time.perf_counter()
    output = layer(leaf)
    after_forward = time.perf_counter()
    ends = [get_gradient_edge(output)] if output.requires_grad else []
    halves = Halves(ends, [leaf] if leaf.requires_grad else [])
    gradients = [torch.ones_like(output) for _ in ends]
    before_input = time.perf_counter()
    halves.inputs(gradients)
    after_input = time.perf_counter()
    halves.weights()
    return after_forward - start, after_input - before_input, time.perf_counter() - after_input


class StandIn(nn.Module):
    """A stage that returns its input, and takes the given seconds for F, I and W.

    `take(seconds)` spends the time: in a launch use `dtlab.compute`, which does not occupy a core.
    """

    def __init__(
        self,
        forward: float,
        backward_input: float,
        backward_weight: float,
        take: Callable[[float], Any] = time.sleep,
    ) -> None:
        super().__init__()
        self.seconds = forward, backward_input, backward_weight
        self.take = take
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs plus a weight of 0."""
        forward, first, second = self.seconds
        self.take(forward)
        if not inputs.requires_grad:
            inputs = inputs.detach().requires_grad_()  # so that I takes time on the first stage
        return _takes(inputs, first, self.take) + _takes(self.weight, second, self.take)


def _takes(tensor: Tensor, seconds: float, take: Callable[[float], Any]) -> Tensor:
    same: Tensor = _Takes.apply(tensor, seconds, take)  # type: ignore[no-untyped-call]
    return same


class _Takes(torch.autograd.Function):
    """Returns the same tensor; its backward takes the given seconds."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, seconds: float, take: Callable[[float], Any]) -> Tensor:
        ctx.seconds, ctx.take = seconds, take
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.take(ctx.seconds)
        return gradients[0], None, None
