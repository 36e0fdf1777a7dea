"""The checks give the points that are earned, and say why the others are not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dtlab
from dtlab.errors import DeadlockError, DtlabError, Failure, RankError, RankTimeoutError, Waiting
from dtlab.grading import Criterion, Report, check, find_part, known_parts
from dtlab.grading.checks import Check, Rule, blocked, lost, ok
from dtlab.grading.sums import mistake
from dtlab.grading.trials import Answer, Observation, Trial

ROOT = Path(__file__).parent.parent


def answers_of(unit: str, symbol: str) -> ModuleType:
    """A file of wrong and right answers. It stays unimportable, as a notebook's functions are."""
    path = ROOT / "tests" / "wrong_answers" / unit / f"{symbol}.py"
    spec = importlib.util.spec_from_file_location(f"answers_{symbol}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RING = answers_of("01_ranks_and_collectives", "ring_all_reduce")

# Reports ------------------------------------------------------------------------------

REPORT = Report(
    "ring_all_reduce",
    (
        Criterion("result", 4, 4, "ok", "the sum is right"),
        Criterion("bytes", 3, 0, "lost", "each rank sent <25.2 MB>\npass one chunk"),
        Criterion("rounds", 3, 0, "blocked", "judged once the call comes back"),
    ),
)


def test_report_reads_well_in_a_terminal() -> None:
    assert str(REPORT) == (
        "ring_all_reduce   4 of 10 points\n"
        "  ok       4/4  the sum is right\n"
        "  lost     0/3  each rank sent <25.2 MB>\n"
        "                pass one chunk\n"
        "  blocked  0/3  judged once the call comes back"
    )
    assert repr(REPORT) == str(REPORT)


def test_report_counts_its_points() -> None:
    assert (REPORT.score, REPORT.max_score, REPORT.passed) == (4, 10, False)
    assert Report("part", REPORT.criteria[:1]).passed


def test_report_is_a_table_that_takes_the_colours_of_the_page() -> None:
    table = REPORT._repr_html_()
    assert "&lt;25.2 MB&gt;" in table
    assert "color:inherit" in table
    for status in ("ok", "lost", "blocked"):
        assert f">{status}</span>" in table  # told by a word, not by colour alone


def test_report_is_nbgraders_number_in_a_kernel_and_text_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert REPORT._repr_mimebundle_()["text/plain"] == str(REPORT)
    monkeypatch.setattr("dtlab.grading.report._in_a_kernel", lambda: True)
    bundle = REPORT._repr_mimebundle_()
    assert float(bundle["text/plain"]) == REPORT.score
    assert bundle["text/html"] == REPORT._repr_html_()


# Parts ------------------------------------------------------------------------------


def test_an_unknown_part_lists_the_known_ones() -> None:
    with pytest.raises(DtlabError, match=r"Did you mean '01/ring_all_reduce'\?.*Known parts: 01/"):
        check("01/ring_allreduce", print)


def test_parts_and_their_graded_cells_agree() -> None:
    cells: dict[str, Any] = {}
    for notebook in (ROOT / "solutions").glob("*/*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade"):
                cells[cell["id"]] = cell
    for part in known_parts():
        cell = cells.pop(part.grade_id)
        assert cell["metadata"]["nbgrader"]["points"] == part.points
        assert "".join(cell["source"]) == f'dtlab.check("{part.name}", {part.symbol})'
    assert not cells, "graded cells that no part stands for"


def test_the_catalogue_does_not_load_torch() -> None:
    code = (
        "import sys, dtlab.grading as g; list(g.known_parts()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


# Checks as data ------------------------------------------------------------------------------


def test_a_criterion_is_lost_or_blocked_without_taking_another_down() -> None:
    verdicts = {"a": ok("good"), "b": lost("bad"), "c": blocked("not judged")}
    rules = tuple(Rule(name, 2, lambda _, v=verdict: v) for name, verdict in verdicts.items())
    criteria = Check(trials=lambda seed: [], rules=rules).run("part", print)
    assert [(one.status, one.earned) for one in criteria] == [
        ("ok", 2),
        ("lost", 0),
        ("blocked", 0),
    ]
    assert [one.message for one in criteria] == ["good", "bad", "not judged"]


def test_what_is_not_a_function_gets_one_sentence() -> None:
    report = check("01/ring_all_reduce", 3)
    assert report.score == 0
    assert "is int here, not a function" in report.criteria[0].message
    assert {one.status for one in report.criteria[1:]} == {"blocked"}


# Judges of the ring, on observations made up ---------------------------------------------------


class FakeTrace:
    """Counts of a perfect ring on 4 ranks, save for what a test changes."""

    def __init__(self, *, wire: int | None = None, ops: tuple[str, ...] = ("send", "recv")):
        self.wire, self.names = wire, ops

    def bytes_sent(self, rank: int) -> int:
        return 6 << 20

    def bytes_wire(self, rank: int) -> int | None:
        return self.wire

    def sends(self, rank: int) -> int:
        return 6

    rounds = sends

    def peers(self, rank: int) -> set[int]:
        return {(rank + 1) % 4, (rank - 1) % 4}

    def ops(self) -> Counter[str]:
        return Counter(self.names)


def judged(trace: FakeTrace, *, finished: tuple[str, ...] = ()) -> dict[str, Criterion]:
    trial = Trial(4, (8,), seed=0)
    total = sum(trial.inputs(0))
    assert isinstance(total, torch.Tensor)
    answers = [[Answer(total.clone(), None) for _ in range(4)]]
    seen = [Observation(trial, answers, trace, finished)]  # type: ignore[arg-type]
    rules = find_part("01/ring_all_reduce").check.rules
    return {rule.name: rule.settle(seen) for rule in rules}


@pytest.mark.parametrize("wire", [None, 6 << 20, int(6.1 * 2**20)])
def test_the_operating_systems_count_may_agree_or_be_missing(wire: int | None) -> None:
    assert {one.status for one in judged(FakeTrace(wire=wire)).values()} == {"ok"}


def test_a_trace_that_the_operating_system_contradicts_is_the_failure() -> None:
    criteria = judged(FakeTrace(wire=12 << 20))
    assert criteria["bytes"].status == "lost"
    assert "12.6 MB left it as the operating system counts" in criteria["bytes"].message


def test_a_finished_collective_earns_nothing() -> None:
    for criteria in (
        judged(FakeTrace(ops=("send", "all_gather"))),
        judged(FakeTrace(), finished=("tree_broadcast",)),
    ):
        assert sum(one.earned for one in criteria.values()) == 0
        assert [one.status for one in criteria.values()] == ["lost"] + ["blocked"] * 3


# What is said about wrong sums -----------------------------------------------------------------


def sum_of(trial: Trial, *ranks: int) -> torch.Tensor:
    inputs = trial.inputs(0)
    return torch.stack([inputs[rank] for rank in ranks]).sum(dim=0)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0, 1), "hold the values of ranks 0 and 1 only"),
        ((0, 1, 2, 1), "hold the values of ranks 0 to 2, those of rank 1 twice"),
        ((2, 2), "hold the values of rank 2 only, those of rank 2 twice"),
    ],
)
def test_a_wrong_sum_is_told_by_whose_values_are_in_it(ranks: tuple[int, ...], words: str) -> None:
    trial = Trial(3, (9,), seed=1)
    right = sum_of(trial, 0, 1, 2)
    wrong = right.clone()
    wrong[3:6] = sum_of(trial, *ranks)[3:6]
    seen = Observation(trial, [[Answer(right, None), Answer(wrong, None), Answer(right, None)]])
    assert mistake(seen, 0) == f"3 ranks, 9 elements, rank 1: elements 3 to 5 {words}."


