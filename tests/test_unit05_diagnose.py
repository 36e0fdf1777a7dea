"""Unit 05, Level III: what the broken programs show is what their parts and the notebook say."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.checks import Part, find_part
from dtlab.checks.programs.training import FixScript
from dtlab.units.unit05.runs import ShardedRun

PARTS = [find_part(f"05/{name}") for name in ("run_a", "run_b", "run_c")]

NOTEBOOK = Path(__file__).parents[1] / "solutions" / "05_zero_and_fsdp" / "level-3.ipynb"

part_by_name = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.symbol)


def cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


def test_the_model_in_the_notebook_is_the_one_that_is_trained() -> None:
    from dtlab.units.unit05 import runs_scripts

    shown = cells()["network"]
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


@part_by_name
def test_no_title_and_no_list_gives_the_fault_away(part: Part) -> None:
    assert part.title == f"Run {part.symbol[-1].upper()}"
    assert isinstance(part.check, FixScript)
    assert "symptom" not in "".join(cells().values()).casefold()


def test_the_level_leaves_time_for_the_plans() -> None:
    assert sum(part.minutes for part in PARTS) <= 90 - 35 - 15  # with the plans and their defence
    assert all(find_part(part.name) is part for part in PARTS)
