"""The judges of Level II of unit 02, on traces that were made up, and what they try."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch

from dtlab.checks import Criterion, find_part
from dtlab.checks.functions.criteria import Noted
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import unseen_collectives
from dtlab.trace import Event, Trace
from dtlab.units.unit02.average_in_buckets import draw_plan, packed
from dtlab.units.unit02.overlap import PART as OVERLAP
from dtlab.units.unit02.overlap import Overlapping
from dtlab.units.unit02.samples_of_epoch import Epochs
from dtlab.units.unit02.training import wrong_gradient

BUILD = ("average_gradients", "average_by_hooks", "average_in_buckets", "overlap")

# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("symbol", [*BUILD, "samples_of_epoch"])
def test_other_seeds_try_other_values_of_the_same_kind(symbol: str) -> None:
    check: Any = find_part(f"02/{symbol}").check
    plans = [check.trials(seed) for seed in range(20)]
    assert len({str(plan) for plan in plans}) == 20
    for plan in plans:
        assert {trial.world_size for trial in plan} >= {1, 2, 3, 4}


def test_every_plan_of_buckets_tells_mistakes_apart() -> None:
    for seed in range(30):
        net, cap, exact = draw_plan(random.Random(seed))
        case = Overlapping(seed, net, bucket_bytes=cap)
        sizes = case.sizes[::-1]
        ours, forwards = packed(sizes[::-1], cap), packed(sizes, cap)
        assert sum(ours) == sum(sizes)
        assert len(ours) == len(forwards) >= 3
        for limit, mistake in zip(
            exact, ({"first": -1}, {"first": 1}, {"later": -1}, {"later": 1}), strict=True
        ):
            counts = {len(packed(one, limit)) for one in (sizes, sizes[::-1])}
            assert len(packed(sizes[::-1], limit, **mistake)) not in counts
        assert not set(accumulate(forwards[:-1])) & set(accumulate(sizes[::-1]))


@pytest.mark.parametrize(
    ("sizes", "limit", "buckets"),
    [
        ([60, 10, 40, 30], 50, [60, 50, 30]),
        ([60, 10, 40], 50, [60, 50]),
        ([1, 2, 3], 100, [6]),
        ([1, 2, 3], 1, [1, 2, 3]),
    ],
)
def test_buckets_are_closed_by_what_fills_them(
    sizes: list[int], limit: int, buckets: list[int]
) -> None:
    assert packed(sizes, limit) == buckets


# What is said about gradients ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([3.0, 3.0], ""),
        ([3.0], "has the shape [1], not [2]"),
        (None, "it has been lost"),
    ],
)
def test_the_message_on_a_wrong_gradient_names_its_rank(
    got: list[float] | None, words: str
) -> None:
    own = {0: [1.0, 2.0], 1: [3.0, 3.0], 2: [5.0, 4.0], 3: [-1.0, 3.0]}
    every = {rank: torch.tensor(one) for rank, one in own.items()}
    gradient = None if got is None else torch.tensor(got)
    said = wrong_gradient(gradient, every, (0, 1, 2), 0)
    assert words in said
    assert bool(said) == bool(words)


# Overlap, on traces that were made up ----------------------------------------------------------

NET = Net("marked", (9,) * 7, "six layers")
LAYER = 4 * (81 + 9)


def backward_of(
    *, begins: Sequence[float], waits: Sequence[float], size: int = 2 * LAYER, ranks: int = 2
) -> Trace:
    """Three steps of six layers, each of 1 s; all-reduces and waits at these times of each."""
    events = []
    for rank in range(ranks):
        for number in range(3):
            t = 20.0 * number
            others = tuple(other for other in range(ranks) if other != rank)
            events += [
                Event(rank, "compute", "step", (), 0, t, t + 15),
                *(Event(rank, "compute", "layer", (), 0, t + k, t + k + 0.5) for k in range(1, 6)),
                *(
                    Event(rank, "comm", "all_reduce", others, size, t + at, t + at + 1)
                    for at in begins
                ),
                *(Event(rank, "compute", "wait", (), 0, t + at, t + at + 0.1) for at in waits),
            ]
    return Trace(events, world_size=ranks)


def judged(trace: Trace) -> dict[str, Criterion]:
    case = Overlapping(1, NET, "watched", 3, bucket_bytes=2 * LAYER)
    gradients = [
        [None if one is None else one for one in own[0]] for _, own in case.averaged((0,), 1)
    ]
    results = [[Noted({"gradients": gradients})] * 2]
    seen = [Observation(Trial(2, [case]), results, trace)]
    rules = {rule.name: rule for rule in OVERLAP.check.rules}  # type: ignore[attr-defined]
    return {name: rules[name].settle(seen) for name in ("overlap", "at_once", "waits")}


@pytest.mark.parametrize(
    ("begins", "waits", "statuses"),
    [
        ((1.9, 3.9, 6.1), (6.2, 7.0, 8.0), ("ok", "ok", "ok")),
        ((1.9, 3.9, 14.0), (14.1, 14.2, 14.3), ("ok", "ok", "ok")),
        ((2.1, 3.9, 6.1), (6.2, 7.0, 8.0), ("ok", "lost", "ok")),
        ((1.9, 4.1, 6.1), (6.2, 7.0, 8.0), ("ok", "lost", "ok")),
        ((4.9, 5.9, 6.1), (6.2, 7.0, 8.0), ("ok", "lost", "ok")),
        ((1.9, 3.9, 6.1), (5.1, 7.0, 8.0), ("ok", "ok", "ok")),
        ((1.9, 3.9), (6.2, 7.0), ("blocked", "blocked", "blocked")),
    ],
)
def test_the_order_of_events_decides(
    begins: Sequence[float], waits: Sequence[float], statuses: tuple[str, str, str]
) -> None:
    criteria = judged(backward_of(begins=begins, waits=waits))
    assert tuple(one.status for one in criteria.values()) == statuses


# What the operating system has counted ---------------------------------------------------------


def counted(wire: list[int | None], *, hidden: int | None = None, size: int = 100_000) -> str:
    events = [Event(rank, "comm", "all_reduce", (1 - rank,), size) for rank in range(2)]
    trace = Trace(events, world_size=2, wire=wire)
    trace.hidden_bytes = hidden
    return unseen_collectives(Observation(Trial(2, [Epochs(1, 1, 1, (1,))]), [], trace))


def test_bytes_of_an_all_reduce_are_those_of_a_ring() -> None:
    assert not counted([100_600, 100_600])
    assert not counted([None, None])
    assert "the calls of rank 1 take 0.1 MB, but 0.2 MB left it" in counted([100_600, 200_000])
    assert "the calls of rank 0 take 0.1 MB, but 5 kB left it" in counted([5_000, 100_600])
    assert "0.3 MB went between the ranks past" in counted([100_600] * 2, hidden=300_000)


# Samples ---------------------------------------------------------------------------------------


def _shares(case: Epochs, rank: int, world_size: int) -> Noted:
    """What a right answer gives on a rank, in one batch."""

    def ask(epoch: int, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        order = torch.randperm(case.num_samples, generator=generator)
        return [order[rank::world_size].tolist()]

    batches = [ask(epoch, case.seed) for epoch in case.order(rank)]
    again, reseeded = batches[0], ask(case.order(rank)[0], case.seed + 1)
    return Noted({"batches": batches, "again": again, "reseeded": reseeded, "untouched": True})


@pytest.mark.slow
def test_a_right_order_is_right_whatever_is_drawn() -> None:
    """Few samples may well come out in a row once, or be the same ones in two epochs."""
    check: Any = find_part("02/samples_of_epoch").check
    judges = {rule.name: rule.judge for rule in check.rules}
    for seed in range(400):
        seen = [
            Observation(
                trial,
                [[_shares(case, r, trial.world_size) for r in range(trial.world_size)]
                 for case in trial.cases],
            )
            for trial in check.trials(seed)
        ]  # fmt: skip
        for name in ("covering", "epochs", "mixing"):
            assert judges[name](seen).status == "ok", (seed, name, judges[name](seen))


def test_an_order_that_only_begins_elsewhere_is_not_shuffled() -> None:
    check: Any = find_part("02/samples_of_epoch").check
    judge = next(rule.judge for rule in check.rules if rule.name == "epochs")
    case = Epochs(12, 4, 0, (0, 1, 2))
    rows = [[[(one + epoch) % 12 for one in range(12)]] for epoch in case.epochs]
    shares = Noted({"batches": rows, "again": rows[0], "reseeded": [[5]], "untouched": True})
    verdict = judge([Observation(Trial(1, [case]), [[shares]])])
    assert "not shuffled" in verdict.message
