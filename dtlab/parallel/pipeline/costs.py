"""Measured costs of layers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dtlab.parallel.pipeline.split_backward import Halves
from dtlab.predict.balance import LayerCost
from dtlab.training.saved import saved_bytes

__all__ = ["measure_costs"]


def measure_costs(
    layers: Iterable[nn.Module], inputs: Tensor, *, repeats: int = 5
) -> list[LayerCost]:
    """Measure seconds and bytes of each layer for `predict.balance_stages`.

    Layers are called one after the other, as in `nn.Sequential`; `inputs` is one microbatch.
    Seconds are the median of `repeats` runs, after one run that is not counted. Gradients of
    parameters do not change.
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
    """Return the seconds of forward, of the input's gradients, and of the weights' gradients."""
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
