"""`dtlab.compute`: simulates a GPU kernel by taking time without using a CPU core."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dtlab.trace import span
from dtlab.trace.spans import span_sink

if TYPE_CHECKING:
    from dtlab.ranks.emulate.interconnect import Wire

__all__ = ["compute"]


def compute(seconds: float) -> None:
    """Sleep for `seconds`, as a stand-in for a GPU kernel that leaves the CPU idle.

    On a rank, the call is recorded as a span "compute". On an emulated cluster it sleeps for
    `slowdown` times `seconds`, so that compute and communication keep their ratio.
    Raises: ValueError if `seconds` is not a finite number of at least 0.
    """
    fits = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (fits and 0 <= seconds < math.inf):
        raise ValueError(f"compute takes a number of seconds, at least 0, not {seconds!r}.")
    wire: Wire | None = getattr(span_sink(), "wire", None)
    with span("compute"):
        if wire is None:
            time.sleep(seconds)
        else:
            wire.compute(seconds)
