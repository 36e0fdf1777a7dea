"""Assignments of chosen parts: how the command is read, and which files are cut and written."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtlab.checks import find_part, known_parts
from dtlab.checks.report import scaled
from dtlab.classroom.late import due_date
from dtlab.classroom.releases.wanted import wanted
from dtlab.cli import main
from dtlab.errors import DtlabError

ROOT = Path(__file__).parent.parent
RING = "01/ring_all_reduce"
PARTS = list(known_parts())


# Points ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "max_score", "cell_points", "worth"),
    [(0, 10, 20, 0), (10, 10, 20, 20), (7, 10, 20, 14), (5, 10, 1, 0.5), (3, 10, 0, 0)],
)
def test_points_are_scaled(
    score: float, max_score: float, cell_points: float, worth: float
) -> None:
    assert scaled(score, max_score, cell_points) == pytest.approx(worth)


@given(st.integers(1, 400), st.integers(0, 400), st.floats(0, 1000))
def test_no_score_is_above_the_cells_points(most: int, earned: int, cell_points: float) -> None:
    quarter = most / 4
    assert scaled(quarter, quarter, cell_points) == cell_points
    assert 0 <= scaled(min(earned, most) / 4, quarter, cell_points) <= cell_points


@given(st.floats(0, 1000), st.floats(0, 1))
def test_points_of_the_same_weight_stay_as_they_are(most: float, share: float) -> None:
    assert scaled(share * most, most, most) == share * most


@pytest.mark.parametrize("wrong", [(-1, 10, 5), (11, 10, 5), (float("nan"), 10, 5), (1, 10, -5)])
def test_a_score_that_no_check_gives_is_an_error(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="points cannot be scaled to a cell"):
        scaled(*wrong)


# What is asked for -----------------------------------------------------------------------------


def test_without_words_the_whole_unit_is_chosen() -> None:
    asked = wanted(["01"])
    assert asked.weights == {part.name: part.points for part in PARTS if part.unit == "01"}
    assert asked.levels("01") == [1, 2, 3]


def test_levels_parts_and_points() -> None:
    asked = wanted(["01"], "2, 1", "01/step,ring_all_reduce", "01/ring_all_reduce=20.5")
    assert asked.weights == {"01/step": find_part("01/step").points, RING: 20.5}
    assert asked.levels("01") == [1, 2]
    assert wanted(["01"], parts="ring_all_reduce").levels("01") == [2]
    assert wanted(["01"], levels="3").levels("01") == [3]


def test_parts_of_several_units() -> None:
    asked = wanted(["01", "02"], parts="ring_all_reduce, 02/ddp_step")
    assert [part.name for part in asked.parts] == [RING, "02/ddp_step"]
    assert (asked.levels("01"), asked.levels("02")) == ([2], [1])
    assert asked.file("02", 2) == "02_level_2.ipynb"
    assert wanted(["01"]).file("01", 2) == "01_level_2.ipynb"
    with pytest.raises(DtlabError, match="no part of unit 02 is chosen"):
        wanted(["01", "02"], parts=RING)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"parts": "01/ring_al_reduce"}, "Did you mean '01/ring_all_reduce'"),
        ({"parts": "02/step"}, "unit 01 has no part '02/step'"),
        ({"parts": "02/step"}, "name the units, as in: dtlab release 01,02"),
        ({"levels": "1", "parts": RING}, "is of level 2, but --levels 1 omits this level"),
        ({"levels": "1,2", "parts": RING}, "names level 1, but --parts none of its parts"),
        ({"levels": "4"}, "no level '4'. There are 1, 2, 3"),
        ({"levels": "one"}, "no level 'one'"),
        ({"points": f"{RING}=ten"}, "'ten' is no number of points"),
        ({"points": f"{RING}=-1"}, "'-1' is no number of points"),
        ({"points": f"{RING}=nan"}, "'nan' is no number of points"),
        ({"points": f"{RING}=inf"}, "'inf' is no number of points"),
        ({"points": RING}, "'' is no number of points"),
        ({"points": "01/stop=3"}, "Did you mean '01/step'"),
        ({"levels": "1", "points": f"{RING}=3"}, "which is not in the assignment"),
    ],
)
def test_words_that_do_not_fit_are_explained(words: dict[str, str], message: str) -> None:
    with pytest.raises(DtlabError, match=re.escape(message)):
        wanted(["01"], **words)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-12-01 18:00", 17),
        (" 2026-12-01T18:00:00 ", 17),
        ("2026-12-01 18:00 UTC", 18),
        ("2026-12-01 18:00 Z", 18),
        ("2026-12-01 18:00 +0530", 12),
        ("2026-12-01 18:00 -01:00", 19),
        ("2026-12-01 18:00 America/New_York", 23),
    ],
)
def test_a_due_date_is_a_moment(text: str, hour: int) -> None:
    assert due_date(text).astimezone(UTC).replace(minute=0) == datetime(
        2026, 12, 1, hour, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "18:00",
        "2026-12-01",
        "1.12.2026 18:00",
        "2026-02-30 18:00",
        "2026-12-01 25:00",
        "2026-12-01 18:00 Mars",
        "2026-12-01 18:00 ../etc",
        "2026-12-01 18:00 +1",
    ],
)
def test_the_error_on_an_unreadable_due_date_says_how_to_write_it(text: str) -> None:
    with pytest.raises(DtlabError, match='as "2026-12-01 18:00"'):
        due_date(text)


# Names of parts ---------------------------------------------------------------------------------


def test_the_names_of_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "01", "--parts", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("01/ring_all_reduce ") and "10 points" in line for line in lines)
    assert main(["release", "77", "--parts", "list"]) == 1
    assert "there is no unit '77'" in capsys.readouterr().err
