"""Unit 06, Level II: its judges expect what PyTorch's own modules compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dtlab.checks import find_part, known_parts
from dtlab.checks.functions.criteria import Noted
from dtlab.checks.functions.groups import members_of
from dtlab.checks.functions.resident import ResidentCase
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.words import mistake_of
from dtlab.training.models import Attention, GPTConfig
from dtlab.units.unit06.column_linear import PART as COLUMN
from dtlab.units.unit06.column_linear import Column, LinearCase
from dtlab.units.unit06.f import Region
from dtlab.units.unit06.on_ranks import mark_products
from dtlab.units.unit06.parallel_attention import PART as ATTENTION
from dtlab.units.unit06.parallel_attention import OfAttention, Refusing
from dtlab.units.unit06.parallel_mlp import PART as MLP
from dtlab.units.unit06.parallel_mlp import OfMLP
from dtlab.units.unit06.passes import GRADIENT, PRODUCT, Pass
from dtlab.units.unit06.row_linear import PART as ROW
from dtlab.units.unit06.row_linear import Row
from tests.staying import on_ranks

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("06", 2)]


def plan_of(part: Any, seed: int = 0) -> list[Trial]:
    """What is tried with this seed, apart from the trial whose memory the kernel counts."""
    trials: list[Trial] = part.check.trials(seed)
    return [trial for trial in trials if not isinstance(trial.cases[0], ResidentCase)]


def cases(part: Any, seed: int = 0) -> list[Any]:
    """All cases of `plan_of`."""
    return [case for trial in plan_of(part, seed) for case in trial.cases]


# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_other_seeds_try_other_values_of_the_same_kind(part: Any) -> None:
    plans = [plan_of(part, seed) for seed in range(10)]
    assert len({str(plan) for plan in plans}) == 10
    for plan in plans:
        assert {trial.world_size for trial in plan} == {1, 2, 3, 4} - ({2} & missing(part))
        grouped = [case for trial in plan for case in trial.cases if case.groups]
        assert grouped
        assert all(case.topic == "group" for case in grouped)


def missing(part: Any) -> set[int]:
    """Numbers of ranks that are tried as groups of four only."""
    return {2} if part is COLUMN else set()


@pytest.mark.parametrize("part", [COLUMN, ROW], ids=lambda part: part.name)
def test_ranks_do_not_divide_what_they_share(part: Any) -> None:
    for seed in range(20):
        for case in cases(part, seed):
            assert isinstance(case, LinearCase)
            shared = case.outputs if isinstance(case, Column) else case.inputs
            assert shared % 2
            assert shared > 4


def test_an_uneven_mlp_is_uneven_and_the_others_are_not() -> None:
    for seed in range(20):
        for trial in plan_of(MLP, seed):
            for case in trial.cases:
                ranks = len(case.groups[0]) if case.groups else trial.world_size
                assert bool(case.inner % ranks) == (case.topic == "uneven")


def test_refused_are_heads_that_do_not_divide_and_no_others() -> None:
    for seed in range(20):
        for trial in plan_of(ATTENTION, seed):
            for case in trial.cases:
                ranks = len(case.groups[0]) if case.groups else trial.world_size
                fits = not case.heads % ranks and not case.kv_heads % ranks
                assert fits == (not isinstance(case, Refusing))
                assert case.shapes["x"][-1] == case.heads * case.head_size


# The judge in one process ----------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_of_column_side_by_side_and_of_row_added_up_are_the_dense_layer(ranks: int) -> None:
    column, row = Column(1, "output", bias=True), Row(1, "output", bias=True)
    whole = column.whole(0)
    parts = [column.cut(whole, place, ranks) for place in range(ranks)]
    torch.testing.assert_close(torch.cat([column.dense(own) for own in parts], -1), whole["y"])
    torch.testing.assert_close(
        torch.stack([own["back"] @ own["weight"] for own in parts]).sum(0),
        whole["the gradient of x"],
    )
    whole = row.whole(0)
    parts = [row.cut(whole, place, ranks) for place in range(ranks)]
    products = torch.stack([own["x"] @ own["weight"].t() for own in parts]).sum(0)
    torch.testing.assert_close(products + whole["bias"], whole["y"])
    torch.testing.assert_close(
        torch.cat([own["the gradient of x"] for own in parts], -1), whole["the gradient of x"]
    )


def test_the_dense_mlp_is_pytorchs() -> None:
    case = OfMLP(3, "output")
    whole = case.whole(0)
    mlp = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()
    for parameter, name in zip(mlp.parameters(), case.names, strict=True):
        parameter.data.copy_(whole[name])
    x = whole["x"].requires_grad_()
    y = mlp(x)
    y.backward(whole["back"])
    torch.testing.assert_close(y, whole["y"])
    torch.testing.assert_close(x.grad, whole["the gradient of x"])
    for parameter, name in zip(mlp.parameters(), case.names, strict=True):
        torch.testing.assert_close(parameter.grad, whole[GRADIENT + name])


def test_dense_attention_is_that_of_the_models_and_groups_repeat_keys() -> None:
    case = OfAttention(4, "output", heads=4, kv_heads=4, head_size=2)
    whole = case.whole(0)
    model = Attention(GPTConfig(width=8, num_heads=4)).double()
    for parameter, name in zip(model.parameters(), case.names, strict=True):
        parameter.data.copy_(whole[name])
    torch.testing.assert_close(whole["y"], model(whole["x"]))
    few = OfAttention(4, "grouped", heads=4, kv_heads=2, head_size=2)
    whole = few.whole(0)

    def repeated(name: str) -> Tensor:
        q, k, v = torch.split(whole[name], few.pieces)
        k, v = (
            one.reshape(2, 2, *one.shape[1:]).repeat_interleave(2, 0).flatten(0, 1)
            for one in (k, v)
        )
        return torch.cat([q, k, v])

    many = {**whole, **{name: repeated(name) for name in ("qkv_weight", "qkv_bias")}}
    torch.testing.assert_close(few.dense(whole), case.dense(many))


def test_a_rank_is_given_nothing_of_the_others() -> None:
    for part in PARTS:
        for trial in plan_of(part):
            for case in trial.cases:
                assert isinstance(case, Pass)
                given = case.given(0, trial.world_size).values()
                assert case.seed not in [one for one in given if isinstance(one, int)]


# What is measured ------------------------------------------------------------------------------


class OwnBackward(torch.autograd.Function):
    """Two products in forward, two in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return torch.einsum("bo,oi->bi", gradient, weight), gradient.t() @ x


