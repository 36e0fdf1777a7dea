"""Marks of tests that some commands leave out, and of tests that may be tried again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

__all__ = ["first", "proof", "retried", "slow"]

slow = partial(pytest.param, marks=pytest.mark.slow)
proof = partial(pytest.param, marks=pytest.mark.proof)

# For the few tests that compare measured times or wait for a page: on a busy machine they may
# need a second try.
retried = pytest.mark.flaky(reruns=2)


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The parameters for seeds and repetitions: the first `count` as they are, the rest `proof`.

    `@pytest.mark.parametrize("seed", first(range(5)))` runs seed 0 in `make test`, and 1 to 4 in
    `make proof`.
    """
    return [value if n < count else proof(value) for n, value in enumerate(values)]
