"""The right answers of Level I of unit 07 are those of a simulation, for every learner.

The simulation here takes orders of actions and durations, and shares nothing with the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase

from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.units.unit07 import timeline as grids
from dtlab.units.unit07.timeline import SCHEDULES, laid_out
from tests.known_answers import Answers, answers_of

LEARNERS = [f"learner{number}" for number in range(4)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]
Orders = list[list[str]]


def known(symbol: str) -> Answers:
    answers = answers_of(find_part(f"07/{symbol}"))
    assert answers is not None
    return answers


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    check = find_part(f"07/{symbol}").check
    assert isinstance(check, Questions)
    given = check.given(symbol, learner)
    return given, known(symbol).right[0](given)


# A simulation ----------------------------------------------------------------------------------


def split(action: str) -> tuple[int, str, str]:
    """2F10 is stage 2, F, microbatch 10; stages may have two digits here."""
    at = next(place for place, letter in enumerate(action) if letter.isalpha())
    return int(action[:at]), action[at], action[at + 1 :]


def orders(name: str, ranks: int, count: int) -> Orders:
    return [list(map(str, row)) for row in SCHEDULES[name](ranks, count)]


def inputs_of(action: str, stages: int) -> list[str]:
    stage, kind, microbatch = split(action)
    if kind == "W":
        return [f"{stage}I{microbatch}"]
    if kind == "F":
        return [f"{stage - 1}F{microbatch}"] if stage else []
    above = [f"{stage + 1}{kind}{microbatch}"] if stage + 1 < stages else []
    return [f"{stage}F{microbatch}", *above]


def simulate(
    given: Orders, takes: dict[str, float], message: float = 0
) -> list[list[tuple[float, float]]]:
    """Start and end of each action, each as early as can be."""
    stages = 1 + max(split(action)[0] for order in given for action in order)
    ends: dict[str, float] = {}
    spans: list[list[tuple[float, float]]] = [[] for _ in given]
    left = sum(map(len, given))
    while left:
        before = left
        for order, done in zip(given, spans, strict=True):
            while len(done) < len(order):
                action = order[len(done)]
                needed = inputs_of(action, stages)
                if any(one not in ends for one in needed):
                    break
                sent = [
                    ends[one] + message * (split(one)[0] != split(action)[0]) for one in needed
                ]
                start = max([done[-1][1] if done else 0.0, *sent])
                ends[action] = start + takes[split(action)[1]]
                done.append((start, ends[action]))
                left -= 1
        assert left < before, "nothing can run"
    return spans


def cost(spans: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The longest rank, from its first start to its last end."""
    return max(done[-1][1] - done[0][0] for done in spans)


def under_way(order: Sequence[str]) -> int:
    """Most forward passes whose activations a rank keeps at once."""
    freed = "W" if any(split(one)[1] == "W" for one in order) else "B"
    now = most = 0
    for one in order:
        now += {"F": 1, freed: -1}.get(split(one)[1], 0)
        most = max(most, now)
    return most


# The orders of actions, on which everything below rests ----------------------------------------

TABLE = [  # Qi et al. 2024: microbatches, T_F, T_B (our I), T_W, T_comm, and three bubble rates
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    (32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),
    (24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),
    (64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_papers_table_is_reproduced(row: tuple[Any, ...]) -> None:
    count, forward, input_, weight, message, *rates = row
    takes = {"F": forward, "I": input_, "W": weight, "B": input_ + weight}
    for name, rate in zip(("1f1b", "zb_h1", "zb_h2"), rates, strict=True):
        whole = cost(simulate(orders(name, 8, count), takes, message))
        idle = whole - count * (forward + input_ + weight)
        assert round(idle / whole, 4) == rate, name


def test_the_closed_form_is_what_the_last_question_says_and_messages_make_the_difference() -> None:
    count, forward, input_, weight, message, rate, *_ = TABLE[0]
    given = {"stages": 8, "count": 24, "forward": forward, "input": input_, "weight": weight}
    closed = 100 * known("zero_bubble").right[0](given)["rates"][0]
    assert f"{closed:.2f} {100 * rate:.2f}" == "22.58 24.31"
    asked = find_part("07/zero_bubble").check.questions[-1].prompt  # type: ignore[attr-defined]
    told = (forward, input_, weight, message, "24.31 %", "22.58 %", f"m = {count}")
    assert all(str(one) in asked for one in told)
    takes = {"F": forward, "B": input_ + weight}
    alone = cost(simulate(orders("1f1b", 8, 24), takes))
    assert 100 * (1 - 24 * (forward + input_ + weight) / alone) == pytest.approx(closed)


class Stage(_PipelineStageBase):
    """The attributes of a stage that a schedule reads before it runs."""

    def __init__(self, index: int, stages: int, ranks: int) -> None:
        self.stage_index, self.num_stages, self.group_size = index, stages, ranks
        self.group_rank = index % ranks
        self.has_backward = True


Stage.__abstractmethods__ = frozenset()


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 4), (2, 8), (4, 8)])
def test_interleaved_is_pytorchs(ranks: int, count: int) -> None:
    stages = [Stage(rank, 2 * ranks, ranks) for rank in (0, ranks)]
    theirs = ScheduleInterleaved1F1B(stages, count, loss_fn=lambda *_: 0).pipeline_order
    for rank, order in enumerate(orders("interleaved", ranks, count)):
        assert [str(one) for one in theirs[rank] if one is not None] == order


