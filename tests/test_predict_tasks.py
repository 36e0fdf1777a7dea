"""Tasks on workers: the schedule of a graph, its critical path, and the tasks that Ray reports."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dtlab import Trace
from dtlab.predict import critical_path, scheduled
from dtlab.predict.tasks import TaskGraph
from tests.with_ray import SECONDS, needs_ray

# The docstring's drawing, and one more task that needs nothing
GRAPH: TaskGraph = {
    "a": (2, []), "b": (3, ["a"]), "c": (1, ["a"]), "d": (1, ["b", "c"]), "e": (4, []),
}  # fmt: skip


def random_graph(seed: int) -> TaskGraph:
    draw = random.Random(seed)
    tasks: dict[str, tuple[float, list[str]]] = {}
    for number in range(draw.randint(1, 9)):
        needs = draw.sample(list(tasks), draw.randint(0, min(2, len(tasks))))
        tasks[f"t{number}"] = draw.randint(1, 9), needs
    return tasks


def test_a_free_worker_takes_the_first_task_that_has_all_it_needs() -> None:
    first_four = {name: GRAPH[name] for name in "abcd"}
    assert [scheduled(first_four, workers).duration for workers in (1, 2, 3)] == [7, 6, 6]
    trace = scheduled(GRAPH, 2)
    assert [(e.rank, e.name, e.start, e.end) for e in trace.events] == [
        (0, "a", 0, 2), (1, "e", 0, 4), (0, "b", 2, 5), (1, "c", 4, 5), (0, "d", 5, 6),
    ]  # fmt: skip
    assert trace.lane_names == ("worker 1", "worker 2")


def test_the_critical_path_is_the_time_on_as_many_workers_as_tasks() -> None:
    assert critical_path(GRAPH) == (6, ["a", "b", "d"])
    assert critical_path({}) == (0, [])
    for seed in range(30):
        tasks = random_graph(seed)
        seconds, chain = critical_path(tasks)
        assert seconds == sum(tasks[name][0] for name in chain)
        assert seconds == scheduled(tasks, len(tasks)).duration
        assert scheduled(tasks, 1).duration == sum(each for each, _ in tasks.values())


def test_tasks_start_after_what_they_need_and_one_at_a_time_on_a_worker() -> None:
    for seed in range(30):
        tasks, workers = random_graph(seed), 1 + seed % 3
        events = {event.name: event for event in scheduled(tasks, workers).events}
        assert set(events) == set(tasks)
        for name, (seconds, needs) in tasks.items():
            assert events[name].end - events[name].start == seconds
            assert all(events[need].end <= events[name].start for need in needs)
        for worker in range(workers):
            own = sorted((e.start, e.end) for e in events.values() if e.rank == worker)
            assert all(end <= start for (_, end), (start, _) in pairwise(own))


def test_impossible_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match="Task 'a' needs \\['b'\\]: give a list of tasks that"):
        critical_path({"a": (1, ["b"]), "b": (1, [])})
    with pytest.raises(ValueError, match="needs 'ab'"):
        scheduled({"a": (1, []), "b": (1, []), "c": (1, "ab")}, 2)
    with pytest.raises(ValueError, match="must take 0 seconds or more, not -1"):
        critical_path({"a": (-1, [])})
    with pytest.raises(ValueError, match="workers must be 1 or more, not 0"):
        scheduled(GRAPH, 0)


# What Ray 2.60 wrote, shortened: the driver submits two tasks; one worker runs both
RAYS = [
    {"cat": category, "name": category, "tid": tid, "ts": 1.7e15 + ts, "dur": dur, "ph": "X"}
    for category, tid, ts, dur in (
        ("task::work", "worker:b1", 3000, 5000), ("submit_task", "driver:a0", 1000, 1500),
        ("task:deserialize_arguments", "worker:b1", 3100, 400), ("ray.get", "driver:a0", 2600, 9),
        ("task:execute", "worker:b1", 3600, 4000), ("task:store_outputs", "worker:b1", 7700, 200),
        ("submit_task", "driver:a0", 9000, 100), ("task::Model.step", "worker:b1", 9200, 800),
        ("task::work", "worker:c2", 9300, 700),
    )
]  # fmt: skip


def test_rays_events_become_a_trace_with_a_lane_for_each_process() -> None:
    trace = Trace.from_ray(RAYS)
    assert trace.lane_names == ("driver", "worker 1", "worker 2")
    found = [
        (e.rank, e.name, round(1e3 * e.start, 3), round(1e3 * e.end, 3)) for e in trace.events
    ]
    assert found == [
        (0, "submit", 0, 1.5), (1, "work", 2, 7), (1, "arguments", 2.1, 2.5),
        (1, "result", 6.7, 6.9), (0, "submit", 8, 8.1), (1, "Model.step", 8.2, 9),
        (2, "work", 8.3, 9),
    ]  # fmt: skip
    assert trace.busy(1) == pytest.approx(5.8e-3, rel=1e-3)


def test_rays_events_before_a_moment_are_left_out() -> None:
    trace = Trace.from_ray(RAYS, since=1.7e9 + 8e-3)
    assert [event.name for event in trace.events] == ["submit", "Model.step", "work"]
    assert Trace.from_ray([]).lane_names == ()


def test_lanes_keep_their_names_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    Trace.from_ray(RAYS).to_chrome(path)
    assert Trace.from_chrome(path).lane_names == ("driver", "worker 1", "worker 2")


REAL = """
import time, dtlab
from dtlab.predict import scheduled
from dtlab.ranks.ray import local_ray
from tests.test_predict_tasks import GRAPH

ray = local_ray(num_cpus=2)

@ray.remote
def work(seconds, *needs):
    time.sleep(seconds / 10)

ray.get([work.remote(1) for _ in range(4)])  # starts two processes
begin, results = time.time(), {}
for name, (seconds, needs) in GRAPH.items():
    results[name] = work.options(name=name).remote(seconds, *(results[need] for need in needs))
ray.get(list(results.values()))
trace = dtlab.Trace.from_ray(ray.timeline(), since=begin)
local_ray.stop()
assert trace.lane_names == ("driver", "worker 1", "worker 2"), trace.lane_names
assert trace.ops() == {}
found = {event.name: event for event in trace.events}
assert set(GRAPH) | {"submit", "arguments", "result"} == set(found), set(found)
for name, (seconds, needs) in GRAPH.items():
    assert found[name].end - found[name].start >= seconds / 10
    assert all(found[need].end <= found[name].start for need in needs)
assert {found[name].rank for name in GRAPH} == {1, 2}
predicted = scheduled(GRAPH, 2).duration / 10
assert predicted <= max(found[name].end for name in GRAPH)
print("as predicted")
"""


class TestWithRay:
    pytestmark = needs_ray

    @pytest.mark.proof
    def test_a_real_graph_runs_in_the_order_of_the_prediction(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(REAL)
        root = str(Path(__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": root}, timeout=SECONDS,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stdout.endswith("as predicted\n"), done.stdout + done.stderr
