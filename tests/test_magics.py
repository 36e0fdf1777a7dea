"""`%%ranks` and `%ranks`, in IPython and in a real kernel."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import nbformat
import pytest
from IPython.core.error import UsageError
from nbclient import NotebookClient

from dtlab.magics import _numbers

SCRIPT = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")
shell.run_cell("%load_ext dtlab")
def cell(text):
    print(f"--- {text!r}")
    shell.run_cell(text, store_history=True)
"""


def said(*cells: str) -> list[str]:
    """What IPython prints for each of these cells."""
    script = SCRIPT + "".join(f"cell({text!r})\n" for text in cells) + "cell('%ranks close')\n"
    run = subprocess.run(
        [sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    pieces = run.stdout.split("--- ")[1 : len(cells) + 1]
    return [piece.partition("\n")[2] for piece in pieces]


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0,2", [0, 2]), ("1-3", [1, 2, 3]), ("0,2-3", [0, 2, 3])]
)
def test_ranks_are_named_by_numbers_and_spans(text: str, ranks: list[int]) -> None:
    assert _numbers(text) == ranks


@pytest.mark.parametrize("text", ["a", "0,", "3-1", "0;1"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no ranks. Write 0, or 0,2-3, or nothing"):
        _numbers(text)


@pytest.mark.slow
def test_cells_and_lines_in_ipython() -> None:
    nothing, first, some, wrong, other, restarted, lost, _, elsewhere = said(
        "%ranks",
        "%%ranks\nimport torch.distributed as dist\nx = dist.get_rank() + 1\nx",
        "%%ranks 1 --timeout 20\nx += 1; x",
        "%%ranks 5\nx",
        "%ranks open 3",
        "%ranks restart",
        "%%ranks\nx",
        "def x(): pass",
        "%%ranks\nx()",
    )
    assert "No session is open. `%ranks open 4` opens one" in nothing
    assert "session of 2 ranks on gloo, opened in" in first
    lines = [line for line in first.splitlines() if line.startswith("rank")]
    assert sorted(lines) == ["rank 0: 1", "rank 1: 2"]
    assert some == "rank 1: 3\n"
    assert "there is no rank 5: the session has ranks 0 and 1." in wrong
    assert "session of 3 ranks on gloo, opened in" in other
    assert "session of 3 ranks on gloo, opened in" in restarted
    assert "ranks 0 to 2 raised NameError: name 'x' is not defined" in lost
    assert "The notebook defines" not in lost
    assert "The notebook defines x, but a session's ranks do not see" in elsewhere


@pytest.mark.proof
@pytest.mark.slow
def test_an_error_has_the_cell_and_line_that_the_learner_sees() -> None:
    error, unreadable, long, usage = said(
        "%%ranks\n\n\nif True:\n    1/0",  # the first with a number
        "%%ranks\n\nif dist.get_rank( == 1",
        "%%ranks --timeout 0.2\nimport time\ntime.sleep(9)",
        "%ranks fly",
    )
    assert "cell 1, line 5:   1/0" in error
    assert "this cell has a syntax error: invalid syntax" in unreadable
    assert "line 3:   if dist.get_rank( == 1" in unreadable
    assert "cell 3, line 3:   time.sleep(9)" in long
    assert "UsageError: %ranks: argument what: invalid choice: 'fly'" in usage


@pytest.mark.proof
@pytest.mark.slow
def test_a_notebook_shows_figures_by_rank() -> None:
    cells = [
        "%load_ext dtlab",
        "%%ranks\nimport matplotlib.pyplot as plt\nprint('drawing')\n"
        "plt.plot([0, 1]);",
        "%%ranks 1\nfrom IPython.display import HTML\nHTML('<b>bold</b>')",
        "%ranks close",
    ]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    figures, bold = (notebook.cells[number].outputs for number in (1, 2))
    kinds = [_kind(one) for one in figures]
    assert kinds.count("image/png") == 2
    assert {"rank 0: ", "rank 1: "} <= {*_texts(figures).splitlines()}
    assert _texts(figures).count("drawing") == 2
    assert "Line2D" not in _texts(figures)  # the cell ends with a semicolon
    assert [_kind(one) for one in bold] == ["stdout", "text/html"]
    assert _texts(bold) == "rank 1: \n"


def _kind(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.name)
    kinds = [kind for kind in output.data if kind != "text/plain"]
    return kinds[0] if kinds else "text/plain"


def _texts(outputs: Any) -> str:
    return "".join(one.text for one in outputs if one.output_type == "stream")
