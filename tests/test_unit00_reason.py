"""The right answers of Level I of unit 00 agree with the library and with real tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.predict.strategy.decision import TREE, Question
from dtlab.training.live import held_bytes
from dtlab.training.saved import saved_bytes
from dtlab.units.unit00.memory_moments import MOMENTS, moments
from dtlab.units.unit00.strategies import FACTS, LEAVES, chosen, draw_job

MANY_LEARNERS = [f"somebody {number}" for number in range(40)]
REASON = ["scenarios", "efficiency", "memory_moments", "five_scenarios"]


# Strategies ------------------------------------------------------------------------------------


def test_names_of_strategies_and_facts_are_of_the_tree() -> None:
    assert all(leaf in TREE for leaf in LEAVES)
    assert all(isinstance(TREE[fact], Question) for fact in FACTS)


@pytest.mark.parametrize("leaf", LEAVES)
def test_jobs_are_drawn_for_each_strategy(leaf: str) -> None:
    import random

    for seed in range(3):
        job = draw_job(random.Random(seed), leaf)
        assert chosen(job).leaf.id == leaf
        assert chosen(job).because.question.id in FACTS


@pytest.mark.parametrize("job", ["resnet", "transformer", "small"])
def test_no_scenario_has_the_same_strategy_for_all_learners(job: str) -> None:
    check = find_part("00/scenarios").check
    assert isinstance(check, Questions)
    drawn = [check.given("scenarios", learner)[job] for learner in MANY_LEARNERS]
    assert len({chosen(given).leaf.id for given in drawn}) > 2


# Efficiency -----------------------------------------------------------------------------------


def test_amdahls_law_gives_the_measured_step_again() -> None:
    check = find_part("00/efficiency").check
    assert isinstance(check, Questions)
    by_name = {question.name: question.answer for question in check.questions}
    for learner in MANY_LEARNERS:
        given = check.named(check.given("efficiency", learner))
        serial = by_name["serial"].expected(given) / 100  # type: ignore[attr-defined]
        step = given["alone"] * (serial + (1 - serial) / 8)
        assert step == pytest.approx(given["eight"])
        most = by_name["most"].expected(given)  # type: ignore[attr-defined]
        assert most == pytest.approx(given["alone"] / (given["alone"] * serial))


# Moments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["Adam", "SGD with momentum"])
@pytest.mark.parametrize("clears", ["at the end of each step", "right before each backward pass"])
def test_moments_are_those_of_a_real_model(dtype: str, optimizer: str, clears: str) -> None:
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.GELU(), nn.Linear(256, 256)).to(kind)
    rows = torch.ones(128, 256, dtype=kind)
    kept = saved_bytes(model, rows).total
    make = {"Adam": Adam, "SGD with momentum": SGD}[optimizer]
    more = {"momentum": 0.9} if make is SGD else {}
    trained = make(model.parameters(), lr=0.1, **more)  # type: ignore[operator]

    def held() -> int:
        return held_bytes(model, trained)

    found = {"building": held(), "forward": held() + kept}
    model(rows).sum().backward()
    found["backward"] = held()
    trained.step()
    found["step"] = held()
    if clears == "at the end of each step":
        trained.zero_grad()
    found["second"] = held() + kept
    parameters = sum(one.numel() for one in model.parameters())
    given = {
        "parameters": parameters,
        "dtype": dtype,
        "optimizer": optimizer,
        "clears": clears,
        "activations": kept,
    }
    wanted = moments(given)
    assert list(wanted) == list(MOMENTS) == list(found)
    assert found == pytest.approx(wanted, rel=0.001)
