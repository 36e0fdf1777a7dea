"""`%%ranks` as a new user has it: in JupyterLab, with figures, errors, Ctrl-C and restarts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from tests.browser.lab import IN_A_BROWSER, Notebook, chromium, running_lab

pytestmark = [*IN_A_BROWSER, pytest.mark.proof]

CELLS = [
    "%load_ext dtlab",
    "%%ranks\nimport time, torch, torch.distributed as dist\nimport matplotlib.pyplot as plt\n"
    "x = torch.ones(3) * dist.get_rank()\nx",
    "%%ranks\nplt.figure(figsize=(3, 1.5))\nplt.plot(x + torch.arange(3))\n"
    "plt.title(dist.get_rank());",
    "%%ranks\nif dist.get_rank() == 1:\n    x.mistake()\ndist.all_reduce(x)",
    "%%ranks\nif dist.get_rank() == 0:\n    time.sleep(600)\ndist.all_reduce(x)",
    "%%ranks\ndist.all_reduce(torch.ones(1)); 'still here'",
]


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    """These cells, open in JupyterLab."""
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    made = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
    with running_lab(tmp_path) as address, chromium() as browser:
        nbformat.write(made, tmp_path / "course" / "ranks.ipynb")
        page = browser.new_page(viewport={"width": 1280, "height": 1500})
        opened = Notebook(page, address, "ranks.ipynb")
        yield opened
        if folder := os.environ.get("DTLAB_SCREENSHOTS"):
            opened.panel.screenshot(path=Path(folder) / "ranks.png")
        opened.shut_down()


def ranks() -> set[int]:
    """Processes of ranks below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if re.match(r"dtlab-rank \d", " ".join(process.cmdline())):
                found.add(process.pid)
        except psutil.NoSuchProcess:
            pass
    return found


def test_cells_on_ranks(notebook: Notebook) -> None:
    one, two, figure, wrong, hanging, last = [
        notebook.panel.locator(".jp-CodeCell").nth(number) for number in range(len(CELLS))
    ]
    for cell in (one, two, figure, wrong):
        notebook.run(cell, timeout=90)
    expect(two).to_contain_text("session of 2 ranks on gloo")
    expect(two).to_contain_text("rank 0: tensor([0., 0., 0.])")
    expect(two).to_contain_text("rank 1: tensor([1., 1., 1.])")
    expect(figure.locator(".jp-OutputArea-output img")).to_have_count(2)
    expect(figure).to_contain_text("rank 1:")
    expect(wrong).to_contain_text("rank 1 raised AttributeError")
    expect(wrong).to_contain_text("line 3:   x.mistake()")
    expect(wrong).to_contain_text("The ranks keep their variables.")

    notebook.run(hanging, wait=False)
    notebook.page.wait_for_timeout(1500)
    notebook.menu("Kernel", "Interrupt Kernel")
    expect(hanging).to_contain_text("The ranks keep their variables.", timeout=10_000)
    notebook.run(last)
    expect(last).to_contain_text("rank 1: 'still here'")

    before = ranks()
    assert len(before) == 2
    notebook.menu("Kernel", "Restart Kernel and Clear Outputs of All Cells…")
    notebook.page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(notebook.panel.locator(".jp-InputPrompt", has_text="[6]")).to_have_count(0)
    for _ in range(100):
        if not ranks():
            break
        notebook.page.wait_for_timeout(100)
    assert not ranks()
    notebook.run(one)
    notebook.run(two, timeout=90)
    expect(two).to_contain_text("rank 1: tensor([1., 1., 1.])")
    assert len(ranks()) == 2 and not ranks() & before
