"""Says what is wrong with a sum over ranks, as far as the numbers themselves tell.

Inputs are whole numbers drawn at random (`labelled`), so a wrong element tells whose values are
in it: "elements 2 to 3 hold the values of ranks 0 and 1 only".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from dtlab.grading.words import ranks_in_words

if TYPE_CHECKING:
    import torch

__all__ = ["labelled", "total", "wrong_sum"]

_LARGEST = 9999  # sums of such integers are exact in float32, and tell whose values are in them


def labelled(seed: int, size: int, rank: int) -> torch.Tensor:
    """Whole numbers as float32, different on every rank: `size` elements."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + size * 101 + rank)
    return torch.randint(-_LARGEST, _LARGEST + 1, (size,), generator=generator).float()


def total(parts: Mapping[int, torch.Tensor], wanted: Sequence[int]) -> torch.Tensor:
    """The sum of what the `wanted` ranks have in `parts`."""
    first, *others = (parts[rank] for rank in wanted)
    return sum(others, first)


def wrong_sum(got: torch.Tensor, parts: Mapping[int, torch.Tensor], wanted: Sequence[int]) -> str:
    """What is wrong with `got`, empty if nothing: it should be the sum over the `wanted` ranks.

    `parts` maps every rank of the world to what of it may be in the sum.
    """
    expected = total(parts, wanted)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        shape, dtype = tuple(got.shape), got.dtype
        return f"the tensor is {shape} of {dtype} now; write into it instead."
    if got.equal(expected):
        return ""
    if (got * len(wanted)).equal(expected) or got.equal(expected / len(wanted)):
        return "this is the average; the sum is asked for, so do not divide."
    return _whose(got, expected, parts, wanted)


def _whose(
    got: torch.Tensor,
    expected: torch.Tensor,
    parts: Mapping[int, torch.Tensor],
    wanted: Sequence[int],
) -> str:
    """Whose values the first wrong elements hold, read off the values themselves."""
    import torch

    first = int((got != expected).nonzero()[0])
    window = slice(first, first + 64)
    counts = torch.tensor(list(product(range(3), repeat=len(parts))), dtype=got.dtype)
    fits = counts @ torch.stack([part[window] for part in parts.values()]) == got[window]
    fits = fits.int().cumprod(dim=1) == 1
    length = int(fits.any(dim=0).sum())
    if length == 0:
        return f"element {first} is {got[first]:g} and should be {expected[first]:g}."
    times = counts[fits[:, length - 1].nonzero()[0, 0]].tolist()
    last = first + length - 1
    part = f"element {first} holds" if length == 1 else f"elements {first} to {last} hold"
    return f"{part} {_contributions(dict(zip(parts, times, strict=True)), wanted)}."


def _contributions(times: Mapping[int, float], wanted: Sequence[int]) -> str:
    counted = [rank for rank, count in times.items() if count]
    double = [rank for rank, count in times.items() if count == 2]
    if not counted:
        return "nothing but zeros"
    words = f"the values of {ranks_in_words(counted)}"
    if not set(counted) <= set(wanted):
        words += f", not those of {ranks_in_words(wanted)}"
    elif set(counted) < set(wanted):
        words += " only"
    return words + (f", those of {ranks_in_words(double)} twice" if double else "")
