"""Ports without any rank: times are numbers here, so they can be exact."""

from __future__ import annotations

import time

import pytest

from dtlab.predict import Cluster, Link, Route
from dtlab.ranks.emulate import ports as module
from dtlab.ranks.emulate.ports import Ports

MS = 1_000_000  # nanoseconds
# 1 ms and 1 kB/ms inside a node, 5 ms and 0.1 kB/ms between nodes
CLUSTER = Cluster(2, 2, Link(1e-3, 1e6), Link(5e-3, 1e5))


def message(ports: Ports, key: int, src: int, dst: int, nbytes: int, *posted: int) -> int | None:
    """Post the ends of a message at these times."""
    end = None
    for each in posted:
        end = ports.message(key, src, dst, nbytes, each * MS)
    return None if end is None else end / MS  # type: ignore[return-value]


def test_a_message_starts_when_both_ends_are_there() -> None:
    ports = Ports(CLUSTER, 4)
    assert message(ports, 1, 0, 1, 4000, 100) is None
    assert ports.end(1) is None
    assert message(ports, 1, 0, 1, 4000, 120) == 120 + 4 + 1
    assert ports.end(1) == ports.busy_until() == 125 * MS
    assert message(ports, 2, 2, 3, 4000, 130, 101) == 130 + 4 + 1
    assert message(ports, 1, 0, 1, 4000, 500) == 125  # posting again changes nothing


def test_only_messages_that_share_a_port_queue() -> None:
    ports = Ports(CLUSTER, 4)
    assert message(ports, 1, 0, 1, 4000, 100, 100) == 105
    assert message(ports, 2, 0, 1, 4000, 100, 100) == 109  # the latency overlaps
    assert message(ports, 3, 1, 0, 4000, 100, 100) == 105  # the other way
    assert message(ports, 4, 2, 3, 4000, 100, 100) == 105
    assert message(ports, 5, 0, 2, 400, 100, 100) == 109  # the port to the other node
    assert message(ports, 6, 1, 2, 400, 100, 100) == 113  # shares rank 2's way in
    assert message(ports, 7, 0, 3, 400, 100, 100) == 113  # shares rank 0's way out


def test_a_message_goes_in_pieces_where_its_ports_are_free() -> None:
    ports = Ports(CLUSTER, 4)
    assert message(ports, 1, 0, 2, 1000, 110, 110) == 120 + 5  # rank 0 out, rank 2 in
    assert message(ports, 2, 1, 3, 500, 100, 100) == 105 + 5  # rank 1 out, rank 3 in
    assert message(ports, 3, 0, 3, 1000, 102, 102) == 125 + 5  # 105 to 110 and 120 to 125
    assert message(ports, 4, 1, 2, 500, 100, 100) == 110 + 5  # 105 to 110
    assert message(ports, 5, 1, 2, 0, 100, 100) == 120 + 5


def test_exchanging_with_both_neighbours_takes_two_messages_time() -> None:
    ports, one_node = Ports(Cluster(1, 4, Link(0, 1e6)), 4), 0
    for rank in range(4):
        for step in (1, 3):
            one_node = max(one_node, message(ports, 9 * rank + step, rank, (rank + step) % 4, 4000,
                                             100 + rank, 100))  # fmt: skip
    assert one_node <= 100 + 2 * 4 + 3


def test_many_gaps_are_more_than_a_port_remembers() -> None:
    ports = Ports(CLUSTER, 4)
    for key in range(1, 80):
        assert message(ports, key, 0, 1, 1000, 2 * key, 2 * key) == 2 * key + 2
    assert message(ports, 99, 0, 1, 1000, 2, 2) == 2 * (80 - 31) + 3  # the earliest gaps are lost
    assert message(ports, 100, 0, 1, 1000, 2, 2) == 2 * (80 - 31) + 5


def test_slowdown_stretches_all_of_it() -> None:
    slow = Cluster(2, 2, CLUSTER.intra, CLUSTER.inter, slowdown=10)
    assert message(Ports(slow, 4), 1, 0, 1, 4000, 100, 100) == 150
    ports, route = Ports(slow, 4), Route("all_reduce", slow, [0, 1])
    ports.collective(1, 9, route, ports.ports_on(route.pairs), 4000, 100 * MS)
    end = ports.collective(1, 9, route, ports.ports_on(route.pairs), 4000, 100 * MS)
    assert end == 160 * MS


def collective(ports: Ports, key: int, name: str, ranks: list[int], *posted: int) -> int | None:
    """Post 4000 bytes of each rank at these times."""
    route, end = Route(name, CLUSTER, ranks, ranks[0]), None
    taken, group = ports.ports_on(route.pairs), 1000 + sum(1 << rank for rank in ranks)
    for each in posted:
        end = ports.collective(key, group, route, taken, 4000, each * MS)
    return None if end is None else end // MS


def test_a_collective_takes_its_ports_and_waits_for_its_groups_last() -> None:
    ports = Ports(CLUSTER, 4)
    assert collective(ports, 1, "all_reduce", [0, 1], 100) is None
    assert collective(ports, 1, "all_reduce", [0, 1], 110) == 110 + 6
    assert collective(ports, 2, "all_reduce", [0, 1], 111, 112) == 116 + 6
    assert collective(ports, 3, "all_reduce", [2, 3], 111, 112) == 112 + 6
    assert message(ports, 4, 0, 1, 4000, 111, 111) == 122 + 5
    assert message(ports, 5, 0, 2, 400, 111, 111) == 111 + 9
    # All four: after the message to rank 2; 6 rounds of 1000 bytes over the slow link
    assert collective(ports, 6, "all_reduce", [0, 1, 2, 3], 112, 112, 112, 112) == 126 + 6 * 15
    # Nothing goes into the root of a broadcast, but the group's all-reduce must end first.
    assert collective(ports, 7, "broadcast", [0, 1], 300, 300) == 305
    assert message(ports, 8, 1, 0, 4000, 300, 300) == 305


def test_the_post_of_a_missing_rank_is_withdrawn() -> None:
    ports = Ports(CLUSTER, 4)
    assert collective(ports, 1, "barrier", [0, 1], 100) is None
    ports.withdraw(1)
    assert collective(ports, 1, "barrier", [0, 1], 101) is None
    assert collective(ports, 1, "barrier", [0, 1], 102) == 103


def test_only_transfers_that_are_over_may_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST", 100)
    ports, now = Ports(CLUSTER, 4), time.monotonic_ns() // MS
    message(ports, 1, 0, 1, 0, now)
    message(ports, 2, 2, 3, 10_000_000, now, now)
    for key in range(10, 1000):
        assert message(ports, key, 0, 1, 0, now - 60_000, now - 60_000) is not None
    assert ports.end(1) is None
    assert ports.end(2) == (now + 10_001) * MS
    assert ports.end(10) == 0
    assert message(ports, 1, 0, 1, 0, now) == now + 1


def test_too_much_at_once_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 100)
    ports = Ports(CLUSTER, 4)
    with pytest.raises(RuntimeError, match="More than 100 operations are in flight"):
        for key in range(1, 200):
            message(ports, key, 0, 1, 0, 0)
