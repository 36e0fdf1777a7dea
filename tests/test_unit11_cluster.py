"""The simulated cluster of 11/orchestrator, and what the check shows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dtlab
from dtlab.checks import find_part
from dtlab.checks.functions.criteria import Noted
from dtlab.checks.functions.replay import replay
from dtlab.units.unit11.cluster import (
    Cluster,
    Event,
    Failure,
    Job,
    Setting,
    Start,
    good_makespan,
    habit_makespan,
    longest,
    planned_starts,
)
from dtlab.units.unit11.orchestrator import PART, drawn, example, played, told
from tests.known_answers import answers_of

CHECK: Any = PART.check
ANSWERS = answers_of(find_part("11/orchestrator"))
assert ANSWERS is not None
RIGHT, FORGETS = ANSWERS.right[0], ANSWERS.named["Forgets"]

A = Job("a", 0, 2, "all_reduce", 10, 3, 2)
B = Job("b", 1, 2, "parameter_server", 4, 2, 1)
ONE_NODE = Setting(1, 4, (A,), (Failure("node0", 15, 20),))


def _greedy(setting: Setting) -> tuple[list[Event], Cluster]:
    """Starts whatever has room; returns all messages, too."""
    events: list[Event] = []

    def decide(event: Event) -> list[Start]:
        events.append(event)
        return planned_starts(cluster, longest)

    cluster = Cluster(setting)
    cluster.run(decide)
    return events, cluster


def test_a_job_continues_from_its_checkpoint() -> None:
    """Steps of 2 minutes: 7 are done at minute 15, 6 of them saved; the rest from minute 20."""
    events, cluster = _greedy(ONE_NODE)
    told = [(event.minute, event.kind, event.step) for event in events]
    assert told == [
        (0, "submitted", 0), (6, "checkpoint", 3), (12, "checkpoint", 6), (15, "failed", 0),
        (20, "back", 0), (26, "checkpoint", 9), (28, "finished", 0),
    ]  # fmt: skip
    first, second = cluster.history.attempts
    assert (first.begin, first.saved, first.end, first.outcome) == (0, 12, 15, "killed")
    assert (second.step, second.begin, second.end, second.outcome) == (6, 20, 28, "finished")
    assert cluster.history.makespan == 28
    assert not cluster.history.faults


def test_a_parameter_server_is_one_process_more_and_two_nodes_are_slower() -> None:
    nodes = Setting(2, 2, (B,))
    spread = [("node0", 0), ("node0", 1), ("node1", 0)]
    history = Cluster(nodes).run(lambda event: _start(event, Start("b", spread, 0)))
    assert not history.faults
    assert history.makespan == 1 + 1.5 * 4
    assert B.spec().processes == B.processes == 3


def _start(event: Event, start: Start) -> list[Start]:
    return [start] if event.kind == "submitted" else []


@pytest.mark.parametrize(
    ("start", "criterion", "words"),
    [
        (Start("a", [("node0", 0)], 0), "processes", "but gets 1 GPU."),
        (Start("a", [("node0", 0)] * 2, 0), "gpus", "a GPU twice"),
        (Start("a", [("node0", 0), ("node0", 4)], 0), "gpus", "does not exist"),
        (Start("a", [("node0", 0), ("node7", 0)], 0), "gpus", "does not exist"),
        (Start("a", [("node0", 0), ("node0", 1)], 1), "checkpoint", "it has no checkpoint"),
        (Start("z", [("node0", 0), ("node0", 1)], 0), "once", "no such job was submitted"),
    ],
)
def test_a_wrong_decision_is_noted(start: Start, criterion: str, words: str) -> None:
    setting = replace(ONE_NODE, failures=())
    history = Cluster(setting).run(lambda event: _start(event, start))
    faults = [(kind, message) for kind, message in history.faults if kind != "lost"]
    assert [kind for kind, _ in faults] == [criterion]
    assert words in faults[0][1]


def test_repeated_messages_are_the_same_but_later() -> None:
    events, _ = _greedy(replace(example(), seed=3))
    first = {event.number: event for event in reversed(events)}
    repeated = [event for event in events if event is not first[event.number]]
    assert repeated
    for event in repeated:
        assert event == first[event.number]._replace(minute=event.minute)
        assert 0 <= event.minute - first[event.number].minute <= 20


@pytest.mark.parametrize("seed", range(3))
def test_good_schedules_pass_and_bad_habits_are_too_slow(seed: int) -> None:
    large = [case.setting for trial in CHECK.trials(seed)[3:] for case in trial.cases]
    for setting, habit in zip(large, ("in order", "spread", "short first"), strict=True):
        good = good_makespan(setting)
        assert habit_makespan(setting, habit) > 1.15 * good
        assert habit_makespan(setting, "good") < 1.1 * good
        assert played(setting, RIGHT).makespan < 1.1 * good


class AsTheTextSays:
    """The good schedule as the exercise defines it, in the order of `key`."""

    def __init__(self, nodes: dict[str, int], pace: dict[str, float], key: Any) -> None:
        self.nodes, self.pace, self.key = nodes, pace, key
        self.down: set[str] = set()
        self.waiting: dict[str, Any] = {}
        self.running: dict[str, tuple[Any, str]] = {}
        self.left: dict[str, float] = {}
        self.known: set[int] = set()

    def decide(self, event: Event) -> list[Start]:
        if event.number in self.known:
            return []
        self.known.add(event.number)
        if event.kind == "submitted":
            self.waiting[event.job], self.left[event.job] = event.spec, event.minutes
        elif event.kind == "checkpoint":
            spec = self.running[event.job][0]
            self.left[event.job] = (spec.steps - event.step) * self.pace[event.job]
        elif event.kind == "finished":
            del self.running[event.job]
        elif event.kind == "failed":
            self.down.add(event.node)
            for job, (spec, node) in list(self.running.items()):
                if node == event.node:
                    del self.running[job]
                    self.waiting[job] = spec
        else:
            self.down.remove(event.node)
        return list(self.starts())

    def starts(self) -> Any:
        def order(job: str) -> float:
            return -self.key(self.left[job], self.waiting[job])

        for job in sorted(self.waiting, key=order):
            spec, node = self.waiting[job], self.fullest(self.waiting[job].processes)
            if node:
                del self.waiting[job]
                self.running[job] = spec, node
                step = spec.steps - round(self.left[job] / self.pace[job])
                yield Start(job, [(node, -1)] * spec.processes, step)

    def fullest(self, count: int) -> str:
        free = {node: gpus for node, gpus in self.nodes.items() if node not in self.down}
        for spec, node in self.running.values():
            free[node] -= spec.processes
        room = [node for node, gpus in free.items() if gpus >= count]
        return min(room, key=lambda node: free[node], default="")


@pytest.mark.parametrize("seed", range(4))
def test_a_good_schedule_is_the_shorter_of_the_two_in_the_text(seed: int) -> None:
    for trial in CHECK.trials(seed):
        for case in trial.cases:
            setting = case.setting
            pace = {job.name: job.pace for job in setting.jobs}
            spans = []
            for key in (lambda left, spec: left, lambda left, spec: left * spec.processes):
                orchestrator = AsTheTextSays(setting.by_node, pace, key)
                history = Cluster(setting).run(orchestrator.decide)
                assert {kind for kind, _ in history.faults} <= {"gpus"}  # they have no numbers
                spans.append(history.makespan)
            assert min(spans) == good_makespan(setting)


@pytest.mark.parametrize("seed", range(4))
def test_the_makespan_counts_on_three_small_clusters_and_three_large_ones(seed: int) -> None:
    cases = [case for trial in CHECK.trials(seed) for case in trial.cases]
    assert [len(case.setting.jobs) <= 4 for case in cases] == [True] * 3 + [False] * 3
    assert all(12 <= len(case.setting.jobs) <= 20 for case in cases[3:])
    for case in cases:
        late = played(case.setting, RIGHT)
        late.makespan *= 1.2  # a fifth too long
        assert [kind for kind, _ in case.faults([Noted({"history": late})])] == ["makespan"]


def test_it_is_the_same_each_time_and_other_for_another_seed() -> None:
    def settings(seed: int) -> list[Any]:
        return [case.setting for trial in CHECK.trials(seed) for case in trial.cases]

    assert settings(1) == settings(1)
    assert not any(a == b for a, b in zip(settings(1), settings(2), strict=True))


def test_a_run_is_described_and_drawn() -> None:
    setting = example()
    good, bad = played(setting, RIGHT), played(setting, FORGETS)
    assert told(setting, good).startswith("every job finishes, the last one at minute")
    assert "when its node failed, and never went on" in told(setting, bad)
    figure = drawn(setting, bad)
    assert "(stopped by a failure)" in figure.alt_text
    assert any("kept up to minute" in hint for hint in figure.hints)


@pytest.mark.slow
def test_a_lost_case_can_be_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("dtlab.show.notebook.show_bundle", shown.append)
    report = dtlab.check("11/orchestrator", FORGETS)
    (lost,) = (one for one in report.criteria if one.status == "lost")
    assert lost.case == 2
    capsys.readouterr()
    replay(CHECK, "11/orchestrator", FORGETS, lost.case)
    printed = capsys.readouterr().out
    assert "four jobs, one failure" in printed
    assert "never went on" in printed
    assert any("node0 is down from minute" in bundle["text/plain"] for bundle in shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("FinishedTwice", {"gpus": 3, "processes": 2}),
        ("BackByTheWrongName", {"processes": 2}),
        ("SavedTooEarly", {}),
    ],
)
def test_a_message_that_fails_costs_only_what_depends_on_it(
    name: str, kept: dict[str, float]
) -> None:
    report = ANSWERS.check(ANSWERS.named[name])
    assert {one.name: one.earned for one in report.criteria if one.earned} == kept
    (lost,) = (one for one in report.criteria if one.status == "lost")
    assert "KeyError" in lost.message
    assert "Before it came message" in lost.message
