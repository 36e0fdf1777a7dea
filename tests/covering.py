"""Which of many cases of a test `make test` runs; `make proof` runs the rest.

`@pytest.mark.sample(3)` keeps the first three cases.

A test of 5 models x 2 stages x 4 world sizes has 40 cases. `@pytest.mark.covering(2)` keeps those
that are needed for any two values to meet in one of them, 20 here; the others are marked `proof`.
With 1 every value is in one case at least, which here takes 5.
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
    """Mark as `proof` those cases of tests marked `covering` or `sample` that are not needed."""
    covered, sampled = defaultdict(list), defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("covering") is not None:
            covered[name].append(item)
        if item.get_closest_marker("sample") is not None:
            sampled[name].append(item)
    for cases in covered.values():
        kept = _covering(cases, *cases[0].get_closest_marker("covering").args)  # type: ignore[union-attr]
        _mark_others(cases, kept)
    for cases in sampled.values():
        (count,) = cases[0].get_closest_marker("sample").args  # type: ignore[union-attr]
        _mark_others(cases, range(count))


def _covering(items: Sequence[pytest.Item], strength: int) -> list[int]:
    """Numbers of the cases to keep, those of `make check` among them."""
    quick = [n for n, item in enumerate(items) if item.get_closest_marker("slow") is None]
    params = [item.callspec.params for item in items]  # type: ignore[attr-defined]
    cases = [{name: id(value) for name, value in each.items()} for each in params]
    return cover(cases, strength, quick if len(quick) < len(items) else ())


def _mark_others(items: Sequence[pytest.Item], kept: Sequence[int]) -> None:
    for number, item in enumerate(items):
        if number not in kept:
            item.add_marker(pytest.mark.proof)
