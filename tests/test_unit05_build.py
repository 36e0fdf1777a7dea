"""Unit 05, Level II: judges expect what PyTorch does, and find faults in made-up logs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from dtlab.checks import find_part, known_parts
from dtlab.units.unit05.blocks import draw_blocks, fill, flat_of, lay
from dtlab.units.unit05.runs_scripts import Alive
from dtlab.units.unit05.stage_2 import PART as STAGE_2
from dtlab.units.unit05.stage_2 import Adam, Owned
from dtlab.units.unit05.stage_3 import faults_in

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("05", 2)]

# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_other_seeds_try_other_values_of_the_same_kind(part: Any) -> None:
    plans = [part.check.trials(seed) for seed in range(10)]
    assert len({str(plan) for plan in plans}) == 10
    sizes = {1} if part.symbol == "free" else {1, 2, 3}
    for plan in plans:
        assert {trial.world_size for trial in plan} >= sizes


def test_no_number_of_ranks_divides_a_block() -> None:
    for seed in range(30):
        plain, tied = draw_blocks(random.Random(seed))
        count = sum(one.numel() for one in plain.module(0).parameters())
        assert all(count % ranks for ranks in (2, 3, 4))
        assert len(list(tied.module(0).parameters())) == 5  # of three layers, one weight is shared


# The judge of stage 2 --------------------------------------------------------------------------


def test_adam_of_the_checks_is_pytorchs() -> None:
    start = torch.randn(7, generator=torch.Generator().manual_seed(0))
    ours, theirs = start.clone(), nn.Parameter(start.clone())
    pair = Adam([ours], lr=0.05, eps=0.02), torch.optim.Adam([theirs], lr=0.05, eps=0.02)
    for step in range(5):
        gradient = torch.randn(7, generator=torch.Generator().manual_seed(step + 1))
        ours.grad, theirs.grad = gradient, gradient.clone()
        for optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(ours, theirs.detach())


@pytest.mark.parametrize("ranks", [1, 3])
def test_one_process_trains_as_pytorchs_adam_does(ranks: int) -> None:
    (case, *_) = STAGE_2.check.trials(0)[0].cases  # type: ignore[attr-defined]
    assert isinstance(case, Owned)
    module = case.module()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05, eps=0.02)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(ranks):
            (module(case.batch(rank, step)).square().mean() / ranks).backward()
        optimizer.step()
    got = case._in_one_process(ranks)
    torch.testing.assert_close(got.float(), flat_of(list(module.parameters()), 1), rtol=1e-4,
                               atol=1e-5)  # fmt: skip


# The judge of stage 3 --------------------------------------------------------------------------

FORWARD = [(what, block) for block in (0, 1, 2) for what in ("gather", "forward", "free")]
BACKWARD = [
    (what, block) for block in (2, 1, 0) for what in ("gather", "backward", "free", "reduce")
]
START = [(what, block) for block in (0, 1, 2) for what in ("shard", "free")]
STEP = [*FORWARD, ("loss", 0), *BACKWARD, ("step", 0)]


def test_two_right_steps_have_no_fault() -> None:
    assert not list(faults_in([*START, *STEP, *STEP], 3))


@pytest.mark.parametrize(
    ("entry", "place", "names"),
    [
        (("free", 1), 5, {"peak", "backward"}),
        (("free", 2), 12, {"peak"}),
        (("free", 0), 20, {"peak"}),
    ],
)
def test_an_operation_missing_from_a_step_is_a_fault(
    entry: tuple[str, int], place: int, names: set[str]
) -> None:
    assert STEP[place] == entry
    broken = [*START, *STEP[:place], *STEP[place + 1 :]]
    assert {name for name, _ in faults_in(broken, 3)} == names


def test_an_operation_done_twice_is_a_fault_if_it_sends() -> None:
    for what, names in (
        ("gather", {"forward", "backward"}),
        ("free", set()),
    ):
        twice = [*START, *(one for one in STEP for _ in range(1 + (one[0] == what)))]
        assert {name for name, _ in faults_in(twice, 3)} == names


# What is measured ------------------------------------------------------------------------------


@pytest.mark.slow
def test_alive_counts_each_storage_until_it_is_freed() -> None:
    with Alive() as alive:
        flat = torch.zeros(100)
        layer = nn.Linear(10, 9)  # 99 elements
        assert alive.bytes == 400 + 396
        lay(layer, flat)
        assert alive.bytes == 400
        loss = layer(torch.ones(1, 10, requires_grad=True)).sum()
        beside = alive.bytes - 400
        flat.untyped_storage().resize_(0)  # autograd has saved views of it
        assert alive.settled() == beside
        fill(flat, torch.ones(100))
        loss.backward()
        assert layer.weight.grad is not None
        del loss
        layer.zero_grad()
        assert alive.settled(goal=400) - alive.bytes == 0


def test_the_parts_are_those_of_the_catalogue() -> None:
    assert [part.symbol for part in PARTS if not part.stretch] == [
        "Stage2", "shard", "gather", "free", "reduce", "stage_3",
    ]  # fmt: skip
    assert all(find_part(part.name) is part for part in PARTS)
