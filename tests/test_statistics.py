"""What a class earned, by part and by criterion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtlab.checks.report import Criterion, Status
from dtlab.classroom import verdicts
from dtlab.classroom.judging.judge import PartVerdict, _public
from dtlab.classroom.settings import begin_course
from dtlab.classroom.statistics import figure_of, statistics_of
from dtlab.cli import main

RING = "01/ring_all_reduce"


def criterion(
    name: str, points: float, status: Status, message: str = "", mistake: str = ""
) -> Criterion:
    earned = points if status == "ok" else 0
    return Criterion(name, points, earned, status, message, mistake=mistake)


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


# Known mistakes --------------------------------------------------------------------------------

BACKWARD = {  # known mistakes, and how many of thirty students make them
    "": 4,
    "frees nothing": 1,
    "frees too early": 1,
    "sends whole parameters": 2,
    "copies into the old parameters": 3,
    "gathers only once: in the second step, the views still hold the parameters of the first": 6,
}


def thirty() -> list[verdicts.Record]:
    """A class of 30: 17 lose "bytes", four of them by no known mistake; 13 earn all points."""
    planted = [mistake for mistake, count in BACKWARD.items() for _ in range(count)]
    ok = criterion("result", 4, "ok")
    records = [
        record(f"student-{number:02}", ok, criterion(
            "bytes", 6, "lost", f"rank 0: {number} MB: {mistake or 'wrong'}", mistake
        ))
        for number, mistake in enumerate(planted, 1)
    ]  # fmt: skip
    good = [
        record(f"student-{number:02}", ok, criterion("bytes", 6, "ok"))
        for number in range(len(planted) + 1, 31)
    ]
    return [*records, *good]


def printed(
    folder: Path, records: list[verdicts.Record], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The lines of `dtlab statistics` on these records, which `write` stores."""
    begin_course(folder)
    for one in records:
        verdicts.write(folder, one)
    assert main(["statistics", "week-1", "--course", str(folder)]) == 0
    *lines, empty, page = capsys.readouterr().out.splitlines()
    assert not empty
    assert page.startswith("Who made which mistake is in")
    return lines


def test_the_known_mistakes_of_a_criterion_are_counted_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(tmp_path, thirty(), capsys)
    assert lines[3].startswith("  bytes     13 earned   17 lost    0 blocked    0 open   rank 0")
    assert lines[4:] == [
        "       6  gathers only once: in the second step, the views still hold the parameters of "
        "the first",
        "       3  copies into the old parameters",
        "       2  sends whole parameters",
        "       2  (other known mistakes)",
        "       4  (no known mistake: student-01, student-02, student-03 and 1 more)",
        "  result    30 earned    0 lost    0 blocked    0 open",
    ]


def test_an_answer_that_cannot_be_used_is_no_known_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(tmp_path, CLASS, capsys)
    assert lines[4] == "       2  (no known mistake: ben, dan)"
    assert lines[6] == "       2  (no known mistake: cyd, dan)"


def test_a_page_says_who_made_which_mistake_and_leads_to_feedback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_course(tmp_path)
    feedback = tmp_path / "feedback"
    (feedback / "student-05" / "week-1").mkdir(parents=True)
    (feedback / "student-05" / "week-1" / "level-2.html").write_text("")
    odd = record("<b>eve", criterion("bytes", 6, "lost", "m", "<i>sends</i> & waits"))
    printed(tmp_path, [*thirty(), odd], capsys)
    text = (feedback / "week-1.html").read_text(encoding="utf-8")
    page = " ".join(text.split())
    assert "31 submissions." in page
    link = '<a href="student-05/week-1/level-2.html">student-05</a>'
    assert f"frees nothing: {link} </td>" in page
    assert "sends whole parameters: student-07, student-08 </td>" in page
    assert "No known mistake: student-01, student-02, student-03, student-04 </td>" in page
    assert "&lt;i&gt;sends&lt;/i&gt; &amp; waits: &lt;b&gt;eve </td>" in page
    assert 'src="data:image/png;base64,' in page


def test_what_a_mistake_or_a_name_contains_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = criterion("bytes", 6, "lost", "m", "\x1b[31mred " + "x" * 200 + "\nsecond line")
    odd = [record("ada", said), record("\x1b" + "n" * 60, criterion("bytes", 6, "lost", "m"))]
    _, _, _, _, mistake, name = printed(tmp_path, odd, capsys)
    assert mistake == f"       1  ?[31mred {'x' * 140}…"
    assert len(mistake) == 160
    assert name == f"       1  (no known mistake: ?{'n' * 22}…)"


def test_a_record_keeps_the_mistake_and_one_without_it_is_read(tmp_path: Path) -> None:
    verdicts.write(tmp_path, record("ada", criterion("bytes", 6, "lost", "25 MB", "all of it")))
    (path,) = (tmp_path / "verdicts" / "week-1").glob("*.json")
    fields = json.loads(path.read_text())
    (stored,) = verdicts.read_all(tmp_path, "week-1")
    assert stored.parts[RING].criteria[0].mistake == "all of it"
    assert fields["notebooks"]["level-2"][0]["criteria"][0].pop("mistake") == "all of it"
    path.write_text(json.dumps(fields))  # as the version before wrote it
    (old,) = verdicts.read_all(tmp_path, "week-1")
    assert (old.parts[RING].criteria[0].message, old.parts[RING].criteria[0].mistake) == (
        "25 MB", "",
    )  # fmt: skip


def test_the_mistake_is_that_of_the_hidden_inputs_or_else_of_the_learners() -> None:
    def mistake(hidden: str, known: str) -> str:
        return _public(
            criterion("bytes", 6, "lost", "hidden", hidden),
            criterion("bytes", 6, "lost", "public", known),
        ).mistake

    assert [mistake("a", "b"), mistake("", "b"), mistake("a", "")] == ["a", "b", "a"]
    right = criterion("bytes", 6, "ok")
    assert _public(criterion("bytes", 6, "lost", "hidden", "a"), right).mistake == "a"
    assert _public(right, criterion("bytes", 6, "lost", "public", "a")).mistake == ""
