"""Activation checkpointing: save the inputs of some layers and recompute the rest in backward.

    five layers            x ─► a ─► b ─► c ─► d ─► e
    saved, plain           x    a    b    c    d
    saved, one per 2       x         b         d         a and c are recomputed in backward

The last group, d ─► e, is not checkpointed: backward would recompute it at once. All other groups
run twice, so a step takes up to a third more operations: one more forward, in addition to one
forward and a backward that costs two.

With n equal layers and a checkpoint per k layers, memory holds n/k inputs and all saved tensors of
one group of k layers. If a layer saves little more than its input, memory is least at k near
sqrt(n) (Chen et al. 2016, "Training deep nets with sublinear memory cost", section 4). If it saves
a bytes and its input has b bytes, n/k b + k a is least at k = sqrt(n b / a). For a transformer
layer a is so much larger than b that each layer gets a checkpoint.

`naive_checkpoint` shows the idea. `checkpoint` is the complete tool; `checkpoint_every` applies it
to a model. `saved_bytes` and `peak_bytes` measure the effect.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dtlab.torch_internals import base_of, own_modules, tree_flatten, tree_unflatten, version
from dtlab.training.live import live_bytes, peak_bytes
from dtlab.training.saved import saved_bytes

__all__ = [
    "Call",
    "Checkpointed",
    "RunTwice",
    "Surroundings",
    "checkpoint",
    "checkpoint_every",
    "live_bytes",
    "naive_checkpoint",
    "peak_bytes",
    "saved_bytes",
]

P = ParamSpec("P")
R = TypeVar("R")


# ---------------------------------------------------------------------------------- the idea


class RunTwice(torch.autograd.Function):
    """One autograd node for a whole function: it saves only the inputs."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(*inputs)
        return fn(*inputs)  # autograd does not record here, so intermediate results are freed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.fn(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


