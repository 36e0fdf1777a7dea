"""Replacement of `init_process_group` in a rank, whose default group `launch` has created.

A call that describes the existing group changes nothing and prints a note once. Any other call is
an error. After `destroy_process_group`, the same call creates the group again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from dtlab.ranks.protocol import Spec
from dtlab.ranks.words import count_ranks
from dtlab.torch_internals import c10d

__all__ = ["InitCalls"]


class InitCalls:
    """Replaces `dist.init_process_group` in a rank.

    It is installed before the learner's function is unpickled, because the function may refer to
    `init_process_group`. Once the rank has joined its group, `store` is the group's store.
    `init(rank, spec, store)` creates the default group with a store that no other group has used.
    """

    store: Any

    def __init__(self, rank: int, spec: Spec, init: Callable[[int, Spec, Any], None]) -> None:
        self._rank, self._spec, self._init, self._pid = rank, spec, init, os.getpid()
        self._calls = 0
        for module in (dist, c10d()):
            setattr(module, "init_process_group", self)  # noqa: B010

    def __call__(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **named: Any,
    ) -> None:
        """Act as `dist.init_process_group`.

        Raises: ValueError if it describes another group, RuntimeError in a forked process.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                "init_process_group was called in a process that a rank started. dtlab.launch "
                "starts the processes itself: pass it the function that this process runs, as in "
                "dtlab.launch(function, world_size=2), and start none."
            )
        self._refuse_another(backend, world_size, rank)
        self._calls += 1
        if not dist.is_initialized():
            store = c10d().PrefixStore(f"init-{self._calls}", self.store)
            self._init(self._rank, self._spec, store)
        elif self._calls == 1 and self._rank == 0:
            print(
                "note: dtlab.launch has already initialised the process group "
                f"({self._spec.backend}, {count_ranks(self._spec.world_size)}). "
                "init_process_group changes nothing."
            )

    def _refuse_another(self, backend: str | None, world_size: int, rank: int) -> None:
        spec = self._spec
        fits = (
            (not backend or _backends(str(backend).lower()) <= _backends(spec.backend))
            and world_size in (-1, None, spec.world_size)
            and rank in (-1, None, self._rank)
        )
        if fits:
            return
        # The text names no rank's own number: if all ranks pass the same, it is the same on all.
        passed = {"backend": backend or None, "world_size": world_size, "rank": rank}
        passed = {name: value for name, value in passed.items() if value not in (-1, None)}
        actual = {
            "backend": repr(spec.backend),
            "world_size": spec.world_size,
            "rank": "dist.get_rank()",
        }
        call = f"init_process_group({', '.join(f'{name}={passed[name]!r}' for name in passed)})"
        values = ", ".join(f"{name}={actual[name]}" for name in passed)
        if not dist.is_initialized():
            raise ValueError(
                f"{call}: torchrun allows other values after destroy_process_group, but the ranks "
                "of dtlab.launch keep their numbers and their backend, because traces and errors "
                f"name ranks by these numbers. Write {values} as the group had before, or start "
                "these ranks by another dtlab.launch."
            )
        raise ValueError(
            f"{call}: dtlab.launch has already initialised this rank's process group, with "
            f"{values}. Leave the call out, or write these values. To change them, pass backend "
            "and world_size to dtlab.launch. nccl needs a GPU per rank."
        )


def _backends(names: str) -> set[str]:
    """The names in "cpu:gloo,cuda:nccl": gloo and nccl."""
    return {part.rpartition(":")[2] for part in names.split(",")}
