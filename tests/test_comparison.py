"""The comparison of `dtlab.checks.comparison`: what it says about values that are wrong."""

import math

import pytest
import torch

from dtlab.checks.comparison import close, difference, of_others, pieces_of
from dtlab.checks.words import Explanation, mistake_of

PIECES = torch.arange(1.0, 13.0).chunk(3)
WHOLE = torch.cat(PIECES)


def with_elements(first: int, values: torch.Tensor) -> torch.Tensor:
    got = WHOLE.clone()
    got[first : first + len(values)] = values
    return got


def test_equal_up_to_rounding_in_any_dtype() -> None:
    assert difference(WHOLE.double() * (1 + 1e-6), WHOLE) == ""
    assert difference(WHOLE * 1.01, WHOLE, near=0.02) == ""
    assert difference(WHOLE * (1 + 1e-6), WHOLE, near=0) != ""
    assert difference(torch.empty(0), torch.empty(0)) == ""


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (None, "is None, not a tensor. Look."),
        ([1.0], "is a list, not a tensor. Look."),
        (WHOLE[:2], "has the shape [2], not [12]. Look."),
        (WHOLE.view(3, 4), "has the shape [3, 4], not [12]. Look."),
        (with_elements(4, torch.tensor([math.nan])), "contains NaN. Compute."),
        (with_elements(4, torch.tensor([math.inf])), "contains infinity. Compute."),
        (with_elements(4, torch.tensor([5.25])), "is off by up to 0.25. Look."),
    ],
)
def test_each_kind_of_difference_has_its_words(got: object, message: str) -> None:
    assert difference(got, WHOLE, hint="Look.", not_finite="Compute.") == message


def test_says_whose_values_stand_where() -> None:
    sources = {"its old values": -WHOLE, **pieces_of(PIECES)}

    def said(got: torch.Tensor, **more: object) -> str:
        return difference(got, WHOLE, {}, sources, **more)  # type: ignore[arg-type]

    zeros = said(with_elements(4, torch.zeros(4)), hint="Gather.")
    assert zeros == "holds zeros in elements 4 to 7: nothing arrived there. Gather."
    assert said(with_elements(8, PIECES[0])) == "holds rank 0's piece in elements 8 to 11."
    assert said(-WHOLE) == "holds its old values in elements 0 to 11."
    summed = said(with_elements(0, sum(PIECES, torch.zeros(4))))
    assert summed == "holds the sum of all ranks' pieces in elements 0 to 3."
    assert said(with_elements(5, -WHOLE[5:6])) == "holds its old values in element 5."
    parts = [("weight", 6), ("bias", 2), ("scale", 4)]
    both = said(with_elements(5, torch.zeros(2)), parts=parts)
    assert both.startswith("holds zeros in elements 5 to 6 (weight to bias): nothing")
    assert "in element 8 (scale)" in said(with_elements(8, torch.zeros(1)), parts=parts)


def test_zeros_are_only_said_not_to_have_arrived_if_values_of_others_should_have() -> None:
    got = torch.zeros(2, 6)
    said = difference(got, WHOLE.view(2, 6), hint="Look.")
    assert said == "holds zeros in elements 0 to 11 of the flattened tensor. Look."


def test_another_type_or_shape_may_have_advice_of_its_own() -> None:
    said = difference(None, WHOLE, hint="Look.", form="Return it.")
    assert said == "is None, not a tensor. Return it."
    assert difference(WHOLE[:2], WHOLE, hint="Look.", form="") == "has the shape [2], not [12]."


def test_the_mistake_of_a_source_names_no_rank() -> None:
    said = difference(with_elements(8, PIECES[0]), WHOLE, {}, pieces_of(PIECES))
    assert mistake_of(said) == "holds another rank's piece"
    assert mistake_of("rank 2: the block " + said) == "holds another rank's piece"


def test_a_known_mistake_comes_first_and_is_kept() -> None:
    known = {
        "is the sum": (lambda: WHOLE * 3, "Divide."),
        "is one of two": [WHOLE * 5, WHOLE * 7],
        **of_others(dict(enumerate(PIECES)), "Take your own."),
    }
    summed = difference(WHOLE * 3, WHOLE, known, hint="Look.")
    assert summed == "is the sum. Divide."
    assert mistake_of(summed) == "is the sum"
    assert difference(WHOLE * 7, WHOLE, known, hint="Look.") == "is one of two. Look."
    other = difference(PIECES[2], PIECES[0], known)
    assert other == "is the piece of rank 2. Take your own."
    assert mistake_of(other) == "is the piece of another rank"


def test_a_value_that_is_right_is_no_mistake_though_one_would_give_it_too() -> None:
    assert difference(WHOLE, WHOLE, {"is the sum": WHOLE}) == ""


def test_numbers() -> None:
    known = {"is the sum": (6.0, "Divide.")}
    assert difference(2.0, 2, known) == ""
    assert difference(torch.tensor(2.0), 2.0) == ""
    said = difference(6, 2.0, known)
    assert said == "is 6, not 2. That is the sum. Divide."
    assert mistake_of(said) == "is the sum"
    assert difference(5, 2.0, known, hint="Look.") == "is 5, not 2. Look."
    assert difference(math.nan, 2.0) == "is nan, not 2."
    assert difference(math.inf, math.inf) == ""
    assert difference(7.0, math.inf) == "is 7, not inf."
    assert difference(True, 1.0) == "is a bool, not a number."
    assert difference(None, 1.0) == "is None, not a number."


def test_a_training_is_compared_by_the_distance_from_its_start() -> None:
    start, wanted = torch.zeros(4), torch.full((4,), 10.0)
    assert difference(torch.full((4,), 10.005), wanted, start=start) == ""
    off = difference(torch.full((4,), 9.0), wanted, start=start, hint="Look.")
    assert off == "is off by 10.0% of the distance that it should have moved. Look."
    assert difference(start, wanted, start=start) == "has not changed since the start."
    assert not close(torch.full((4,), math.nan), wanted, start=start)


def test_small_elements_may_be_off_by_a_part_of_the_largest_or_of_a_scale() -> None:
    wanted = torch.tensor([1000.0, 0.0])
    assert close(torch.tensor([1000.0, 0.005]), wanted)
    assert not close(torch.tensor([1000.0, 0.05]), wanted)
    assert close(torch.tensor([1000.0, 0.05]), wanted, scale=10_000.0)


def test_an_explanation_keeps_its_mistake_when_text_is_added() -> None:
    said = "rank 0: y " + Explanation("is the sum.", "is the sum") + " Divide."
    assert said == "rank 0: y is the sum. Divide."
    assert mistake_of(said) == "is the sum"
    assert mistake_of(f"{said}") == ""
