"""A few cases in which any two values meet."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest

from tests.covering import cover

pytest_plugins = "pytester"

SIZES = {"model": 5, "stage": 2, "ranks": 4}
CASES = [dict(zip(SIZES, each, strict=True)) for each in product(*map(range, SIZES.values()))]


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_all_combinations_of_values_are_met(strength: int) -> None:
    kept = cover(CASES, strength)
    met = {each for n in kept for each in combinations(sorted(CASES[n].items()), strength)}
    assert met == {each for case in CASES for each in combinations(sorted(case.items()), strength)}
    assert len(kept) == len(set(kept)) == {1: 5, 2: 20, 3: 40}[strength]


def test_the_first_cases_are_kept_and_count() -> None:
    kept = cover(CASES, 1, first=[7, 39])
    assert kept[:2] == [7, 39]
    assert len(kept) == 5


def test_combinations_that_do_not_exist_need_no_case() -> None:
    cases = [case for case in CASES if case["stage"] == 0 or case["ranks"] > 1]
    assert len(cover(cases, 2)) < len(cases)


def test_the_rest_is_marked_as_proof(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        import pytest
        from tests.covering import leave_the_rest_to_the_proof
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(items):
            leave_the_rest_to_the_proof(items)
    """)
    pytester.makepyfile("""
        import pytest
        @pytest.mark.covering(1)
        @pytest.mark.parametrize("a", range(3))
        @pytest.mark.parametrize("b", range(2))
        def test_of_six(a, b): pass
        @pytest.mark.parametrize("a", range(3))
        def test_of_three(a): pass
        @pytest.mark.sample(2)
        @pytest.mark.parametrize("a", range(4))
        def test_of_four(a): pass
    """)
    pytester.syspathinsert(Path(__file__).parent.parent)
    words = ("-m", "not proof", "-p", "no:rerunfailures")  # that opens a port
    pytester.runpytest(*words).assert_outcomes(passed=8, deselected=5)
