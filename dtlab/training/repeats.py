"""`dtlab.repeats`: how often a lesson repeats a measurement, in full or in tests."""

from __future__ import annotations

import os

__all__ = ["QUICK", "repeats"]

QUICK = "DTLAB_QUICK"  # environment variable; tests set it to 1


def repeats(full: int, quick: int = 1) -> int:
    """`full`, or `quick` where the environment sets DTLAB_QUICK=1.

    Lessons use it for numbers of seeds, steps and repeated measurements:
    `for seed in range(dtlab.repeats(5))`. `make test` sets DTLAB_QUICK, so that it runs every
    cell of every lesson in little time; what a figure shows is then noisier, or covers less.

    Raises ValueError where a number is less than 1.
    """
    if full < 1 or quick < 1:
        raise ValueError(f"a measurement is made at least once, not {min(full, quick)} times.")
    return quick if os.environ.get(QUICK) == "1" else full
