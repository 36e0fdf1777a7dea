"""`dtlab.practice`: a blank that a lesson's own function calls is told by its own name."""

from __future__ import annotations

from typing import Any

import pytest

from dtlab.grading.practice import practice


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
