"""A right guess about an emulated measurement is right on a busy machine too.

Beside four programs that take all cores, one cell of each lesson that measures on emulated links
runs, with the guess that the formula gives. Before it run only the cells that define its names.
"""

from __future__ import annotations

import builtins
import dis
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import CodeType

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.test_units_run import kernel, lesson_of, run_in

CELLS = [  # a lesson, its cell, the learner's guess, and the formula's value
    ("00_one_gpu_is_not_enough", "weak-run", "weak_guess", 68.32),
    ("01_ranks_and_collectives", "overlap-run", "together", 6.03),
    ("02_data_parallelism", "buckets-run", "gain", 24.4),
    ("05_zero_and_fsdp", "exposed-run", "exposed_guess", 40.1),
    ("06_tensor_parallelism", "cards-run", "wait_guess", 59),
    ("07_pipeline_parallelism", "late-run", "late_guess", 160),
    ("08_long_sequences_and_large_domains", "emulated-run", "", 0),  # draws a figure only
    ("09_the_wire", "serial-run", "serial_guess", 30),
    ("10_three_dimensions", "measured-run", "error_guess", 0),
]


@pytest.fixture(scope="module")
def busy_kernel() -> Iterator[NotebookClient]:
    """A kernel for all lessons, with few repetitions, while four endless loops run."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTLAB_QUICK", "1")
        with kernel() as client:
            yield client
    for loop in loops:
        loop.kill()
        loop.wait()


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell defines, and those of the notebook that it or a function reads."""
    defined, read = set[str](), set[str]()
    codes = [compile(source, "cell", "exec")]
    for code in codes:  # grows
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_NAME", "STORE_GLOBAL"):
                defined.add(step.argval)
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read.add(step.argval)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return defined, read


def cells_for(cells: Sequence[NotebookNode], last: str) -> list[NotebookNode]:
    """The cell named `last`, and the earlier ones that define what these cells read."""
    code = [each for each in cells if each.cell_type == "code"]
    end = next(i for i, each in enumerate(code) if each.id == last)
    chosen, wanted = [code[end]], names_of(code[end].source)[1]
    for cell in reversed(code[:end]):
        defined, read = names_of(cell.source)
        if found := defined & wanted - set(dir(builtins)):
            chosen.append(cell)
            wanted = wanted - found | read
    return chosen[::-1]


@pytest.mark.busy
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("unit", "last", "guess", "right"), CELLS, ids=lambda value: str(value)[:2]
)
def test_a_right_guess_is_right_while_four_loops_run(
    busy_kernel: NotebookClient, unit: str, last: str, guess: str, right: float
) -> None:
    cells = cells_for(lesson_of(unit), last)
    commit = nbformat.v4.new_code_cell(f"{guess}.commit({right})" if guess else "")
    begin = nbformat.v4.new_code_cell("%reset -f")
    run_in(busy_kernel, nbformat.v4.new_notebook(cells=[begin, *cells[:-1], commit, cells[-1]]))
    said = "".join(
        each.get("text", "") or each.get("data", {}).get("text/plain", "")
        for each in cells[-1].outputs
    )
    if guess:
        verdict = said[said.index("You guessed") :]
        assert "that is right" in verdict or "close, " in verdict, said
