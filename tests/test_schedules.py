"""Schedules as data: the six generators, their grids, and what is wrong with broken ones."""

from __future__ import annotations

import inspect
import random
import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from dtlab import schedules
from dtlab.parallel.pipeline import executor
from dtlab.predict import Costs, simulate
from dtlab.schedules import (
    Action,
    Schedule,
    ScheduleError,
    as_schedule,
    find_faults,
    gpipe,
    grid,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    validate,
    zb_h1,
    zb_h2,
)

GENERATORS = [naive, gpipe, one_f_one_b, zb_h1, zb_h2]


# ------------------------------------------------------------------------- six generators


@pytest.mark.parametrize("make", GENERATORS)
def test_generators_give_valid_schedules(make) -> None:
    for stages in range(1, 7):
        for microbatches in range(1, 14):
            made = make(stages, microbatches)
            validate(made, stages, microbatches)
            assert stage_ranks(made) == list(range(stages))


def test_interleaved_gives_valid_schedules_for_any_numbers() -> None:
    for ranks in range(1, 6):
        for microbatches in range(1, 14):
            for chunks in range(1, 4):
                made = interleaved(ranks, microbatches, chunks)
                validate(made, ranks * chunks, microbatches)
                assert stage_ranks(made) == [s % ranks for s in range(ranks * chunks)]


def drawn_in(of: object) -> str:
    """The drawing in a docstring."""
    lines = (inspect.getdoc(of) or "").splitlines()
    first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["0", "1"])
    end = next((i for i in range(first, len(lines)) if not lines[i]), len(lines))
    return textwrap.dedent("\n".join(lines[first:end]))


@pytest.mark.parametrize(
    ("of", "made"),
    [
        (schedules, one_f_one_b(3, 4)),
        (naive, naive(2, 2)),
        (gpipe, gpipe(2, 3)),
        (one_f_one_b, one_f_one_b(2, 3)),
        (executor, one_f_one_b(2, 3)),
        (interleaved, interleaved(2, 2, 2)),
        (zb_h1, zb_h1(2, 4)),
        (zb_h2, zb_h2(2, 4)),
    ],
)
def test_docstrings_show_what_is_made(of: object, made: Schedule) -> None:
    assert drawn_in(of) == textwrap.dedent(str(made))


def test_warm_up_and_lag_are_those_of_the_papers() -> None:
    assert [row.index(Action(r, "B", 0)) for r, row in enumerate(one_f_one_b(4, 8))] == [
        4,
        3,
        2,
        1,
    ]
    assert [row.index(Action(r, "I", 0)) for r, row in enumerate(zb_h2(4, 8))] == [7, 5, 3, 1]
    for rank, row in enumerate(zb_h1(4, 8)):
        before = row[: row.index(Action(rank, "W", 0))]
        assert [one.microbatch for one in before if one.kind == "I"][-1] == rank


def test_generators_refuse_nothing() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        gpipe(0, 4)
    with pytest.raises(ValueError, match="at least one microbatch"):
        zb_h1(4, 0)
    with pytest.raises(ValueError, match="at least one chunk"):
        interleaved(4, 4, 0)


