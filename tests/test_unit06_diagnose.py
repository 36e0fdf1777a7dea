"""Unit 06, Level III: what the broken programs show is what their parts and the notebook say."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.grading import find_part, known_parts
from dtlab.units.unit06.runs import SharedRun, cut_dim
from tests.staying import BENCH

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("06", 3)]

NOTEBOOK = Path(__file__).parents[1] / "solutions" / "06_tensor_parallelism" / "level-3.ipynb"
BROKEN = PARTS[:3]

part_by_name = pytest.mark.parametrize("part", BROKEN, ids=lambda part: part.symbol)


def cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


def test_the_model_in_the_notebook_is_the_one_that_is_trained() -> None:
    from dtlab.units.unit06 import runs_scripts

    shown = cells()["symptoms"]
    for one in (runs_scripts.Layer, runs_scripts.Net, runs_scripts.share_out):
        for line in inspect.getsource(one).splitlines():
            if line.strip().startswith(("self.", "part =", "setattr", "(layer.", "for ")):
                assert line.strip() in shown


def test_what_is_cut_is_what_the_programs_cut() -> None:
    names = ["enter.weight", "layers.0.norm.bias", "layers.10.wide.weight", "layers.0.wide.bias",
             "layers.1.narrow.weight", "layers.1.narrow.bias", "leave.bias"]  # fmt: skip
    assert [cut_dim(name) for name in names] == [None, None, 0, 0, 1, None, None]


@part_by_name
def test_other_seeds_try_other_models(part: Any) -> None:
    assert len({str(part.check.check.trials(seed)) for seed in range(10)}) == 10
    for trial in part.check.check.trials(0):
        (case,) = trial.cases
        assert isinstance(case, SharedRun)
        assert case.width != 32  # a number for the notebook's model does not fit
        assert (case.inner % trial.world_size == 0) == (part.symbol == "gather_between")


@pytest.mark.slow
@part_by_name
def test_on_one_rank_nothing_is_wrong_with_a_program(part: Any, warm: None) -> None:
    """So the notebook may put it beside the others as the training in one process."""
    from dtlab.grading.checking.trials import Trial

    (case,) = part.check.scene.cases
    one = BENCH.observe(Trial(1, [case], limit=15), part.check.broken)
    assert one.results[0][0]["losses"] == pytest.approx(case.one_process(1)[0][0], rel=1e-5)


def test_the_level_leaves_time_for_the_plans() -> None:
    assert 60 <= sum(part.minutes for part in PARTS) <= 90
    assert all(find_part(part.name) is part for part in PARTS)
