"""Unit 07, Level II: the schedules that its judges accept, and the faults that they find."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from dtlab import DtlabError
from dtlab.checks import find_part, known_parts
from dtlab.checks.functions.criteria import Noted, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.predict import peak_in_flight
from dtlab.schedules import (
    Action,
    Schedule,
    as_schedule,
    gpipe,
    naive,
    one_f_one_b,
    validate,
)
from dtlab.units.unit07 import gpipe as all_forward_first
from dtlab.units.unit07 import one_f_one_b as in_turns
from dtlab.units.unit07.balance_stages import PART as BALANCE_STAGES
from dtlab.units.unit07.balance_stages import Balancing
from dtlab.units.unit07.judging import (
    Carried,
    Planned,
    loss_of,
    one_process,
    slow,
    stage_net,
    written,
)
from dtlab.units.unit07.peak_in_flight import any_schedule
from dtlab.units.unit07.run import PART as RUN
from dtlab.units.unit07.run import Running, shuffled

PARTS = [part for part in known_parts() if (part.unit, part.level) == ("07", 2)]

SIZES = list(itertools.product(range(1, 7), range(1, 9)))  # stages, microbatches


def names_of(more: Any, schedule: Schedule, stages: int, count: int) -> set[str]:
    """The criteria that a schedule loses."""
    case = Planned(stages, count, more)
    return {name for name, _ in case.faults([Noted({"found": schedule})])}


# What is tried ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_other_seeds_try_other_values_of_the_same_kind(part: Any) -> None:
    plans = [part.check.trials(seed) for seed in range(10)]
    assert len({str(plan) for plan in plans}) == 10
    assert len({tuple((one.world_size, len(one.cases)) for one in plan) for plan in plans}) == 1


def test_the_parts_are_those_of_the_catalogue() -> None:
    assert [part.symbol for part in PARTS if not part.stretch] == [
        "gpipe", "warm_up", "one_f_one_b", "peak_in_flight",
    ]  # fmt: skip
    assert [part.symbol for part in PARTS if part.stretch] == ["run", "balance_stages"]
    assert all(find_part(part.name) is part for part in PARTS)


# Schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_the_librarys_own_schedules_lose_nothing(stages: int, count: int) -> None:
    assert not names_of(all_forward_first._more, gpipe(stages, count), stages, count)
    assert not names_of(in_turns._more, one_f_one_b(stages, count), stages, count)


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_gpipe_may_go_backward_in_reverse(stages: int, count: int) -> None:
    reverse = Schedule(row[:count] + row[count:][::-1] for row in gpipe(stages, count))
    assert not names_of(all_forward_first._more, reverse, stages, count)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_each_schedule_loses_the_criteria_of_the_other(stages: int) -> None:
    count = stages + 3
    made = gpipe(stages, count), one_f_one_b(stages, count), naive(stages, count)
    lost = [
        (names_of(all_forward_first._more, one, stages, count),
         names_of(in_turns._more, one, stages, count))
        for one in made
    ]  # fmt: skip
    assert lost == [(set(), {"memory"}), ({"order"}, set()), ({"order", "time"}, {"time"})]


def test_a_report_shows_the_grid_around_the_first_late_action() -> None:
    late = one_f_one_b(4, 20)
    late[0].insert(20, late[0].pop(19))  # 0B8 before 0F11
    ((name, words),) = slow(late, one_f_one_b(4, 20))
    assert name == "time"
    assert "The first action that comes late is 0F11, in slot 24, not 22" in words
    shown = words.splitlines()[1:]
    assert "[0F11]" in shown[1] and shown[-1].startswith("(slots ")
    assert max(map(len, shown)) <= 66


@pytest.mark.parametrize(
    ("schedule", "best", "late"),
    [
        (naive(3, 4), gpipe(3, 4), "0F1, in slot 6, not 1"),
        (naive(3, 5), one_f_one_b(3, 5), "0F1, in slot 6, not 1"),
        ([[f"{r}B{3 - int(a.microbatch)}" if r == 1 and a.kind == "B" else str(a) for a in row]
          for r, row in enumerate(gpipe(3, 4))], gpipe(3, 4), "1B3, in slot 10, not 7"),
    ],
    ids=["naive for GPipe", "naive for 1F1B", "one rank in reverse"],
)  # fmt: skip
def test_the_late_action_is_one_that_could_be_earlier(schedule: Any, best: Any, late: str) -> None:
    ((_, words),) = slow(as_schedule(schedule), best)
    assert f"The first action that comes late is {late}" in words


def test_a_schedule_may_be_written_in_any_way_that_the_library_reads() -> None:
    texts = [["0F0", "0B0"]]
    for found in (texts, (("0F0", (0, "B", 0)),), [[Action(0, "F", 0), [0, "B", 0]]]):
        assert written(found) == texts
    for found in (None, "0F0", 5, [None], ["0F0 0B0"], [[("F", 0)]], [[None]], [["F0"]], [[1]]):
        assert isinstance(written(found), str), found


def test_a_run_that_a_busy_machine_has_ended_says_so() -> None:
    trial = Trial(2, [Carried(one_f_one_b(2, 3), seed=5)])
    late = Observation(trial, error=DtlabError("the time limit has passed"))
    assert rule("runs", 2, "right").judge([late]).message == (
        "the library's own run failed (2 ranks, run_schedule with your lists): "
        "the machine is busy. Check again"
    )


def test_what_is_carried_out_is_compared_with_one_process() -> None:
    case = Carried(one_f_one_b(2, 3), seed=5)
    inputs, targets = case.batch
    assert [len(one) for one in inputs] == [2, 2, 3]
    modules = [stage_net(4, 5).module(5 + rank) for rank in range(2)]
    right = one_process(modules, inputs, targets)
    results = [Noted({"gradients": [one.clone() for one in each]}) for each in right]
    assert not list(case.faults(results))
    results[1]["gradients"][2].mul_(1.1)
    assert [name for name, _ in case.faults(results)] == ["runs"]


# What a rank holds -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_schedule_without_a_name_can_run_and_has_its_most_late(seed: int) -> None:
    schedule = any_schedule(random.Random(seed), 5)
    validate([schedule[0], schedule[2]], 2, 5)
    assert not schedule[1]
    for row, most in zip(schedule, peak_in_flight(schedule), strict=True):
        kinds = "".join(action.kind for action in row)
        assert not kinds or kinds.index("B") < most


# The executor ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_ranks_take_microbatches_in_different_orders(seed: int) -> None:
    schedule = shuffled(random.Random(seed), 4)
    validate(schedule, 2, 4)
    first, second = ([one.microbatch for one in row if one.kind == "F"] for row in schedule)
    assert first != second


def test_one_process_takes_the_mean_over_all_samples() -> None:
    case = RUN.check.trials(0)[2].cases[0]  # type: ignore[attr-defined]
    assert isinstance(case, Running)
    assert case.sizes[-1] < case.sizes[0]
    modules = [stage_net(case.width, 6).module(case.seed + rank) for rank in range(2)]
    right = one_process(modules, *case.batch)
    for module in modules:
        module.zero_grad()
    for inputs, targets, size in zip(*case.batch, case.sizes, strict=True):
        loss = loss_of(modules[1](modules[0](inputs)), targets)
        (loss * size / sum(case.sizes)).backward()  # type: ignore[no-untyped-call]
    for module, gradients in zip(modules, right, strict=True):
        torch.testing.assert_close([one.grad for one in module.parameters()], gradients)


def test_a_course_that_is_not_the_lists() -> None:
    case = Running(1, Schedule([[Action(0, kind, k) for k in range(4) for kind in "FB"]]),
                   "naive", (1,) * 4, 3, "turns")  # fmt: skip

    def lost(log: str, graphs: list[int]) -> list[str]:
        return [name for name, _ in case._order_faults([Noted({"log": log, "graphs": graphs})])]

    assert lost("FBFBFBFB", [0, 0, 0, 0]) == []
    assert lost("FBFBFBFB", [0, 1, 1, 1]) == []  # a local name of the last microbatch
    assert lost("FFFFBBBB", [0, 1, 4, 3]) == ["order", "memory"]


# The balancer ----------------------------------------------------------------------------------


def slowest(case: Balancing, ends: tuple[int, ...]) -> float:
    bounds = [0, *ends, len(case.costs)]
    return max(sum(case.costs[a:b]) for a, b in itertools.pairwise(bounds))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_cut_is_the_best_of_all(seed: int) -> None:
    small, edges, _ = BALANCE_STAGES.check.trials(seed)  # type: ignore[attr-defined]
    for case in (*small.cases, *edges.cases):
        places = range(1, len(case.costs))
        every = list(itertools.combinations(places, case.stages - 1))
        least = min(slowest(case, ends) for ends in every)
        for ends in every:
            bounds = [0, *ends, len(case.costs)]
            cut = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
            lost = [name for name, _ in case.faults([Noted({"cut": cut, "text": ""})])]
            assert lost == (["best"] if slowest(case, ends) > least else [])
