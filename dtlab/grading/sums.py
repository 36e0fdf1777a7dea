"""Says what is wrong with a sum over ranks, as far as the numbers themselves tell.

Inputs are whole numbers drawn at random, so a wrong element tells whose values are in it:
"elements 2 to 3 hold the values of ranks 0 and 1 only".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from dtlab.grading.trials import Observation
from dtlab.grading.words import count_ranks, ranks_in_words

if TYPE_CHECKING:
    import torch

__all__ = ["mistake", "mistakes"]


def mistakes(one: Observation) -> list[str]:
    """What is wrong in a trial: one sentence for each size that is."""
    if one.error is not None:
        return [one.trouble]
    found = [mistake(one, case) for case in range(len(one.trial.sizes))]
    return [sentence for sentence in found if sentence]


def mistake(one: Observation, case: int) -> str:
    """What is wrong with one call, seen from the lowest rank that is wrong; empty if nothing."""
    inputs = one.trial.inputs(case)
    expected = sum(inputs[1:], inputs[0])
    where = f"{count_ranks(one.trial.world_size)}, {len(expected)} elements, rank"
    for rank, answer in enumerate(one.answers[case]):
        got, returned = answer.tensor, answer.returned
        if got.shape != expected.shape or got.dtype != expected.dtype:
            shape, dtype = tuple(got.shape), got.dtype
            return f"{where} {rank}: the tensor is {shape} of {dtype} now; write into it instead."
        if got.equal(expected):
            continue
        if returned is not None and returned.equal(expected):
            return (
                f"{where} {rank}: you return the right sum but leave `tensor` as it was. Work in "
                "place: tensor.copy_(...)."
            )
        if (got * len(inputs)).equal(expected) or got.equal(expected / len(inputs)):
            return f"{where} {rank}: this is the average; the sum is asked for, so do not divide."
        return f"{where} {rank}: {_whose(got, expected, inputs)}"
    return ""


def _whose(got: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor]) -> str:
    """Whose values the first wrong elements hold, read off the values themselves."""
    import torch

    first = int((got != expected).nonzero()[0])
    window = slice(first, first + 64)
    counts = torch.tensor(list(product(range(3), repeat=len(inputs))), dtype=got.dtype)
    fits = counts @ torch.stack([tensor[window] for tensor in inputs]) == got[window]
    fits = fits.int().cumprod(dim=1) == 1
    length = int(fits.any(dim=0).sum())
    if length == 0:
        return f"element {first} is {got[first]:g} and should be {expected[first]:g}."
    times = counts[fits[:, length - 1].nonzero()[0, 0]].tolist()
    last = first + length - 1
    part = f"element {first} holds" if length == 1 else f"elements {first} to {last} hold"
    return f"{part} {_contributions(times)}."


def _contributions(times: Sequence[float]) -> str:
    missing = [rank for rank, count in enumerate(times) if count == 0]
    double = [rank for rank, count in enumerate(times) if count == 2]
    if len(missing) == len(times):
        return "nothing but zeros"
    counted = [rank for rank, count in enumerate(times) if count]
    words = f"the values of {ranks_in_words(counted)}" + (" only" if missing else "")
    return words + (f", those of {ranks_in_words(double)} twice" if double else "")
