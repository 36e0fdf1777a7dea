"""Figures of batch sizes and learning rates: their parts and alt texts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from torch import nn
from torch.optim import SGD

from dtlab.show import (
    COLOURS,
    Figure,
    effective_batch,
    explore_effective_batch,
    explore_published_sweep,
    explore_schedule,
    published_sweep,
    schedule,
    sweep_chart,
)
from dtlab.show.figures.batch import AT_8K, IMAGENET
from dtlab.training.learning_rate import WarmupThenDecay
from tests.drawn import boxes, check_layout, lines, texts

# ----------------------------------------------------------------------- effective batch


def test_every_copy_has_its_gpus_and_its_micro_batches() -> None:
    figure = effective_batch(4, 8, 3, 2)
    assert len(boxes(figure, "gpu")) == 3 * 2
    assert len(boxes(figure, "microbatch")) == 3 * 8
    assert texts(figure).count("4") == 3 * 8
    assert {"copy 0", "copy 1", "copy 2"} <= set(texts(figure))
    assert "96 samples in a step, on 6 GPUs" in figure.alt_text
    assert "4 × 8 × 3 = 96" in figure.alt_text
    assert "with all 6 GPUs the product would be 192, too many" in figure.alt_text


def test_where_each_gpu_has_a_copy_nothing_is_wrong_with_gpus() -> None:
    figure = effective_batch(1, 1, 1, 1)
    assert "1 sample in a step, on 1 GPU (" in figure.alt_text
    assert "share" not in figure.alt_text
    (step,) = boxes(figure, "step")
    assert to_hex(step.get_facecolor()) == COLOURS["optimizer"].lower()  # nothing is sent
    assert "all-reduce" not in figure.alt_text


def test_many_of_them_are_drawn_in_part() -> None:
    figure = effective_batch(2, 64, 1024, 64)
    assert "and 1,019 more copies" in texts(figure)
    assert len(boxes(figure, "microbatch")) == 5 * 11
    assert len(boxes(figure, "gpu")) == 5 * 7
    (step,) = boxes(figure, "step")
    assert to_hex(step.get_facecolor()) == COLOURS["communication"].lower()
    assert step.get_x() > max(each.get_x() + each.get_width()
                              for each in boxes(figure, "microbatch"))  # fmt: skip


# ------------------------------------------------------------------------------ schedule


def drawn_rates(figure: Figure, name: str) -> dict[int, float]:
    xs, ys = lines(figure)[f"predicted {name}"].get_data()
    return {int(x): y for x, y in zip(xs, ys, strict=True) if x == int(x)}


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
def test_the_curve_is_what_the_scheduler_does(decay: Any) -> None:
    figure = schedule(0.25, 8, 3, decay, base_rate=0.1, num_steps=40)
    for name, calls in {"as meant": 1, "3 calls in a step": 3}.items():
        optimizer = SGD([nn.Parameter()], lr=0.8)
        planned = WarmupThenDecay(optimizer, 10, 40, decay=decay, start_factor=1 / 8)
        drawn = drawn_rates(figure, name)
        for step in range(40):
            assert drawn[step] == pytest.approx(optimizer.param_groups[0]["lr"])
            optimizer.step()
            for _ in range(calls):
                planned.step()
    assert "full rate at step 10" in figure.alt_text


def test_too_many_calls_end_the_rate_early() -> None:
    figure = schedule(0.25, 8, 4, num_steps=400)
    assert drawn_rates(figure, "4 calls in a step")[100] == 0
    assert drawn_rates(figure, "as meant")[100] == pytest.approx(0.4)
    assert "0 from step 100 on, for 75 % of the run" in figure.alt_text
    assert "predicted 1 calls in a step" not in lines(schedule())


@pytest.mark.parametrize(
    "wrong", [{"warmup": -0.1}, {"warmup": 1.1}, {"times": 0.5}, {"calls_per_step": 0},
              {"num_steps": 0}],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="schedule"):
        schedule(**wrong)


# ---------------------------------------------------------------------- published sweep


def test_the_published_errors_are_those_of_the_paper() -> None:
    assert list(IMAGENET.values()) == [
        23.49, 23.60, 23.48, 23.53, 23.49, 23.56, 23.74, 24.79, 27.55, 33.96,
    ]  # fmt: skip
    assert all(second == 2 * first for first, second in pairwise(IMAGENET))
    assert [error for _, error in AT_8K.values()] == [23.74, 24.84, 25.88, 26.22, 41.67]
    drawn = lines(published_sweep())["measured linear, gradual warm-up"]
    assert dict(zip(*drawn.get_data(), strict=True)) == dict(IMAGENET)


def test_another_rule_has_a_separate_mark_at_8k() -> None:
    drawn = lines(published_sweep("not scaled"))["measured not scaled"]
    assert [list(side) for side in drawn.get_data()] == [[8192], [41.67]]
    assert "18.07 points more than at 256" in published_sweep("not scaled").alt_text
    with pytest.raises(ValueError, match="not 'cube root'"):
        published_sweep("cube root")


# --------------------------------------------------------------------------- sweep chart

RUNS = {"one": {32: [2.0, 1.0, 4.0], 256: [3.0]}, "two": {256: [6.0, 5.0, 9.0]}}


def chart(runs: Any = RUNS, **options: Any) -> Figure:
    names = {"across": "batch", "upwards": "error", "title": "A sweep", "log": "x"}
    return sweep_chart(runs, **(names | options))


def ranges(figure: Figure, name: str) -> list[tuple[float, float]]:
    (bars,) = [each for axes in figure.axes for each in axes.collections
               if each.get_gid() == f"range {name}"]  # fmt: skip
    return [tuple(segment[:, 1]) for segment in bars.get_segments()]


def test_a_mark_is_the_median_and_its_bar_the_range() -> None:
    figure = chart(asides={"two": "late"}, note="3 seeds")
    assert list(lines(figure)["measured one"].get_ydata()) == [2.0, 3.0]
    assert ranges(figure, "one") == [(1.0, 4.0), (3.0, 3.0)]
    assert ranges(figure, "two") == [(5.0, 9.0)]
    assert figure.alt_text == (
        "A sweep (3 seeds): error against batch. "
        "one: 2 (1 to 4) at 32, 3 (3 to 3) at 256; two: 6 (5 to 9) at 256."
    )
    assert {"one", "two", "late", "3 seeds"} <= set(texts(figure))


@pytest.mark.parametrize("log", ["", "xy"])
def test_marks_at_one_place_are_next_to_each_other(log: str) -> None:
    figure = chart(log=log)
    first, second = (lines(figure)[f"measured {name}"].get_xdata()[-1] for name in ("one", "two"))
    assert first < 256 < second
    assert second / first < 1.1
    (axes,) = [each for each in figure.axes if each.get_xlabel() == "batch"]
    assert list(axes.xaxis.get_major_locator()()) == [32, 256]


def test_a_band_and_a_level_have_their_words() -> None:
    figure = chart(band=(100, 300, "noise scale"), level=(5.0, "twice the error"), log="xy")
    assert {"noise scale", "twice the error"} <= set(texts(figure))
    assert lines(figure)["level"].get_ydata()[0] == 5.0
    assert figure.alt_text.endswith(
        "Shaded from 100 to 300: noise scale. A line at 5: twice the error."
    )


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({}, "nothing to draw"),
        ({"one": {}}, "'one' has a position without a run"),
        ({"one": {32: []}}, "'one' has a position without a run"),
        ({"one": {32: [np.nan]}}, "nan cannot be drawn on the y axis"),
        ({"one": {0: [1.0]}}, "0 cannot be drawn on the x axis"),
        ({str(number): {1: [1]} for number in range(7)}, "room for 6 curves, not for 7"),
    ],
)
def test_sweeps_that_cannot_be_drawn_are_refused(runs: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chart(runs)


# ------------------------------------------------------------------------------- display

ERRORS = {
    "not scaled": (8, 16, 37),
    "square root": (4, 6, 8),
    "linear": (3, 7, 70),
    "linear + warm-up": (2, 4, 61),
}
SWEPT = {
    name: {256 * 2**step: [error, 1.2 * error, 0.9 * error] for step, error in enumerate(errors)}
    for name, errors in ERRORS.items()
}
SOME_OF_EACH = {
    "batch": effective_batch,
    "batch, many": lambda: effective_batch(1024, 64, 1024, 64),
    "batch, one": lambda: effective_batch(1, 1, 1, 1),
    "schedule": schedule,
    "schedule, called too often": lambda: schedule(0.4, 64, 16, "linear"),
    "schedule, only warm-up": lambda: schedule(1.0, 1, 1, "constant"),
    "published": published_sweep,
    "published, not scaled": lambda: published_sweep("not scaled"),
    "published, long name": lambda: published_sweep("linear, constant warm-up"),
    "sweep": lambda: chart(
        SWEPT, log="xy", note="three", asides=dict.fromkeys(SWEPT, "fails at 4"),
        band=(117, 310, "noise scale"), level=(5.6, "twice"),
    ),
    "sweep, one place": lambda: chart({"a curve": {5: [1.0]}}, log="", note="three seeds"),
}


@pytest.mark.parametrize("name", SOME_OF_EACH)
def test_figures_have_a_title_and_words_that_lie_apart(name: str) -> None:
    check_layout(SOME_OF_EACH[name]())


@pytest.mark.slow
def test_explorers_draw_what_their_controls_say() -> None:
    one = explore_effective_batch()
    for name, value in {"micro_batch": 16, "micro_batches": 3, "data_parallel": 32}.items():
        one.controls[name].value = value
    assert one.figure.alt_text == effective_batch(16, 3, 32, 2).alt_text
    other = explore_schedule()
    set_to = {"warmup": 0.1, "times": 16, "calls_per_step": 4, "decay": "linear"}
    for name, value in set_to.items():
        other.controls[name].value = value
    assert other.figure.alt_text == schedule(0.1, 16, 4, "linear").alt_text
    third = explore_published_sweep()
    assert third.figure.alt_text == published_sweep().alt_text
    third.controls["rule"].value = "square root"
    assert third.figure.alt_text == published_sweep("square root").alt_text