def products_of_backward() -> tuple[int, int]:
    x, weight = (torch.ones(size, 2, requires_grad=True) for size in (3, 4))
    y = OwnBackward.apply(x, weight)  # type: ignore[no-untyped-call]
    mark_products(y)
    y.sum().backward()
    return x.grad is not None, (x @ weight.t()).numel()


def test_products_of_a_backward_in_python_are_marked_and_none_behind_it() -> None:
    run = on_ranks(products_of_backward, world_size=1)
    assert run.values == [(True, 12)]
    assert run.trace is not None
    assert [event.name for event in run.trace.events] == [PRODUCT, PRODUCT]
    assert [event.extra["work"] for event in run.trace.events] == [3 * 4 * 2, 3 * 4 * 2]


def test_a_criterion_of_g_keeps_the_known_mistake() -> None:
    """Four ranks take the mean, in two groups; the message has the ranks, the mistake has not."""
    (trial,) = (trial for trial in plan_of(find_part("06/g")) if trial.cases[0].topic == "group")
    (case,) = trial.cases
    assert isinstance(case, Region)
    results = []
    for rank in range(trial.world_size):
        members = members_of(case.groups, rank, trial.world_size)
        parts = torch.stack([2 * case.differing(member) for member in members])
        results.append(Noted({
            "the output": parts.mean(0), "the gradient of x": 2 * case.same(members[0]),
        }))  # fmt: skip
    criteria = find_part("06/g").check.settle([Observation(trial, [results])])
    group = next(one for one in criteria if one.name == "group")
    assert (group.status, group.mistake) == ("lost", "is the mean of the parts, not their sum")
    assert "rank 0: the output is the mean of the parts, not their sum. It must" in group.message


def test_the_known_mistake_of_another_ranks_shard_has_no_rank() -> None:
    case = next(case for case in cases(MLP) if not case.groups)
    other = case.cut(case.whole(0), 1, 2)
    shards = {name: other[name] for name in case.names}
    result = Noted({**shards, "parameters": case.names, "held": 0, "kept": False})
    _, message = next(case.wrong(result, 0, (0, 1)))
    assert "is the part of rank 1. Take the part of dist.get_rank(group)." in message
    assert mistake_of(message) == "is the part of another rank"


def test_the_parts_are_those_of_the_catalogue() -> None:
    assert [part.symbol for part in PARTS if not part.stretch] == [
        "f", "g", "column_linear", "row_linear", "ParallelMLP",
    ]  # fmt: skip
    assert all(find_part(part.name) is part for part in PARTS)