@pytest.mark.parametrize(("name", "forwards"), [("zb_h1", "p"), ("zb_h2", "2p - 1")])
def test_what_a_hint_says_of_rank_0_is_in_each_grid(name: str, forwards: str) -> None:
    for ranks, count in grids._SIZES[name]:
        (row, *_) = laid_out(name, ranks, count)
        first = next(number for number, cell in enumerate(filter(None, row)) if "I" in cell)
        assert first == {"p": ranks, "2p - 1": 2 * ranks - 1}[forwards], (ranks, count)


def test_the_grid_that_is_drawn_is_the_grid() -> None:
    picture = [
        line.split()
        for line in (grids.__doc__ or "").splitlines()
        if line.startswith("    ") and "F" in line
    ]
    assert [[cell.replace("·", "") for cell in row] for row in picture] == laid_out("1f1b", 3, 4)


# 07/bubble, 07/in_flight -----------------------------------------------------------------------


def test_the_example_of_the_text() -> None:
    spans = simulate(orders("gpipe", 4, 32), {"F": 1, "B": 2})
    idle = spans[0][-1][1] - 3 * 32
    assert idle / (3 * 32) == pytest.approx(3 / 32)
    assert idle / spans[0][-1][1] == pytest.approx(3 / 35)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_bubbles_are_those_of_a_run(learner: str, name: str) -> None:
    given, right = drawn("bubble", learner)
    p, m = min(given["stages"], 6), given["count"] // given["stages"] * min(given["stages"], 6)
    right = known("bubble").right[0](dict(given) | {"stages": p, "count": m, "chunks": 2})
    chunks = 2 if name == "interleaved" else 1
    spans = simulate(orders(name, p, m), {"F": 1 / chunks, "B": 2 / chunks})
    whole = max(done[-1][1] for done in spans)
    idle = 100 * (whole - 3 * m)
    if name == "interleaved":
        assert idle / (3 * m) == pytest.approx(100 * right["interleaved"])
    else:  # claim 14: the same for both
        assert idle / (3 * m) == pytest.approx(100 * right["ideal"])
        assert idle / whole == pytest.approx(100 * right["total"])


def test_a_naive_pipeline_of_four_stages_is_used_a_quarter_and_then_57_percent() -> None:
    """Claim 13."""
    shares = []
    for count in (1, 4):
        spans = simulate(orders("gpipe", 4, count), {"F": 1, "B": 2})
        shares.append(100 * 3 * count / max(done[-1][1] for done in spans))
    given = dict(drawn("bubble", "anybody")[0]) | {"stages": 4}
    used = known("bubble").right[0](given)["used"]
    assert [100 * one for one in used] == pytest.approx(shares)
    assert [round(one) for one in shares] == [25, 57]


def test_the_fewest_microbatches_are_enough_and_no_float_decides() -> None:
    for given, right in (drawn("bubble", learner) for learner in MANY_LEARNERS):
        wait, count = given["stages"] - 1, right["microbatches"]
        assert 100 * wait < given["percent"] * (count + wait)
        assert 100 * wait > given["percent"] * (count - 1 + wait)
        assert right["limit"] < 4
        assert (given["stages"], given["count"]) != (4, 32)


@pytest.mark.parametrize("learner", LEARNERS)
def test_each_stage_keeps_what_its_order_makes_it_keep(learner: str) -> None:
    given, right = drawn("in_flight", learner)
    p, m, v = given["stages"], given["count"], given["chunks"]
    on_stage = given["layers"] / p * given["layer"] / 1e3
    assert right["peaks"] == [under_way(order) for order in orders("1f1b", p, m)]
    assert right["few"] == [under_way(order) for order in orders("1f1b", p, given["few"])]
    (most,) = {under_way(order) for order in orders("gpipe", p, m)}
    assert right["gpipe"] == pytest.approx(most * on_stage)
    assert right["first_stage"] == pytest.approx(right["peaks"][0] * on_stage)
    two = known("in_flight").right[0](dict(given) | {"chunks": 2})["interleaved"]
    assert two == pytest.approx(under_way(orders("interleaved", p, m)[0]) * on_stage / 2)
    assert right["first_stage"] < right["interleaved"]
    assert given["layers"] % (p * v) == 0


