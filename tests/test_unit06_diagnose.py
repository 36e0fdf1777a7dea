"""Unit 06, Level III: what the broken programs show is what their parts and the notebook say."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.checks import find_part, known_parts
from dtlab.units.unit06.runs import SharedRun
from tests.staying import BENCH

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("06", 3)]

NOTEBOOK = Path(__file__).parents[1] / "solutions" / "06_tensor_parallelism" / "level-3.ipynb"
BROKEN = PARTS[:3]

part_by_name = pytest.mark.parametrize("part", BROKEN, ids=lambda part: part.symbol)


def cells() -> dict[str, str]:
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}


def test_the_model_in_the_notebook_is_the_one_that_is_trained() -> None:
    from dtlab.units.unit06 import runs_scripts

    shown = cells()["model"]
    for one in (runs_scripts.Layer, runs_scripts.Net, runs_scripts.own):
        for line in inspect.getsource(one).splitlines():
            if line.strip().startswith(("self.", "gate, ", "rank, ", "return weight")):
                assert line.strip() in shown


def test_no_text_before_the_hints_names_a_fault() -> None:
    """This holds for titles, names and the text next to a program."""
    assert [part.title for part in BROKEN] == ["Program 1", "Program 2", "Program 3"]
    for part in BROKEN:
        texts = [cells()[f"{part.symbol}-{name}"] for name in ("text", "read")]
        told = re.compile(r"norm|gradient|bias|drift|twice|gate|residual|too (many|early|often)")
        assert not told.search(" ".join(texts).casefold())


@pytest.mark.slow
def test_each_fault_has_evidence_in_the_notebooks_report(warm: None) -> None:
    """Calls in program 1, the first loss in 2, first updates in 3, whose copies agree."""
    shown: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for id in ("imports", "watch"):
            exec(cells()[id], shown)
        for number in (1, 2, 3):
            printed.write(f"= {number}\n")
            shown["report"](getattr(shown["runs_scripts"], f"train_{number}"), 2)
    _, first, second, third = re.split(r"= \d\n", printed.getvalue())
    assert "2,048 bytes, 36 times" in first  # a right run has 24
    assert "2,048 bytes, 24 times" in second
    losses = [re.findall(r"\d\.\d{5}", text) for text in (first, second, third)]
    assert losses[0][:4] == losses[0][4:] and losses[1][0] != losses[1][4]
    assert losses[2][0] == losses[2][4] and losses[2][3] != losses[2][7]
    assert "layers.0.norm.weight   first update x 1.000   copies 0e+00 apart" in third
    assert "enter.weight           first update x 2.000   copies 0e+00 apart" in third


@part_by_name
def test_other_seeds_try_other_models(part: Any) -> None:
    assert len({str(part.check.check.trials(seed)) for seed in range(10)}) == 10
    for trial in part.check.check.trials(0):
        for case in trial.cases:
            assert isinstance(case, SharedRun)
            assert case.width != 32  # a number for the notebook's model does not fit


@pytest.mark.slow
@part_by_name
def test_on_one_rank_nothing_is_wrong_with_a_program(part: Any, warm: None) -> None:
    """So the notebook may show it next to the others as the training in one process."""
    from dtlab.checks.functions.trials import Trial

    (case,) = part.check.scene.cases
    one = BENCH.observe(Trial(1, [case], limit=15), part.check.broken)
    assert one.results[0][0]["losses"] == pytest.approx(case.one_process(1)[0][0], rel=1e-5)


def test_the_level_leaves_time_for_the_plans() -> None:
    assert 60 <= sum(part.minutes for part in PARTS) <= 90
    assert all(find_part(part.name) is part for part in PARTS)
