"""Which tests `make proof` runs, and the journal in which it keeps all results.

    --unit 05        tests of one unit; `none`: of no unit
    --journal FILE   append each result to FILE, and leave out what has passed according to it
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dtlab.checks import Part
from tests.known_answers import Answers

__all__ = ["Journal", "JournalPlugin", "left_out", "passed_before", "pytest_addoption", "unit_of"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options with which `make proof` calls pytest."""
    group = parser.getgroup("dtlab")
    group.addoption("--unit", help="run the tests of this unit only (05), or of no unit (none)")
    group.addoption(
        "--journal", type=Path, help="write results here, and skip tests that passed before"
    )


def left_out(item: pytest.Item) -> bool:
    """Whether `--unit` or `--journal` leaves a test out."""
    unit, journal = item.config.getoption("--unit"), item.config.getoption("--journal")
    other = unit is not None and (unit_of(item) or "none") != unit
    return other or (journal is not None and item.nodeid in passed_before(journal))


def unit_of(item: pytest.Item) -> str | None:
    """The unit that a test is about, or None.

    It is named by the mark `unit("05")`, by the file (test_unit05_gather.py), or by a parameter:
    a part, its known answers, or the name of a unit or of one of its notebooks.
    """
    mark = item.get_closest_marker("unit")
    if mark is not None:
        return str(mark.args[0])
    named = re.match(r"test_unit(\d\d)_", item.path.name)
    if named:
        return named[1]
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((unit for unit in map(_unit_of_value, params) if unit), None)


def _unit_of_value(value: Any) -> str | None:
    if isinstance(value, Answers):
        return value.part.unit
    if isinstance(value, Part):
        return value.unit
    if isinstance(value, (str, Path)):
        found = re.search(r"(?:^|/)(\d\d)_\w+", str(value))
        return found[1] if found else None
    return None


@cache
def passed_before(path: Path) -> set[str]:
    """Ids of the tests that passed, as the journal has them; a later result counts more."""
    tests = [entry for entry in Journal(path).entries if "test" in entry]
    results = {entry["test"]: entry["passed"] for entry in tests}
    return {name for name, passed in results.items() if passed}


class Journal:
    """Results in a file, one JSON object on a line, so that an interrupted run can continue."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All results so far, without a line that the end of a process has cut off."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def write(self, **entry: Any) -> None:
        """Append a result, on a new line also where the last line was cut off."""
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(entry))


class JournalPlugin(Journal):
    """A plugin of pytest that appends the result of each test to a journal."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed once its call has, or was skipped; an error anywhere is a failure."""
        if report.outcome == "rerun":  # its next try decides
            return
        if report.failed or report.when == "call" or report.skipped:
            self.write(test=report.nodeid, passed=not report.failed)
