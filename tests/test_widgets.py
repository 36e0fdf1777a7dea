"""Widgets of `dtlab.show`: a control that moves changes the figure, soon, and its words too."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from typing import Any

import nbformat
import pytest
import torch
from matplotlib.textpath import TextPath
from nbclient import NotebookClient

from dtlab.show import (
    Explorer,
    crossover,
    explore_activations,
    explore_block,
    explore_checkpoints,
    explore_crossover,
    explore_decision,
    explore_effective_batch,
    explore_gradients,
    explore_lengths,
    explore_memory,
    explore_mesh,
    explore_number_line,
    explore_overlap,
    explore_pipeline,
    explore_published_sweep,
    explore_schedule,
    explore_straggler,
    explore_wire,
    replay,
    ring,
    step_ring,
    step_tree,
    timeline,
    tree,
)
from dtlab.show.figures.costs import ALL_REDUCES
from dtlab.show.widgets.dials import Dial
from dtlab.trace import Event, Trace

REDRAW = 0.2  # seconds, the goal
WIDGETS: dict[str, Callable[[], Explorer]] = {
    "ring": step_ring,
    "largest ring": lambda: step_ring(8),
    "tree": step_tree,
    "crossover": explore_crossover,
    "overlap": explore_overlap,
    "straggler": explore_straggler,
    "effective batch": explore_effective_batch,
    "schedule": explore_schedule,
    "published sweep": explore_published_sweep,
}
OTHERS: dict[str, Callable[[], Explorer]] = {
    "activations": explore_activations,
    "block": explore_block,
    "checkpoints": explore_checkpoints,
    "decision": explore_decision,
    "gradients": lambda: explore_gradients([torch.ones(3)]),
    "lengths": explore_lengths,
    "memory": explore_memory,
    "mesh": explore_mesh,
    "number line": explore_number_line,
    "pipeline": explore_pipeline,
    "wire": explore_wire,
}


def picture(explorer: Explorer) -> str:
    """What is shown below the controls."""
    return str(explorer.widget.children[-1].value)


def buttons(explorer: Explorer) -> list[Any]:
    """The buttons next to the slider."""
    return [each for each in explorer.widget.children[0].children if hasattr(each, "click")]


def move(control: Any) -> None:
    """Move a control one step to the right, as an arrow key does, or press space on a box.

    Of a list the next choice, and after the last one the first.
    """
    if isinstance(control, Dial):
        control.slider.index += 1
    elif hasattr(control, "options"):
        control.index = (control.index + 1) % len(control.options)
    else:
        control.value = not control.value


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", WIDGETS)
def test_a_control_that_moves_changes_the_picture_and_its_words(name: str) -> None:
    explorer = WIDGETS[name]()
    for control in explorer.controls.values():
        before, words = picture(explorer), explorer.figure.alt_text
        move(control)
        assert picture(explorer) != before
        assert explorer.figure.alt_text != words
        assert f'<img alt="{html.escape(explorer.figure.alt_text)}"' in picture(explorer)


@pytest.mark.slow
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
    dial = explorer.controls["step"]
    dial.value = 4
    forth.click()
    assert dial.value == 4
    assert explorer.figure.alt_text == draw(3, 4).alt_text


def test_a_stepper_of_one_rank_has_nowhere_to_go() -> None:
    explorer = step_ring(1)
    for button in buttons(explorer):
        button.click()
    assert explorer.controls["step"].value == 0


def test_a_tree_can_be_stepped_for_one_operation() -> None:
    explorer = step_tree(4, operation="broadcast")
    assert len(explorer.controls["step"].slider.options) == 3
    assert explorer.figure.alt_text.startswith("Broadcast among 4 ranks: at the start.")


@pytest.mark.slow
def test_the_explorer_draws_what_its_sliders_say() -> None:
    explorer = explore_crossover()
    assert explorer.figure.alt_text == crossover(8, 5e-6, 50e9, size=1e6).alt_text
    changed = {"size": 5e7, "num_ranks": 6, "latency": 3e-5, "bandwidth": 1.25e9}
    for name, value in changed.items():
        explorer.controls[name].value = value
    assert explorer.figure.alt_text == crossover(**changed).alt_text
    dials = {name: each for name, each in explorer.controls.items() if isinstance(each, Dial)}
    assert {name: dial.field.value for name, dial in dials.items()} == {
        "size": "50 MB", "num_ranks": "6", "latency": "30 µs", "bandwidth": "1.25 GB/s",
    }  # fmt: skip
    assert {name: dial.slider.label for name, dial in dials.items()} == {
        "size": "50 MB", "num_ranks": "6", "latency": "30 µs", "bandwidth": "1.25 GB/s",
    }  # fmt: skip


def test_the_explorer_can_be_about_two_algorithms() -> None:
    explorer = explore_crossover(["central server", "ring"])
    assert "tree" not in explorer.figure.alt_text
    assert "ring" in explorer.figure.alt_text
    assert "tree" not in explorer.controls


@pytest.mark.proof
@pytest.mark.slow
def test_an_algorithm_is_hidden_and_shown_by_its_box() -> None:
    explorer = explore_crossover()
    explorer.controls["num_ranks"].value = 64
    assert "ring from" not in explorer.figure.alt_text
    explorer.controls["halving-doubling"].value = False
    assert "halving-doubling" not in explorer.figure.alt_text
    assert "recursive doubling from 100 B and ring from 7.44 MB" in explorer.figure.alt_text
    for name in ALL_REDUCES:
        explorer.controls[name].value = False
    assert "No algorithm is chosen." in explorer.figure.alt_text
    explorer.controls["tree"].value = True
    assert "At 1.00 MB: tree 300 µs." in explorer.figure.alt_text


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "typed", "value", "shown"),
    [
        ("size", "7 MB", 7e6, "7 MB"),
        ("size", " 7.3mb", 7.3e6, "7.3 MB"),
        ("size", "123456", 123456, "123 kB"),
        ("num_ranks", "17", 17, "17"),
        ("latency", "7 us", 7e-6, "7 µs"),
        ("latency", "7 \N{GREEK SMALL LETTER MU}s", 7e-6, "7 µs"),
        ("bandwidth", "12 GB/s", 12e9, "12 GB/s"),
    ],
)
def test_a_dial_takes_any_value_that_is_typed(
    name: str, typed: str, value: float, shown: str
) -> None:
    explorer = explore_crossover()
    dial, seen = explorer.controls[name], []
    dial.observe(seen.append)
    dial.field.value = typed
    assert dial.value == pytest.approx(value)
    assert dial.field.value == shown
    assert len(seen) == 1  # drawn once
    nearest = min(dial.slider.options, key=lambda option: abs(option[1] - value))
    assert (dial.slider.label, dial.slider.value) == nearest


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        (
            "size",
            "seven",
            "'seven' is not understood. Type digits and a point, then B, kB, MB, GB",
        ),
        ("size", "7,5 MB", "'7,5 MB' is not understood"),
        ("size", "1 TB", "'1 TB' is not understood"),
        ("size", "1 B", "1 B is out of range: size of the tensor goes from 100 B to 10 GB."),
        ("num_ranks", "6.5", "'6.5' is not a whole number."),
        ("num_ranks", "many", "'many' is not understood. Type digits and a point."),
        ("latency", "5", "5 s is out of range: latency of a link goes from 0.5 µs to 1 ms."),
    ],
)
def test_a_dial_says_what_is_wrong_and_stays_where_it_is(
    name: str, typed: str, words: str
) -> None:
    explorer = explore_crossover()
    dial, before = explorer.controls[name], explorer.figure.alt_text
    dial.field.value = typed
    assert html.escape(words) in dial.complaint.value
    assert explorer.figure.alt_text == before
    dial.slider.index += 1
    assert dial.complaint.value == ""
    assert explorer.figure.alt_text != before


@pytest.mark.slow
def test_every_control_has_a_name_that_reaches_the_page() -> None:
    """What JupyterLab ties to a field or a box is its description; sliders have none there."""
    explorer = explore_crossover()
    names = [
        (each.field if isinstance(each, Dial) else each).description
        for each in explorer.controls.values()
    ]
    assert names == [
        "Size of the tensor", "Number of ranks", "Latency of a link", "Bandwidth of a link",
        *ALL_REDUCES,
    ]  # fmt: skip
    dial = step_tree(4).controls["step"]
    assert dial.field.description == "Rounds done"
    dial.field.value = "2"
    assert (dial.value, dial.slider.value) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WIDGETS, *OTHERS])
def test_names_are_not_cut_and_no_box_gets_scrollbars(name: str) -> None:
    """JupyterLab cuts a name with "..." where it is too wide, and scrolls a box that overflows."""
    explorer = (WIDGETS | OTHERS)[name]()
    for control in explorer.controls.values():
        shown = control.field if isinstance(control, Dial) else control
        if "description_width" not in shown.style.keys or not shown.style.description_width:
            continue  # a checkbox is as wide as its name
        room = 13 * float(shown.style.description_width.removesuffix("em"))  # in pixels
        assert TextPath((0, 0), shown.description, size=13).get_extents().width < room
        for option in getattr(shown, "options", ()):
            words = option if isinstance(option, str) else option[0]
            assert "_" not in words and "e9" not in words  # no raw values
    *rows, _ = explorer.widget.children
    for box in [*rows, *(each for row in rows for each in row.children)]:
        if hasattr(box, "children"):
            assert box.layout.overflow == "visible"
    for dial in (each for each in explorer.controls.values() if isinstance(each, Dial)):
        assert {each.layout.overflow for each in dial.widget.children} == {"visible"}


def test_a_complaint_moves_no_control() -> None:
    dial = explore_crossover().controls["num_ranks"]
    dial.field.value = "many"
    assert "position: absolute" in dial.complaint.value
    assert dial.complaint.layout.height == "0"


@pytest.mark.sample(1)
@pytest.mark.slow
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


def forward_and_message() -> Trace:
    """Rank 0 computes for a second and sends; rank 1 waits for it."""
    waits = {"blocked": [(0.0, 2.0)]}
    return Trace(
        [
            Event(0, "compute", "forward", (), 0, 0.0, 1.0),
            Event(0, "comm", "send", (1,), 4_000_000, 1.0, 2.0, {"blocked": []}),
            Event(1, "comm", "recv", (0,), 4_000_000, 0.0, 2.0, waits),
        ]
    )


def test_a_replay_covers_what_has_not_happened_yet() -> None:
    shown = replay(forward_and_message(), title="A message")
    _, frame, now = shown.widget.children
    picture, cover = frame.children
    assert 'style="' not in cover.value  # at first all of it is shown
    assert now.value.count("finished") == 2
    before = picture.value
    dial, box = shown.controls["time"], shown.figure.axes[0].get_position()
    for moment, words in (
        (0.5, ["rank 0: forward", "rank 1: waiting; under way: recv ← 0 (4.00 MB)"]),
        (1.5, ["rank 0: outside any span; under way: send → 1 (4.00 MB)", "rank 1: waiting"]),
    ):
        dial.value = moment
        assert all(each in now.value for each in words)
        (left,) = re.findall(r"left:([0-9.]+)%", cover.value)
        assert float(left) == pytest.approx(100 * (box.x0 + box.width * moment / 2), abs=0.01)
    assert picture.value == before  # drawn once
    shown.play.value = 25
    assert dial.value == pytest.approx(0.5)
    dial.field.value = "1 s"
    assert (dial.value, shown.play.value) == (1, 50)  # playing continues from there
    shown.play.playing = True
    shown.play.value = 100
    assert (dial.value, shown.play.value, shown.play.playing) == (2, 0, False)  # and starts again


def test_a_replay_without_widgets_is_the_timeline() -> None:
    trace = forward_and_message()
    data = replay(trace, title="A message")._repr_mimebundle_()
    assert data["text/plain"] == timeline(trace, title="A message").alt_text
    assert f'alt="{html.escape(data["text/plain"])}"' in data["text/html"]
    with pytest.raises(ValueError, match="no events"):
        replay(Trace())


def test_readers_without_widgets_get_the_figure() -> None:
    data = step_ring(3)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == ring(3, 0).alt_text
    assert f'alt="{html.escape(ring(3, 0).alt_text)}"' in data["text/html"]


@pytest.mark.proof
@pytest.mark.slow
def test_without_a_front_end_the_figure_is_shown_and_the_notebook_continues() -> None:
    cells = ["from dtlab.show import step_ring, explore_crossover\nstep_ring(4)",
             "explore_crossover()"]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    for cell, words in zip(notebook.cells, ("at the start", "Fastest"), strict=True):
        kept, output = cell.outputs
        assert words in kept.data["text/html"]  # for readers, and pages, without widgets
        assert output.output_type == "execute_result"
        assert "application/vnd.jupyter.widget-view+json" in output.data
