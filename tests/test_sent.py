"""For every part, the data sent to a rank reveals no hidden input of another rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from dtlab.checks import Part, known_parts
from dtlab.checks.functions.trials import Trial

SEED = 1_234_567_891
NEAR = 10_000  # seeds are sometimes added to


def trials_of(part: Part) -> list[Trial]:
    """The trials that a hidden seed makes; none where values or programs are checked."""
    check = getattr(part.check, "check", part.check)
    return list(check.trials(SEED)) if hasattr(check, "trials") else []


PARTS = [part for part in known_parts() if trials_of(part)]


def numbers(value: Any) -> Iterator[int]:
    """All integers in what a rank is given, however deep."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, torch.Generator):
        yield value.initial_seed()
    elif isinstance(value, torch.Tensor) and not value.is_floating_point():
        yield from value.flatten().tolist()
    elif isinstance(value, Mapping):
        for one in value.items():
            yield from numbers(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from numbers(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from numbers([getattr(value, one.name) for one in dataclasses.fields(value)])
    elif callable(value) or hasattr(value, "__dict__"):
        yield from numbers(vars(value) if hasattr(value, "__dict__") else ())
        for cell in getattr(value, "__closure__", None) or ():
            yield from numbers(cell.cell_contents)


def tells(number: int) -> bool:
    """Whether the seed can be seen in a number: it, a neighbour, or a multiple of it."""
    if abs(number) < SEED - NEAR:
        return False
    if abs(number - SEED) < NEAR:
        return True
    times = round(number / SEED)
    return 1 < times < 200_000 and abs(number - times * SEED) < NEAR


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_no_rank_gets_the_seed(part: Part) -> None:
    for trial in trials_of(part):
        sent = [trial.calls, [trial.given(rank) for rank in range(trial.world_size)]]
        told = {number for number in numbers(sent) if tells(number)}
        assert not told, f"{trial.words()}: {told}"


def test_a_seed_that_is_sent_is_noticed() -> None:
    def call(seed: int = SEED) -> int:
        return seed

    assert any(map(tells, numbers({"a": [(1, {"seed": SEED + 3})]})))
    assert any(map(tells, numbers(torch.Generator().manual_seed(SEED * 1009 + 2))))
    assert any(map(tells, numbers(torch.tensor([1, SEED * 101 + 1]))))
    assert not any(map(tells, numbers([1, 2.5, "text", SEED // 7, torch.ones(3)])))
    assert any(map(tells, numbers(call.__defaults__)))
    assert len(PARTS) > 50
