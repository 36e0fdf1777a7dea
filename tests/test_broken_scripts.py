"""Broken training scripts of Level III: notebooks show what checks run, line by line."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest

from dtlab.checks import Part, known_parts
from dtlab.checks.course import Course
from dtlab.checks.programs.lines import judge_line, numbered
from dtlab.checks.programs.training import FixScript, Scene
from tests.known_answers import answers_of
from tests.staying import BENCH

ROOT = Path(__file__).parent.parent
PARTS = [part for part in known_parts() if isinstance(part.check, FixScript)]

def fix_of(part: Part) -> FixScript:
    assert isinstance(part.check, FixScript)
    return part.check


each_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
each_proven = pytest.mark.parametrize(
    "part", [part for part in PARTS if fix_of(part).proof], ids=lambda part: part.name
)


@cache
def cells(path: str) -> dict[str, str]:
    return {one.id: one.source for one in nbformat.read(ROOT / "solutions" / path, 4).cells}


def shown_with(part: Part) -> dict[str, str]:
    """The cells of the notebook in which a part is."""
    return cells(str(Course(ROOT).level(part)))


def said_of(part: Part) -> dict[str, Any]:
    """The right diagnosis, as the right answers have it."""
    known = answers_of(part)
    assert known is not None
    return dict(known.right[0]()["diagnosis"])


def code_of(source: str) -> str:
    """A function, as it is without type hints; a notebook may give it another name."""
    tree = ast.parse(source)
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
    assert isinstance(tree.body[0], ast.FunctionDef)
    tree.body[0].name = "train"
    return ast.unparse(tree)


@each_part
def test_the_notebook_shows_the_script_that_is_checked(part: Part) -> None:
    shown = shown_with(part)[f"{part.symbol}-program"]
    checked = numbered(fix_of(part).broken)
    assert code_of(shown) == code_of("\n".join(checked))
    for ours, theirs in zip(shown.splitlines(), checked, strict=True):
        assert ours == re.sub("  # (noqa|fmt).*", "", theirs) or "def " in ours


@each_part
def test_lines_at_fault_may_be_named_by_text_and_by_number(part: Part) -> None:
    fix = fix_of(part)
    lines = numbered(fix.broken)
    for text in fix.lines:
        number = next(n for n, line in enumerate(lines, 1) if text in line)
        for said in (text, number, said_of(part)["line"]):
            assert judge_line(fix.broken, said, fix.lines, "").status == "ok"


@pytest.mark.slow
@each_proven
def test_the_number_of_a_right_diagnosis_is_that_of_the_run(part: Part, warm: None) -> None:
    fix, said = fix_of(part), said_of(part)
    scene = Scene(BENCH.observe(fix.scene, fix.broken), fix.optimizer)
    assert fix.proof is not None
    assert fix.proof.judge(said["number"], scene).status == "ok"
