"""Unit 07, Level III: settings teach what they should, and programs show what is said of them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import nbformat
import pytest

from dtlab.checks import find_part, known_parts
from dtlab.errors import DtlabError
from dtlab.predict import peak_in_flight
from dtlab.schedules import gpipe, one_f_one_b, validate, zb_h1, zb_h2
from dtlab.trace import Trace
from dtlab.units.unit07.budget import (
    Planned,
    Setting,
    between,
    draw_settings,
    library,
    needs_of,
)
from dtlab.units.unit07.run_a import Replica
from dtlab.units.unit07.run_b import Layers, draw_layers, events_of, filled
from tests.known_answers import answers_of

NOTEBOOK = Path(__file__).parents[1] / "solutions" / "07_pipeline_parallelism" / "level-3.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
PARTS = [part for part in known_parts() if (part.unit, part.level) == ("07", 3)]

STORIES = ("ZB-H1", "2 chunks", "ZB-H2")
seeds = pytest.mark.parametrize("seed", range(5))


def within(one: Setting) -> set[str]:
    """The schedules of the library that keep within a setting's limits."""
    return {
        plan.name for plan in library(one) if plan.held <= one.memory and plan.seconds <= one.step
    }


# 07/budget -------------------------------------------------------------------------------------


@seeds
def test_each_setting_has_one_schedule_of_the_library_and_the_last_has_none(seed: int) -> None:
    *three, last = draw_settings(Random(seed))
    assert [within(one) for one in three] == [{story} for story in STORIES]
    assert not within(last)


@seeds
def test_schedules_between_h1_and_h2_meet_the_last_setting(seed: int) -> None:
    last = draw_settings(Random(seed))[-1]
    found = []
    for count in range(1, last.samples + 1):
        for held in range(last.ranks, 2 * last.ranks):
            if last.samples % count == 0:
                seconds, samples = needs_of(last.given, between(last.ranks, count, held))
                found += [held] if seconds <= last.step and samples <= last.memory else []
    assert found
    assert not {last.ranks, 2 * last.ranks - 1} & set(found)


@seeds
def test_obvious_choices_fail_by_what_they_are_known_for(seed: int) -> None:
    weights = draw_settings(Random(seed))[0]
    for make, misses in ((gpipe, "memory"), (one_f_one_b, "step"), (zb_h2, "memory")):
        most = needs_of(weights.given, make(weights.ranks, weights.samples))
        if misses == "step":
            assert most[0] > weights.step
        else:
            fast = [
                needs_of(weights.given, make(weights.ranks, count))
                for count in range(1, weights.samples + 1)
                if weights.samples % count == 0
            ]
            assert all(held > weights.memory for seconds, held in fast if seconds <= weights.step)


def test_a_step_in_seconds_by_hand() -> None:
    """Two ranks, two microbatches of one sample: F 2, B 4 seconds, of which 1 and 1 are fixed."""
    one = Setting(2, 2, 1.0, 1.0, 2.0, 1.0, 0.0)
    assert needs_of(one.given, one_f_one_b(2, 2)) == (3 * (2 + 4), 2)
    assert needs_of(one.given, gpipe(2, 1)) == (2 * (3 + 7), 2)
    with pytest.raises(DtlabError, match="has 1 stage, but this setting has 2 ranks"):
        needs_of(one.given, gpipe(1, 2))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_between_begins_with_h1_and_ends_with_h2(ranks: int) -> None:
    assert between(ranks, 9, ranks) == zb_h1(ranks, 9)
    assert between(ranks, 9, 2 * ranks - 1) == zb_h2(ranks, 9)
    for held in range(ranks, 2 * ranks):
        validate(between(ranks, 12, held), ranks, 12)
        assert peak_in_flight(between(ranks, 12, held)) == [held] * ranks


@pytest.mark.proof
def test_other_seeds_have_other_settings() -> None:
    (budget, _, slow) = (part.check for part in PARTS)
    for check in (budget, slow):
        asked = {str([case.given(0, 1) for case in check.trials(seed)[0].cases])
                 for seed in range(5)}  # fmt: skip
        assert len(asked) == 5


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([["0F0", "0B0"], ["1B0", "1F0"]], "order"),
        (one_f_one_b(2, 5000), "a schedule of 20,000 actions"),
    ],
)
def test_a_schedule_that_cannot_run_is_explained(found: object, why: str) -> None:
    case = Planned(Setting(2, 4, 1.0, 1.0, 1.0, 0.0, 0.0))
    seen = case.opened(case.on_rank(lambda _: found, case.given(0, 1)))
    assert why in case.mistake([seen])


