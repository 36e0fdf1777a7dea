"""Level II of unit 09: what its checks expect agrees with the library, and with one process."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from dtlab.checks import known_parts
from dtlab.simple import power_sgd_mean, top_k_mean
from dtlab.units.unit09.compressed import Compressed
from dtlab.units.unit09.overlap import Arriving
from dtlab.units.unit09.power_sgd import PowerSGD
from dtlab.units.unit09.top_k import TopK
from tests.staying import on_ranks

PARTS = [part for part in known_parts() if part.unit == "09" and part.level == 2]


def test_each_of_three_parts_gives_full_points() -> None:
    assert [(part.symbol, part.stretch) for part in PARTS] == [
        ("top_k", False), ("power_sgd", True), ("overlap", True),
    ]  # fmt: skip
    assert len({(part.points, part.minutes, part.difficulty) for part in PARTS}) == 1


# Compressed gradients ----------------------------------------------------------------------------


def simple(case: Compressed, given: list[Any]) -> dict[str, Any]:
    """Steps of the library's simple version, noted as a check notes a learner's function."""
    import torch.distributed as dist

    gradients, state, *rest = given[dist.get_rank()]
    steps = []
    for gradient in gradients:
        before = {name: tensor.clone() for name, tensor in state.items()}
        if isinstance(case, TopK):
            mean = top_k_mean(gradient, state["error"], rest[0])
        else:
            mean = power_sgd_mean(gradient, state["q"], state["error"])
        after = {name: tensor.clone() for name, tensor in state.items()}
        steps.append({"mean": mean, "before": before, "after": after})
    return {"steps": steps}


CASES = [
    TopK(3, "mean", (17,), 3, 6),
    TopK(4, "fed_back", (5, 4), 2, 7),
    PowerSGD(5, "mean", (9, 6), 3, 2),
    PowerSGD(6, "fed_back", (8, 7), 2, 3),
    PowerSGD(7, "dependent", (8, 7), 1, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simple_versions_have_no_fault(case: Compressed, ranks: int) -> None:
    given = [case.given(rank, ranks) for rank in range(ranks)]
    values = on_ranks(simple, case, given, world_size=ranks).values
    results = [case.opened(value) for value in values]
    assert not list(case.faults(results))
    for result in results:
        result["steps"][-1]["mean"] += 1
    assert [name for name, _ in case.faults(results)] == [case.topic] * ranks


def test_top_k_is_counted_element_by_element() -> None:
    gradients = [torch.tensor([3.0, 2, 0, -1]), torch.tensor([1.0, 0, -5, 0])]
    before = [{"error": torch.zeros(4)}, {"error": torch.tensor([0, 0, 5.0, -2])}]
    mean, kept = TopK(0, "mean", (4,), 1, 1).right(gradients, before)
    assert mean.tolist() == [1.5, 0, 0, -1]
    assert [each.tolist() for each in kept] == [[0, 2, 0, -1], [1, 0, 0, 0]]


def test_a_start_of_the_next_step_is_judged_by_its_space() -> None:
    case = PowerSGD(8, "mean", (9, 6), 1, 2)
    state = case.state(0)
    matrix = case.gradient(0, 0)
    mean, _ = case.right([matrix], [state])
    p = torch.linalg.qr(matrix @ state["q"]).Q
    turned = matrix.T @ p @ torch.tensor([[2.0, 1], [0, -3]])  # the same space

    def faults(q: Tensor) -> list[str]:
        return [name for name, _ in case.other_faults({"q": q}, state, mean)]

    assert faults(turned) == []
    assert faults(turned.T) == faults(turned * float("nan")) == ["warm"]


# Overlap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_buckets_are_those_of_the_rule(seed: int) -> None:
    draw = random.Random(seed)
    shapes = tuple((draw.randint(1, 9),) for _ in range(draw.randint(1, 9)))
    case = Arriving(seed, shapes, draw.choice((1, 8, 40, 400)))
    counts, bytes_of = case.buckets, [4 * prod(shape) for shape in shapes]
    assert sum(counts) == len(shapes)
    first = 0
    for count in counts:
        filled = [sum(bytes_of[first : first + n]) for n in range(1, count + 1)]
        assert all(size < case.bucket_bytes for size in filled[:-1])
        first += count
        assert filled[-1] >= case.bucket_bytes or first == len(shapes)
