"""Whether gradients and sums over ranks are right, and what a wrong one may come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from dtlab.grading.words import ranks_in_words

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["close", "labelled", "same_bits", "sgd_step", "total", "wrong_sum"]

RATE = 0.1
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5  # of an element; of the largest one: rounding takes 1e-6


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients are the same to the last bit, or both missing."""
    return one is other if one is None or other is None else one.equal(other)


def close(got: Tensor, wanted: Tensor) -> bool:
    """Whether they are the same up to rounding. Both have the same shape."""
    import torch

    scale = float(wanted.abs().max())
    return torch.allclose(got, wanted, rtol=_RELATIVE, atol=_ABSOLUTE * scale)


def sgd_step(module: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """One step of plain SGD with the mean of these, each of them a list as of the parameters.

    Not by an optimizer of torch's: the first one that a process makes takes a second or two.
    """
    import torch

    with torch.no_grad():
        for parameter, *parts in zip(module.parameters(), *gradients, strict=True):
            there = [part for part in parts if part is not None]
            if there:
                parameter -= RATE * sum(there[1:], there[0]) / len(parts)


# Says what is wrong with a sum over ranks, as far as the numbers themselves tell -----------------
#
# Inputs are whole numbers drawn at random (`labelled`), so a wrong element tells whose values are
# in it: "elements 2 to 3 hold the values of ranks 0 and 1 only".

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
