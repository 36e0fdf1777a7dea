"""The part that docs/authors.md shows as an example is a part, and judges answers as it should."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtlab.checks import Part
from tests.staying import BENCH

TEXT = (Path(__file__).parent.parent / "docs" / "authors.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def part() -> Part:
    """The example, as a notebook would define it: ranks need not be able to import it."""
    found = re.search(r'```python\n("""01/scatter.*?)```', TEXT, re.DOTALL)
    assert found is not None
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(found[1], "docs/authors.md", "exec"), defined)
    example: Part = defined["PART"]
    return example


def right(rows: Any, count: int) -> Any:
    if rows is None:
        rows = torch.empty(count)
        dist.recv(rows, 0)
        return rows
    for other in range(1, dist.get_world_size()):
        dist.send(rows[other], other)
    return rows[0]


def shifted(rows: Any, count: int) -> Any:
    return right(rows if rows is None else rows.roll(1, 0), count)


def all_to_every_rank(rows: Any, count: int) -> Any:
    rows = torch.empty(dist.get_world_size(), count) if rows is None else rows
    if dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            dist.send(rows, other)
    else:
        dist.recv(rows, 0)
    return rows[dist.get_rank()]


def unwritten(rows: Any, count: int) -> Any:
    raise NotImplementedError()


@pytest.mark.parametrize(
    ("answer", "earned"),
    [(right, [2, 1]), (shifted, [0, 0]), (all_to_every_rank, [2, 0]), (unwritten, [0, 0])],
)
def test_it_judges_answers(part: Part, answer: Callable[..., Any], earned: list[float]) -> None:
    criteria = part.check.run(part.symbol, answer, 7, bench=BENCH)
    assert [one.earned for one in criteria if one.points] == earned, criteria


def test_its_name_symbol_and_cell(part: Part) -> None:
    assert (part.name, part.symbol, part.grade_id) == ("01/scatter", "scatter", "scatter-check")


def test_it_passes_the_checks_of_code(tmp_path: Path) -> None:
    found = re.search(r'```python\n("""01/scatter.*?)```', TEXT, re.DOTALL)
    assert found is not None
    (tmp_path / "scatter.py").write_text(found[1])
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "ruff", "check", "--config", str(root / "pyproject.toml")]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.proof
def test_it_passes_the_checks_of_types(tmp_path: Path) -> None:
    found = re.search(r'```python\n("""01/scatter.*?)```', TEXT, re.DOTALL)
    assert found is not None
    (tmp_path / "scatter.py").write_text(found[1])
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "scatter.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
