"""What a learner finds the next day: a clean course, and guesses and figures without a kernel."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import (
    CREATE_ASSIGNMENT,
    IN_A_BROWSER,
    ROOT,
    Notebook,
    chromium,
    running_lab,
)

pytestmark = [*IN_A_BROWSER, pytest.mark.proof]

FIRST = "my/notebooks/00_one_gpu_is_not_enough.ipynb"
CELLS = [
    "import dtlab\nfrom dtlab.show import step_ring",
    "sent = dtlab.guess('How many MB does rank 0 send?', unit='MB')",
    "step_ring()",
]


def git(course: Path, *words: str) -> str:
    """What git says of the course."""
    command = ["git", "-c", "user.name=learner", "-c", "user.email=learner@example.org", *words]
    return subprocess.run(command, cwd=course, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """`make lab` on a clone of the course, with autosave every 2 s."""
    with running_lab(tmp_path, autosave=2) as address:
        course = tmp_path / "course"
        shutil.copy(ROOT / ".gitignore", course)
        git(course, "init", "-q")
        git(course, "add", ".")
        git(course, "commit", "-q", "-m", "the course")
        yield address, course


def test_make_lab_opens_a_copy_that_git_does_not_look_at(lab: tuple[str, Path]) -> None:
    address, course = lab
    title = nbformat.read(course / FIRST, as_version=4).cells[0].source
    assert "dtlab start" not in title  # its reader has a copy
    with chromium() as browser:
        page = browser.new_page()
        page.goto(address, timeout=60_000)  # what `make lab` opens
        expect(page.locator(".jp-NotebookPanel .jp-Cell").first).to_be_visible(timeout=60_000)
        assert FIRST in page.url
        page.wait_for_timeout(6000)
        expect(page.locator(CREATE_ASSIGNMENT)).to_have_count(0)
        look_at(page, "make_lab")
    assert git(course, "status", "--porcelain") == ""


def test_an_original_that_was_opened_has_one_more_line(lab: tuple[str, Path]) -> None:
    """The version of Python, which JupyterLab writes as soon as there is a kernel."""
    address, course = lab
    name = "notebooks/07_pipeline_parallelism.ipynb"
    with chromium() as browser:
        Notebook(browser.new_page(), address.partition("/lab")[0], name)
        for _ in range(30):
            time.sleep(1)
            if git(course, "status", "--porcelain"):
                break
    changes = git(course, "diff", "--unified=0", "--", name).splitlines()
    lines = [line for line in changes if line[0] in "+-" and line[:3] not in ("+++", "---")]
    version = f'   "version": "{platform.python_version()}"'
    assert lines == [
        '-   "pygments_lexer": "ipython3"', '+   "pygments_lexer": "ipython3",', f"+{version}"
    ]  # fmt: skip


def test_guesses_and_figures_stay_without_a_kernel(lab: tuple[str, Path]) -> None:
    address, course = lab
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    nbformat.write(notebook, course / "my" / "day.ipynb")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened = Notebook(page, address, "my/day.ipynb")
        opened.begin_all()
        opened.end_all()
        kept = opened.panel.locator(".dtlab-kept")
        assert kept.count() == 2
        for number in range(2):
            expect(kept.nth(number)).to_be_hidden()  # the widgets work
        field = opened.panel.locator(".widget-text input").first
        field.fill("12")
        field.press("Enter")
        expect(kept.first).to_contain_text("Your guess: 12 MB.")
        opened.panel.locator("button", has_text="Next").click()
        page.wait_for_timeout(1000)
        look_at(page, "alive")
        opened.menu("Kernel", "Restart Kernel")
        page.locator(".jp-Dialog button.jp-mod-accept").click()
        opened.wait_until_idle()
        opened.save()
        opened = Notebook(page, address, "my/day.ipynb")  # the next day
        kept = opened.panel.locator(".dtlab-kept")
        expect(kept.first).to_be_visible(timeout=30_000)
        expect(kept.first).to_contain_text("Your guess: 12 MB.")
        expect(kept.nth(1).locator("img, svg").first).to_be_visible()
        errors = opened.panel.get_by_text("Error displaying widget")
        expect(errors).to_have_count(2, timeout=30_000)
        for number in range(2):
            expect(errors.nth(number)).to_be_hidden()
        look_at(page, "next_day")
        opened.menu("Settings", "Theme", "JupyterLab Dark")
        page.wait_for_timeout(1500)
        look_at(page, "next_day_dark")
        opened.shut_down()


PREDICTED = [
    "import dtlab\nsent = dtlab.guess('How many MB does rank 0 send?', unit='MB')\n"
    "kind = dtlab.guess('Which one sends less?', options=['ring', 'tree'])",
    "print('rank 0 sent 24 MB')\nsent.reveal(24, 'A ring.')",
    "kind.reveal('ring', {'tree': 'A tree sends more.'})",
    "print('ring it is')\n1 / 0\nkind.reveal('ring')",
]


def test_the_answer_comes_with_the_prediction(lab: tuple[str, Path]) -> None:
    address, course = lab
    cells = [nbformat.v4.new_code_cell(cell) for cell in PREDICTED]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    nbformat.write(notebook, course / "my" / "predict.ipynb")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened = Notebook(page, address, "my/predict.ipynb")
        opened.begin_all()
        opened.end_all()
        waiting = opened.panel.locator(".widget-html", has_text="Predict first.")
        expect(waiting).to_have_count(2)
        printed = opened.panel.get_by_text("rank 0 sent 24 MB", exact=True)
        expect(printed).to_be_hidden()
        expect(opened.panel.get_by_text("ring it is", exact=True)).to_be_visible()  # it failed
        look_at(page, "predict_first")
        field = opened.panel.locator(".widget-text input").first
        field.fill("12")
        field.press("Enter")
        told = opened.panel.locator(".widget-html", has_text="You guessed 12 MB; it is 24 MB")
        expect(told).to_be_visible()
        expect(printed).to_be_visible()
        expect(field).to_be_disabled()
        opened.panel.locator("button", has_text="I don't know").last.click()
        told = opened.panel.locator(".widget-html", has_text="No guess was made. It is “ring”.")
        expect(told).to_be_visible()
        expect(waiting).to_have_count(0)
        look_at(page, "predicted")
        opened.menu("Settings", "Theme", "JupyterLab Dark")
        page.wait_for_timeout(1500)
        look_at(page, "predicted_dark")
        opened.shut_down()


def test_progress_leads_to_the_notebook(lab: tuple[str, Path]) -> None:
    address, course = lab
    cells = [nbformat.v4.new_code_cell("import dtlab\ndtlab.progress()")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    nbformat.write(notebook, course / "my" / "progress.ipynb")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        opened = Notebook(page, address, "my/progress.ipynb")
        opened.begin_all()
        opened.end_all()
        look_at(page, "progress")
        opened.menu("Settings", "Theme", "JupyterLab Dark")
        page.wait_for_timeout(1500)
        look_at(page, "progress_dark")
        opened.panel.get_by_role("link", name="The scaling report").click()
        title = opened.panel.locator(".jp-Cell", has_text="not enough · Level II: build")
        expect(title.first).to_be_attached(timeout=60_000)
        look_at(page, "progress_part")


def look_at(page: Page, name: str) -> None:
    """Take a screenshot if DTLAB_SCREENSHOTS names a folder."""
    if folder := os.environ.get("DTLAB_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")
