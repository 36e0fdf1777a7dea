"""What a rank notes of a program of Level III while it runs. This file loads torch."""

from __future__ import annotations

import contextlib
import gc
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dtlab.units.unit05.alive import Alive
from dtlab.units.unit05.runs_scripts import Layer, Net

__all__ = ["noted"]


def noted(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Runs on a rank.

    `alive` are the bytes that exist whenever a batch is drawn, and in the end; `kept` what `Kept`
    says then, where it is asked for; `whole` the bytes of whole parameters while a layer computes,
    at most; `inputs` the dtypes that layers compute in.
    """
    model = Net(*given["sizes"])
    parameters = list(model.parameters())
    for parameter, numbers in zip(parameters, given["state"], strict=True):
        parameter.data.copy_(numbers)
    seen = watch_layers(model)
    held: list[int] = []
    kept: list[dict[str, int]] = []
    with (
        Alive() if given["watched"] else contextlib.nullcontext() as alive,
        Kept() if given["kept"] else contextlib.nullcontext() as others,
    ):

        def note() -> None:
            held.append(_bytes(alive, held))
            kept.extend([others.now()] if others is not None else [])

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in given["batches"]:
                note()
                yield batch

        losses = fn(model, batches())
        note()
    return {
        "losses": [float(one) for one in losses],
        "alive": held,
        "kept": kept,
        "whole": max(seen["whole"], default=0),
        "inputs": sorted(set(seen["inputs"])),
        "pieces": [_local(one) for one in model.parameters()],
    }


def _bytes(alive: Alive | None, before: Sequence[int]) -> int:
    """Bytes of the tensors that exist after garbage has been collected.

    On a busy machine gloo's threads may hold the tensors of an operation for long, so there is
    time to come down to what existed after the first step.
    """
    if alive is None:
        return 0
    return alive.settled(before[1], 0.5) if len(before) > 1 else alive.settled()


def watch_layers(model: nn.Module) -> dict[str, list[Any]]:
    """Notes for each forward pass of a layer's first half what is whole, and its inputs' dtype."""
    shapes = [one.shape for one in model.parameters()]
    seen: dict[str, list[Any]] = {"whole": [], "inputs": []}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen["whole"].append(whole_bytes(model, shapes))
        seen["inputs"].append(str(module.weight.dtype).removeprefix("torch."))

    for layer in model.modules():
        if isinstance(layer, Layer):
            layer.wide.register_forward_pre_hook(note)
    return seen


def whole_bytes(model: nn.Module, shapes: Sequence[torch.Size]) -> int:
    """Bytes of the parameters that have their whole shapes now."""
    return sum(
        one.numel() * one.element_size()
        for one, shape in zip(model.parameters(), shapes, strict=True)
        if one.shape == shape and not hasattr(one, "to_local")
    )


def _local(parameter: Any) -> Tensor:
    """What this rank has of a parameter, in one dim."""
    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    flat: Tensor = own.detach().flatten().float().clone()
    return flat


# What a rank keeps that is no tensor: arrays and objects of Python's, and graphs of autograd -----
#
#     storages   what operators returned            `Alive`
#     arrays     memory that NumPy asked for        tracemalloc, in NumPy's domain
#     objects    lists, bytes, ... of Python's      tracemalloc, but for what the recorder writes
#     nodes      operations that autograd remembers, behind the tensors that are there
#
# This file loads torch.

_NUMPY = int(getattr(np.lib, "tracemalloc_domain", 389047))
_OWN = re.compile(r"[/\\]dtlab[/\\]ranks[/\\]|tracemalloc\.py$")  # what is recorded


class Kept:
    """Follows, while it is on, the memory that Python and NumPy ask for."""

    def __enter__(self) -> Kept:
        # The first optimizer of a process imports much, and slowly where each object is followed.
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        gc.freeze()  # what is there already is not gone through at each step
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        tracemalloc.stop()
        gc.unfreeze()

    def now(self) -> dict[str, int]:
        """What is there now: bytes of arrays and of objects, and nodes."""
        gc.collect()
        arrays = objects = 0
        for trace in tracemalloc.take_snapshot().traces:
            if trace.domain == _NUMPY:
                arrays += trace.size
            elif not _OWN.search(trace.traceback[0].filename):
                objects += trace.size
        return {"arrays": arrays, "objects": objects, "nodes": graph_nodes()}


def graph_nodes() -> int:
    """Operations that autograd remembers: the nodes behind all tensors that Python has."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    waiting: list[Any] = [one.grad_fn for one in tensors]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(seen)
