"""Which of many combinations of parameters are run, so that values meet at little cost.

A test of 5 models x 2 stages x 4 world sizes has 40 cases. `@pytest.mark.covering(2)` keeps those
that are needed for any two values to meet in one of them, 20 here; the others are marked `proof`,
and `pytest -m proof` runs them. With 1 every value is in one case at least, which here takes 5.
Mistakes that only three values together bring out are rare (Kuhn, Wallace and Gallo 2004).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

__all__ = ["cover", "leave_the_rest_to_the_proof"]

Case = dict[str, Any]


def cover(cases: Sequence[Case], strength: int, first: Iterable[int] = ()) -> list[int]:
    """Numbers of cases that have each combination of `strength` values which any case has.

    Greedy: the cases of `first`, then one after the other the one that adds most.
    """
    has = [set(combinations(sorted(case.items()), strength)) for case in cases]
    chosen = list(first)
    left = set().union(*has).difference(*(has[number] for number in chosen))
    while left:
        best = max(range(len(cases)), key=lambda number: len(has[number] & left))
        chosen.append(best)
        left -= has[best]
    return chosen


def leave_the_rest_to_the_proof(items: Iterable[pytest.Item]) -> None:
    """Mark as `proof` those cases of tests marked `covering` that are not needed."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("covering") is not None:
            tests[item.nodeid.partition("[")[0]].append(item)
    for alike in tests.values():
        (strength,) = alike[0].get_closest_marker("covering").args  # type: ignore[union-attr]
        quick = [n for n, item in enumerate(alike) if item.get_closest_marker("slow") is None]
        params = [item.callspec.params for item in alike]  # type: ignore[attr-defined]
        cases = [{name: id(value) for name, value in each.items()} for each in params]
        kept = cover(cases, strength, quick if len(quick) < len(alike) else ())
        for number, item in enumerate(alike):
            if number not in kept:
                item.add_marker(pytest.mark.proof)
