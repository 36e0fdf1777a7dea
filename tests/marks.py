"""Marks for one of several parameters."""

from __future__ import annotations

from functools import partial

import pytest

__all__ = ["slow"]

slow = partial(pytest.param, marks=pytest.mark.slow)
