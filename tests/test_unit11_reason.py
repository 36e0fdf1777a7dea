"""Level I of unit 11: its right answers agree with the library and with what is counted."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from dtlab.predict import goodput, scheduled, seconds_between_failures, young_interval
from dtlab.show import task_graph
from dtlab.units.unit11.who_does_it import TASKS
from tests.drawn import check_layout, texts
from tests.level_one import drawn_for

LEARNERS = [f"learner{number}" for number in range(8)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    return drawn_for(f"11/{symbol}", learner)


# 11/task_graph ---------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_tasks_that_may_run_at_the_same_time_are_those_of_brute_force(learner: str) -> None:
    """They are found by brute force over short and long tasks, with enough workers."""
    given, right = drawn("task_graph", learner)
    tasks, one = given["tasks"], given["one"]
    beside = set()
    for seconds in product((1, 9), repeat=len(tasks)):
        changed = {
            name: (time, needs)
            for (name, (_, needs)), time in zip(tasks.items(), seconds, strict=True)
        }
        events = {event.name: event for event in scheduled(changed, len(tasks)).events}
        beside |= {
            name
            for name, event in events.items()
            if event.start < events[one].end and events[one].start < event.end
        }
    assert beside - {one} == right["beside"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_seconds_of_the_graph_are_those_of_its_lanes(learner: str) -> None:
    given, right = drawn("task_graph", learner)
    tasks = given["tasks"]
    assert right["shortest"] == scheduled(tasks, 7).duration < right["two"]
    trace = scheduled(tasks, 2)
    assert right["idle"] == sum(trace.idle(worker) for worker in (0, 1))
    slower = {
        name: (seconds + given["more"] * (name == given["spare"]), needs)
        for name, (seconds, needs) in tasks.items()
    }
    assert right["later"][1] == scheduled(slower, 7).duration - right["shortest"]
    assert 0 < right["later"][1] < right["later"][0] == given["more"]


@pytest.mark.slow
def test_every_drawing_can_be_read() -> None:
    shapes = {}
    for learner in MANY_LEARNERS:
        tasks = drawn("task_graph", learner)[0]["tasks"]
        shapes[str([needs for _, needs in tasks.values()])] = tasks
    assert len(shapes) == 4
    for tasks in shapes.values():
        figure = task_graph(tasks)
        check_layout(figure)
        assert f"g   {tasks['g'][0]} s" in texts(figure)


# 11/copies -------------------------------------------------------------------------------------


def test_all_arguments_fit_in_the_store_of_the_driver() -> None:
    for learner in MANY_LEARNERS:
        given, right = drawn("copies", learner)
        assert right["by_value"] < 1000 * given["store"]
        assert right["bound"] > given["nodes"] * given["workers"]


# 11/interval -----------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_intervals_and_losses_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("interval", learner)
    between = seconds_between_failures(54 * 86400 / 419 * 16384, given["gpus"])
    assert right["failures"] == pytest.approx(86400 / between)
    young = young_interval(given["save"], between)
    assert right["young"] == pytest.approx(young / 60)
    exact = 100 * goodput(young, given["save"], between, 60 * given["restart"])
    lost = 100 - exact
    assert 100 - sum(right["lost"]) == pytest.approx(right["goodput"])
    assert right["goodput"] == pytest.approx(exact, abs=lost**2 / 100)  # to first order
    cheap = young_interval(given["pause"], between)
    assert right["asynchronous"][0] == pytest.approx(cheap / young)
    more = young_interval(given["save"], between / given["times"])
    assert right["larger"][0] == pytest.approx(more / young)


# 11/who_does_it --------------------------------------------------------------------------------


def test_each_learner_meets_three_systems_and_every_task_comes_up() -> None:
    asked: Counter[str] = Counter()
    for learner in MANY_LEARNERS:
        given, right = drawn("who_does_it", learner)
        names = [right[name] for name in ("first", "second", "third")]
        assert len(set(names)) == 3
        asked.update(given[name] for name in ("first", "second", "third"))
    assert set(asked) == set(TASKS)


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_cost_of_tasks_is_that_of_a_driver_and_its_workers(learner: str) -> None:
    """A simulation: a driver submits tasks in a row, and a free worker takes the next."""
    given, right = drawn("who_does_it", learner)
    submit, start, item = given["submit"], given["start"], given["item"]

    def each(items: int) -> float:
        """Microseconds for one more task of many."""
        free, ends = [0.0] * given["workers"], []
        for number in range(1280):
            worker = free.index(min(free))
            free[worker] = max(free[worker], (number + 1) * submit) + start + items * item
            ends.append(max(free))
        return (ends[1279] - ends[639]) / 640

    assert right["each"] == pytest.approx(given["items"] * each(1) / 1e6)
    batch, worth = right["batch"], right["worth"]
    assert each(batch - 1) == pytest.approx(submit)
    assert each(batch) == pytest.approx((start + batch * item) / given["workers"])
    shares = [100 * items * item / (items * item + start) for items in (worth - 1, worth)]
    assert shares[0] < given["percent"] <= shares[1]
