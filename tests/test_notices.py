"""An operation that takes more than two seconds prints what it does."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

import dtlab
from dtlab.ranks import notices, system


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "SILENCE", 0.1)
    monkeypatch.setattr(notices, "PATIENCE", 0.05)


def test_a_launch_that_takes_long_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    with notices.notice("05/run_c: checking"), notices.notice("an inner one is not shown"):
        dtlab.launch(time.sleep, 0.5)
    assert capsys.readouterr() == ("", "05/run_c: checking ...\n")


def test_a_quick_operation_prints_no_notice(capsys: pytest.CaptureFixture[str]) -> None:
    with notices.notice("quick"):
        notices.tick()
    notices.tick()  # in no notice
    with notices.no_notices(), notices.notice("beside a progress bar"):
        dtlab.launch(time.sleep, 0.3)
    assert capsys.readouterr() == ("", "")


def test_a_launch_that_shows_nothing_is_announced_in_a_notebook(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dtlab.launch(int)  # the server is ready
    monkeypatch.setattr(system, "in_a_kernel", lambda: True)
    dtlab.launch(time.sleep, 0.5)
    assert capsys.readouterr() == ("", "2 ranks running ...\n")


def test_a_launch_that_prints_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with notices.notice("2 ranks running", if_silent=True):
        for _ in range(4):
            time.sleep(0.05)
            notices.heard()  # as when a line of a rank was shown
            notices.tick()
    assert capsys.readouterr() == ("", "")


def test_a_notice_in_a_notebook_is_updated_and_then_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published: list[tuple[dict[str, str], bool, object]] = []

    class Shell:
        class display_pub:
            @staticmethod
            def publish(data: dict[str, str], *, transient: object, update: bool) -> None:
                published.append((data, update, transient))

    monkeypatch.setattr(notices, "in_a_kernel", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Shell))
    with notices.notice("training"):
        for _ in range(4):
            time.sleep(0.06)
            notices.tick()
    (first, created, display), *_, (last, updated, same) = published
    assert first["text/plain"].startswith("training, ")
    assert (last["text/plain"], created, updated, same) == ("", False, True, display)


CELLS = [
    "import time, dtlab\nfrom dtlab.ranks.launch.client import SERVER\nSERVER._process.poll()\n"
    "from dtlab.ranks import notices\nnotices.SILENCE = 0.1",
    "dtlab.launch(int)",  # the server imports PyTorch
    "with notices.notice('training'):\n    dtlab.launch(time.sleep, 1.2)\n"
    "dtlab.launch(time.sleep, 1.2)",
    "g = dtlab.guess('How many MB?', unit='MB')",
    "g.commit(12)",
    "from dtlab.show import step_ring\nring = step_ring()\nring",
    "ring.controls['step'].value = 2",
]


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_in_a_notebook() -> None:
    """A notice is one output, empty in the end; a widget is kept as text or a figure beside it."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]  # in the first the server runs already
    server, *_ = outputs[1]
    assert server.data == {"text/plain": ""}
    training, running, _ = outputs[2]
    assert training.data == running.data == {"text/plain": ""}
    kept, form = outputs[3]
    assert "Your guess: 12 MB." in kept.data["text/html"]  # what it held last
    assert "application/vnd.jupyter.widget-view+json" in form.data
    kept, explorer = outputs[5]
    assert "alt=" in kept.data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in explorer.data
    assert kept.data["text/plain"] != explorer.data["text/plain"]  # round 2, and the start
