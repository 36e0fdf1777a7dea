"""What a rank keeps that is no tensor: arrays and objects of Python's, and graphs of autograd.

    storages   what operators returned            `Alive`
    arrays     memory that NumPy asked for        tracemalloc, in NumPy's domain
    objects    lists, bytes, ... of Python's      tracemalloc, but for what the recorder writes
    nodes      operations that autograd remembers, behind the tensors that are there

This file loads torch.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Kept", "graph_nodes"]

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
