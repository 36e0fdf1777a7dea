"""How much autograd holds for backward passes to come, each time a model is called.

    forward ─► activations are held ─► backward ─► they are freed ─► forward ...
    seen at a forward pass: how many samples it is given, and how many tensors are held before it
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Graphs"]


class _Held:
    """A tensor that a graph holds; when the graph lets it go, it is counted off."""

    def __init__(self, tensor: Tensor, graphs: Graphs) -> None:
        self.tensor, self._graphs = tensor.detach(), graphs
        graphs.held += 1

    def __del__(self) -> None:
        self._graphs.held -= 1


class Graphs:
    """What is held for the backward passes of a module, from one forward pass to the next."""

    def __init__(self, module: nn.Module) -> None:
        self.held = 0
        self._passes: list[list[int]] = []
        module.register_forward_pre_hook(self._begins)

    def _begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.held:
            gc.collect()  # nobody may count on that, and nobody is blamed for a cycle
        self._passes.append([len(inputs[0]), self.held])

    @contextmanager
    def watched(self) -> Iterator[list[list[int]]]:
        """For each forward pass meanwhile: its samples, and how many tensors are held already."""
        self._passes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Held(tensor, self), lambda held: held.tensor
        ):
            yield self._passes