def test_a_number_from_nowhere_is_shown_beside_the_right_one() -> None:
    trial = Trial(1, (2,), seed=0)
    wrong = trial.inputs(0)[0] + 0.5
    words = mistake(Observation(trial, [[Answer(wrong, None)]]), 0)
    assert words.startswith("1 rank, 2 elements, rank 0: element 0 is ")
    assert "and should be" in words


def test_a_crash_names_size_message_and_line() -> None:
    failure = Failure(
        "exception", "ValueError: no\n(called with 7 elements on 3 ranks)", "a.py", 4, "f()", 2
    )
    seen = Observation(Trial(3, (6, 7), 0), error=RankError("...", failures={1: failure}))
    assert seen.trouble == "3 ranks, 7 elements: ValueError: no\ncell 2, line 4:   f()"


def test_a_hang_names_who_waits_in_what_and_the_usual_cause() -> None:
    waiting = [Waiting(rank, "recv", (1 - rank,), "a.py", 4, "dist.recv(b)", 2) for rank in (0, 1)]
    for error in (DeadlockError("", waiting=waiting), RankTimeoutError("", running=waiting)):
        words = Observation(Trial(2, (4,), 0), error=error).trouble
        assert "2 ranks: the ranks do not come back." in words
        assert "ranks 0 and 1 are in recv   cell 2, line 4:   dist.recv(b)" in words
        assert "post isend, then receive" in words


# Answers on real ranks -------------------------------------------------------------------------


GOAL_RIGHT, GOAL_HANGING = 3, 6  # seconds that a check may take; a test allows three times that


@pytest.fixture(scope="module")
def warm() -> None:
    """The server of ranks has started: its start is not part of a check's time."""
    dtlab.launch(int)


def name_of(answer: Callable[..., Any]) -> str:
    return answer.__name__


@pytest.mark.slow
@pytest.mark.parametrize("answer", RING.RIGHT, ids=name_of)
def test_a_right_answer_earns_everything(answer: Callable[..., Any], warm: None) -> None:
    started = time.monotonic()
    report = check("01/ring_all_reduce", answer, seed=3)
    assert report.passed, report
    assert time.monotonic() - started < 3 * GOAL_RIGHT


@pytest.mark.slow
@pytest.mark.parametrize("answer", RING.WRONG, ids=name_of)
def test_a_wrong_answer_loses_what_it_should(answer: Callable[..., Any], warm: None) -> None:
    expected = RING.WRONG[answer]
    started = time.monotonic()
    report = check("01/ring_all_reduce", answer)
    missed = {one.name: one.message for one in report.criteria if one.status == "lost"}
    assert missed.keys() == expected.keys(), report
    for name, piece in expected.items():
        assert piece in missed[name]
    assert time.monotonic() - started < 3 * GOAL_HANGING


def test_every_criterion_is_the_sole_loss_of_some_wrong_answer() -> None:
    sole = {next(iter(lost)) for lost in RING.WRONG.values() if len(lost) == 1}
    assert sole == {rule.name for rule in find_part("01/ring_all_reduce").check.rules}
