"""Figures of data parallelism: their parts, places and alt texts."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from dtlab.predict import Gradient, Link, bucket_times, exposed_seconds, step_seconds
from dtlab.predict import gradients_per_second as speed
from dtlab.show import (
    COLOURS,
    Figure,
    explore_overlap,
    explore_straggler,
    line_chart,
    overlap,
    straggler,
)
from dtlab.show.words import byte_words, time_words
from tests.drawn import check_layout, lines, texts


def boxes(figure: Figure, name: str) -> dict[str, tuple[float, float]]:
    """The start and end of each box whose name matches a pattern."""
    found = {}
    for axes in figure.axes:
        for patch in axes.patches:
            if isinstance(patch, Rectangle) and re.fullmatch(name, patch.get_gid() or ""):
                found[patch.get_gid()] = (patch.get_x(), patch.get_x() + patch.get_width())
    return found


# ------------------------------------------------------------------------------- overlap


def test_layers_and_buckets_lie_where_they_are_predicted() -> None:
    figure = overlap(2e6, 4, 4e6, 8e-3, 4, 1e-4, 1e9)
    layers = boxes(figure, r"layer \d+")
    assert list(layers) == ["layer 4", "layer 3", "layer 2", "layer 1"]
    assert list(layers.values()) == [pytest.approx((2e-3 * i, 2e-3 * i + 2e-3)) for i in range(4)]
    wanted = bucket_times([Gradient(2e-3, 1e6)] * 4, 2e6, 4, Link(1e-4, 1e9))
    assert boxes(figure, r"bucket \d+") == {
        f"bucket {n}": pytest.approx((each.start, each.end)) for n, each in enumerate(wanted)
    }
    assert boxes(figure, "exposed") == {"exposed": pytest.approx((8e-3, wanted[-1].end))}
    assert "2 all-reduces take 7.20 ms; 3.60 ms are exposed" in figure.alt_text


def test_colours_are_those_of_the_course() -> None:
    fills = {patch.get_gid(): to_hex(patch.get_facecolor())
             for axes in overlap().axes for patch in axes.patches}  # fmt: skip
    assert fills["layer 1"] == COLOURS["backward"].lower()
    assert fills["exposed"] == COLOURS["idle"].lower()


@pytest.mark.parametrize("bucket", [1e5, 3.3e6, 25e6, 2e8, 1e9])
def test_the_point_lies_on_the_curve_at_the_size_that_is_set(bucket: float) -> None:
    figure = overlap(bucket, 50, 1e8, 20e-3, 16, 5e-6, 25e9)
    layers = [Gradient(20e-3 / 50, 1e8 / 50)] * 50
    exposed = exposed_seconds(layers, bucket, 16, Link(5e-6, 25e9))
    drawn = lines(figure)
    assert drawn["place exposed"].get_xdata()[0] == bucket
    assert drawn["place exposed"].get_ydata()[0] == pytest.approx(exposed)
    curve = dict(zip(*drawn["predicted exposed"].get_data(), strict=True))
    assert curve[bucket] == pytest.approx(exposed)
    assert f"{time_words(exposed)} are exposed" in figure.alt_text
    assert byte_words(bucket) in texts(figure)


@pytest.mark.parametrize(
    "arguments",
    [{"num_layers": 0}, {"num_ranks": 1}, {"bucket_bytes": 0}, {"bandwidth": 0}, {"latency": -1}],
)
def test_an_overlap_that_cannot_be_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"overlap|bucket|link"):
        overlap(**arguments)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- straggler


def test_points_are_the_shares_that_are_left() -> None:
    drawn = lines(straggler(2.0, 4, 3))
    sync, bounded, asynchronous = (
        drawn[f"place {name}"].get_ydata()[0] for name in ("sync", "bounded, 3 ahead", "async")
    )
    assert sync == pytest.approx(100 / 3, abs=0.5)
    assert sync <= bounded < sync + 3
    assert asynchronous == pytest.approx(
        100 * speed(step_seconds(4, 160, 1, 2), np.inf) / 4, rel=1e-6
    )


def test_a_bound_helps_if_workers_are_late_in_turn() -> None:
    always, turns = (
        lines(straggler(2.0, 6, 4, turns=each))["place bounded, 4 ahead"].get_ydata()[0]
        for each in (False, True)
    )
    assert turns > 1.5 * always
    assert "another one in each step" in straggler(2.0, 6, 4, turns=True).alt_text


def test_without_a_delay_no_worker_is_slower() -> None:
    figure = straggler(0.0)
    for name in ("sync", "bounded, 3 ahead", "async"):
        assert lines(figure)[f"place {name}"].get_ydata()[0] == pytest.approx(100)


@pytest.mark.parametrize(
    "arguments", [{"delay": -1}, {"delay": np.inf}, {"num_workers": 1}, {"staleness": 0}]
)
def test_a_straggler_that_cannot_be_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="straggler"):
        straggler(**arguments)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- line chart


def chart(curves: Any, **options: Any) -> Figure:
    names = {"across": "step", "upwards": "loss", "title": "A run"}
    return line_chart(curves, **(names | options))


def test_a_curve_has_its_numbers() -> None:
    figure = chart({"one": ([1, 2, 3], [3.0, 1.0, 2.0])}, note="2 ranks", asides={"one": "fast"})
    assert list(lines(figure)["measured one"].get_ydata()) == [3.0, 1.0, 2.0]
    assert lines(figure)["measured one"].get_marker() == "o"
    assert {"A run", "2 ranks", "one", "fast"} <= set(texts(figure))
    assert figure.alt_text == (
        "A run (2 ranks): loss against step. "
        "one from 3 at 1 to 2 at 3, lowest 1, highest 3."
    )


def test_places_are_lines_across_with_words_above() -> None:
    figure = chart({"one": ([1, 2, 3], [3.0, 1.0, 2.0])}, places={"here": 1.5, "there": 2.5})
    assert {"here", "there"} <= set(texts(figure))
    places = [line for line in figure.axes[0].lines if line.get_gid() == "place"]
    assert [line.get_xdata()[0] for line in places] == [1.5, 2.5]
    assert figure.alt_text.endswith(" Lines: here at 1.5, there at 2.5.")


def test_many_points_have_no_marks_and_neither_has_their_key() -> None:
    figure = chart({"one": (range(50), range(50)), "two": ([0, 49], [1, 2])})
    assert lines(figure)["measured one"].get_marker() == "None"
    assert "key mark one" not in lines(figure)
    assert "key mark two" in lines(figure)


def test_a_logarithmic_axis_leaves_out_what_it_has_no_place_for() -> None:
    figure = chart({"one": ([0, 1, 2], [0.0, 1e-3, 1.0]), "two": ([1], [0.0])}, log="y")
    drawn = lines(figure)["measured one"].get_ydata()
    assert np.isnan(drawn[0])
    assert list(drawn[1:]) == [1e-3, 1.0]
    assert "two has nothing to show" in figure.alt_text


def test_a_logarithmic_axis_has_ticks_at_few_values_but_not_at_many() -> None:
    def across(*xs: float) -> list[float]:
        axis = chart({"one": (xs, range(len(xs)))}, log="x").axes[0].xaxis
        low, high = axis.get_view_interval()
        return [tick for tick in axis.get_ticklocs() if low <= tick <= high]

    assert across(1, 2, 4, 8) == [1, 2, 4, 8]
    assert across(0, 3, 50) == [3, 50]
    assert across(*range(1, 30)) == [1, 2, 5, 10, 20]
    assert across(7) == [5, 10]
    assert across(1 / 3, 2 / 3, 4 / 3) == [0.5, 1]


def test_kinds_look_different() -> None:
    curve = {"one": ([1, 2], [1, 2])}
    fills = {
        kind: lines(chart(curve, kind=kind))[f"{kind} one"].get_markerfacecolor()
        for kind in ("measured", "emulated")
    }
    assert fills["measured"] != fills["emulated"]
    assert lines(chart(curve, kind="predicted"))["predicted one"].get_marker() == "None"


@pytest.mark.parametrize(
    ("curves", "words"),
    [
        ({}, "nothing to draw"),
        ({"one": ([], [])}, "nothing to draw"),
        ({"one": ([1, 2], [1])}, "2 numbers across and 1 upwards"),
        ({f"number {i}": ([1], [1]) for i in range(7)}, "room for 6 curves, not for 7"),
    ],
)
def test_charts_that_cannot_be_drawn_are_refused(curves: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chart(curves)


# ------------------------------------------------------------------------------- display

CURVE = (range(1, 40), np.geomspace(1e-8, 1e-3, 39))
SOME_OF_EACH = {
    "overlap": overlap,
    "few layers": lambda: overlap(1e6, 3, 1e6, 1e-3, 2, 1e-6, 1e9),
    "all exposed": lambda: overlap(1e5, 100, 1e9, 1e-3, 1024, 1e-3, 1.25e9),
    "one bucket": lambda: overlap(2e8, bandwidth=4.5e11),
    "straggler": straggler,
    "many workers": lambda: straggler(4.0, 32, 32, turns=True),
    "line": lambda: chart({"a curve with a long name": CURVE}, log="y", note="a note"),
    "lines": lambda: chart({f"number {i}": ([0.1, 1, 9], [i, 2, 3]) for i in range(6)}, log="x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_figures_have_a_title_and_words_that_lie_apart(name: str) -> None:
    check_layout(SOME_OF_EACH[name]())


@pytest.mark.slow
def test_explorers_draw_what_their_controls_say() -> None:
    one = explore_overlap()
    for name, value in {"bucket_bytes": 5e6, "num_ranks": 64, "latency": 3e-5}.items():
        one.controls[name].value = value
    assert one.figure.alt_text == overlap(5e6, num_ranks=64, latency=3e-5).alt_text
    other = explore_straggler()
    for name, value in {"delay": 2.0, "num_workers": 5, "staleness": 7, "turns": True}.items():
        other.controls[name].value = value
    assert other.figure.alt_text == straggler(2.0, 5, 7, turns=True).alt_text
    other.controls["delay"].field.value = "2.5"
    assert "late by 2.5 steps" in other.figure.alt_text
