"""Level III of unit 09: jobs that are three times as fast, and programs with two faults."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import torch.distributed as dist

from dtlab.checks import find_part
from dtlab.units.unit09 import runs_scripts
from dtlab.units.unit09.run_a import Machine
from dtlab.units.unit09.run_b import Sparse
from dtlab.units.unit09.three_times_job import Setting, _draw, first_lever
from tests.known_answers import Answers, answers_of
from tests.staying import on_ranks


def known_answers_to(name: str) -> Answers:
    """The known answers to a part of unit 09."""
    known = answers_of(find_part(f"09/{name}"))
    assert known is not None
    return known


def fixed_by(known: Answers, name: str) -> Any:
    """The program that a known answer hands in as fixed."""
    return known.named[name]()["fixed"]


# 09/three_times_job ------------------------------------------------------------------------------


def test_jobs_are_three_times_as_fast_as_one_rank_and_differ_in_their_first_lever() -> None:
    first: Counter[str] = Counter()
    for seed in range(60):
        setting = Setting(**_draw(Random(seed)))
        assert 2.7 < setting.speedup(setting.first) < 3.3
        first[first_lever(setting)] += 1
    assert set(first) == {"samples", "hierarchical", "prefetch"}
    assert min(first.values()) > 8


def test_a_step_computed_by_hand_has_the_gains_of_the_library() -> None:
    known = known_answers_to("three_times_job")
    for seed in range(20):
        given = _draw(Random(seed))
        by_hand, by_library = (known.named[name](given) for name in ("greedy", "solution"))
        assert by_hand["levers"] == by_library["levers"]
        assert by_hand["gains"] == pytest.approx(by_library["gains"], rel=1e-6)
        assert by_hand["first"] == first_lever(Setting(**given))
        assert len(by_hand["levers"]) >= 3


@pytest.mark.parametrize("levers", [None, [], ()])
def test_an_empty_answer_earns_nothing(levers: Any) -> None:
    part = find_part("09/three_times_job")
    answer = {"first": None, "levers": levers, "gains": levers}
    criteria = part.check.run(part.symbol, answer, learner="ada")
    assert [criterion.earned for criterion in criteria] == [0, 0, 0]
    assert "lost" not in [criterion.status for criterion in criteria]


# 09/run_a and 09/run_b: each fault alone does little ---------------------------------------------


def notes_of(program: Any) -> dict[str, Any]:
    machine = Machine(4, 4, 2)
    program(machine.read, machine.step, 4, 4, 2)
    return machine.notes


@pytest.mark.slow
def test_the_input_is_read_by_all_ranks_and_one_by_one_until_both_faults_are_fixed() -> None:
    known = known_answers_to("run_a")
    programs = {
        (32, 1): runs_scripts.feed,
        (16, 1): fixed_by(known, "only_the_samples"),
        (32, 2): fixed_by(known, "only_the_workers"),
        (16, 2): fixed_by(known, "solution"),
    }
    for (reads, most), program in programs.items():
        for notes in on_ranks(notes_of, program, world_size=2).values:
            assert (len(notes["reads"]), notes["most"]) == (reads, most)


def last_loss(program: Any, case: Sparse) -> float:
    result = case.on_rank(program, case.given(dist.get_rank(), dist.get_world_size()))
    return float(result["losses"][-1])


@pytest.mark.slow
def test_a_run_learns_well_only_if_both_lines_are_fixed() -> None:
    known = known_answers_to("run_b")
    case = Sparse(0, (12, 8), 6, 60, steady=True)
    programs = {
        "broken": runs_scripts.learn,
        "places": fixed_by(known, "only_the_places"),
        "error": fixed_by(known, "only_the_error"),
        "both": fixed_by(known, "solution"),
    }
    loss = {
        name: on_ranks(last_loss, program, case, world_size=2).values[0]
        for name, program in programs.items()
    }
    losses, _ = case.one_process(2)
    assert loss["both"] == pytest.approx(losses[0][-1], rel=1e-3)
    assert min(loss["broken"], loss["places"], loss["error"]) > 1.25 * loss["both"]
