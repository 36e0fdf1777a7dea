"""The broken programs of Level III, as level-3.ipynb shows them, their model, and what is noted.

This file loads torch: it is imported when a check runs, never before.
"""

from __future__ import annotations

import gc
import re
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import SGD

from dtlab.parallel.zero import Zero3
from dtlab.training.live import Storages

__all__ = ["Alive", "Layer", "Net", "Watch", "train_gather", "train_leak", "train_policies"]

# mypy: disable-error-code="no-untyped-call, var-annotated"
# Programs are as people write them.


Batches = Iterable[tuple[Tensor, Tensor]]


class Layer(nn.Module):
    """To twice the width and back, beside a way round."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, width] to the same."""
        out: Tensor = x + self.narrow(F.gelu(self.wide(x)))
        return out


class Net(nn.Module):
    """64 pixels to 10 classes, through so many layers of one width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.leave = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """[n, 64] to [n, 10]."""
        out: Tensor = self.leave(self.layers(self.enter(images)))
        return out


def train_gather(model: Net, batches: Batches) -> list[float]:
    """Train `model` under stage 3; the losses."""

    def is_block(module: nn.Module) -> bool:
        return sum(one.numel() for one in module.parameters()) >= 5000

    sharded = Zero3(model, blocks=is_block)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_policies(model: Net, batches: Batches) -> list[float]:
    """Train `model` in bfloat16, and add up gradients in float32; the losses."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for_all = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=in_layers)
    fully_shard(model, mesh=mesh, mp_policy=for_all)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_leak(model: Net, batches: Batches) -> list[float]:
    """Train `model` under stage 3, and leave the mean over the steps in it; the losses."""
    sharded = Zero3(model, blocks=Layer)
    optimizer = SGD(sharded.parameters(), lr=0.1)
    losses, after = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(sharded(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after.append(sharded.full_state_dict())
    mean = {name: sum(one[name] for one in after) / len(after) for name in after[0]}
    sharded.load_state_dict(mean)
    return losses


# What a rank notes ------------------------------------------------------------------------------


class Watch(ExitStack):
    """What a rank notes while a program runs inside of it.

    `whole` are the bytes of whole parameters while a layer computes, at most; `inputs` the dtypes
    that layers compute in; `alive` the bytes of tensors that exist whenever a batch is drawn, and
    `kept` what `Kept` says then, where that is asked for.
    """

    def __init__(self, model: Net, alive: bool, kept: bool) -> None:
        super().__init__()
        self._model, self._shapes = model, [one.shape for one in model.parameters()]
        self._alive = self.enter_context(Alive()) if alive else None
        self._kept = self.enter_context(Kept()) if kept else None
        self._whole, self._inputs = [0], set[str]()
        self._held: list[int] = []
        self._others: list[dict[str, int]] = []
        for layer in model.layers:
            assert isinstance(layer, Layer)
            layer.wide.register_forward_pre_hook(self._note_layer)

    def batches(self, given: Sequence[Any]) -> Iterator[Any]:
        """The batches, noting what exists whenever one is drawn."""
        for batch in given:
            if self._alive is not None:
                # On a busy machine gloo's threads may hold tensors of an operation for long, so
                # there is time to come down to what existed after the first step.
                goal, patience = (self._held[1], 0.5) if self._held[1:] else (0, 0.02)
                self._held.append(self._alive.settled(goal, patience))
            if self._kept is not None:
                self._others.append(self._kept.now())
            yield batch

    @property
    def noted(self) -> dict[str, Any]:
        """All that was noted."""
        return {
            "whole": max(self._whole),
            "inputs": sorted(self._inputs),
            "alive": self._held,
            "kept": self._others,
        }

    def _note_layer(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._inputs.add(str(module.weight.dtype).removeprefix("torch."))
        pairs = zip(self._model.parameters(), self._shapes, strict=True)
        whole = [a for a, shape in pairs if a.shape == shape and not hasattr(a, "to_local")]
        self._whole.append(sum(one.numel() * one.element_size() for one in whole))


# What a rank keeps that is no tensor: arrays and objects of Python's, and graphs of autograd -----
#
#     storages   what operators returned            `Alive`
#     arrays     memory that NumPy asked for        tracemalloc, in NumPy's domain
#     objects    lists, bytes, ... of Python's      tracemalloc, but for what the recorder writes
#     nodes      operations that autograd remembers, behind the tensors that are there

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


# Bytes of the tensors that exist on a rank, whoever holds them. This file loads torch ------------


class Alive(Storages):
    """See `Storages`; `settled` waits for what is on its way."""

    def settled(self, goal: float = 0, patience: float = 0.02) -> int:
        """What exists once it is no more than `goal`, or after so many seconds at least.

        A thread of gloo's may hold the tensors of an operation a moment longer than it lasts.
        """
        gc.collect()
        least, until = self.bytes, time.monotonic() + patience
        while least > goal and time.monotonic() < until:
            time.sleep(0.002)
            least = min(least, self.bytes)
        return least
