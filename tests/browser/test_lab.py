"""The main job, as a new user does it: `make lab`, a lesson, an exercise, in a real browser."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import IN_A_BROWSER, ROOT, Notebook, chromium, running_lab

pytestmark = IN_A_BROWSER
LESSON = "notebooks/01_ranks_and_collectives.ipynb"
LESSONS = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")
)
FIRST_LESSON = LESSONS[0]
EXERCISE = "exercises/01_ranks_and_collectives/level-2.ipynb"

WHOLE_TENSOR_RING = """
def ring_all_reduce(tensor, group=None):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    passing = tensor.clone()
    for _ in range(n - 1):
        sending = dist.isend(passing, (r + 1) % n)
        arriving = torch.empty_like(passing)
        dist.recv(arriving, (r - 1) % n)
        sending.wait()
        tensor += arriving
        passing = arriving
"""
RING = """
def ring_all_reduce(tensor, group=None):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    chunks = list(tensor.tensor_split(n))
    for step in range(2 * (n - 1)):
        out, arriving = chunks[(r - step - 1) % n], chunks[(r - step - 2) % n]
        buffer = torch.empty_like(arriving)
        sending = dist.isend(out.contiguous(), group=group, group_dst=(r + 1) % n)
        dist.recv(buffer, group=group, group_src=(r - 1) % n)
        sending.wait()
        arriving.copy_(buffer + arriving if step < n - 1 else buffer)
"""


def solutions(exercise: str) -> dict[str, str]:
    """What the instructor writes into each blank."""
    path = ROOT / exercise.replace("exercises", "solutions")
    cells = nbformat.read(path, as_version=4).cells
    return {one.id: one.source for one in cells if "### BEGIN SOLUTION" in one.source}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_lab(tmp_path_factory.mktemp("lab")) as address:
        yield address


@pytest.fixture
def notebook(lab: str, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """The notebook that the test's `path` mark names, open in JupyterLab."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 1100})
        opened = Notebook(page, lab, request.param)
        yield opened
        if folder := os.environ.get("DTLAB_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{request.node.originalname}.png")
        opened.shut_down()


@pytest.mark.proof
def test_a_new_user_sees_no_dialog(lab: str) -> None:
    with chromium() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        # JupyterLab looks for updates once it knows that it need not ask about news. What it gets
        # is `make lab`'s own answer: none.
        with page.expect_response("**/lab/api/update?*", timeout=60_000) as update:
            opened = Notebook(page, lab, LESSON)
        assert update.value.json()["notification"] is None
        expect(page.get_by_text("official Jupyter news")).to_have_count(0)
        expect(page.locator(".jp-Dialog, .Toastify__toast")).to_have_count(0)
        assert errors == []
        opened.shut_down()


