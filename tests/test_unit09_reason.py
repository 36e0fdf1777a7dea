"""Level I of unit 09: its right answers agree with the library and with what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.predict import (
    Cluster,
    Gradient,
    Link,
    amdahl,
    bucket_times,
    gustafson,
    hierarchical_all_reduce_seconds,
    ring_all_reduce_seconds,
)
from tests.level_one import drawn_for

LEARNERS = [f"learner{number}" for number in range(8)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    return drawn_for(f"09/{symbol}", learner)


@pytest.mark.parametrize("learner", LEARNERS)
def test_seconds_are_those_of_the_library(learner: str) -> None:
    given, right = drawn("links", learner)
    size, gpus = 2e9 * given["billions"], 8 * given["nodes"]
    inside, adapter = Link(0, given["printed"] / 2 * 1e9), Link(0, given["gigabits"] / 8 * 1e9)
    assert right["inside"] == pytest.approx(ring_all_reduce_seconds(size, 8, inside))
    assert right["one_ring"] == pytest.approx(ring_all_reduce_seconds(size, gpus, adapter))
    share = Link(0, right["node"] * 1e9 / 8)  # of a GPU, in the adapters of its node
    cluster = Cluster(given["nodes"], 8, inside, share)
    two_levels = hierarchical_all_reduce_seconds(size, cluster)
    assert right["two_levels"] == pytest.approx(two_levels)
    slow = Link(given["latency"] * 1e-6, adapter.bandwidth)
    small = ring_all_reduce_seconds(given["kilobytes"] * 1e3, gpus, slow)
    assert right["small"] == pytest.approx(1e6 * small)
    assert small > 4 * ring_all_reduce_seconds(given["kilobytes"] * 1e3, gpus, adapter)


@pytest.mark.parametrize("learner", LEARNERS)
def test_exposed_time_is_that_of_the_buckets(learner: str) -> None:
    """The link moves 1 byte per ms, so a bucket's bytes are its ms."""
    given, right = drawn("six_of_eight", learner)
    gradients = [Gradient(given["ready"], given["reduce"] / 2)] + [
        Gradient((given["backward"] - given["ready"]) / 10, given["reduce"] / 20)
        for _ in range(10)
    ]
    last = bucket_times(gradients, 1e-9, 2, Link(0, 1))[-1]
    assert last.start > last.ready, "the link has no gap"
    assert last.end - given["backward"] == pytest.approx(right["exposed"])
    assert right["speed_up"] + sum(right["lost"]) == pytest.approx(8)
    assert 5 < right["speed_up"] < 7
    share = given["optimizer"] / (3 * given["forward"] + given["optimizer"])
    assert right["amdahl"] == pytest.approx(amdahl(share, 8))
    assert right["gustafson"] == pytest.approx(gustafson(share, 8))


@pytest.mark.parametrize("learner", LEARNERS)
def test_both_take_as_long_at_break_even(learner: str) -> None:
    given, right = drawn("break_even", learner)
    link = Link(0, given["link"] * 1e9)
    rate: float = given["peak"] * 1e12 * given["reached"] / 100

    def computing(tokens: float, operations: int = 6) -> float:
        return operations * 7e9 * tokens / rate

    wire = ring_all_reduce_seconds(4 * 7e9, given["ranks"], link)
    assert computing(right["tokens"]) == pytest.approx(wire)
    assert computing(right["behind"], 4) == pytest.approx(wire)
    length, held = given["length"], given["held"] * given["length"]
    few, enough = (computing((right["sequences"] - n) * length, 4) for n in (1, 0))
    assert few < wire / 2 <= enough
    few, enough = (computing((right["microbatches"] - n) * held) for n in (1, 0))
    assert few < wire / 2 <= enough
    share = wire / 2 / (wire / 2 + computing(held))
    assert right["share"] == pytest.approx(100 * share)


@pytest.mark.parametrize("learner", LEARNERS)
def test_half_of_the_time_is_the_wire(learner: str) -> None:
    given, right = drawn("utilisation", learner)
    gpus, parameters = given["gpus"], 1e9 * given["billions"]
    wire = ring_all_reduce_seconds(2 * parameters, gpus, Link(0, given["node"] * 1e9))
    computing = 6 * parameters * 2048 / (gpus * given["reached"] * 1e12)
    assert right["half"] * computing == pytest.approx(wire)
    assert right["share"] == pytest.approx(100 * wire / (wire + 1536 * computing))
    assert right["shown"][0] == pytest.approx(40, abs=25)
    assert 28 <= right["mfu"] <= 48.1
    hours, dollars = right["cost"]
    assert hours * 3600 * given["rate"] / given["cards"] == pytest.approx(
        1e12 * given["trillions"]
    )
    assert dollars == pytest.approx(hours * given["price"])


def test_claim_12_of_the_texts() -> None:
    """175 B on 64 GPUs, 200 GB/s per node: 3.45 s, half of a step of about 14 sequences."""
    check = find_part("09/utilisation").check
    assert isinstance(check, Questions)
    given = dict(drawn("utilisation", "somebody")[0])
    claim = given | {"billions": 175, "gpus": 64, "node": 200, "reached": 140}
    half = check.named(claim)["half"]
    assert half == pytest.approx(14.4, abs=0.1)
    assert 100 / (1 + 1536 / half) < 1
    assert ring_all_reduce_seconds(350e9, 64, Link(0, 200e9)) == pytest.approx(3.45, abs=0.01)
