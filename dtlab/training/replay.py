"""The same call a second time: the same arguments, random numbers and autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["Call", "Surroundings"]


class Call:
    """What it takes to make a call again: made just before the call itself."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        values, self._structure = tree_flatten((args, kwargs))
        self._fn = fn
        self._values = _Values(values)
        self._surroundings = Surroundings(values)

    def again(self, within: AbstractContextManager[Any]) -> Any:
        """Make it, in autograd's sight, inside `within`.

        Raises: RuntimeError where a tensor among the arguments was changed in place.
        """
        args, kwargs = tree_unflatten(self._values.get(), self._structure)
        with self._surroundings.again(), torch.enable_grad(), within:
            return self._fn(*args, **kwargs)


# Arguments ----------------------------------------------------------------------------


class _Save(torch.autograd.Function):
    """A node beside the graph that saves tensors as any node does. Nobody runs it backward."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _Values:
    """Arguments of a call, the tensors among them saved by autograd.

    That has two reasons. Autograd notices where they are changed in place. And within another
    checkpoint they are among the tensors for which that one leaves a blank: so the arguments of
    an inner checkpoint are not kept, but computed by the outer one when they are needed.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        tensors = [each for each in values if isinstance(each, Tensor)]
        self._others = [None if isinstance(each, Tensor) else each for each in values]
        self._places = [i for i, each in enumerate(values) if isinstance(each, Tensor)]
        trained = torch.empty(0, requires_grad=True)  # without one there is no node
        self._node = _Save.apply(trained, *tensors).grad_fn  # type: ignore[no-untyped-call]

    def get(self) -> list[Any]:
        """The arguments again, apart from the graph of the first call."""
        try:
            tensors = self._node.saved_tensors
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise RuntimeError(
                "A tensor that was given to checkpoint has been changed in place, by the function "
                "or after it, so the function cannot be run again on the same values. Change a "
                "copy: y = x.clone()."
            ) from error
        values = list(self._others)
        for place, tensor in zip(self._places, tensors, strict=True):
            values[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        return values


# Surroundings -------------------------------------------------------------------------


class Surroundings:
    """What a result depends on beside the arguments: random numbers, and autocast."""

    def __init__(self, values: Sequence[Any]) -> None:
        generators = [torch.default_generator]
        generators += [each for each in values if isinstance(each, torch.Generator)]
        devices = ["cpu"]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            tensors = [each for each in values if isinstance(each, Tensor)]
            gpus = {each.device.index for each in tensors if each.is_cuda}
            gpus.add(torch.cuda.current_device())
            generators += [torch.cuda.default_generators[index] for index in sorted(gpus)]
            devices.append("cuda")
        self._random = [(each, each.get_state()) for each in generators]
        self._autocast = [_autocast(device) for device in devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        """As they were at the first call; then random numbers go on where the program is."""
        before = [(each, each.get_state()) for each, _ in self._random]
        _set(self._random)
        try:
            with ExitStack() as stack:
                for settings in self._autocast:
                    stack.enter_context(torch.autocast(**settings))
                yield
        finally:
            _set(before)


def _set(states: list[tuple[torch.Generator, Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


def _autocast(device: str) -> dict[str, Any]:
    return {
        "device_type": device,
        "enabled": torch.is_autocast_enabled(device),
        "dtype": torch.get_autocast_dtype(device),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }
