"""Bytes of the tensors that exist on a rank, whoever holds them. This file loads torch."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Alive"]


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operators make while it is on, in backward too.

    A storage counts as long as anybody has it: a list, a module, autograd. One that was given back
    with `resize_(0)` counts nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0
        self.watching = False  # whether each operator adds to `peak`

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch asks; else the first operator imports its compiler, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        if self.watching:
            self.peak = max(self.peak, self.bytes)
        return outputs

    def follow(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now on."""
        storage = tensor.untyped_storage()
        self._made.setdefault(storage._cdata, weakref.ref(storage, self._gone(storage._cdata)))

    def _gone(self, key: int) -> Any:
        return lambda _: self._made.pop(key, None)

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

    @property
    def bytes(self) -> int:
        """What exists now."""
        found = [one() for one in list(self._made.values())]
        return sum(one.nbytes() for one in found if one is not None)
