"""What a rank notes of a program of Level III while it runs. This file loads torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from dtlab.units.unit06.runs_scripts import Layer, Net

__all__ = ["built", "noted"]


def built(sizes: tuple[int, int, int], state: dict[str, Tensor]) -> Net:
    """The model with these parameters."""
    model = Net(*sizes)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(state[name])
    return model


def noted(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Runs on a rank.

    `times` is how often the bias of `narrow` is in what the first layer adds, the first time that
    it computes; 0 where it never does. `after` are the parameters in the end, by their names.
    """
    model = built(tuple(given["sizes"]), given["state"])
    times: list[float] = []
    _count_biases(model.layers[0], times)
    losses = fn(model, iter(given["batches"]))
    return {
        "losses": [float(one) for one in losses],
        "times": times[0] if times else 0.0,
        "after": {name: one.detach().clone() for name, one in model.named_parameters()},
    }


def _count_biases(layer: nn.Module, times: list[float]) -> None:
    dense = deepcopy(layer)
    assert isinstance(dense, Layer)

    def note(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if not times:
            extra = out.detach() - dense(inputs[0].detach()).detach()
            times.append(float((1 + extra / dense.narrow.bias.detach()).median()))

    layer.register_forward_hook(note)
