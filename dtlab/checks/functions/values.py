"""Compares gradients and sums over ranks, and describes what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from dtlab.checks.words import ranks_in_words

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["beside", "labelled", "sgd_step", "total", "wrong_sum"]

RATE = 0.1


def sgd_step(module: nn.Module, gradients: Sequence[Sequence[Tensor | None]]) -> None:
    """Takes a step of plain SGD with the mean of `gradients`, each a list in parameter order.

    Uses no optimizer of PyTorch, since creating the first one in a process takes a second or two.
    """
    import torch

    with torch.no_grad():
        for parameter, *parts in zip(module.parameters(), *gradients, strict=True):
            present = [part for part in parts if part is not None]
            if present:
                parameter -= RATE * sum(present[1:], present[0]) / len(parts)


# Finds from the numbers which ranks contributed to a wrong sum -----------------------------------
#
# Inputs are random whole numbers (`labelled`), so a wrong element shows which ranks' values it
# contains: "elements 2 to 3 hold the values of ranks 0 and 1 only".

_SHOWN = 5  # elements of a tensor
_LARGEST = 9999  # sums of such integers are exact in float32 and identify their summands


def labelled(seed: int, size: int, rank: int) -> torch.Tensor:
    """Draws `size` whole numbers as float32, different on every rank."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + size * 101 + rank)
    return torch.randint(-_LARGEST, _LARGEST + 1, (size,), generator=generator).float()


def beside(got: torch.Tensor, wanted: torch.Tensor, name: str) -> str:
    """A few elements of a tensor, next to those wanted; the first wrong one is among them."""
    if got.shape != wanted.shape:
        return f"{name} has shape {tuple(got.shape)}; wanted is {tuple(wanted.shape)}"
    differs = (got != wanted).nonzero()
    first = int(differs[0, 0]) if len(differs) else 0
    part = slice(first, min(first + _SHOWN, len(wanted)))
    has, needs = (", ".join(f"{x:g}" for x in each[part].tolist()) for each in (got, wanted))
    wrong = f"; wanted are {needs}" if len(differs) else ", all right"
    return f"{name}[{part.start}:{part.stop}] holds {has}{wrong}"


def total(parts: Mapping[int, torch.Tensor], wanted: Sequence[int]) -> torch.Tensor:
    """Returns the sum of `parts` over the `wanted` ranks."""
    first, *others = (parts[rank] for rank in wanted)
    return sum(others, first)


def wrong_sum(got: torch.Tensor, parts: Mapping[int, torch.Tensor], wanted: Sequence[int]) -> str:
    """Says what is wrong with `got` as the sum over the `wanted` ranks; empty if nothing is.

    `parts` maps every rank of the world to the tensor that it may contribute.
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
    """Says which ranks' values the first wrong elements contain, inferred from the values."""
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
    text = f"the values of {ranks_in_words(counted)}"
    if not set(counted) <= set(wanted):
        text += f", not those of {ranks_in_words(wanted)}"
    elif set(counted) < set(wanted):
        text += " only"
    return text + (f", those of {ranks_in_words(double)} twice" if double else "")
