"""Figures of pipelines: the places of their parts, axes and alt texts; and the explorer."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from dtlab.predict import Costs, bubble, peak_in_flight, simulate
from dtlab.schedules import gpipe, interleaved, naive, one_f_one_b, zb_h2
from dtlab.show import COLOURS, Figure, explore_pipeline, pipeline, predicted_pipeline
from dtlab.show.figures.pipeline import SCHEDULES
from dtlab.show.widgets.dials import Dial
from dtlab.trace import Event, Trace
from tests.drawn import boxes, check_layout, lines, texts
from tests.test_figures import VISIONS, contrast, lab, linear

COSTS = Costs(0.01, 0.01, 0.01)


def drawn(figure: Figure, gid: str) -> list[Any]:
    return [
        each
        for axes in figure.axes
        for each in axes.collections
        if isinstance(each, PolyCollection) and each.get_gid() == gid
    ]


def spans(figure: Figure, gid: str) -> list[tuple[float, float]]:
    """The start and end of each box of a kind, in seconds."""
    found = []
    for each in drawn(figure, gid):
        for path in each.get_paths():
            found.append((float(path.vertices[:, 0].min()), float(path.vertices[:, 0].max())))
    return sorted(found)


# ------------------------------------------------------------------------------- boxes


@pytest.mark.parametrize("schedule", [gpipe(3, 4), zb_h2(3, 6), interleaved(2, 4, 2)])
def test_boxes_are_the_actions_of_the_trace(schedule: Any) -> None:
    trace = simulate(schedule, COSTS)
    figure = pipeline({"mine": trace})
    for name in ("forward", "backward", "backward_input", "backward_weight"):
        wanted = sorted((e.start, e.end) for e in trace.events if e.name == name)
        assert spans(figure, f"mine {name}") == [pytest.approx(each) for each in wanted]
    assert [each.get_width() for each in boxes(figure, "mine idle")] == (
        [pytest.approx(trace.duration)] * len(schedule)
    )


def test_all_panels_have_one_axis_and_each_its_words() -> None:
    traces = {"short": simulate(gpipe(4, 8), COSTS), "long": simulate(naive(4, 8), COSTS)}
    figure = pipeline(traces, title="Two", note="on paper")
    assert figure.axes[0].get_xlim() == (0, pytest.approx(traces["long"].duration))
    said = [each for each in texts(figure) if each.startswith(("short: ", "long: "))]
    for words, trace in zip(said, traces.values(), strict=True):
        total, ideal = bubble(trace), bubble(trace, of="ideal")
        shares = f"; the bubble is {total:.1%} of the total, {ideal:.1%} of the ideal"
        assert words.endswith(f"ideal (no bubble) 240 ms{shares}")  # the times before the shares
        assert words in figure.alt_text
    assert figure.alt_text.startswith("Two (on paper). short: total 330 ms")
    for name in traces:
        assert lines(figure)[f"{name} ideal"].get_xdata()[0] == pytest.approx(8 * 0.03)


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 8), zb_h2(3, 6), interleaved(2, 4, 2)])
def test_each_lane_says_how_much_its_rank_holds(schedule: Any) -> None:
    chunks = 1 + max(action.stage for row in schedule for action in row) // len(schedule)
    found = [each for each in texts(pipeline({"a": simulate(schedule, COSTS)})) if "holds" in each]
    assert found == [f"holds {most / chunks:g}" for most in peak_in_flight(schedule)]
    figure = pipeline({"a": simulate(schedule, COSTS)})
    assert len(drawn(figure, "later stage")) == 2 * (chunks - 1)


@pytest.mark.parametrize("microbatches", [2, 8, 32])
def test_outlines_and_lines_leave_most_of_a_box_to_its_colour(microbatches: int) -> None:
    figure = predicted_pipeline("interleaved (4 chunks)", 8, microbatches)
    end, width = figure.axes[0].get_xlim()[1], figure.axes[0].get_window_extent().width
    for kind in ("forward", "backward"):
        (found,) = drawn(figure, f"interleaved (4 chunks) {kind}")
        points = 72 / figure.dpi * width * (found.get_paths()[0].get_extents().width / end)
        assert found.get_linewidth()[0] <= 0.1 * points
    on_lines = sum(len(each.get_paths()) for each in drawn(figure, "later stage"))
    assert on_lines == 8 * 3 * 2 * microbatches  # ranks, later chunks, F and B: one line for each


@pytest.mark.parametrize("name", ["interleaved", "interleaved, 2 chunks"])
def test_a_schedule_is_found_by_its_first_words(name: str) -> None:
    assert predicted_pipeline(name, 2, 2).alt_text.startswith("interleaved (2 chunks): 2 ranks")
    assert explore_pipeline(name, 2, 2).figure.alt_text.startswith("interleaved (2 chunks)")


def test_colours_are_those_of_the_course() -> None:
    figure = pipeline({"a": simulate(zb_h2(3, 6), COSTS), "b": simulate(gpipe(2, 2), COSTS)})
    for gid, role in (("a forward", "forward"), ("b backward", "backward")):
        (found,) = drawn(figure, gid)
        assert to_hex(found.get_facecolor()[0]) == COLOURS[role].lower()


@pytest.mark.parametrize("vision", VISIONS)
def test_kinds_of_actions_have_different_colours(vision: str) -> None:
    figure = pipeline({"a": simulate(zb_h2(3, 6), COSTS), "b": simulate(gpipe(2, 2), COSTS)})
    names = ("a forward", "b backward", "a backward_input", "a backward_weight")
    colours = [to_hex(drawn(figure, name)[0].get_facecolor()[0]) for name in names]
    seen = [lab(VISIONS[vision] @ linear(colour)) for colour in (*colours, COLOURS["idle"])]
    for one, other in combinations(range(len(seen)), 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)
    for colour in colours[1:]:
        assert contrast(colour, "#FFFFFF") > 4.5  # the microbatch's number is white


@pytest.mark.parametrize("communication", [0.0, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_a_number_is_left_out_for_lack_of_room_never_for_its_digits(communication: float) -> None:
    figure = predicted_pipeline("interleaved (2 chunks)", 8, 8, 2.0, communication)
    glyphs = sum(
        len(list(patch.get_path().to_polygons(closed_only=True)))
        for patch in figure.axes[0].patches if patch.get_gid() == "numbers"
    )  # fmt: skip
    outlines = {0: 2, 4: 2, 6: 2}  # a hole has an outline too
    of_all = 8 * 2 * sum(outlines.get(number, 1) for number in range(8))  # ranks, chunks
    assert glyphs in (of_all, 2 * of_all)  # on all backwards, and on all forwards or none
    assert glyphs == 2 * of_all or communication == 1.0


def test_a_trace_that_begins_late_and_says_no_stage_is_drawn_from_its_first_action() -> None:
    events = [
        Event(0, "compute", "setup", start=0.0, end=5.0),
        Event(0, "compute", "forward", start=7.0, end=8.0),
        Event(1, "compute", "forward", start=8.0, end=9.0),
        Event(1, "compute", "backward", start=9.0, end=11.0),
        Event(0, "compute", "backward", start=11.0, end=13.0),
    ]
    trace = Trace(events)
    trace.emulated = "slow links"
    figure = pipeline({"measured": trace}, note="by hand")
    assert spans(figure, "measured forward") == [(0.0, 1.0), (1.0, 2.0)]
    assert spans(figure, "measured backward") == [(2.0, 4.0), (4.0, 6.0)]
    assert "(emulated: slow links; by hand)" in figure.alt_text


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        pipeline({})
    with pytest.raises(ValueError, match="'empty' has no forward"):
        pipeline({"empty": Trace()})
    with pytest.raises(ValueError, match="schedule must be one of naive, GPipe"):
        predicted_pipeline("2F2B")
    with pytest.raises(ValueError, match="at least one microbatch"):
        predicted_pipeline(num_microbatches=0)


# --------------------------------------------------------------------------- prediction


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_prediction_has_ten_milliseconds_of_forward_on_each_rank(name: str) -> None:
    figure = predicted_pipeline(name, 4, 8, 3.0, 0.1)
    busy = [sum(end - start for start, end in spans(figure, f"{name} {kind}"))
            for kind in ("forward", "backward", "backward_input", "backward_weight")]  # fmt: skip
    assert busy[0] == pytest.approx(4 * 8 * 0.01)
    assert sum(busy) == pytest.approx(4 * 8 * 0.04)
    assert "backward 3 times that; a message 0.1 times that" in figure.alt_text


def test_two_schedules_are_drawn_below_each_other() -> None:
    figure = predicted_pipeline("1F1B", 4, 8, beside="ZB-H1")
    assert figure.alt_text.startswith("1F1B and ZB-H1: 4 ranks, 8 microbatches")
    assert drawn(figure, "1F1B backward") and drawn(figure, "ZB-H1 backward_weight")
    assert predicted_pipeline(beside="1F1B").alt_text == predicted_pipeline().alt_text


SOME: dict[str, Callable[[], Figure]] = {
    "as it is": predicted_pipeline,
    "one rank": lambda: predicted_pipeline("naive", 1, 1),
    "many": lambda: predicted_pipeline("ZB-H2", 8, 32, 1.5, 0.5, "interleaved (4 chunks)"),
    "all letters": lambda: predicted_pipeline("interleaved (2 chunks)", 4, 8, beside="ZB-H1"),
}


@pytest.mark.parametrize("name", SOME)
def test_figures_have_a_title_and_words_that_lie_apart(name: str) -> None:
    check_layout(SOME[name]())


# ----------------------------------------------------------------------------- explorer


def test_the_explorer_draws_what_its_controls_say() -> None:
    explorer = explore_pipeline("GPipe", 3, 6)
    assert explorer.figure.alt_text == predicted_pipeline("GPipe", 3, 6).alt_text
    set_to = {"schedule": "ZB-H2", "num_stages": 5, "num_microbatches": 10, "backward": 1.5,
              "communication": 0.2, "beside": "1F1B"}  # fmt: skip
    for name, value in set_to.items():
        before = explorer.figure.alt_text
        explorer.controls[name].value = value
        assert explorer.figure.alt_text != before
    wanted: Any = set_to
    assert explorer.figure.alt_text == predicted_pipeline(**wanted).alt_text
    dial = explorer.controls["backward"]
    assert isinstance(dial, Dial)
    dial.field.value = "9"
    assert "out of range" in dial.complaint.value


def test_a_drag_of_the_slider_draws_one_figure() -> None:
    """The explorer needs at most twice the time of one call that makes the same picture."""
    explorer = explore_pipeline()
    dragged, called = [], []
    for stages in (2, 3, 4, 5, 6, 4):
        started = time.process_time()
        explorer.controls["num_stages"].value = stages
        dragged.append(time.process_time() - started)
        started = time.process_time()
        predicted_pipeline(num_stages=stages).to_png()
        called.append(time.process_time() - started)
    assert min(dragged) < 2 * min(called)
