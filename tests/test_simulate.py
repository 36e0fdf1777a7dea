"""Simulated pipelines: the published table, closed forms, and a real pipeline."""

from __future__ import annotations

import math
import pickle
import sys
import time

import pytest

import dtlab
from dtlab.predict import Costs, bubble, peak_in_flight, simulate
from dtlab.schedules import (
    ScheduleError,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from dtlab.simple import simulate as simple_simulate

# Qi et al. 2024, tables 4 and 5: p, m, T_F, T_B, T_W, T_comm in ms; rates of 1F1B, ZB-H1, ZB-H2
ZERO_BUBBLE = [
    (8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    (8, 32, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.1242, 0.0837)),
    (8, 64, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0674, 0.0444)),
    (8, 24, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.1323, 0.0698)),
    (8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.1045, 0.0559)),
    (8, 64, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0554, 0.0294)),
]


@pytest.mark.parametrize(("p", "m", "costs", "rates"), ZERO_BUBBLE)
def test_zero_bubbles_table(p: int, m: int, costs: tuple, rates: tuple) -> None:
    seconds = Costs(*(one / 1e3 for one in costs))
    made = (one_f_one_b, zb_h1, zb_h2)
    assert tuple(round(bubble(simulate(one(p, m), seconds)), 4) for one in made) == rates


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 8), (5, 17), (8, 32)])
def test_closed_forms_without_communication(p: int, m: int) -> None:
    f, i, w = 3.0, 2.5, 1.5
    costs = Costs(f, i, w)
    for make in (gpipe, one_f_one_b):
        trace = simulate(make(p, m), costs)
        assert trace.duration == pytest.approx((m + p - 1) * (f + i + w))
        assert bubble(trace, of="ideal") == pytest.approx((p - 1) / m)
        assert bubble(trace, of="total") == pytest.approx((p - 1) / (m + p - 1))
    assert simulate(naive(p, m), costs).duration == pytest.approx(p * m * (f + i + w))
    if m >= 2 * p:
        for make, idle in ((zb_h1, f + i - w), (zb_h2, f + i - 2 * w)):
            ideal = m * (f + i + w)
            found = bubble(simulate(make(p, m), costs), of="ideal") * ideal
            assert found == pytest.approx((p - 1) * idle)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 32, 3)])
def test_interleaving_divides_the_bubble(p: int, m: int, v: int) -> None:
    trace = simulate(interleaved(p, m, v), Costs(1, 1, 1))
    assert bubble(trace, of="ideal") == pytest.approx((p - 1) / m / v)


def test_stages_of_different_costs() -> None:
    """Makespan of forwards and backwards alike: the sum over stages + (M - 1) x the slowest."""
    f = [1.0, 4.0, 2.0]
    trace = simulate(gpipe(3, 6), Costs(f, [0.0] * 3, 0.0))
    assert trace.duration == pytest.approx(sum(f) + 5 * max(f))
    assert [trace.busy(rank) for rank in range(3)] == pytest.approx([6.0, 24.0, 12.0])
    assert bubble(trace) == pytest.approx(1 - 14 / 27)


def test_messages_are_in_the_trace_and_only_the_receiver_waits() -> None:
    trace = simulate(one_f_one_b(2, 2), Costs(1, 1, 1, [0.5, 0.25]))
    assert trace.ops(0) == {"send": 2, "recv": 2}
    assert trace.peers(0) == {1} and trace.peers(1) == {0}
    spans = [event for event in trace.events if event.rank == 1 and event.kind == "compute"]
    assert [(one.name, one.start, one.end) for one in spans] == [
        ("forward", 1.5, 2.5), ("backward", 2.5, 4.5), ("forward", 4.5, 5.5),
        ("backward", 5.5, 7.5),
    ]  # fmt: skip
    assert spans[2].extra == {"stage": 1, "microbatch": 1}
    assert trace.exposed_comm(1) == pytest.approx(0.5)  # the second message came during compute
    assert trace.exposed_comm(0) == pytest.approx(0.5)  # two of 0.25
    for rank in range(2):
        shares = trace.busy(rank) + trace.idle(rank) + trace.exposed_comm(rank)
        assert shares == pytest.approx(trace.duration)
    assert not simulate(one_f_one_b(2, 2), Costs(1, 1, 1)).ops()


