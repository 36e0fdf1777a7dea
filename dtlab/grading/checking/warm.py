"""Has what is slow to import ready for ranks, so that it does not count as an answer's time."""

from __future__ import annotations

import time

__all__ = ["warm_up"]

_LIMIT, _PAUSE = 60.0, 0.2  # seconds for imports; that a server needs to hear of them


def warm_up() -> None:
    """Have the server of ranks import PyTorch's compiler, once and not in every rank.

    The first optimizer that a rank makes imports it, and so does the first
    DistributedDataParallel: that takes seconds.
    """
    from dtlab.ranks.launch.launcher import launch

    for _ in range(3):
        if launch(_compiler_is_there, world_size=1, trace=False, timeout=_LIMIT).values[0]:
            return
        time.sleep(_PAUSE)


def _compiler_is_there() -> bool:
    """Runs on a rank."""
    import importlib
    import sys

    found = "torch._dynamo" in sys.modules
    importlib.import_module("torch._dynamo")
    return found
