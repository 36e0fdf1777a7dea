"""Marks for one of several parameters, which `make check` or `make test` leave out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

__all__ = ["first", "proof", "slow"]

slow = partial(pytest.param, marks=pytest.mark.slow)
proof = partial(pytest.param, marks=pytest.mark.proof)


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The parameters for seeds and repetitions: the first `count` as they are, the rest `proof`.

    `@pytest.mark.parametrize("seed", first(range(5)))` runs seed 0 in `make test`, and 1 to 4 in
    `make proof`.
    """
    return [value if n < count else proof(value) for n, value in enumerate(values)]