def test_claims_about_memory_hold() -> None:
    """Claims 14 and 30."""
    gpipe, one_f = (
        [[under_way(order) for order in orders(name, 4, m)] for m in (8, 16)]
        for name in ("gpipe", "1f1b")
    )
    assert gpipe == [[8] * 4, [16] * 4]  # fixed_size; at a fixed batch each one is half as large
    assert one_f[0] == one_f[1]  # steady
    assert one_f[0][-1] == 1  # last
    assert under_way(orders("1f1b", 8, 16)[0]) * (1 / 8) == one_f[1][0] * (1 / 4)  # deeper


# 07/timeline -----------------------------------------------------------------------------------


def cannot_run(grid: Orders) -> list[tuple[int, int]]:
    """Cells whose action has run before, or one of whose inputs is in no earlier step."""
    stages = 1 + max(split(cell)[0] for row in grid for cell in row if cell)
    steps: dict[str, list[int]] = {}
    for row in grid:
        for step, cell in enumerate(row):
            steps.setdefault(cell, []).append(step)
    return [
        (rank, step)
        for rank, row in enumerate(grid)
        for step, cell in enumerate(row)
        if cell
        and (
            min(steps[cell]) < step
            or any(min(steps[one]) >= step for one in inputs_of(cell, stages))
        )
    ]


def test_the_impossible_cell_breaks_one_rule() -> None:
    """Otherwise two reasons would be right, and the part accepts one; learner6 had such a grid."""
    for given, right in (drawn("timeline", f"learner{number}") for number in range(30)):
        (rank, step), grid = right["cell"], given["grid_b"]
        stages = 1 + max(split(cell)[0] for row in grid for cell in row if cell)
        earlier = {cell for row in grid for cell in row[:step]}
        action = grid[rank][step]
        missing = [one for one in inputs_of(action, stages) if one not in earlier]
        assert len(missing) + (action in earlier) == 1


@pytest.mark.proof
def test_grid_a_can_run_and_grid_b_cannot_in_one_cell() -> None:
    for given, right in (drawn("timeline", learner) for learner in MANY_LEARNERS):
        assert cannot_run(given["grid_a"]) == []
        assert cannot_run(given["grid_b"]) == [tuple(right["cell"])]
        rank, step = right["cell"]
        fitting = {"F": {"forward"}, "W": {"own"}}
        letter = given["grid_b"][rank][step][1]
        assert right["reason"] in fitting.get(letter, {"backward", "own"}) | {"twice"}
        lines = repr(given).partition("asked for")[0].splitlines()
        assert all(len(line) < 110 for line in lines)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_longer_grid_has_as_many_steps_as_the_answer_says(learner: str) -> None:
    given, right = drawn("timeline", learner)
    ranks, name = len(given["grid_a"]), right["schedule"]
    longer = simulate(orders(name, ranks, given["more"]), dict.fromkeys("FBIW", 1))
    assert max(done[-1][1] for done in longer) == right["longer"]
    row = [cell for cell in given["grid_a"][given["rank"]] if cell]
    assert under_way(row) == right["peak"]


def test_learners_get_all_schedules_and_all_reasons() -> None:
    found = [drawn("timeline", learner) for learner in MANY_LEARNERS]
    names = Counter(right["schedule"] for _, right in found)
    reasons = Counter(right["reason"] for _, right in found)
    assert len(names) == 5
    assert min(names.values()) >= 10
    assert len(reasons) == 4
    assert min(reasons.values()) >= 15
    assert len({str(given["grid_b"]) for given, _ in found}) > 85


# 07/zero_bubble --------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_closed_bubbles_are_those_of_a_run(learner: str) -> None:
    given, right = drawn("zero_bubble", learner)
    p, m = given["stages"], given["count"]
    forward, input_, weight = given["forward"], given["input"], given["weight"]
    takes = {"F": forward, "I": input_, "W": weight, "B": input_ + weight}
    idle, keeps = [], []
    for name in ("1f1b", "zb_h1", "zb_h2"):
        idle.append(cost(simulate(orders(name, p, m), takes)) - m * (forward + input_ + weight))
        keeps.append(under_way(orders(name, p, m)[0]))
    assert [right["one_f_one_b"], right["h1"], right["h2"]] == pytest.approx(idle)
    assert right["memory"] == keeps
    more = right["as_good"]
    assert idle[0] / more <= idle[2] / m < idle[0] / (more - 1)
