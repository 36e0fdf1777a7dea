"""Bytes of the tensors that exist on a rank, whoever holds them. This file loads torch."""

from __future__ import annotations

import gc
import time

from dtlab.training.live import Storages

__all__ = ["Alive"]


class Alive(Storages):  # type: ignore[no-untyped-call]
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