@pytest.mark.proof
def test_the_terminal_finds_the_command(lab: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{lab}/lab/workspaces/terminal?reset", timeout=60_000)
        page.locator(".jp-LauncherCard", has_text="Terminal").click(timeout=60_000)
        terminal = page.locator(".jp-Terminal .xterm")
        terminal.click()
        page.keyboard.type(f"dtlab progress > {told}; exit\n")
        expect(terminal).to_have_count(0, timeout=30_000)
    assert "Next: lesson 00 One GPU is not enough" in told.read_text()


def check_that_figures_have_alt_texts(notebook: Notebook, at_least: int) -> None:
    """Check that there are enough figures, and that each has an alt text."""
    figures = notebook.panel.locator(".jp-OutputArea-output img")
    assert figures.count() >= at_least
    for number in range(figures.count()):
        assert len(figures.nth(number).get_attribute("alt") or "") > 30


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", LESSONS, indirect=True)
def test_a_lesson_runs_from_top_to_bottom(notebook: Notebook) -> None:
    notebook.begin_all()
    notebook.end_all(timeout=300)
    assert notebook.unexecuted() == 0
    assert notebook.errors() == []
    check_that_figures_have_alt_texts(notebook, at_least=1)


@pytest.mark.proof
@pytest.mark.parametrize("notebook", [LESSON], indirect=True)
def test_a_lesson_runs_in_parallel_with_another_notebook(notebook: Notebook, lab: str) -> None:
    browser = notebook.page.context.browser
    assert browser is not None
    exercise = Notebook(browser.new_page(), lab, EXERCISE)
    notebook.begin_all()
    launches = "sum(dtlab.launch(lambda: 1).values[0] for _ in range(50))"
    cell = exercise.cell("import dtlab")
    exercise.write(cell, f"import dtlab\nprint({launches}, 'finished')")
    exercise.run(cell)
    assert "50 finished" in cell.locator(".jp-OutputArea").inner_text()
    exercise.shut_down()
    notebook.end_all()
    assert notebook.unexecuted() == 0
    assert notebook.errors() == []
    check_that_figures_have_alt_texts(notebook, at_least=3)


@pytest.mark.parametrize("notebook", [EXERCISE], indirect=True)
def test_an_exercise_is_checked_where_it_is_written(notebook: Notebook) -> None:
    notebook.run(notebook.cell("import dtlab"))
    answer = notebook.cell("def ring_all_reduce(")
    check = notebook.cell('dtlab.check("01/ring_all_reduce"')
    notebook.write(answer, WHOLE_TENSOR_RING)
    notebook.run(notebook.cell("passing = tensor.clone()"))
    notebook.run(check)
    report = check.locator(".jp-OutputArea").first.inner_text()
    assert "the whole tensor" in report
    check.get_by_role("button", name="Run this case: bytes").click()
    picture = check.locator("img[alt^='Timeline of 4 ranks, 1,048,576 elements']")
    expect(picture).to_be_visible(timeout=60_000)
    notebook.write(notebook.cell("passing = tensor.clone()"), RING)
    notebook.run(notebook.cell("chunks = list("))
    notebook.run(check)
    assert "10 of 10" in check.locator(".jp-OutputArea").first.inner_text()


@pytest.mark.proof
@pytest.mark.parametrize("notebook", [EXERCISE], indirect=True)
def test_a_killed_kernel_takes_everything_with_it(notebook: Notebook) -> None:
    cell = notebook.cell("import dtlab")
    code = (
        "import os, time\nimport dtlab\n"
        "dtlab.launch(lambda kernel: [print('kernel', kernel), time.sleep(60)], os.getpid())"
    )
    notebook.write(cell, code)
    notebook.run(cell, wait=False)
    output = cell.locator(".jp-OutputArea", has_text="rank 1: kernel")
    output.wait_for(timeout=20_000)
    kernel = psutil.Process(int(output.inner_text().split()[-1]))
    family = kernel.children(recursive=True)
    assert sum(one.cmdline()[0].startswith("dtlab-") for one in family) >= 4
    kernel.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 3 * 2.0  # the goal is 2 s
    while time.monotonic() < deadline and any(one.is_running() for one in family):
        time.sleep(0.05)
    assert not [one for one in family if one.is_running()]
    # JupyterLab starts another kernel, and says so, sooner or later.
    accept = notebook.page.locator(".jp-Dialog-button.jp-mod-accept").first
    notebook.page.add_locator_handler(accept, lambda button: button.click())
    notebook.wait_until_idle(timeout=30)
    notebook.write(cell, "import dtlab\nprint('again', dtlab.launch(lambda: 7).values)")
    cell.locator(".cm-content").click()
    notebook.page.keyboard.press("ControlOrMeta+Enter")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("again [7, 7]", timeout=30_000)


@pytest.mark.proof
@pytest.mark.parametrize("notebook", [EXERCISE], indirect=True)
def test_an_interrupted_cell_leaves_the_kernel_usable(notebook: Notebook) -> None:
    cell = notebook.cell("import dtlab")
    code = "import time\nimport dtlab\ndtlab.launch(lambda: [print('begun'), time.sleep(60)])"
    notebook.write(cell, code)
    notebook.run(cell, wait=False)
    cell.locator(".jp-OutputArea", has_text="rank 1: begun").wait_for(timeout=20_000)
    notebook.menu("Kernel", "Interrupt Kernel")
    notebook.wait_until_idle(timeout=5)
    assert "KeyboardInterrupt" in cell.locator(".jp-OutputArea").inner_text()
    notebook.write(cell, "import dtlab\nprint('still', dtlab.launch(lambda: 7).values)")
    notebook.run(cell)
    assert "still [7, 7]" in cell.locator(".jp-OutputArea").inner_text()


@pytest.mark.proof
@pytest.mark.parametrize("notebook", [LESSON], indirect=True)
def test_guess_slider_and_stepper_by_the_keyboard(notebook: Notebook) -> None:
    page = notebook.page
    notebook.run(notebook.cell("collective_table,"))
    asking = notebook.cell("sent_by_0 = dtlab.guess(")
    notebook.run(asking)
    asking.locator("input").first.fill("48")
    page.keyboard.press("Enter")
    notebook.run(notebook.cell("elements = 4_000_000"))
    told = notebook.cell("elements = 4_000_000").locator(".jp-OutputArea")
    expect(told).to_contain_text("You guessed 48 MB, and that is right.")
    for code, steps in (("step_ring(4)", 1), ("explore_crossover()", 4)):
        cell = notebook.panel.locator(".jp-CodeCell", has_text=code).last
        notebook.run(cell)
        image = cell.locator("img").first  # the other is what a reload shows
        before = image.get_attribute("alt")
        handles = cell.locator(".noUi-handle")
        assert handles.count() == steps
        handles.first.focus()
        page.keyboard.press("ArrowRight")
        expect(image).not_to_have_attribute("alt", before or "", timeout=5_000)
    assert notebook.errors() == []


def cells_with_a_guess(notebook: Notebook) -> tuple[Locator, Locator, Locator]:
    """A cell that asks, has run, and has the focus in its field; one that reveals; one after it.

    They are inserted, because the cells of a lesson that ask for a guess are folded.
    """
    keyboard, cells = notebook.page.keyboard, notebook.panel.locator(".jp-Cell")
    asks, reveals, after = (cells.nth(place) for place in (1, 2, 3))
    asks.locator(".cm-content").click()
    for key in ("Escape", "b", "b"):
        keyboard.press(key)
    notebook.write(reveals, "many.reveal(12)")
    notebook.write(asks, "import dtlab\nmany = dtlab.guess('How many?')")
    keyboard.press("Shift+Enter")
    expect(asks.locator("input").first).to_be_focused(timeout=60_000)  # dtlab is imported first
    return asks, reveals, after


@pytest.mark.parametrize("notebook", [FIRST_LESSON], indirect=True)
def test_a_guess_needs_only_the_keyboard(notebook: Notebook) -> None:
    keyboard, (number, told, choice) = notebook.page.keyboard, cells_with_a_guess(notebook)
    field = number.locator("input").first
    keyboard.press("Enter")  # in the empty field: the next cell runs, and asks for the prediction
    expect(told.locator(".jp-OutputArea")).to_contain_text("Predict first")
    expect(told.get_by_role("button", name="I don't know")).to_be_focused()

    field.focus()
    keyboard.press("Escape")
    expect(told).to_be_focused()
    expect(notebook.panel.locator(".jp-Notebook")).to_have_class(re.compile("jp-mod-commandMode"))

    field.focus()
    keyboard.insert_text("twelve")
    keyboard.press("Enter")
    expect(number.get_by_role("status")).to_contain_text("is not a number")
    expect(field).to_be_focused()
    field.fill("12")
    keyboard.press("Enter")
    expect(told.locator(".jp-OutputArea")).to_contain_text("You guessed 12, and that is right.")
    expect(told).to_be_focused()

    keyboard.press("Shift+Enter")
    expect(choice).to_be_focused()
    notebook.write(choice, "which = dtlab.guess('Which?', options=['ring', 'server'])")
    keyboard.press("Shift+Enter")
    expect(choice.get_by_role("button", name="ring")).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("Space")
    expect(choice.get_by_role("status")).to_contain_text("Your guess is “server”.")
    assert notebook.errors() == []


@pytest.mark.parametrize("notebook", [FIRST_LESSON], indirect=True)
def test_enter_commits_a_guess_and_runs_the_next_cell(notebook: Notebook) -> None:
    keyboard, (number, told, after) = notebook.page.keyboard, cells_with_a_guess(notebook)
    keyboard.insert_text("13")
    keyboard.press("Enter")
    expect(told.locator(".jp-OutputArea")).to_contain_text("You guessed 13; it is 12")
    expect(after).to_be_focused()

    # A guess that was committed by leaving the field runs nothing.
    notebook.write(number, "more = dtlab.guess('How many more?')")
    notebook.write(told, "print('it ran')")
    number.locator(".cm-content").click()
    keyboard.press("Shift+Enter")
    expect(number.locator("input").first).to_be_focused()
    keyboard.insert_text("13")
    keyboard.press("Tab")
    expect(number.get_by_role("status")).to_contain_text("Your guess is 13.")
    expect(number.get_by_role("button", name="Commit")).to_be_focused()
    notebook.wait_until_idle()
    expect(told.locator(".jp-OutputArea")).not_to_contain_text("it ran")


@pytest.mark.proof
@pytest.mark.parametrize("notebook", [EXERCISE], indirect=True)
def test_validate_says_what_is_missing_and_passes_then(notebook: Notebook) -> None:
    notebook.page.get_by_text("Validate", exact=True).first.click()
    dialog = notebook.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("ring_all_reduce", timeout=90_000)
    dialog.locator("button").last.click()
    for name, source in solutions(EXERCISE).items():
        notebook.write(notebook.cell(f"def {name}("), source)
    notebook.save()
    notebook.page.get_by_text("Validate", exact=True).first.click()
    expect(dialog).to_contain_text("Success", timeout=90_000)
    dialog.locator("button").last.click()
