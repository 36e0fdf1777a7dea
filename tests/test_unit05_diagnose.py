"""Unit 05, Level III: what the broken programs show is what their parts and the notebook say."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.grading import find_part
from dtlab.grading.scripts.lines import judge_line, numbered
from dtlab.grading.scripts.symptoms import Scene
from dtlab.units.unit05.runs import SYMPTOMS, ShardedRun
from tests.staying import BENCH

PARTS = [find_part(f"05/{name}") for name in ("giant_gather", "policies", "leak")]

NOTEBOOK = Path(__file__).parents[1] / "solutions" / "05_zero_and_fsdp" / "level-3.ipynb"
SHOWS = {"giant_gather": "giant gather", "policies": "rounded gradients", "leak": "grows"}
NUMBERS = {"giant_gather": 100_608, "policies": 50_304, "leak": 110_248}

part_by_name = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.symbol)


def cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


@part_by_name
def test_the_notebook_shows_the_program_line_by_line(part: Any) -> None:
    shown = cells()[f"{part.symbol}-program"].splitlines()
    own = numbered(part.check.broken)
    assert len(shown) == len(own)
    for ours, theirs in zip(own, shown, strict=True):
        if "def " not in ours:
            assert ours == theirs
    for line in part.check.lines:
        verdicts = {
            judge_line(part.check.broken, said, part.check.lines, "").status
            for said in (line, next(n for n, text in enumerate(own, 1) if line in text))
        }
        assert verdicts == {"ok"}


def test_the_notebook_lists_the_symptoms() -> None:
    table = cells()["symptoms"]
    for name, symptom in SYMPTOMS.items():
        assert f'| `"{name}"` | {symptom.words} |' in table


def test_the_model_in_the_notebook_is_the_one_that_is_trained() -> None:
    from dtlab.units.unit05 import runs_scripts

    shown = cells()["symptoms"]
    for one in (runs_scripts.Layer, runs_scripts.Net):
        for line in inspect.getsource(one).splitlines():
            if line.strip().startswith("self."):
                assert line.strip() in shown


@part_by_name
def test_other_seeds_try_other_models(part: Any) -> None:
    assert len({str(part.check.check.trials(seed)) for seed in range(10)}) == 10
    for trial in part.check.check.trials(0):
        (case,) = trial.cases
        assert isinstance(case, ShardedRun)
        assert case.width != 32  # a number for the notebook's model does not fit


@pytest.mark.slow
@part_by_name
def test_a_broken_program_shows_its_symptom_and_no_other(part: Any, warm: None) -> None:
    one = BENCH.observe(part.check.scene, part.check.broken)
    assert one.error is None, one.trouble
    scene = Scene(one, part.check.optimizer)
    found = {name for name, symptom in SYMPTOMS.items() if symptom.find(scene).seen}
    assert found == {SHOWS[part.symbol]}
    assert part.check.proof.measure(scene)["bytes"] == pytest.approx(
        NUMBERS[part.symbol], rel=0.01
    )
    assert part.check.proof.judge(NUMBERS[part.symbol], scene).status == "ok"


def test_the_level_leaves_time_for_the_plans() -> None:
    assert sum(part.minutes for part in PARTS) <= 90 - 35 - 15  # with the plans and their defence
    assert all(find_part(part.name) is part for part in PARTS)
