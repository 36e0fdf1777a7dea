"""The catalogue of exercise parts; `ask` and `check`, which a learner calls."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from dtlab.errors import DtlabError
from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.defences import Defence
from dtlab.grading.learners import record
from dtlab.grading.questions.answers import Given, Questions
from dtlab.grading.report import Criterion, Reference, Report
from dtlab.ranks.notices import notice

__all__ = ["Checks", "Part", "ask", "check", "find_part", "known_parts", "unit_packages"]


class Checks(Protocol):
    """How a part is checked: `checks.Check` runs functions, `answers.Questions` reads values.

    A `defences.Defence` says what a person looks for, and cannot be run.
    """

    @property
    def points(self) -> float:
        """Points that can be had."""
        ...

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Judges `answer`, which the learner calls `symbol`; `bench` runs functions on ranks."""
        ...


@dataclass(frozen=True)
class Part:
    """One exercise part: the only place where its name, points and check are written down.

    `name` is "05/gather", in the module `dtlab.units.unit05.gather`; `level` is 1 to 3, `title`
    the heading of the part, `minutes` the time it should take, `difficulty` 1 to 3, `symbol` what
    the learner fills in, `grade_id` the id of its graded cell: both derive from the name unless
    they are given. `reference` is the dotted name of the library's own version, `stretch` says
    that the part goes beyond what the unit needs.
    """

    name: str
    level: int
    title: str
    minutes: int
    difficulty: int
    check: Checks
    symbol: str = ""
    grade_id: str = ""
    reference: str | None = None
    stretch: bool = False

    def __post_init__(self) -> None:
        short = self.name.partition("/")[2]
        ending = "" if self.by_hand else "-check"
        object.__setattr__(self, "symbol", self.symbol or short)
        object.__setattr__(self, "grade_id", self.grade_id or short + ending)

    @property
    def points(self) -> float:
        """Points of the graded cell."""
        return self.check.points

    @property
    def unit(self) -> str:
        """The number of its unit: "01"."""
        return self.name.partition("/")[0]

    @property
    def by_hand(self) -> bool:
        """Whether a person grades it: then the cell that is filled in is the graded one."""
        return isinstance(self.check, Defence)

    @property
    def answer_id(self) -> str:
        """The id of the cell that the learner fills in."""
        return self.grade_id.removesuffix("-check")

    @property
    def call(self) -> str:
        """The source of its graded cell; of one that is graded by hand there is no call."""
        if self.by_hand:
            return ""
        learner = ", learner=learner" if isinstance(self.check, Questions) else ""
        return f'dtlab.check("{self.name}", {self.symbol}{learner})'

    @property
    def dots(self) -> str:
        """Its difficulty as it is drawn in a table: two of three are ●●○."""
        return "●" * self.difficulty + "○" * (3 - self.difficulty)


def unit_packages() -> list[str]:
    """The packages `dtlab.units.unitNN`, in the order of the course."""
    package = importlib.import_module("dtlab.units")
    found = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [f"dtlab.units.{name}" for name in found if re.fullmatch(r"unit\d\d", name)]


def known_parts() -> Iterator[Part]:
    """All parts, unit after unit, in the order in which each unit's `PARTS` names its modules."""
    for package in unit_packages():
        for name in importlib.import_module(package).PARTS:
            yield importlib.import_module(f"{package}.{name}").PART


def find_part(name: str) -> Part:
    """The part called `name`. Raises `DtlabError` that lists the known ones, of that unit."""
    parts = {part.name: part for part in known_parts()}
    if name in parts:
        return parts[name]
    unit, _, symbol = str(name).partition("/")
    own = {one: part for one, part in parts.items() if one.startswith(f"{unit}/")}
    called = [one for one, part in own.items() if part.symbol == symbol]
    close = [*called, *get_close_matches(str(name), own or parts, n=1)]
    guess = f" Did you mean {close[0]!r}?" if close else ""
    which = f"Parts of unit {unit}" if own else "Known parts"
    raise DtlabError(f"there is no part {name!r}.{guess} {which}: {', '.join(own or parts)}")


def ask(name: str, learner: str) -> Given:
    """What a part of Level I gives this learner and asks: shown as the last value of a cell.

    The same id gets the same values always and everywhere. Raises `DtlabError` for an unknown
    part, for one that draws nothing, and for an empty id.
    """
    part = find_part(name)
    if not isinstance(part.check, Questions):
        raise DtlabError(f"{name} asks for {part.symbol}, not for values drawn from your id.")
    return part.check.given(part.symbol, learner)


def check(
    name: str,
    answer: Any,
    *,
    seed: int = 0,
    learner: str | None = None,
    points: float | None = None,
) -> Report:
    """Judges the answer to a part and reports what it earns, criterion by criterion.

    A function is run on real ranks, with inputs drawn from `seed`; values are compared with those
    of `learner`. An assignment may give other `points` for the part. Whatever the answer does
    (raises, hangs, exits) becomes a criterion that says so; raises `DtlabError` for an unknown
    name and for a part that is graded by hand, and `LaunchError` where no ranks can run.
    """
    part = find_part(name)
    with notice(f"{name}: checking"):
        criteria = tuple(part.check.run(part.symbol, answer, seed, learner))
    passed = all(criterion.status == "ok" for criterion in criteria)
    reference = Reference.of(part.reference) if passed and part.reference else None
    report = Report(part.symbol, criteria, reference, points)
    record(part.name, report.score, report.max_score)
    return report
