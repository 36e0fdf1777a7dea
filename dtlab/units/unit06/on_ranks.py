"""What the cases of Level II run on ranks. This file loads torch."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dtlab.grading.checking.groups import Groups
from dtlab.trace import span
from dtlab.units.unit06.passes import BACKWARD, FORWARD, GRADIENT, PRODUCT

__all__ = ["forth_and_back", "gradients_of", "linear", "made_of_dense", "mark_products",
           "own_group"]  # fmt: skip


def own_group(groups: Groups) -> Any:
    """The process group of this rank; None for all ranks."""
    made = {group: dist.new_group(list(group)) for group in groups}
    return next((one for group, one in made.items() if dist.get_rank() in group), None)


def forth_and_back(forward: Callable[[], Any], back: Tensor, beside: Any = 0) -> Any:
    """Calls `forward` and goes back from what comes out, between marks. Returns a copy of that.

    `back` is the gradient. What is `beside` is added, and has the same tensor as its gradient.
    """
    with span(FORWARD):
        y = forward()
    if not isinstance(y, Tensor):
        return y
    out = y.detach().clone()
    with span(BACKWARD):
        if y.requires_grad and y.shape == back.shape:
            mark_products(y)
            # Not y.backward(back), which imports a part of PyTorch's compiler: seconds.
            ((y + beside) * back).sum().backward()
    return out


def gradients_of(leaves: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """The gradients of these, as they are noted."""
    return {GRADIENT + name: None if one is None else one.grad for name, one in leaves.items()}


# Modules made of dense layers -------------------------------------------------------------------


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with copies of these."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def made_of_dense(
    fn: Callable[..., Any], layers: list[Any], given: Mapping[str, Any], group: Any
) -> tuple[Any, list[Tensor]]:
    """The module that `fn` makes of `layers`, and which of their tensors outlive that.

    It empties the list, so that the caller has none of them either.
    """
    refs = [weakref.ref(one) for layer in layers for one in layer.parameters()]
    if given["packed"]:
        layers[:] = [nn.Sequential(layers[0], nn.GELU(), *layers[1:])]
    module = fn(*layers, *given["numbers"], group)
    layers.clear()
    if any(ref() is not None for ref in refs):
        gc.collect()  # somebody may have left a circle behind
    return module, [one for ref in refs if (one := ref()) is not None]


# Marks of matrix products -----------------------------------------------------------------------

_ADDING = frozenset(("addmm", "addbmm", "baddbmm"))  # what they add to comes first
_NAMES = _ADDING | {"matmul", "mm", "bmm", "linear", "einsum", "tensordot", "outer"}


def mark_products(y: Tensor) -> None:
    """When backward goes on from `y`, every matrix product in Python has a mark behind it.

    The mark's `work` is how many multiplications it took.
    Autograd enters no mode of the caller's, so a hook does, and autograd leaves it at its end.
    Not a TorchDispatchMode, which would see the products of PyTorch's own backward too: it imports
    the compiler, which takes seconds.
    """
    y.register_hook(_enter)  # type: ignore[no-untyped-call]


def _enter(_: Tensor) -> None:
    _Marking().__enter__()  # type: ignore[no-untyped-call]


class _Marking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        if name in _NAMES and isinstance(made, Tensor):
            factors = [*_tensors((args, kwargs or {}))][name in _ADDING :]
            # Of [m, k] times [k, n], which is [m, n]: mkn, as the root of mk times kn times mn.
            sizes = [one.numel() for one in (*factors[:2], made)]
            with span(PRODUCT, work=math.isqrt(math.prod(sizes))):
                pass
        return made


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in (nested) arguments, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple | dict):
        for one in values.values() if isinstance(values, dict) else values:
            yield from _tensors(one)
