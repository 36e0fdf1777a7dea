"""`dtlab.practice`: names the blank that is not written, and shows what ranks print."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from dtlab.grading.checking.numbered import case_of, numbered
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import check
from dtlab.grading.practice import practice
from dtlab.units.unit01.calls import AllReduce, Answer


def average(value: float) -> float:
    raise NotImplementedError


def average_of_five() -> float:
    return average(5)


def raises_in_a_lambda() -> Any:
    return (lambda: average_of_five())()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handed_in", "arguments"), [(average, (5,)), (average_of_five, ()), (raises_in_a_lambda, ())]
)
def test_the_function_that_is_not_written_is_named(handed_in: Any, arguments: Any) -> None:
    report = practice(handed_in, *arguments, returns=[5, 5])
    remark, criterion = report.criteria
    assert remark.message == "average is not written yet: it still raises NotImplementedError."
    assert (criterion.status, criterion.message) == ("open", "the result is right")


def test_what_raises_something_else_is_no_blank() -> None:
    def divided() -> float:
        return 1 / 0

    (criterion,) = practice(divided, returns=[0.0]).criteria
    assert "not written" not in criterion.message
    assert "ZeroDivisionError" in criterion.message


# What ranks print -------------------------------------------------------------------------------


def talkative(value: int) -> int:
    rank = dist.get_rank()
    for line in range(30 if rank == 1 else 1):
        print(f"line {line} of {value}", "x" * 300 * (rank == 0))
    return value * rank


@pytest.mark.slow
def test_what_ranks_print_is_shown_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    practice(talkative, 3, returns=[0, 4])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Printed with 2 ranks, as called here:"
    assert lines[1].startswith("rank 0: line 0 of 3 xxx")
    assert len(lines[1]) < 220
    assert lines[2:4] == ["rank 1: line 0 of 3 ", "rank 1: line 1 of 3 "]
    assert lines[-1] == "rank 1: ... 10 more lines"
    assert len(lines) == 23


def prints_and_fails(tensor: torch.Tensor, group: Any = None) -> None:
    print(len(tensor), "elements on", dist.get_world_size())
    if dist.get_world_size() == 2:
        raise ValueError("two")


@pytest.mark.slow
def test_the_lines_of_the_lost_case_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report = check("01/ring_all_reduce", prints_and_fails)
    where = report.criteria[0].message.partition(": ValueError")[0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Printed with {where} (")
    assert lines[1] == f"rank 0: {where.split()[2]} elements on 2"


@pytest.mark.slow
def test_nothing_is_shown_where_answers_are_graded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dtlab.grading.checking.bench.graded_student", lambda: "ada")
    practice(talkative, 3, returns=[0, 4])
    assert capsys.readouterr().out == ""


def test_a_message_belongs_to_the_case_whose_words_it_begins_with() -> None:
    right, wrong = AllReduce(1, 7), AllReduce(2, 7)
    groups = AllReduce(3, 7, groups=((0, 1),))
    answers = [[Answer(tensor) for tensor in (right.inputs(2)[0] + right.inputs(2)[1],) * 2]] * 2
    trials = [Trial(2, [right, wrong]), Trial(2, [groups]), Trial(3, [right])]
    found = [answers, answers[:1], [[Answer(right.inputs(3)[0])] * 3]]
    cases = numbered([Observation(*each) for each in zip(trials, found, strict=True)])

    def number(message: str) -> int:
        case = case_of(message, cases)
        assert case is not None
        return case.number

    assert number("2 ranks, 7 elements, rank 0: element 3 is 4.") == 2  # not the right one before
    assert number("2 ranks, 7 elements, groups (0, 1): stuck") == 3
    assert number("3 ranks: 4 kB left rank 0") == 4
    assert number("each rank sent 0 bytes") == 1
    assert case_of("2 ranks", []) is None