def test_stages_on_one_rank_send_nothing() -> None:
    costs = Costs(1, 1, 1, 10.0)
    assert simulate([["0F0", "1F0", "1B0", "0B0"]], costs).duration == 6
    assert simulate([["0F0", "0B0"], [], ["1F0", "1B0"]], costs).duration == 26


def test_any_order_that_can_run_is_simulated_and_no_other() -> None:
    rows = [["0F0", "0F1", "0I1", "0I0", "0W1", "0W0"], ["1F1", "1F0", "1B1", "1B0"]]
    assert simulate(rows, Costs(1, 1, 1)).duration == 11
    broken = [
        [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]],
        [["0F0", "0F0", "0B0"]], [["0B0", "0F0"]], [["0F0", "0W0", "0I0"]], [["0F0"]], [[]], [],
        [["0F0", "0B0", "1F0"], ["1B0"]], [[(0, "X", 0)]], [["1F0", "1B0"]],
    ]  # fmt: skip
    for each in broken:
        with pytest.raises(ScheduleError):
            simulate(each, Costs(1, 1, 1))


def test_costs_must_fit_the_schedule() -> None:
    for costs in (Costs([1, 2], 1, 1), Costs(1, -1, 1), Costs(1, 1, math.inf)):
        with pytest.raises(ValueError, match="Costs: "):
            simulate(gpipe(3, 2), costs)
    with pytest.raises(ValueError, match='"total" or "ideal"'):
        bubble(simulate(gpipe(2, 2), Costs(1, 1, 1)), of="all")
    with pytest.raises(ValueError, match="no span named"):
        bubble(dtlab.Trace())
    for of in ("total", "ideal"):
        with pytest.raises(ValueError, match="take 0 seconds"):
            bubble(simulate(gpipe(2, 2), Costs(0, 0, 0, 1)), of)
        with pytest.raises(ValueError, match="take 0 seconds"):
            bubble(simulate(gpipe(2, 2), Costs(0, 0, 0)), of)


def test_the_drawing_of_the_module() -> None:
    lines = (sys.modules["dtlab.predict.simulate"].__doc__ or "").splitlines()
    drawn = [line.split("|")[1].split() for line in lines if line.strip().startswith("rank ")]
    schedule = one_f_one_b(3, 4)
    slots = [["."] * 12 for _ in schedule]
    times = simple_simulate(schedule, {"F": 1, "B": 1}, 0.0)
    for rank, row in enumerate(schedule):
        for action, (start, _) in zip(row, times[rank], strict=True):
            slots[rank][int(start)] = action.kind
    assert slots == drawn[:3]


def test_peak_in_flight() -> None:
    assert peak_in_flight(naive(4, 8)) == [1] * 4
    assert peak_in_flight(gpipe(4, 8)) == [8] * 4
    assert peak_in_flight(one_f_one_b(4, 8)) == [4, 3, 2, 1]
    assert peak_in_flight(zb_h1(4, 8)) == [4] * 4
    assert peak_in_flight(zb_h2(4, 8)) == [7] * 4
    # Narayanan et al. 2021: 1 + (p - 1) / (p v) times 1F1B's p, in chunks of 1 / v
    assert peak_in_flight(interleaved(4, 8, 2))[0] / 2 == 4 * (1 + 3 / (4 * 2))


def test_a_simulated_trace_is_a_trace(tmp_path) -> None:
    trace = simulate(zb_h1(3, 4), Costs(1, 1, 1, 0.1))
    trace.to_chrome(tmp_path / "trace.json")
    again = pickle.loads(pickle.dumps(trace))
    assert list(again.events) == list(trace.events) and again.world_size == 3
    assert list(dtlab.Trace(trace.events).events) == list(trace.events)
    figure = dtlab.show.timeline(simulate(zb_h1(3, 4), Costs(1, 1, 1)))
    assert "Rank 2" in figure.alt_text


@pytest.mark.proof
def test_a_million_actions_take_two_seconds() -> None:
    begun = time.process_time()
    trace = simulate(interleaved(64, 4096, 2), Costs(1.0, 1.0, 1.0))
    seconds = time.process_time() - begun
    assert len(trace.events) == 64 * 4096 * 2 * 2
    assert bubble(trace, of="ideal") == pytest.approx(63 / 4096 / 2)
    assert seconds < 6  # the goal is 2, on a machine with nothing else to do