# 07/run_a --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_stages", [2, 3])
def test_the_bytes_of_a_stage_are_counted_as_they_are(num_stages: int) -> None:
    from dtlab.units.unit07.replicas_script import build

    case = Replica(0, 9, num_stages)
    sizes = [sum(one.nbytes for one in stage.parameters()) for stage in build(9, num_stages)]
    assert [case.bytes_of(stage) for stage in range(num_stages)] == sizes


@pytest.mark.proof
@pytest.mark.slow
def test_each_fix_of_one_fault_leaves_the_other_in_sight(warm: None) -> None:
    """The notebook's report: hashes and first updates of the run, and of both halves of a fix."""
    shown: dict[str, Any] = {}
    answers = answers_of(find_part("07/run_a"))
    assert answers is not None
    half = {one.__name__: one()["fixed"] for one in answers.wrong if one.__name__[:5] == "only_"}
    printed = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(CELLS["imports"], shown)
        exec(CELLS["run_a-run"], shown)
    for name in ("only_the_loop_moved", "only_divided_once"):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            shown["report"](half[name])
        hashes = re.findall(r"hash (\w+)", text.getvalue())
        printed[name] = hashes[0] == hashes[2], re.findall(r"x (\d\.\d+)", text.getvalue())
    assert printed["only_the_loop_moved"] == (True, ["0.500"] * 4)
    assert printed["only_divided_once"][0] is False
    assert printed["only_divided_once"][1][1::2] == ["1.000"] * 2


# 07/run_b -----------------------------------------------------------------------------

four_or_three = pytest.mark.parametrize(("ranks", "goal"), [(4, 3.4), (3, 2.6)])


@four_or_three
@seeds
def test_layers_are_slow_at_first_and_a_greedy_cut_is_not_the_best(
    seed: int, ranks: int, goal: float
) -> None:
    one = draw_layers(Random(seed), ranks, goal)
    assert 1.15 < one.speedup(one.even, 4) < 1.25
    assert one.speedup(one.best, 30) >= goal > one.speedup(one.best, 4)
    assert goal < one.ceiling(filled(one.seconds, ranks)) < one.ceiling(one.best)


@four_or_three
def test_a_trace_says_what_its_layers_take_once_kernels_are_compiled(
    ranks: int, goal: float
) -> None:
    one = draw_layers(Random(0), ranks, goal)
    trace = Trace(events_of(one))
    assert trace.world_size == ranks
    found: dict[int, dict[int, float]] = {0: {}, 1: {}, 2: {}}
    for event in trace.events:
        if event.name == "layer":
            step, layer = event.extra["step"], event.extra["layer"]
            found[step][layer] = found[step].get(layer, 0.0) + event.end - event.start
    for step in (1, 2):
        for layer, seconds in enumerate(one.seconds):
            assert found[step][layer] == pytest.approx(4 * seconds)
    totals = [sum(found[step][n] for step in found for n in part) for part in one.even]
    assert totals.index(max(totals)) == one.compiles != one.slow


def test_the_ceiling_is_where_more_microbatches_lead() -> None:
    one = Layers((0.003, 0.001, 0.001, 0.001), 2, 1.4, 0)
    assert one.even == [[0, 1], [2, 3]]
    assert one.ceiling(one.even) == pytest.approx(1.5)
    assert one.speedup(one.even, 400) == pytest.approx(1.5, rel=0.01)
    assert one.best == [[0], [1, 2, 3]]
    assert one.speedup(one.best, 2) == pytest.approx(2 * 6 / (6 + 3))
    assert one.speedup(one.best, 3) == pytest.approx(3 * 6 / (6 + 2 * 3))


@pytest.mark.proof
@pytest.mark.slow
def test_a_cut_by_cost_is_faster_on_an_emulated_cluster(warm: None) -> None:
    """Only the sign is checked, several times, because the machine may be busy."""
    import dtlab
    from dtlab.units.unit07.slow_training import stage_step

    near = dtlab.Link(2e-5, 12.5e9)
    cluster = dtlab.Cluster(nodes=4, gpus_per_node=1, inter=near)
    for seed in range(3):
        one = draw_layers(Random(seed), 4, 3.4)

        def times(cut: list[list[int]], count: int, one: Layers = one) -> float:
            run: Callable[..., float] = stage_step
            done = dtlab.launch(run, cut, one.seconds, count, world_size=4, cluster=cluster)
            return count * sum(one.seconds) / max(done.values)

        assert times(one.best, 24) > 1.2 * times(one.even, 4)


# The level -------------------------------------------------------------------------------------


def test_the_level_has_its_parts_in_order() -> None:
    assert all(find_part(part.name) is part for part in PARTS)
    assert 60 <= sum(part.minutes for part in PARTS) <= 90
