"""The catalogue of exercise parts, and `check`, which a learner calls."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dtlab.errors import DtlabError
from dtlab.grading.checks import Check
from dtlab.grading.report import Report

__all__ = ["Part", "check", "find_part", "known_parts"]


@dataclass(frozen=True)
class Part:
    """One exercise part: the only place where its name, points and check are written down.

    `grade_id` is the id of its graded cell, `minutes` the time it should take, `difficulty` 1 to
    3, `reference` the dotted name of the library's own version.
    """

    name: str
    symbol: str
    grade_id: str
    minutes: int
    difficulty: int
    check: Check
    reference: str

    @property
    def points(self) -> float:
        """Points of the graded cell."""
        return self.check.points


def known_parts() -> Iterator[Part]:
    """All parts, unit after unit: each `dtlab/grading/unitNN.py` lists its own as `PARTS`."""
    package = importlib.import_module("dtlab.grading")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        if module.startswith("unit"):
            yield from importlib.import_module(f"dtlab.grading.{module}").PARTS


def find_part(name: str) -> Part:
    """The part called `name`. Raises `DtlabError` that lists the known ones."""
    parts = {part.name: part for part in known_parts()}
    if name in parts:
        return parts[name]
    close = get_close_matches(str(name), parts, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise DtlabError(f"there is no part {name!r}.{guess} Known parts: {', '.join(parts)}")


def check(name: str, answer: Any, *, seed: int = 0) -> Report:
    """Runs `answer` on real ranks and reports what it earns, criterion by criterion.

    `seed` draws the inputs. Whatever the answer does (raises, hangs, exits) becomes a criterion
    that says so; raises `DtlabError` for an unknown name and `LaunchError` where no ranks can run.
    """
    part = find_part(name)
    return Report(part.symbol, tuple(part.check.run(part.symbol, answer, seed)))
