"""Counts the tensors that autograd holds for backward passes, at each call of a model.

forward ─► activations are held ─► backward ─► they are freed ─► forward ...
recorded at each forward pass: its number of samples, and the tensors held before it
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
    """A tensor that a graph holds. It is subtracted from the count when the graph is freed."""

    def __init__(self, tensor: Tensor, graphs: Graphs) -> None:
        self.tensor, self._graphs = tensor.detach(), graphs
        graphs.held += 1

    def __del__(self) -> None:
        self._graphs.held -= 1


class Graphs:
    """Records how many tensors are held for backward, at each forward pass of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.held = 0
        self._passes: list[list[int]] = []
        module.register_forward_pre_hook(self._begins)

    def _begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.held:
            gc.collect()  # otherwise a reference cycle would count as a mistake
        self._passes.append([len(inputs[0]), self.held])

    @contextmanager
    def watched(self) -> Iterator[list[list[int]]]:
        """Yields a list that gets an entry per forward pass: its samples and the held tensors."""
        self._passes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Held(tensor, self), lambda held: held.tensor
        ):
            yield self._passes
