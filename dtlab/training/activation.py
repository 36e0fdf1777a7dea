"""Activation checkpointing: keep the inputs of some layers and recompute the rest in backward.

    five layers          x ─► a ─► b ─► c ─► d ─► e
    kept, plain          x    a    b    c    d
    one per 2 layers     x         b         d         a and c come back in backward

The last group, d ─► e, is not checkpointed: backward would run it again at once. All others run
twice, so a step takes up to a third more operations: one more forward, beside one forward and a
backward that is worth two.

With n layers alike and a checkpoint per k, n/k inputs are kept, and one group of k is whole at a
time. Where a layer keeps little more than its input, memory is least at k near sqrt(n) (Chen et
al. 2016, "Training deep nets with sublinear memory cost", section 4). Where it keeps a bytes, and
b go in, n/k b + k a is least at sqrt(n b / a): a layer of a transformer keeps so much that it gets
a checkpoint of its own.

`naive_checkpoint` is the idea, `checkpoint` the tool, `checkpoint_every` puts it to use;
`saved_bytes` and `peak_bytes` measure what it is good for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

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
    """One node of the graph for a whole function: it saves the inputs, and nothing else."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(*inputs)
        return fn(*inputs)  # in here autograd does not record: what `fn` computes is let go

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.fn(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(each.grad for each in inputs)


def naive_checkpoint(fn: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`fn(*inputs)`, of which only the inputs are kept: a backward pass within the backward pass.

    It falls short in four ways, which `checkpoint` mends. Dropout draws other numbers in the
    second run. Where no input needs a gradient, `fn`'s parameters get none. They get theirs
    in `.grad` alone, so `torch.autograd.grad` does not see them. And it takes tensors only, and
    gives one.
    """
    output: Tensor = RunTwice.apply(fn, *inputs)  # type: ignore[no-untyped-call]
    return output


# ---------------------------------------------------------------------------------- the tool


def checkpoint(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`fn(*args, **kwargs)`, whose inner tensors are computed a second time in backward.

    The graph is that of `fn` itself, with blanks where tensors would be saved. When backward comes
    to a blank, `fn` is run again, as far as to fill all blanks. So whatever autograd can do it can
    do here: any arguments and outputs, one checkpoint in another, `torch.autograd.grad`, second
    derivatives. The second run has the first one's random numbers and autocast, and leaves those
    of the program alone: numbers of PyTorch's own generators (on the CPU, the current GPU and the
    GPUs of the arguments), and of each `torch.Generator` among the arguments.

    Kept are the arguments, and about 5 KB of random state. What `fn` does beside its result, it
    does twice: BatchNorm takes a batch into its running statistics two times.

    Raises, in backward: RuntimeError where an argument, or a parameter that backward needs, was
    changed in place since; and where the second run does not save the same shapes as the first.
    Backward a second time needs `retain_graph=True`, as anywhere, and fills blanks once more, but
    those that the first did not come to: they are filled already.
    """
    if not torch.is_grad_enabled():
        return fn(*args, **kwargs)
    region = _Region(fn, args, kwargs)
    with saved_tensors_hooks(region.leave_blank, region.fill_in):
        return fn(*args, **kwargs)


class _Blank:
    """Stands in the graph for a tensor, and has it only between the second run and its use."""

    def __init__(self, tensor: Tensor) -> None:
        self.kind = _kind(tensor)
        self.version = _version(tensor)
        self.tensor: Tensor | None = None


class _Region:
    """What lies between the inputs and the outputs of a checkpoint."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._call = Call(fn, args, kwargs)
        # Weak: a blank lives as long as the part of the graph that has it.
        self._blanks: list[weakref.ref[_Blank]] = []

    def leave_blank(self, tensor: Tensor) -> _Blank:
        """Autograd wants to save a tensor, in the first run."""
        blank = _Blank(tensor)
        self._blanks.append(weakref.ref(blank))
        return blank

    def fill_in(self, blank: _Blank) -> Tensor:
        """Autograd wants it back, in backward."""
        if blank.tensor is None:
            self._run_again()
        tensor, blank.tensor = blank.tensor, None
        assert tensor is not None
        return tensor

    def _run_again(self) -> None:
        """Run the function until all blanks are filled; what comes after that is not needed."""
        filled = 0

        def fill(tensor: Tensor) -> Tensor:
            nonlocal filled
            blank, alone = self._blanks[filled](), tensor.detach()  # without the second graph
            if blank is not None:
                _check_same(blank, tensor)
                blank.tensor = alone
            filled += 1
            if filled == len(self._blanks):
                raise _AllFilled
            return alone

        with suppress(_AllFilled):
            self._call.again(saved_tensors_hooks(fill, lambda tensor: tensor))
        if filled < len(self._blanks):
            raise RuntimeError(
                f"{_SECOND_RUN} saved {filled} tensors, and {len(self._blanks)} the first time. "
                f"{_SAME_TWICE}"
            )


class _AllFilled(BaseException):
    """Ends the second run. No Exception, so that no `except Exception` in it stops this."""


_SECOND_RUN = "checkpoint ran the function a second time, in backward: this time it"
_SAME_TWICE = (
    "A function under a checkpoint has to do the same both times. Look for what changes in "
    "between: train() or eval(), a counter, a random choice made outside of PyTorch."
)


def _check_same(blank: _Blank, tensor: Tensor) -> None:
    if _kind(tensor) != blank.kind:
        was, now = (" ".join(map(str, kind)) for kind in (blank.kind, _kind(tensor)))
        raise RuntimeError(f"{_SECOND_RUN} saved a tensor {now}, not {was}. {_SAME_TWICE}")
    if _version(tensor) != blank.version:
        raise RuntimeError(
            f"A parameter of shape {list(_base(tensor).shape)} was changed in place between "
            "forward and backward of a checkpoint, which would compute with the new values. Step "
            "the optimizer after backward."
        )


def _kind(tensor: Tensor) -> tuple[list[int], torch.dtype, torch.device]:
    return list(tensor.shape), tensor.dtype, tensor.device


def _base(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base


def _version(tensor: Tensor) -> int | None:
    """How often a parameter was changed in place; None for what a run makes anew."""
    base = _base(tensor)
    return base._version if isinstance(base, nn.Parameter) else None


# ----------------------------------------------------------------------------- a whole model


class Checkpointed(nn.Sequential):
    """Layers in groups, each group but the last under a checkpoint. See `checkpoint_every`."""

    per_checkpoint: int | None = None  # a slice of the layers has none

    def forward(self, input: Any) -> Any:
        """As nn.Sequential's."""
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
    """The same layers, with a checkpoint per `k` of them: same outputs, gradients and state_dict.

    The parameters are those of `layers`, not copies. The last group may be shorter, and is not
    checkpointed: backward begins with it, so that its tensors would be back before any other is
    let go. At the peak that saves nothing, and costs a run. So with k from the number of layers on
    there is no checkpoint.

    Raises: ValueError for k below 1; TypeError where `layers` is no `nn.Sequential`.
    """
    if not isinstance(layers, nn.Sequential):
        raise TypeError(
            f"checkpoint_every takes an nn.Sequential, not {type(layers).__name__}. In a module "
            "with a forward of its own, call checkpoint there."
        )
    if k < 1:
        raise ValueError(f"A checkpoint spans at least one layer, not {k}.")
    checkpointed = Checkpointed()
    # Not through the constructor: names stay as they are, also of a layer that is there twice.
    checkpointed._modules.update(layers._modules)
    checkpointed.training, checkpointed.per_checkpoint = layers.training, k
    return checkpointed


# The same call a second time: the same arguments, random numbers and autocast --------------------


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
