"""What `dtlab alike` shows: both answers, side by side, and no accusation."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from dtlab.checks import find_part
from dtlab.classroom.settings import begin_course
from dtlab.classroom.similarity.pairs import Group
from dtlab.classroom.similarity.sidebyside import compare_answers, rendered
from dtlab.errors import DtlabError
from tests.test_alike import RING, answers, compared, disguised, handed_in, notebook, solution


def test_the_report_shows_both_answers_and_no_accusation() -> None:
    pairs = compared(RING, ada=solution(RING), ben=disguised(solution(RING)))
    lines = list(rendered("level-2", pairs, 40, 0.8, width=100))
    text = "\n".join(lines)
    assert lines[0] == (
        "level-2: among 40 notebooks, 1 group of answers is much alike (a score of 0.8 or more)."
    )
    assert "01/ring_all_reduce   1.00   ada and ben" in lines
    assert re.search(r"def ring_all_reduce\(tensor, group=None\):\s+\| def x\d+\(", text)
    assert max(map(len, lines)) <= 100
    assert "Similar answers need not be copied" in text
    assert not re.search(
        "cheat|plagia|suspect|fraud|guilt|dishonest|offen[cd]", text, re.IGNORECASE
    )


def test_a_ring_is_named_once() -> None:
    class_ = {f"n{number}": disguised(solution(RING), f"n{number}_") for number in range(11)}
    lines = list(rendered("level-2", compared(RING, **class_), 11, 0.8))
    (heading,) = [line for line in lines if line.startswith("01/ring_all_reduce")]
    assert "11 learners: n0, n1, n10," in heading
    assert "The cause may be a hint" in heading
    assert "Closest: n0 and n1" in heading


def test_the_report_says_that_no_answers_are_alike() -> None:
    assert list(rendered("level-2", [], 40, 0.8)) == [
        "level-2: among 40 notebooks, no two answers are much alike (a score of 0.8 or more)."
    ]


def test_a_source_cannot_steer_the_terminal() -> None:
    both = "a\x1b[31mda", "ben"
    group = Group(both, "01/x", 1.0, ("x = '\x1b[2J'\u202e", "\ty = 1\r\n"), both)
    text = "\n".join(rendered("level-2", [group], 2, 0.8))
    assert "a?[31mda and ben" in text
    assert "x = '?[2J'?" in text
    assert not set("\x1b\u202e\r\t") & set(text)


@pytest.mark.slow
def test_the_command_reads_a_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    course = tmp_path / "course"
    begin_course(course)
    release = course / "release" / "week-3"
    release.mkdir(parents=True)
    nbformat.write(notebook("exercises", find_part("01/step")), release / "level-1.ipynb")
    nbformat.write(notebook("exercises", RING), release / "level-2.ipynb")
    for learner, source in {
        "ada": solution(RING),
        "ben": disguised(solution(RING)),
        "carl": answers(RING)["ring_by_recursion"],
    }.items():
        folder = course / "submitted" / learner / "week-3"
        folder.mkdir(parents=True)
        nbformat.write(handed_in(RING, source), folder / "level-2.ipynb")
    (course / "submitted/dora/week-3").mkdir(parents=True)
    (course / "submitted/dora/week-3/level-2.ipynb").write_bytes(b'{"cells": [')
    text = "\n".join(compare_answers("week-3", course=course))
    assert text.startswith("level-1: not compared. Its values are drawn for each learner.\n")
    assert "level-2: among 4 notebooks, 1 group" in text
    assert "ada and ben" in text
    assert "carl" not in text
    with pytest.raises(DtlabError, match=r"no assignment 'week-4'.*week-3"):
        list(compare_answers("week-4", course=course))
    with pytest.raises(DtlabError, match=r"--threshold 1\.5"):
        list(compare_answers("week-3", course=course, threshold=1.5))
