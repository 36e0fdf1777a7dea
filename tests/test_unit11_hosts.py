"""11/server and 11/sharded: the judge is in the check's process, and trusts nothing it gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dtlab.checks import Report, known_parts
from dtlab.ranks.asking import Refused
from dtlab.units.unit11 import server, sharded
from dtlab.units.unit11.hosts import Actors, Reference
from dtlab.units.unit11.sharded import Recorder
from tests.known_answers import answers_of, report_on

PARTS = {part.name: part for part in known_parts() if part.name.startswith("11/")}


def case_of(part: Any, trial: int = 0) -> Any:
    """The first case of a trial."""
    return part.check.trials(0)[trial].cases[0]


def judged(name: str, answer: Callable[..., Any]) -> Report:
    """The report on an answer that runs on a rank."""
    return report_on(PARTS[name], answer)


def right(name: str) -> Any:
    """The class that known answers derive from."""
    answers = answers_of(PARTS[name])
    assert answers is not None
    return answers.right[0]


# 11/server ---------------------------------------------------------------------------------------


def test_each_call_is_sent_after_the_report_on_the_one_before() -> None:
    case = case_of(server.PART, 1)
    assert len(case.given(0, 1)) == 4  # the arguments of the class, and no call
    dialogue = case.dialogue(0, 1)
    next(dialogue)
    report: list[Any] = []
    for number, (kind, worker, step) in enumerate(case.calls):
        command = dialogue.send(report)
        assert command[:3] == [kind, worker, step]
        assert len(command) == (4 if kind == "push" else 3)
        report = [[number, None]] if kind == "push" else []
    assert dialogue.send(report) == ["later"]
    assert dialogue.send([]) == []
    with pytest.raises(StopIteration) as end:
        dialogue.send(["Condition.wait_for", "not a name!"])
    notes = end.value.value
    assert [note["ended"] for note in notes["calls"]] == [
        number if call[0] == "push" else None for number, call in enumerate(case.calls)
    ]
    assert notes["forgotten"] == ["Condition.wait_for"]


@pytest.mark.parametrize(
    "report",
    [
        None, "text", 7, {"a": 1}, [7], [[0]], [[0, None, None]], [["0", None]], [[True, None]],
        [[-1, None]], [[1, None]], [[0, None], [0, None]], [[0, "text"]],
        [[0, {1: torch.ones(1)}]], [[0, {"a": [1.0]}]], [[0, {"a": None}]],
        [[0, {"x" * 100: torch.ones(1)}]],
        [[0, {str(n): torch.ones(1) for n in range(1001)}]], [[0, None]] * 100_000,
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_report_that_is_none_is_refused(report: Any) -> None:
    dialogue = case_of(server.PART).dialogue(0, 1)
    next(dialogue)
    dialogue.send([])
    started = time.monotonic()
    with pytest.raises((ValueError, TypeError, LookupError)):
        dialogue.send(report)
    assert time.monotonic() - started < 5


@pytest.mark.slow
@pytest.mark.parametrize("sent", [[[0, "text"]], [[10**6, None]], "text", [["next", 1]]], ids=str)
def test_forged_reports_earn_nothing(sent: Any) -> None:
    class Forges(right("11/server")):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            import dtlab.units.unit11.hosts as hosts

            super().__init__(*arguments)
            plain = hosts.ask
            hosts.ask = lambda report: plain(sent if report else report)

    report = judged("11/server", Forges)
    assert report.score == 0
    assert "cannot be used" in str(report)


# 11/sharded --------------------------------------------------------------------------------------


def test_values_stay_with_the_recorder_until_they_are_fetched() -> None:
    told: list[Any] = []
    recorder = Recorder()

    def tell(message: Any) -> Any:
        told.append(recorder.answer(message))
        return told[-1]

    actors = Actors(tell)
    handle = actors.make({"a": torch.ones(3)})
    recorder.begin("pull", 0, moved=5)
    reference = handle.pull.remote(2, 0)
    assert told == [["", 0], ["", 1]]
    assert vars(reference) == {"number": 1}
    (tensors,) = actors.get([reference])
    assert tensors["a"].tolist() == [6.0] * 3


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda ray, _: ray.get(3), TypeError, "get takes a reference or a list of them, not 3"),
        (lambda _, handle: handle.fetch, AttributeError, "the actor has no method 'fetch'"),
        (lambda _, handle: handle.pull(1, 0), TypeError, "is called with .pull.remote(...)"),
        (lambda _, handle: handle.pull.remote(1), TypeError, "missing 1 required positional"),
        (lambda ray, _: ray.make(5), TypeError, "'int' object is not iterable"),
        (lambda _, handle: handle.push.remote(1, 0, [2]), AttributeError, "no attribute 'items'"),
        (lambda ray, _: ray.get(Reference(99)), RuntimeError, "99"),
    ],
)
def test_a_wrong_use_raises_at_its_line(
    use: Callable[[Any, Any], Any], error: type[Exception], words: str
) -> None:
    recorder = Recorder()
    with pytest.raises(error) as raised:
        use(recorder, recorder.make({"a": torch.ones(3)}))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("shard", "size"),
    [
        ({"a": torch.ones(3)}, 12),
        ({"a": torch.ones(3), b"12345678": torch.empty(0)}, 20),
        ({"a": torch.ones(3), "another": torch.empty(0)}, 19),
        ({"a": torch.ones(1).expand(3)}, 12),
    ],
)
def test_what_a_push_carries_is_counted_by_what_arrives(shard: Any, size: int) -> None:
    recorder = Recorder()
    recorder.make({"a": torch.ones(3)}).push.remote(1, 0, shard)
    assert recorder.events[-1]["bytes"] == size


@pytest.mark.parametrize(
    ("data", "size"),
    [(b"1234", 4), ("1234", 4), ([1.0, 2.0], 16), (np.ones(3), 24), ((torch.ones(2), [1]), 16)],
)
def test_what_is_put_is_counted_whatever_it_is(data: Any, size: int) -> None:
    recorder = Recorder()
    reference = recorder.put(data)
    recorder.worker(0).train.remote(0, reference)
    recorder.worker(0).train.remote(0, [reference])
    assert [event["bytes"] for event in recorder.events] == [size, 0, 0]


def test_a_recorder_stores_and_sends_only_so_much() -> None:
    recorder = Recorder()
    stored = recorder.put(torch.zeros(10**6))
    with pytest.raises(Refused, match="moved more than 64"):
        recorder.get([stored] * 20)
    recorder = Recorder()
    with pytest.raises(Refused, match="moved more than 64"):
        for _ in range(50_000):
            recorder.put(0)
    with pytest.raises(Refused, match="too large, or too deep"):
        Recorder().put(list(range(200_000)))


@pytest.mark.parametrize(
    "message",
    [None, 7, [], ["next"], ["start", 1], [["make"]], ["call"], [{}, 1], ["next", [0] * 200_000]],
    ids=lambda value: str(value)[:20],
)
def test_a_message_that_is_none_ends_the_dialogue_or_is_an_error(message: Any) -> None:
    dialogue = case_of(sharded.PART).dialogue(0, 1)
    next(dialogue)
    try:
        error, _ = dialogue.send(message)
    except (Refused, TypeError, ValueError, LookupError):
        return
    assert error == "TypeError"


@pytest.mark.parametrize("seed", range(5))
def test_parameters_move_by_a_number_that_every_dtype_holds(seed: int) -> None:
    for case in sharded.PART.check.trials(seed)[0].cases:  # type: ignore[attr-defined]
        moved = [case.moved(step) for step in range(2)]
        assert moved != [0, 1]
        for tensor in case.drawn(0).values():
            assert (tensor + moved[0]).double().equal(tensor.double() + moved[0])


@pytest.mark.parametrize("part", [server.PART, sharded.PART], ids=["server", "sharded"])
def test_no_rank_can_find_the_seed_of_its_case_by_trying_all(part: Any) -> None:
    seeds = {case.seed for trial in part.check.trials(0) for case in trial.cases}
    assert max(seeds) > 2**40


@pytest.mark.slow
def test_calls_that_are_not_made_do_not_count_as_made_together() -> None:
    class DoesNothing(right("11/sharded")):  # type: ignore[misc]
        def pull(self, worker: int, step: int, get: Any) -> dict[str, Any]:
            return {}

        def push(self, worker: int, step: int, gradients: Any, get: Any) -> None:
            pass

    lost = {one.name for one in judged("11/sharded", DoesNothing).criteria if one.earned == 0}
    assert lost == {"pull", "push", "together", "bytes"}
