"""The traces that Level II of unit 00 asks about have the causes that they are said to have."""

from __future__ import annotations

import random

import pytest

from dtlab.checks.functions.bench import HERE
from dtlab.trace import Trace
from dtlab.units.unit00.efficiency_of import Grown
from dtlab.units.unit00.jobs import CAUSES, Job, draw_job, rows_of, trace_events
from dtlab.units.unit00.scaling_report import Scaled, clear_job, recorded
from dtlab.units.unit00.shares import efficiencies, latency_share, lost_seconds

WEAK = ("cores", "imbalance", "latency", "bandwidth")


def trace_of(job: Job, ranks: int) -> Trace:
    return Trace(trace_events(rows_of(job, ranks)))


@pytest.mark.parametrize("is_weak", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_adds_up_to_the_gap(seed: int, is_weak: bool) -> None:
    draw = random.Random(seed)
    cause, second = draw.sample(WEAK if is_weak else CAUSES, 2)
    job = draw_job(draw, cause, second, is_weak)
    traces = {n: trace_of(job, n) for n in (1, 7)}
    ideal = traces[1].duration * (1.0 if is_weak else 1 / 7)
    lost = lost_seconds(traces, job.scaling)
    assert sum(lost.values()) == pytest.approx(traces[7].duration - ideal)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_job_is_capped_by_its_cause(cause: str) -> None:
    for seed in range(3):
        case = clear_job(random.Random(seed), cause, False, (1, 8))
        assert case.right.cause == cause
        assert case.right.lost[cause] > 0


def test_the_alpha_beta_model_is_found_again() -> None:
    job = Job(latency=1e-3, bandwidth=1e8, overlap=False, uneven=1.5)
    share = latency_share(trace_of(job, 4))
    bytes_sent = sum(job.buckets)
    fixed = len(job.buckets) * job.latency
    assert share == pytest.approx(fixed / (fixed + bytes_sent / 4 / job.bandwidth))
    assert latency_share(trace_of(job, 1)) == 0


def test_a_perfect_run_has_an_efficiency_of_one() -> None:
    assert efficiencies({2: 4.0, 8: 1.0}, "strong") == {2: (1.0, 1.0), 8: (4.0, 1.0)}
    assert efficiencies({2: 4.0, 8: 4.0}, "weak") == {2: (1.0, 1.0), 8: (4.0, 1.0)}
    assert efficiencies({1: 4.0, 8: 1.0}, "strong")[8] == (4.0, 0.5)


def test_efficiency_is_that_of_traces() -> None:
    case = Grown(Job(), (1, 4), "strong")
    speedup, efficiency = case.right[4]
    assert speedup == pytest.approx(4 * efficiency)
    assert 0 < efficiency < 1


def test_levers_say_how_far_a_job_would_come() -> None:
    job = Job(serial=0.03)
    without = trace_of(Job(serial=0.0), 8)
    case = Scaled.of(job, (1, 8))
    cause, reached = case.right.levers[0]
    assert cause == "serial"
    seconds = case.traces[1].duration / reached
    # Each rank still has its share of what one rank needs.
    assert seconds == pytest.approx(without.duration + 3 * 0.03 / 8, rel=0.01)


@pytest.mark.proof
@pytest.mark.slow
def test_a_recorded_run_is_capped_by_its_wire() -> None:
    """A busy machine may give another cause, or none: then the run is not asked about."""
    found = [recorded(seed, HERE) for seed in range(4)]
    clear = [case for case in found if case is not None]
    assert clear
    assert {case.right.cause for case in clear} & {"latency", "bandwidth"}
