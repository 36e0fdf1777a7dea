"""`dtlab.repeats`: how often a lesson repeats a measurement, in full or in tests."""

from __future__ import annotations

import os

from dtlab.predict.units import check_count

__all__ = ["QUICK", "repeats"]

QUICK = "DTLAB_QUICK"  # environment variable; tests set it to 1


def repeats(full: int, quick: int = 1) -> int:
    """Return `full`, or `quick` if the environment variable DTLAB_QUICK is 1.

    Lessons use it for numbers of seeds, steps and repeated measurements:
    `for seed in range(dtlab.repeats(5))`. `make test` sets DTLAB_QUICK, so that it runs every
    cell of every lesson quickly; figures are then noisier, or cover less.

    Raises: ValueError if a number is less than 1.
    """
    full, quick = check_count("repeats: full", full), check_count("repeats: quick", quick)
    return quick if os.environ.get(QUICK) == "1" else full
