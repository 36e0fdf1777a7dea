"""Widgets of `dtlab.show`: a control that moves changes the figure, soon, and its words too."""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from dtlab.show import Explorer, crossover, explore_crossover, ring, step_ring, step_tree, tree

REDRAW = 0.2  # seconds, the goal
WIDGETS: dict[str, Callable[[], Explorer]] = {
    "ring": step_ring,
    "largest ring": lambda: step_ring(8),
    "tree": step_tree,
    "crossover": explore_crossover,
}


def picture(explorer: Explorer) -> str:
    """What is shown below the controls."""
    return str(explorer.widget.children[-1].value)


def buttons(explorer: Explorer) -> list[Any]:
    """The buttons beside the slider."""
    return [each for each in explorer.widget.children[0].children if hasattr(each, "click")]


def move(slider: Any) -> None:
    """One step to the right, as an arrow key does it."""
    if hasattr(slider, "index"):
        slider.index += 1
    else:
        slider.value += 1


@pytest.mark.parametrize("name", WIDGETS)
def test_a_control_that_moves_changes_the_picture_and_its_words(name: str) -> None:
    explorer = WIDGETS[name]()
    for control in explorer.controls.values():
        before, words = picture(explorer), explorer.figure.alt_text
        move(control)
        assert picture(explorer) != before
        assert explorer.figure.alt_text != words
        assert f'<img alt="{html.escape(explorer.figure.alt_text)}"' in picture(explorer)


@pytest.mark.parametrize(("step", "draw"), [(step_ring, ring), (step_tree, tree)])
def test_a_stepper_shows_the_figure_of_its_step(
    step: Callable[[int], Explorer], draw: Callable[[int, int], Any]
) -> None:
    explorer = step(3)
    back, forth = buttons(explorer)
    assert explorer.figure.alt_text == draw(3, 0).alt_text
    forth.click()
    assert explorer.figure.alt_text == draw(3, 1).alt_text
    forth.click()
    back.click()
    back.click()
    back.click()  # stays at the start
    assert explorer.figure.alt_text == draw(3, 0).alt_text
    slider = explorer.controls["step"]
    slider.value = slider.max
    forth.click()
    assert slider.value == slider.max == 4
    assert explorer.figure.alt_text == draw(3, 4).alt_text


def test_a_stepper_of_one_rank_has_nowhere_to_go() -> None:
    explorer = step_ring(1)
    for button in buttons(explorer):
        button.click()
    assert explorer.controls["step"].value == 0


def test_a_tree_can_be_stepped_for_one_operation() -> None:
    explorer = step_tree(4, operation="broadcast")
    assert explorer.controls["step"].max == 2
    assert explorer.figure.alt_text.startswith("Broadcast among 4 ranks: at the start.")


def test_the_explorer_draws_what_its_sliders_say() -> None:
    explorer = explore_crossover()
    assert explorer.figure.alt_text == crossover(8, 5e-6, 50e9, size=1e6).alt_text
    changed = {"size": 5e7, "num_ranks": 6, "latency": 3e-5, "bandwidth": 1.25e9}
    for name, value in changed.items():
        explorer.controls[name].value = value
    assert explorer.figure.alt_text == crossover(**changed).alt_text
    labels = {name: control.label for name, control in explorer.controls.items()}
    assert labels == {
        "size": "50 MB", "num_ranks": "6", "latency": "30 µs", "bandwidth": "1.25 GB/s",
    }  # fmt: skip


def test_the_explorer_can_be_about_two_algorithms() -> None:
    words = explore_crossover(["central server", "ring"]).figure.alt_text
    assert "tree" not in words
    assert "ring" in words


@pytest.mark.parametrize("name", WIDGETS)
def test_a_moved_slider_redraws_soon(name: str) -> None:
    explorer = WIDGETS[name]()
    control = next(iter(explorer.controls.values()))
    used = []
    for _ in range(5):
        begun = time.process_time()  # of this process: the machine may be busy with others
        move(control)
        used.append(time.process_time() - begun)
    assert min(used) < 3 * REDRAW


def test_readers_without_widgets_get_the_figure() -> None:
    data = step_ring(3)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == ring(3, 0).alt_text
    assert f'alt="{html.escape(ring(3, 0).alt_text)}"' in data["text/html"]


@pytest.mark.slow
def test_without_a_front_end_the_figure_is_shown_and_the_notebook_goes_on() -> None:
    cells = ["from dtlab.show import step_ring, explore_crossover\nstep_ring(4)",
             "explore_crossover()"]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    for cell, words in zip(notebook.cells, ("at the start", "Fastest"), strict=True):
        (output,) = cell.outputs
        assert output.output_type == "execute_result"
        assert words in output.data["text/html"]
