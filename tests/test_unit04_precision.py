"""Unit 04, the parts on precision: the results that judges expect, compared with PyTorch's."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import dtlab
from dtlab.checks.functions.trials import Trial
from dtlab.units.unit04.loss_scaler import PART as LOSS_SCALER
from dtlab.units.unit04.loss_scaler import Scaling
from dtlab.units.unit04.master_step import PART as MASTER_STEP
from dtlab.units.unit04.master_step import Mastered
from dtlab.units.unit04.nan_run import PART as NAN_RUN
from dtlab.units.unit04.scaled_backward import PART as SCALED_BACKWARD
from dtlab.units.unit04.scaled_backward import Backwards
from dtlab.units.unit04.update_scale import next_scale
from tests.marks import first
from tests.staying import BENCH

SEEDS = range(4)


def cases_of(part: Any, seed: int) -> list[Any]:
    trials: list[Trial] = part.check.trials(seed)
    return [case for trial in trials for case in trial.cases]


@pytest.mark.parametrize("seed", first(SEEDS))
def test_the_judge_of_the_scaler_agrees_with_pytorchs(seed: int) -> None:
    for case in cases_of(LOSS_SCALER, seed):
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=case.init_scale, growth_interval=case.growth_interval
        )
        assert isinstance(case, Scaling)
        theirs = case.trained(scaler)
        assert theirs["scales"] == case.right["scales"]
        assert theirs["steps"] == case.right["steps"]
        for got, want in zip(theirs["parameters"], case.right["parameters"], strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_each_topic_has_in_it_what_it_is_about(seed: int) -> None:
    cases = cases_of(LOSS_SCALER, seed)
    skipped = {case.topic: case.right["steps"][-1][0] < len(case.kinds[0]) for case in cases}
    assert not skipped["training"]
    assert skipped["skips"]
    assert skipped["gradients"]
    mixed, *_ = (set(case.right["scales"]) for case in cases if case.topic == "scale")
    assert len(mixed) >= 3  # goes up and down
    for case in (one for one in cases if one.topic == "clipping"):
        assert any(case.clips)
    for case in (one for one in cases if one.topic == "optimizers"):
        first, second = case.right["steps"][-1]
        assert first < len(case.kinds[0]) > second


def test_the_rule_of_the_scale_is_pytorchs() -> None:
    draw = random.Random(0)
    for _ in range(200):
        scale, interval, bad = 2.0 ** draw.randint(-3, 20), draw.randint(1, 6), draw.random() < 0.3
        good = draw.randrange(interval)
        theirs = torch.tensor(scale), torch.tensor(good, dtype=torch.int32)
        torch._amp_update_scale_(*theirs, torch.tensor(float(bad)), 2.0, 0.5, interval)
        assert next_scale(scale, good, bad, interval) == tuple(one.item() for one in theirs)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_the_masters_of_the_judge_are_those_of_torchs_sgd(seed: int) -> None:
    for case in cases_of(MASTER_STEP, seed):
        assert isinstance(case, Mastered)
        masters = [torch.nn.Parameter(one) for one in case.start()]
        optimizer = torch.optim.SGD(masters, lr=2.0**-6, momentum=0.9)
        steps = zip(case.kinds, case.gradients(), case.right, strict=True)
        for kind, gradients, right in steps:
            for master, gradient in zip(masters, gradients, strict=True):
                master.grad = None if gradient is None else gradient.float() / case.scale
            if kind != "x":
                optimizer.step()
            for master, want in zip(masters, right, strict=True):
                torch.testing.assert_close(master.detach().double(), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_without_a_scale_nothing_is_left_of_a_gradient_and_with_it_all(seed: int) -> None:
    def backward(loss: Any, optimizer: Any, scale: float) -> None:
        (loss * scale).backward()

    for case in cases_of(SCALED_BACKWARD, seed):
        assert isinstance(case, Backwards)
        if case.bad:
            continue
        for scale in (1.0, case.scale):
            given = case.given(0, 1) | {"scale": scale}
            gradients = case.on_rank(backward, given)["gradients"]
            if scale == 1:
                assert not any(bool(one.any()) for one in gradients[:4] if one is not None)
            else:
                assert case.factors(gradients) == pytest.approx([scale] * 4, rel=0.01)


@pytest.mark.slow
def test_the_run_in_fp16_becomes_nan_and_its_parameters_do_not(warm: None) -> None:
    from dtlab.checks.functions.bench import warm_up
    from dtlab.checks.programs.reference import Optimizer
    from dtlab.checks.programs.training import Scene

    warm_up()
    fix: Any = NAN_RUN.check
    seen = Scene(BENCH.observe(fix.scene, fix.broken), Optimizer(0.1))
    losses = torch.tensor([loss for loss, _ in seen.results[0].curve])
    begins = int(losses.isfinite().sum())
    assert 12 < begins < 32
    assert losses[begins:].isnan().all()  # in all later steps
    assert seen.results[0].after.isfinite().all()
    measured = fix.proof.measure(seen)
    assert measured["limit"] == 2.0 ** measured["skipped"] == 2048
    assert measured["limit"] > measured["times"] > 10  # not clipped at all


# The lesson's blank on lost steps ----------------------------------------------------------------


def half_the_spacing(weight: float, rate: float, bits: int = 7) -> bool:
    return rate < 2.0 ** (math.frexp(weight)[1] - 1 - bits) / 2


def casts(weight: float, rate: float, bits: int = 7) -> bool:
    before = torch.tensor(weight).to({7: torch.bfloat16, 10: torch.float16}[bits])
    return bool((before.float() + rate).to(before.dtype) == before)


LESSON = Path(__file__).parent.parent / "notebooks" / "04_precision_and_activation_memory.ipynb"
WRONG_RULES = {
    "0.2 % of any weight": lambda weight, rate, bits=7: rate < weight * 2.0 ** -(bits + 2),
    "0.4 % of any weight": lambda weight, rate, bits=7: rate < weight * 2.0 ** -(bits + 1),
    "a whole spacing": lambda weight, rate, bits=7: half_the_spacing(weight, rate / 2, bits),
    "the weights alone": lambda weight, rate, bits=7: half_the_spacing(weight, 1e-4, bits),
    "always bf16": lambda weight, rate, bits=7: half_the_spacing(weight, rate),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [half_the_spacing, casts, *WRONG_RULES])
def test_the_lesson_tells_wrong_rules_for_lost_steps_apart(rule: Any) -> None:
    lesson = nbformat.read(LESSON, 4)
    source = {cell.id: cell.source for cell in lesson.cells}
    names = {"dtlab": dtlab}
    exec(source["master-blank"], names)
    names["is_lost"] = WRONG_RULES.get(rule, rule)
    report = eval(source["master-check"], names)
    assert (report.score == report.max_score) == callable(rule)
