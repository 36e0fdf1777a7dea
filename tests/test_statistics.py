"""What a class earned, by part and by criterion."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtlab.checks.report import Criterion, Status
from dtlab.classroom import verdicts
from dtlab.classroom.judging.judge import PartVerdict
from dtlab.classroom.settings import begin_course
from dtlab.classroom.statistics import figure_of, statistics_of
from dtlab.cli import main

RING = "01/ring_all_reduce"


def criterion(name: str, points: float, status: Status, message: str = "") -> Criterion:
    return Criterion(name, points, points if status == "ok" else 0, status, message)


def record(student: str, *criteria: Criterion) -> verdicts.Record:
    score = sum(one.earned for one in criteria)
    part = PartVerdict(RING, "ring_all_reduce-check", score, 10, 1, criteria)
    return verdicts.Record("week-1", student, "key", 1, "1", 1.0, 0.5, {"level-2": (part,)})


CLASS = [
    record("ada", criterion("result", 4, "ok"), criterion("bytes", 6, "ok")),
    record("ben", criterion("result", 4, "ok"), criterion("bytes", 6, "lost", "25 MB\nmore")),
    record("cyd", criterion("result", 4, "lost", "wrong"), criterion("bytes", 6, "blocked")),
    record("dan", criterion("answer", 10, "lost", "it is not defined")),
]


def test_scores_and_criteria_are_counted() -> None:
    (part,) = statistics_of(CLASS)
    assert (part.part, part.max_score, part.scores) == (RING, 10, (10, 4, 0, 0))
    counts = {one.name: (one.earned, one.lost, one.blocked) for one in part.criteria}
    assert counts == {"result": (2, 2, 0), "bytes": (1, 2, 1)}
    assert [one.missed for one in part.criteria] == [0.5, 0.75]


def test_what_is_not_written_is_open() -> None:
    remark = criterion("ring_all_reduce", 0, "open", "not written yet")
    both = criterion("result", 4, "open"), criterion("bytes", 6, "open")
    unwritten = record("eve", remark, *both)
    (part,) = statistics_of([CLASS[0], unwritten])
    assert [(one.name, one.earned, one.open) for one in part.criteria] == [
        ("result", 1, 1),
        ("bytes", 1, 1),
    ]
    assert [one.missed for one in part.criteria] == [0.5, 0.5]


def test_the_command_prints_a_table_and_draws_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_course(tmp_path)
    for one in CLASS:
        verdicts.write(tmp_path, one)
    picture = tmp_path / "new" / "lost.png"
    course = ["--course", str(tmp_path)]
    assert main(["statistics", "week-1", "--figure", str(picture), *course]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 submissions"
    assert lines[2] == f"{RING}   mean 3.50 of 10, median 2, all points 1 times"
    assert " ".join(lines[3].split()) == "bytes 1 earned 2 lost 1 blocked 0 open 25 MB"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["statistics", "week-9", *course]) == 1
    assert "run dtlab grade week-9" in capsys.readouterr().err


def test_the_figure_says_which_is_missed_most() -> None:
    figure = figure_of("week-1", statistics_of(CLASS))
    assert figure.alt_text.endswith(f"Most often missed: bytes of {RING}, by 75 % of the class.")
    (axes,) = figure.axes
    words = [text.get_text() for text in axes.texts]
    assert words == [RING, "result", "50 %", "bytes", "75 %"]
