"""Makes the learner's module of dense layers, on a rank. It loads torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["linear", "made_of_dense", "shards_of"]


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with copies of these."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def made_of_dense(
    fn: Callable[..., Any], given: dict[str, Any], group: Any
) -> tuple[Any, list[Tensor]]:
    """The module that `fn` makes of dense layers, and which of their tensors outlive that."""
    layers = [linear(*pair) for pair in given["layers"]]
    refs = [weakref.ref(one) for layer in layers for one in layer.parameters()]
    first, *others = layers
    given_to = [nn.Sequential(first, nn.GELU(), *others)] if given["packed"] else layers
    module = fn(*given_to, *given["numbers"], group)
    del layers, first, others, given_to
    if any(ref() is not None for ref in refs):
        gc.collect()  # somebody may have left a circle behind
    return module, [one for ref in refs if (one := ref()) is not None]


def shards_of(module: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """Those attributes of these names that are tensors."""
    found = {name: getattr(module, name, None) for name in names}
    return {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}