def naive_checkpoint(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Compute `fn(*inputs)` and save only the inputs; backward runs a nested backward pass.

    It has four defects, which `checkpoint` fixes. Dropout draws different numbers in the second
    run. If no input needs a gradient, `fn`'s parameters get none. Parameters get gradients only in
    `.grad`, so `torch.autograd.grad` does not see them. It takes only tensors, and returns one.
    """
    output: Tensor = RunTwice.apply(fn, *inputs)  # type: ignore[no-untyped-call]
    return output


# ---------------------------------------------------------------------------------- the tool


def checkpoint(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Compute `fn(*args, **kwargs)`; backward recomputes its intermediate tensors.

    The graph is that of `fn` itself, with a placeholder for each tensor that would be saved. When
    backward needs a placeholder, `fn` runs again, until all placeholders are filled. So everything
    that autograd supports works: any arguments and outputs, nested checkpoints,
    `torch.autograd.grad`, second derivatives. The second run uses the random numbers and autocast
    of the first run, and does not change the program's random state. This covers PyTorch's own
    generators (of the CPU, the current GPU and the GPUs of the arguments), and each
    `torch.Generator` argument.

    The arguments are saved, and about 5 KB of random state. Side effects of `fn` happen twice:
    BatchNorm adds a batch to its running statistics two times.

    Raises, in backward: RuntimeError if an argument, or a parameter that backward needs, was
    changed in place; and if the second run does not save the same shapes as the first. A second
    backward pass needs `retain_graph=True`, as usual. It recomputes again, except for placeholders
    that the first pass did not use, which are still filled.
    """
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    region = _Region(fn, args, kwargs)
    with saved_tensors_hooks(region.leave_blank, region.fill_in):
        return fn(*args, **kwargs)


class _Blank:
    """A placeholder in the graph; has a tensor only between the second run and its use."""

    def __init__(self, tensor: Tensor) -> None:
        self.kind = _kind(tensor)
        self.version = _version(tensor)
        self.tensor: Tensor | None = None


class _Region:
    """The operations between the inputs and the outputs of a checkpoint."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._call = Call(fn, args, kwargs)
        # Weak references: a blank exists only as long as its part of the graph.
        self._blanks: list[weakref.ref[_Blank]] = []

    def leave_blank(self, tensor: Tensor) -> _Blank:
        """Called by autograd in the first run to save a tensor."""
        blank = _Blank(tensor)
        self._blanks.append(weakref.ref(blank))
        return blank

    def fill_in(self, blank: _Blank) -> Tensor:
        """Called by autograd in backward to get a saved tensor."""
        if blank.tensor is None:
            self._run_again()
        tensor, blank.tensor = blank.tensor, None
        assert tensor is not None
        return tensor

    def _run_again(self) -> None:
        """Run the function until all blanks are filled, then stop it."""
        filled = 0

        def fill(tensor: Tensor) -> Tensor:
            nonlocal filled
            blank, detached = self._blanks[filled](), tensor.detach()  # without the second graph
            if blank is not None:
                _check_same(blank, tensor)
                blank.tensor = detached
            filled += 1
            if filled == len(self._blanks):
                raise _AllFilled
            return detached

        with suppress(_AllFilled):
            self._call.again(saved_tensors_hooks(fill, lambda tensor: tensor))
        if filled < len(self._blanks):
            raise RuntimeError(
                f"{_SECOND_RUN} saved {filled} tensors, but {len(self._blanks)} the first time. "
                f"{_SAME_TWICE}"
            )


class _AllFilled(BaseException):
    """Ends the second run. Not an Exception, so that `except Exception` does not catch it."""


_SECOND_RUN = "checkpoint ran the function a second time, in backward: this time it"
_SAME_TWICE = (
    "A function under a checkpoint must do the same both times. Look for what changes in "
    "between: train() or eval(), a counter, a random choice made outside of PyTorch."
)


def _check_same(blank: _Blank, tensor: Tensor) -> None:
    if _kind(tensor) != blank.kind:
        was, now = (" ".join(map(str, kind)) for kind in (blank.kind, _kind(tensor)))
        raise RuntimeError(f"{_SECOND_RUN} saved a tensor {now}, not {was}. {_SAME_TWICE}")
    if _version(tensor) != blank.version:
        raise RuntimeError(
            f"A parameter of shape {list(base_of(tensor).shape)} was changed in place between "
            "forward and backward of a checkpoint, so backward would use the new values. Step the "
            "optimizer after backward."
        )


def _kind(tensor: Tensor) -> tuple[list[int], torch.dtype, torch.device]:
    return list(tensor.shape), tensor.dtype, tensor.device


def _version(tensor: Tensor) -> int | None:
    """Return how often a parameter was changed in place; None for a tensor that each run makes."""
    base = base_of(tensor)
    return version(base) if isinstance(base, nn.Parameter) else None


# ----------------------------------------------------------------------------- a whole model


class Checkpointed(nn.Sequential):
    """Layers in groups; each group except the last is checkpointed. See `checkpoint_every`."""

    per_checkpoint: int | None = None  # None in a slice of the layers

    def forward(self, input: Any) -> Any:
        """Run the layers as nn.Sequential does."""
        layers = list(self)
        k = self.per_checkpoint or len(layers)
        last = (len(layers) - 1) // k * k
        for start in range(0, last, k):
            input = checkpoint(_run, layers[start : start + k], input)
        return _run(layers[last:], input)


def _run(layers: Sequence[nn.Module], input: Any) -> Any:
    for layer in layers:
        input = layer(input)
    return input


def checkpoint_every(layers: nn.Sequential, k: int) -> Checkpointed:
    """Return the layers with a checkpoint per `k`: same outputs, gradients and state_dict.

    The parameters are those of `layers`, not copies. The last group may be shorter, and is not
    checkpointed: backward begins with this group, and would recompute its tensors before it frees
    any other tensor. That would not lower the peak, and would run the group a second time. So if k
    is at least the number of layers, there is no checkpoint.

    Raises: ValueError for k below 1; TypeError if `layers` is not an `nn.Sequential`.
    """
    if not isinstance(layers, nn.Sequential):
        raise TypeError(
            f"checkpoint_every takes an nn.Sequential, not {type(layers).__name__}. In a module "
            "with its own forward, call checkpoint in that forward."
        )
    if k < 1:
        raise ValueError(f"A checkpoint needs at least one layer, not {k}.")
    checkpointed = Checkpointed()
    # Not through the constructor: names stay as they are, even if a layer occurs twice.
    own_modules(checkpointed).update(own_modules(layers))
    checkpointed.training, checkpointed.per_checkpoint = layers.training, k
    return checkpointed


# The same call a second time: the same arguments, random numbers and autocast --------------------


class Call:
    """The state needed to repeat a call; create it just before the call."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        values, self._structure = tree_flatten((args, kwargs))
        self._fn = fn
        self._values = _Values(values)
        self._surroundings = Surroundings(values)

    def again(self, within: AbstractContextManager[Any]) -> Any:
        """Repeat the call, recorded by autograd, inside `within`.

        Raises: RuntimeError if a tensor among the arguments was changed in place.
        """
        args, kwargs = tree_unflatten(self._values.get(), self._structure)
        with self._surroundings.again(), torch.enable_grad(), within:
            return self._fn(*args, **kwargs)


# Arguments ----------------------------------------------------------------------------


class _Save(torch.autograd.Function):
    """An extra node outside the graph. It saves tensors like any node, but never runs backward."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


class _Values:
    """Arguments of a call; autograd saves the tensors among them.

    This has two advantages. Autograd detects in-place changes. And inside an outer checkpoint the
    tensors become blanks of the outer checkpoint: so the arguments of an inner checkpoint are not
    kept in memory, but recomputed by the outer checkpoint when they are needed.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        tensors = [value for value in values if isinstance(value, Tensor)]
        self._others = [None if isinstance(value, Tensor) else value for value in values]
        self._places = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        trained = torch.empty(0, requires_grad=True)  # autograd makes no node without it
        # Up to PyTorch 2.11 the tensors are freed with the output, so keep it, not only its node.
        self._saved = _Save.apply(trained, *tensors)  # type: ignore[no-untyped-call]

    def get(self) -> list[Any]:
        """Return the arguments again, detached from the graph of the first call."""
        try:
            tensors = self._saved.grad_fn.saved_tensors
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise RuntimeError(
                "A tensor that was passed to checkpoint was changed in place, by the function or "
                "after it, so the function cannot be run again on the same values. Change a copy: "
                "y = x.clone()."
            ) from error
        values = list(self._others)
        for place, tensor in zip(self._places, tensors, strict=True):
            values[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        return values


# Random numbers and autocast ----------------------------------------------------------


class Surroundings:
    """Random state and autocast, which influence a result in addition to the arguments."""

    def __init__(self, values: Sequence[Any]) -> None:
        generators = [torch.default_generator]
        generators += [value for value in values if isinstance(value, torch.Generator)]
        devices = ["cpu"]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            tensors = [value for value in values if isinstance(value, Tensor)]
            gpus = {tensor.device.index for tensor in tensors if tensor.is_cuda}
            gpus.add(torch.cuda.current_device())
            generators += [torch.cuda.default_generators[index] for index in sorted(gpus)]
            devices.append("cuda")
        self._random = [(generator, generator.get_state()) for generator in generators]
        self._autocast = [_autocast(device) for device in devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Context manager: run the block with the random state and autocast of the first call.

        After the block, the program's own random state is restored.
        """
        before = [(generator, generator.get_state()) for generator, _ in self._random]
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
