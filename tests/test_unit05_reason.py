"""The right answers of Level I of unit 05 are what PyTorch's stages do, for every learner."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import Adam

import dtlab
from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.predict import POLICIES, model_states
from tests.known_answers import Answers, answers_of
from tests.staying import on_ranks

LEARNERS = [f"learner{number}" for number in range(4)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def known(symbol: str) -> Answers:
    answers = answers_of(find_part(f"05/{symbol}"))
    assert answers is not None
    return answers


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    check = find_part(f"05/{symbol}").check
    assert isinstance(check, Questions)
    given = check.given(symbol, learner)
    return given, known(symbol).right[0](given)


# 05/states, 05/four_answers --------------------------------------------------------------------


def test_the_papers_table_is_reproduced() -> None:
    """ZeRO's Figure 1: 7.5 billion parameters on 64 ranks, 31.4, 16.6 and 1.9 GB."""
    given = {"small": 7.5, "few": 64, "stage": 1, "budget": 80e9, "activations": 0, "large": 175}
    right = known("states").right[0](given)
    assert right["totals"] == pytest.approx([31.4, 16.6, 1.88], abs=0.05)
    assert right["ranks"] == 35  # and claim 4: 16 cards hold nothing of that kind
    assert right["floor"] == 30


@pytest.mark.slow
def test_what_fits_is_neither_all_nor_nothing_and_units_matter() -> None:
    budgets, gib = Counter[int](), 0
    for given, right in (drawn("states", learner) for learner in MANY_LEARNERS):
        assert 0 < len(right["fits"]) < 3
        assert right["ranks"] < right["ranks_beside"] < 400
        budgets[given["budget"]] += 1
        gib += given["budget"] % 2**20 == 0
    assert len(budgets) == 6
    assert 25 < gib < 75


def test_policies_of_the_answers_are_those_of_the_library() -> None:
    names = ("mixed", "mixed_fp32_grads", "mixed_fp32_accumulation", "half_only")
    for given, right in (drawn("four_answers", learner) for learner in MANY_LEARNERS[:20]):
        params, ranks = round(given["parameters"] * 1e9), given["ranks"]
        for stage in (1, 2):
            states = [model_states(params, stage, ranks, name).total / 1e9 for name in names]
            assert right[f"stage_{stage}"] == pytest.approx(states)
        assert POLICIES[right["policy"]].total * given["parameters"] == pytest.approx(
            given["text"], abs=0.06
        )
        assert right["ranks"][3] < right["ranks"][0] <= right["ranks"][1] <= right["ranks"][2]


@pytest.mark.slow
def test_texts_use_all_four_policies() -> None:
    found = Counter(drawn("four_answers", learner)[1]["policy"] for learner in MANY_LEARNERS)
    assert len(found) == 4


# 05/wire, 05/moments, on real ranks ------------------------------------------------------------

LAYERS, WIDTH, COUNT, RANKS = 3, 32, 2, 2


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def train_sharded(freed: bool) -> None:
    model = blocks()
    for block in model:
        fully_shard(block, reshard_after_forward=freed)
    fully_shard(model, reshard_after_forward=freed)
    for _ in range(COUNT):
        model(torch.ones(2, WIDTH)).sum().backward()


def train_by_ddp(zero: bool) -> None:
    model = DDP(blocks())
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), Adam, parameters_as_bucket_view=True)
        if zero
        else Adam(model.parameters())
    )
    dist.barrier()
    with dtlab.span("step"):
        for number in range(COUNT):
            with model.no_sync() if number < COUNT - 1 else dtlab.span("last"):
                model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()


def in_step(run: dtlab.Run) -> Counter[str]:
    """What rank 0 did from the beginning of the step on."""
    assert run.trace is not None
    events = [event for event in run.trace.events if event.rank == 0]
    begin = next(event.start for event in events if event.name == "step")
    return Counter(one.name for one in events if one.kind == "comm" and one.start >= begin)


@pytest.mark.slow
@pytest.mark.parametrize("freed", [True, False])
def test_fully_shard_gathers_and_reduces_as_often_as_the_answers_say(freed: bool) -> None:
    run = on_ranks(train_sharded, freed, world_size=RANKS)
    assert run.trace is not None
    found = run.trace.ops(0)
    given = {"layers": LAYERS, "count": COUNT, "block": 1, "ranks": RANKS, "names": range(7)}
    gathers, reductions = known("moments").right[0](given)["calls"]
    assert found["all_gather"] == (gathers if freed else gathers // 2)
    assert found["reduce_scatter"] == reductions


@pytest.mark.slow
def test_ddp_reduces_once_and_its_zero_optimizer_broadcasts() -> None:
    plain, zero = (
        in_step(on_ranks(train_by_ddp, how, world_size=RANKS)) for how in (False, True)
    )
    assert plain["all_reduce"] == zero["all_reduce"] == 1
    assert plain["broadcast"] == 0
    assert zero["broadcast"] >= RANKS  # each rank broadcasts the parameters that it has updated


@pytest.mark.slow
def test_the_order_of_events_does_not_reveal_the_answer() -> None:
    orders = {tuple(drawn("moments", learner)[1]["order"]) for learner in MANY_LEARNERS}
    assert len(orders) > 90
    for given, right in (drawn("moments", learner) for learner in MANY_LEARNERS):
        assert sorted(right["order"]) == list(range(1, 8))
        assert given["names"] == right["order"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_bytes_on_the_wire_are_passes_times_bytes(learner: str) -> None:
    given, right = drawn("wire", learner)
    k = given["count"]
    assert right["gigabytes"] == pytest.approx(right["stage_3"] * (2 * 2 + 4) / 3)
    assert right["kept"] == pytest.approx(right["ddp"] * k)
    assert right["stage_3"] / k == pytest.approx(right["ddp"] * 3 / 2)
