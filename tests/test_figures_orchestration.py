"""Figures of orchestration: tasks and copies, checkpoints, a sweep and replicas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dtlab import Trace
from dtlab.errors import ArgumentError
from dtlab.predict import best_interval, goodput, scheduled
from dtlab.predict.tasks import TaskGraph
from dtlab.show import (
    Figure,
    explore_checkpoints,
    goodput_curve,
    object_store,
    replay,
    replicas_over_time,
    sweep_table,
    task_graph,
    timeline,
)
from dtlab.show.words import duration_words
from tests.drawn import boxes, check_layout, lines, texts
from tests.test_predict_tasks import GRAPH, RAYS

LOSSES: dict[tuple[float, float], float] = {
    (0.01, 32): 1.25, (0.01, 256): 1.5, (0.1, 32): 0.5, (0.1, 256): 0.75, (1, 32): math.nan,
}  # fmt: skip
TIMES = [10, 11, 12.5, 14, 20]
REQUESTS, REPLICAS = [0, 2, 9, 3, 0], [1, 1, 1, 4, 2]
CHAIN: TaskGraph = {"a": (1.0, []), "b": (0.2, ["a"]), "c": (0.003, ["a", "b"]), "d": (1.0, ["a"])}

FIGURES: dict[str, Callable[[], Figure]] = {
    "store": object_store,
    "graph": lambda: task_graph(GRAPH),
    "critical path": lambda: task_graph(CHAIN, critical=True, title="Four"),
    "goodput": lambda: goodput_curve(60, 11160, 600, note="Llama 3"),
    "slow saves": lambda: goodput_curve(600, 600, 600, 86400 * 5),
    "sweep": lambda: sweep_table(LOSSES, note="2 epochs"),
    "sweep of one": lambda: sweep_table({(1, 1): 0.0}, value="error"),
    "replicas": lambda: replicas_over_time(TIMES, REQUESTS, REPLICAS, per_replica=2, note="a"),
    "explorer": lambda: explore_checkpoints().figure,
    "tasks of Ray": lambda: timeline(Trace.from_ray(RAYS)),
    "predicted tasks": lambda: timeline(scheduled(GRAPH, 2), title="Two workers"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_words_are_on_the_sheet_and_apart(name: str) -> None:
    check_layout(FIGURES[name]())


def test_by_value_each_task_has_a_copy_and_by_reference_each_node() -> None:
    figure = object_store(1e6)
    assert len(boxes(figure, "object")) == len(boxes(figure, "copy")) == 4 + 1 + 2
    assert len(boxes(figure, "worker")) == 3 * 4
    for words in (
        "4 copies, 4 MB in the store", "1 copy, 1 MB in the store",
        "2 copies, 2 MB; one crosses the network",
    ):  # fmt: skip
        assert words in texts(figure)
        assert words in figure.alt_text
    with pytest.raises(ValueError, match="0 bytes or more"):
        object_store(-1)


def test_a_graph_has_an_arrow_for_each_need_and_emphasises_the_critical_path() -> None:
    figure = task_graph(GRAPH, critical=True)
    assert len(boxes(figure, "need")) == 4
    bold = [arrow for arrow in boxes(figure, "need") if arrow.get_linewidth() > 2]
    assert len(bold) == 2
    thick = {name for name in GRAPH if boxes(figure, f"task {name}")[0].get_linewidth() > 2}
    assert thick == {"a", "b", "d"}
    assert "d takes 1 s and needs b and c" in figure.alt_text
    assert "the critical path, 6 s" in figure.alt_text
    assert all(arrow.get_linewidth() < 2 for arrow in boxes(task_graph(GRAPH), "need"))
    with pytest.raises(ValueError, match="nothing to draw"):
        task_graph({})


def test_the_boxes_of_a_graph_are_wider_than_their_words() -> None:
    figure = task_graph({"train 1": (0.6, []), "evaluate all": (0.25, ["train 1"])})
    FigureCanvasAgg(figure).draw()
    words = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    assert {"train 1   600 ms", "evaluate all   250 ms"} == set(words)
    for label, place in words.items():
        (box,) = boxes(figure, f"task {label.partition('   ')[0]}")
        assert box.get_window_extent().x0 + 5 < place.x0
        assert place.x1 < box.get_window_extent().x1 - 5


def test_goodput_is_highest_at_the_best_interval_and_near_it_at_youngs() -> None:
    figure = goodput_curve(60, 11160, 600, 3600)
    drawn = lines(figure)
    best = best_interval(60, 11160)
    assert drawn["measured the best interval"].get_xdata()[0] == best
    most = 100 * goodput(best, 60, 11160, 600)
    assert drawn["predicted goodput"].get_ydata().max() == pytest.approx(most, abs=0.01)
    assert 0 <= most - drawn["measured Young's interval"].get_ydata()[0] < 0.1
    assert "your interval 1 h: " in figure.alt_text
    assert "a failure every 3.1 h" in figure.alt_text
    with pytest.raises(ValueError, match="save must be above 0"):
        goodput_curve(0, 100)


def test_an_interval_of_many_failures_has_no_goodput() -> None:
    assert goodput(1e6, 1, 60) == 0
    assert "a save takes 1 s" in goodput_curve(1, 60, 0, 1e6).alt_text


def test_the_explorer_counts_failures_and_lost_hours_by_cards() -> None:
    explorer = explore_checkpoints()
    assert "a failure every 3.09 h" in explorer.figure.alt_text  # 54 days, 419 failures
    assert "16,384 cards lose" in explorer.figure.alt_text
    explorer.controls["cards"].value = 8
    assert "a failure every 264 days" in explorer.figure.alt_text
    explorer.controls["cards"].value = 131072
    explorer.controls["interval"].field.value = "1 days"
    assert "your interval 1 day: 0.0 %" in explorer.figure.alt_text
    assert "131,072 cards lose 3,145,728 GPU hours a day" in explorer.figure.alt_text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.05, "50 ms"), (45, "45 s"), (90, "1.5 min"), (11160, "3.1 h"),
     (86400, "1 day"), (3 * 86400, "3 days"), (5.8 * 365.25 * 86400, "5.8 years")],
)  # fmt: skip
def test_durations_go_from_milliseconds_to_years(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_a_sweep_frames_its_smallest_number_and_marks_what_diverged() -> None:
    figure = sweep_table(LOSSES)
    assert len(boxes(figure, "cell")) == 6
    assert len(boxes(figure, "diverged")) == 1
    assert "0.5 at 0.1 and 32" in figure.alt_text
    assert "no result at 1 and 256" in figure.alt_text
    (frame,) = boxes(figure, "best")
    (word,) = [text for text in figure.axes[0].texts if text.get_text() == "0.5"]
    x, y = word.get_position()
    assert frame.get_x() < x < frame.get_x() + frame.get_width()
    assert frame.get_y() < y < frame.get_y() + frame.get_height()
    with pytest.raises(ValueError, match="at least one finite result"):
        sweep_table({(1, 1): math.inf})


def test_replicas_and_requests_are_steps_on_one_clock() -> None:
    figure = replicas_over_time(TIMES, REQUESTS, REPLICAS, per_replica=2)
    drawn = lines(figure)
    assert list(drawn["replicas"].get_xdata()) == [0, 1, 2.5, 4, 10]
    assert list(drawn["meant"].get_ydata()) == [2, 2, 2, 8, 4]
    assert "at most 9 requests in progress, at 2.5 s" in figure.alt_text
    assert "Replicas: 1 from 0 s, 4 from 4 s, 2 from 10 s." in figure.alt_text
    for wrong in ([1, 2], [3, 2, 1, 0, 4]):
        with pytest.raises(ValueError, match="two or more times in order"):
            replicas_over_time(wrong, REQUESTS, REPLICAS)
    with pytest.raises(ArgumentError, match="seconds"):
        replicas_over_time(3, REQUESTS, REPLICAS)  # type: ignore[arg-type]


def test_a_timeline_names_the_lanes_of_ray_and_does_not_count_copies_as_computing() -> None:
    figure = timeline(Trace.from_ray(RAYS))
    assert {"driver", "worker 1", "worker 2", "task"} <= set(texts(figure))
    assert "rank" not in figure.alt_text
    assert "Driver: 1.60 ms communication. Worker 1: 5.20 ms compute." in figure.alt_text
    assert 'title="worker 1: Model.step' in figure.to_html()
    explorer = replay(Trace.from_ray(RAYS))
    assert "worker 2: finished" in explorer.widget.children[-1].value
