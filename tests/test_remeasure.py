"""`remeasure`, and guesses about measurements that a busy machine has disturbed."""

from __future__ import annotations

import itertools

import pytest

import dtlab
from dtlab.show.remeasure import far_off


def values(*numbers: float):  # type: ignore[no-untyped-def]
    """A measurement that gives these numbers one after the other, and counts its calls."""
    left = iter(numbers)

    def measure() -> float:
        measure.calls += 1  # type: ignore[attr-defined]
        return next(left)

    measure.calls = 0  # type: ignore[attr-defined]
    return measure


def test_what_is_near_is_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    measure = values(0.11, 0.5)
    assert dtlab.remeasure(measure, 0.1) == 0.11
    assert measure.calls == 1 and capsys.readouterr().out == ""


def test_what_is_far_off_is_measured_again(capsys: pytest.CaptureFixture[str]) -> None:
    measure = values(0.5, 0.01, 0.12, 0.1)
    assert dtlab.remeasure(measure, 0.1, attempts=4) == 0.12
    assert measure.calls == 3 and capsys.readouterr().out == ""


def test_if_it_stays_far_off_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert dtlab.remeasure(values(0.5, 0.162, 0.3), 0.093, attempts=3) == 0.162
    said = capsys.readouterr().out
    assert said.startswith("This machine is too busy to show it (load ")
    assert "cores): 162 ms in the best of 3 attempts, 93.0 ms by the formula." in said
    assert said.count("\n") == 1


def test_the_worst_of_several_numbers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    runs = iter([("first", [1.0, 3.0]), ("second", [1.1, 2.1])])
    found = dtlab.remeasure(lambda: next(runs), [1.0, 2.0], of=lambda run: run[1], attempts=2)
    assert found[0] == "second" and capsys.readouterr().out == ""


def test_each_measurement_needs_a_prediction() -> None:
    with pytest.raises(ValueError, match="2 numbers were measured and 1 are predicted"):
        dtlab.remeasure(lambda: [1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="attempts"):
        dtlab.remeasure(lambda: 1.0, 1.0, attempts=-1)


@pytest.mark.parametrize(
    ("measured", "predicted", "unit", "far"),
    [(124, 100, "ms", False), (126, 100, "ms", True), (74, 100, "", True), (-30, 30, "ms", True),
     (0, 0, "ms", False), (1, 0, "ms", True), (9, 0, "%", False), (61, 50, "%", True),
     (float("nan"), 1, "", True), (float("inf"), 1, "", True)],
)  # fmt: skip
def test_shares_may_be_ten_points_off_and_the_rest_a_quarter(
    measured: float, predicted: float, unit: str, far: bool
) -> None:
    assert far_off(measured, predicted, unit) is far


def test_a_guess_is_judged_by_what_was_measured_if_that_is_near(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = dtlab.guess("How long?", "ms", value=110)
    asked.reveal(110, formula=100)
    said = capsys.readouterr().out
    assert "You guessed 110 ms, and that is right. By the formula it is 100 ms." in said
    asked.commit(100)
    asked.reveal(120, formula=100)
    said = capsys.readouterr().out
    assert "You guessed 100 ms, and that is right. This is by the formula; measured was" in said


def test_a_right_guess_stays_right_on_a_busy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    asked = dtlab.guess("By how much longer?", "ms", value=30)
    asked.reveal(-30, "The log is written in turn.", formula=30)
    said = capsys.readouterr().out
    assert "You guessed 30 ms, and that is right." in said
    assert "the formula's answer: measured was -30 ms, on a machine that is too busy" in said
    assert said.rstrip().endswith("The log is written in turn.") and asked.answer == 30


def test_options_are_judged_by_the_formula_too(capsys: pytest.CaptureFixture[str]) -> None:
    asked = dtlab.guess("Which is faster?", options=("ring", "tree"), value="ring")
    asked.reveal("tree", {"ring": "Few rounds.", "tree": "Long rounds."}, formula="ring")
    said = capsys.readouterr().out
    assert "You chose “ring”, and that is right." in said and "measured was “tree”" in said
    assert "Few rounds." in said
    asked.reveal("ring", formula="ring")
    assert "busy" not in capsys.readouterr().out


def test_marks_far_from_their_prediction_are_grey() -> None:
    predicted = {"a": {1: 1.0, 2: 0.5, 4: 0.25}, "b": {1: 1.0, 2: 0.5, 4: 0.25}}
    emulated = {"a": {1: 1.0, 2: 0.52, 4: 0.5}, "b": {1: 1.0, 2: 0.5, 4: 0.26}}
    figure = dtlab.show.scaling_chart(emulated=emulated, predicted=predicted)
    grey = [line for axes in figure.axes for line in axes.lines
            if str(line.get_gid()).startswith("disturbed")]  # fmt: skip
    assert [line.get_gid() for line in grey] == ["disturbed a"]
    assert list(grey[0].get_xdata()) == [4]
    words = list(itertools.chain(*(axes.texts for axes in figure.axes)))
    assert sum("machine was busy" in text.get_text() for text in words) == 1


def test_all_charts_of_emulated_times_grey_out() -> None:
    sizes = [1e3, 1e6]
    costs = dtlab.show.cost_curves(
        emulated={"ring": (sizes, [1.0, 9.0])}, predicted={"ring": (sizes, [1.0, 2.0])}
    )
    lines = dtlab.show.line_chart(
        {"exposed": ([64, 128], [80, 20])}, predicted={"exposed": ([64, 128], [75, 50])},
        across="tokens", upwards="exposed, % of a round", title="Messages",
    )  # fmt: skip
    for figure, x in ((costs, 1e6), (lines, 128)):
        grey = [line for axes in figure.axes for line in axes.lines
                if str(line.get_gid()).startswith("disturbed")]  # fmt: skip
        assert [list(line.get_xdata()) for line in grey] == [[x]]


def test_the_number_is_the_first_item_of_a_tuple() -> None:
    assert dtlab.remeasure(lambda: (1.0, "trace"), 1.0) == (1.0, "trace")