def test_orders_are_those_of_torch() -> None:
    runtime = pytest.importorskip("torch.distributed.pipelining.schedules")
    for p, m, v in ((4, 8, 2), (2, 6, 2), (3, 6, 3), (4, 10, 2)):
        for rank, row in enumerate(interleaved(p, m, v)):
            theirs = runtime.ScheduleInterleaved1F1B.__new__(runtime.ScheduleInterleaved1F1B)
            theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = p, v, m
            theirs.number_of_rounds = max(1, m // p)
            theirs.microbatches_per_round = m // theirs.number_of_rounds
            actions = theirs._calculate_single_rank_operations(rank)
            assert [str(one) for one in actions if one] == [str(one) for one in row]


# --------------------------------------------------------------------- lists and grids


def test_a_schedule_is_plain_lists() -> None:
    made = one_f_one_b(2, 1)
    assert made == [[(0, "F", 0), (0, "B", 0)], [(1, "F", 0), (1, "B", 0)]]
    assert as_schedule([["0F0", "0B0"], [(1, "F", 0), Action(1, "B", 0)]]) == made
    assert repr(made[0]) == "[0F0, 0B0]"
    assert Action.parse(" 12W345") == (12, "W", 345)


@pytest.mark.parametrize("written", ["F0", "0X0", "0F", "0f0", "-1F0", "0F0 1F0"])
def test_wrong_actions_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is no action\. Write stage, letter and microbatch"):
        Action.parse(written)


def test_a_long_grid_is_cut_near_what_is_marked() -> None:
    made = gpipe(2, 200)
    assert grid(made, most=10).splitlines()[-1] == "(slots 0 to 9 of 402)"
    cut = grid(made, marked=[(0, 150)], most=10)
    assert "[0F150]" in cut and "(slots 148 to 157 of 402)" in cut
    assert max(map(len, str(made).splitlines())) < 400


@pytest.mark.parametrize("marked", [[], [(0, 150)], [(1, 0), (0, 399)]])
def test_a_grid_is_no_wider_than_its_limit(marked: list[tuple[int, int]]) -> None:
    lines = grid(gpipe(2, 200), marked=marked, width=60).splitlines()
    assert 50 < max(map(len, lines)) <= 60
    assert not marked or "[" in "".join(lines)


def test_schedules_need_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from dtlab import schedules as s; s.validate(s.zb_h2(4, 8)); "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr


# ------------------------------------------------------------------- 20 broken by hand


def changed(made: Schedule, rank: int, **actions: str) -> list[list[str]]:
    """Replace some actions of a rank by text: "" for none, several separated by blanks."""
    rows = [[str(one) for one in row] for row in made]
    rows[rank] = [new for one in rows[rank] for new in actions.get(f"_{one}", one).split()]
    return rows


def swapped(made: Schedule, rank: int, one: str, other: str) -> list[list[str]]:
    return changed(made, rank, **{f"_{one}": other, f"_{other}": one})


SMALL, SPLIT = one_f_one_b(3, 4), zb_h1(3, 4)
BROKEN = {
    "a forward is missing": (changed(SMALL, 1, _1F2=""), "missing", "no rank does 1F2."),
    "a backward is missing": (
        changed(SMALL, 0, _0B3=""), "missing", "no rank does 0B3, nor 0I3 and 0W3."),
    "a weight gradient is missing": (
        changed(SPLIT, 2, _2W1=""), "missing", "no rank does 2W1, but a rank does 2I1."),
    "an input gradient is missing": (
        changed(SPLIT, 1, _1I2=""), "missing", "no rank does 1I2, but a rank does 1W2."),
    "a whole stage is missing": (
        [["0F0", "0B0"], [], ["2F0", "2B0"]], "missing", "no rank does 1F0."),
    "nothing at all": ([[], []], "missing", "no rank does anything."),
    "a forward twice": (changed(SMALL, 2, _2B1="2B1 2F1"), "doubled", "2F1 is done 2 times."),
    "a backward twice": (changed(SMALL, 0, _0B3="0B3 0B3"), "doubled", "0B3 is done 2 times."),
    "B and its half I": (
        changed(SMALL, 1, _1B2="1B2 1I2"), "doubled", "1I2 is a part of 1B2, which is done too."),
    "B and its half W": (
        changed(SMALL, 1, _1B2="1B2 1W2"), "doubled", "1W2 is a part of 1B2, which is done too."),
    "a stage on two ranks": (
        [["0F0", "0B0", "0F1"], ["1F0", "1B0", "1F1", "1B1", "0B1"]],
        "placement", "stage 0 is on ranks 0, 1."),
    "a microbatch too many": (
        changed(SMALL, 2, _2B3="2B3 2F4"), "unknown", "2F4 on rank 2 is no action"),
    "a stage too many": (
        changed(SMALL, 2, _2B3="2B3 3F0"), "unknown", "3F0 on rank 2 is no action"),
    "another letter": (
        [[(0, "F", 0), (0, "B", 0), (0, "X", 0)]], "unknown", "0X0 on rank 0 is no action"),
    "backward before forward": (
        swapped(SMALL, 2, "2F1", "2B1"), "order", "rank 2 does 2B1 before 2F1, which it needs."),
    "backward before forward, in the middle": (
        swapped(SMALL, 1, "1F3", "1B3"), "order", "rank 1 does 1B3 before 1F3, which it needs."),
    "weight before input gradient": (
        swapped(SPLIT, 0, "0I1", "0W1"), "order", "rank 0 does 0W1 before 0I1, which it needs."),
    "a later chunk first": (
        [["2F0", "0F0", "2B0", "0B0"], ["1F0", "3F0", "3B0", "1B0"]], "wait",
        "rank 0 waits in 2F0 for 1F0, which rank 1 does later; rank 1 waits in 1F0 for 0F0, which "
        "rank 0 does later."),
    "chunks of one rank the wrong way round": (
        [["1F0", "0F0", "1B0", "0B0"]], "order", "rank 0 does 1F0 before 0F0, which it needs."),
    "two ranks wait for each other": (
        [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]], "wait",
        "rank 0 waits in 0B0 for 1B0, which rank 1 does later; rank 1 waits in 1F1 for 0F1"),
    "three ranks wait in a circle": (
        [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"], ["2F0", "2F1", "2B0", "2B1"]],
        "wait", "rank 0 waits in 0B0 for 1B0"),
    "backwards in an impossible order": (
        [["0F0", "0F1", "0I1", "0I0", "0W0", "0W1"], ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"],
         ["2F1", "2F0", "2B0", "2B1"]], "wait",
        "rank 1 waits in 1I0 for 2B0, which rank 2 does later; rank 2 waits in 2F1 for 1F1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_schedules_are_refused_for_their_reason(name: str) -> None:
    rows, kind, reason = BROKEN[name]
    numbers = (3, 4) if "too many" in name else ()
    faults = find_faults(rows, *numbers)
    assert (kind, True) in [(fault.kind, reason in fault.message) for fault in faults]
    assert {fault.kind for fault in faults} <= {kind, "missing"}, faults
    with pytest.raises(ScheduleError, match=re.escape(reason)) as caught:
        validate(rows, *numbers)
    for fault in caught.value.faults:
        for rank, index in fault.places:
            assert f"[{as_schedule(rows)[rank][index]}]" in str(caught.value)


def test_there_are_twenty_of_them() -> None:
    assert len(BROKEN) >= 20


def test_a_schedule_for_fewer_micro_batches_is_not_one_for_more() -> None:
    validate(SMALL)
    assert len(find_faults(SMALL, 3, 5)) == 6
    assert len(find_faults(SMALL, 4, 4)) == 8


def test_all_faults_are_found_at_once() -> None:
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1", "1B1"],
            ["2F0", "2B0", "2B1", "2F1"]]  # fmt: skip
    assert sorted(fault.kind for fault in find_faults(rows)) == ["doubled", "order", "wait"]


def can_run(rows: Schedule) -> bool:
    """Try it: each rank does its next action as soon as it can, until no rank can."""
    last, at, done = max(one.stage for row in rows for one in row), [0] * len(rows), set()
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                stage, kind, k = row[at[rank]]
                ready = {
                    "F": stage == 0 or ("F", stage - 1, k) in done,
                    "W": ("I", stage, k) in done,
                }.get(
                    kind,
                    ("F", stage, k) in done and (stage == last or ("G", stage + 1, k) in done),
                )
                if not ready:
                    break
                done |= {(kind, stage, k)} | ({("G", stage, k)} if kind in "BI" else set())
                at[rank] += 1
                moved = True
    return at == [len(row) for row in rows]


def test_a_schedule_is_valid_exactly_if_it_can_run() -> None:
    """Orders shuffled a little, against a run by trial; the simulator agrees."""
    draw = random.Random(0)
    counts = {True: 0, False: 0}
    for _ in range(400):
        ranks, microbatches = draw.randint(1, 4), draw.randint(1, 4)
        make = draw.choice([*GENERATORS, lambda p, m: interleaved(p, m, 2)])
        rows = Schedule(list(row) for row in make(ranks, microbatches))
        for _ in range(draw.randint(1, 5)):
            row = draw.choice(rows)
            place = draw.randrange(len(row) - 1)
            row[place], row[place + 1] = row[place + 1], row[place]
        runs = can_run(rows)
        counts[runs] += 1
        assert (not find_faults(rows)) == runs
        if runs:
            simulate(rows, Costs(1, 1, 1))
        else:
            with pytest.raises(ScheduleError):
                simulate(rows, Costs(1, 1, 1))
    assert min(counts.values()) > 80


def test_the_error_shows_the_grid() -> None:
    with pytest.raises(ScheduleError) as caught:
        validate([["0F0", "0B0", "0F1", "0B1"], ["1B0", "1F0", "1F1", "1B1"]])
    assert str(caught.value) == textwrap.dedent("""\
        this schedule has 1 fault.

                 0     1     2     3     4     5
        rank 0  0F0   0B0   0F1               0B1
        rank 1 [1B0]  1F0         1F1   1B1

          order: rank 1 does 1B0 before 1F0, which it needs.""")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "None is no schedule. A schedule has one list of actions for each rank, such as"),
        ("0F0", "'0F0' is no schedule"),
        ([None], "rank 0 has None. A schedule has one list"),
        ([["0F0"], 3], "rank 1 has 3."),
        ([[5]], "5 is no action. Write it as text"),
        ([[(0, "F")]], "(0, 'F') is no action"),
        ([["forward"]], "'forward' is no action"),
    ],
)
def test_the_error_on_a_wrong_schedule_says_how_to_write_one(given: Any, words: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(words)):
        validate(given)
