"""The catalogue of exercise parts, and the learners' functions `ask` and `check`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.defences import Defence
from dtlab.checks.functions.replay import offer
from dtlab.checks.learners import record, record_mistakes
from dtlab.checks.questions.answers import Given, Questions
from dtlab.checks.report import Criterion, Reference, Report
from dtlab.errors import DtlabError
from dtlab.ranks.notices import notice

__all__ = [
    "Checks",
    "Part",
    "ask",
    "check",
    "discussion_of",
    "find_part",
    "known_parts",
    "unit_packages",
]


class Checks(Protocol):
    """The check of a part: `checks.Check` runs functions, `answers.Questions` judges values.

    A `defences.Defence` is a rubric for a person and cannot be run.
    """

    @property
    def points(self) -> float:
        """The highest possible score."""
        ...

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Judges `answer`, which has the name `symbol`; `bench` runs functions on ranks."""
        ...


@dataclass(frozen=True)
class Part:
    """One exercise part; the only place that defines its name, points and check.

    `name` is "05/gather" for the module `dtlab.units.unit05.gather`, `level` 1 to 3, `title` the
    heading of the part, `minutes` the time it should take, and `difficulty` 1 to 3. `symbol` is
    the name that the learner defines, and `grade_id` the id of its graded cell; both derive from
    `name` unless given. `reference` is the dotted name of the library's implementation. `stretch`
    is True if the part goes beyond the unit's requirements. If the part is on the short path
    through the course, `short_path` names the sections of the lesson that it needs: "1 to 3".
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
    short_path: str = ""

    def __post_init__(self) -> None:
        short = self.name.partition("/")[2]
        ending = "" if self.by_hand else "-check"
        object.__setattr__(self, "symbol", self.symbol or short)
        object.__setattr__(self, "grade_id", self.grade_id or short + ending)

    @property
    def points(self) -> float:
        """The points of the graded cell."""
        return self.check.points

    @property
    def unit(self) -> str:
        """The number of its unit: "01"."""
        return self.name.partition("/")[0]

    @property
    def by_hand(self) -> bool:
        """Whether a person grades it; then the answer cell is also the graded cell."""
        return isinstance(self.check, Defence)

    def cases_of(self, answer: Any) -> tuple[Check, str, Any] | None:
        """The check whose cases can be run again, the part's name, and the function in an answer.

        Returns None if the part does not run functions, or the answer has none.
        """
        check = getattr(self.check, "check", self.check)
        fn = answer.get("fixed") if isinstance(answer, Mapping) else answer
        return (check, self.name, fn) if isinstance(check, Check) and callable(fn) else None

    @property
    def answer_id(self) -> str:
        """The id of the cell that the learner fills in."""
        return self.grade_id.removesuffix("-check")

    @property
    def call(self) -> str:
        """The source of its graded cell; empty for a part that is graded by hand."""
        if self.by_hand:
            return ""
        learner = ", learner=learner" if isinstance(self.check, Questions) else ""
        return f'dtlab.check("{self.name}", {self.symbol}{learner})'

    @property
    def dots(self) -> str:
        """Its difficulty as drawn in a table: 2 of 3 is ●●○."""
        return "●" * self.difficulty + "○" * (3 - self.difficulty)


def unit_packages() -> list[str]:
    """Returns the packages `dtlab.units.unitNN`, in the order of the course."""
    package = importlib.import_module("dtlab.units")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [f"dtlab.units.{name}" for name in names if re.fullmatch(r"unit\d\d", name)]


def known_parts() -> Iterator[Part]:
    """Yields all parts, unit after unit, in the order of each unit's `PARTS`."""
    for package in unit_packages():
        for name in importlib.import_module(package).PARTS:
            yield importlib.import_module(f"{package}.{name}").PART


def discussion_of(part: Part) -> str:
    """Returns what a learner reads who has passed the part: why it is so, and what was hard.

    It is the section with the part's name in `discussions.md` of the unit's package; "" without.
    """
    package = importlib.import_module(f"dtlab.units.unit{part.unit}")
    file = Path(package.__path__[0]) / "discussions.md"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    sections = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    return " ".join(found.get(part.name.partition("/")[2], "").split())


def find_part(name: str) -> Part:
    """Returns the part called `name`; raises a `DtlabError` that lists the parts if it is unknown.

    A part may have had another name in an earlier release, so the error says how to renew a copy.
    """
    parts = {part.name: part for part in known_parts()}
    if name in parts:
        return parts[name]
    unit, _, symbol = str(name).partition("/")
    of_unit = {full: part for full, part in parts.items() if full.startswith(f"{unit}/")}
    called = [full for full, part in of_unit.items() if part.symbol == symbol]
    close = [*called, *get_close_matches(str(name), of_unit or parts, n=1)]
    guess = f" Did you mean {close[0]!r}?" if close else ""
    which = f"Parts of unit {unit}" if of_unit else "Known parts"
    known = f"{which}: {', '.join(of_unit or parts)}."
    renew = f" To renew a notebook of an earlier release: dtlab start {unit} --renew"
    raise DtlabError(f"there is no part {name!r}.{guess} {known}{renew if of_unit else ''}")


def ask(name: str, learner: str) -> Given:
    """Returns the values and questions of a Level I part for this learner; displayed in a cell.

    The same id always gets the same values, on every machine. Raises `DtlabError` for an unknown
    part, for a part without drawn values, and for an empty id.
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
    """Judges the answer to a part and reports its points, criterion by criterion.

    A function runs on real ranks, with inputs drawn from `seed`; values are compared with those
    of `learner`. An assignment may give other `points` for the part. If the answer raises, hangs
    or exits, a criterion of the report says so. Raises `DtlabError` for an unknown name and for a
    part that is graded by hand, and `LaunchError` if no ranks can run.
    """
    part = find_part(name)
    with notice(f"{name}: checking"):
        criteria = tuple(part.check.run(part.symbol, answer, seed, learner))
    passed = all(criterion.status == "ok" for criterion in criteria)
    reference = Reference.of(part.reference) if passed and part.reference else None
    cases = part.cases_of(answer)
    report = Report(
        part.symbol, criteria, reference, points, part.name if cases else "",
        discussion_of(part) if passed else "",
    )  # fmt: skip
    record(part.name, report.score, report.max_score)
    record_mistakes(part.name, [one.mistake for one in criteria if one.mistake])
    if cases:
        offer(*cases, criteria)
    return report
