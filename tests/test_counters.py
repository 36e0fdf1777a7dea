"""The kernel's counters, against bytes that were really sent."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from dtlab.ranks.record import counters
from dtlab.ranks.record.counters import Traffic, hidden_bytes
from dtlab.ranks.sandbox import kernel_calls as kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's netlink")


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listener = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        server, _ = listener.accept()
        with server:
            yield client, server


def _sent(sock: socket.socket) -> int:
    """The payload that a socket has sent; the headers are 52 or 72 bytes for each segment."""
    counts = counters._tcp_counts(frozenset())
    _, sent = counts[os.fstat(sock.fileno()).st_ino]
    assert 0 <= sent.whole - sent.payload <= 1000
    return sent.payload


def test_counts_what_each_end_has_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    assert _sent(client) == _sent(server) == 0
    client.sendall(b"x" * 12_345)
    server.sendall(b"y" * 7)
    time.sleep(0.05)
    assert (_sent(client), _sent(server)) == (12_345, 7)


def test_ports_can_be_put_aside(pair: tuple[socket.socket, socket.socket]) -> None:
    def aside(*ports: int) -> list[bool]:
        seen = counters.socket_counts([os.getpid()], aside_ports=ports)
        assert seen is not None
        return [sent.aside for sent in seen[os.getpid()].values()]

    assert not any(aside())
    for port in (pair[0].getsockname()[1], pair[1].getsockname()[1]):
        assert aside(port).count(True) == 2


def _send_and_wait(port: int, ready: object) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x" * 1000)
        ready.recv()  # type: ignore[attr-defined]


def test_reads_another_process_from_outside() -> None:
    here, there = multiprocessing.Pipe()
    inherited = (counters.socket_counts([os.getpid()]) or {})[os.getpid()]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(
            target=_send_and_wait, args=(port, there)
        )
        process.start()
        accepted, _ = listener.accept()
        with accepted:
            while len(accepted.recv(1000, socket.MSG_PEEK)) < 1000:
                time.sleep(0.01)
            seen = counters.socket_counts([process.pid or 0])
        here.send(None)
        process.join()
    assert seen is not None
    own = {key: sent for key, sent in seen[process.pid or 0].items() if key not in inherited}
    assert [sent.payload for sent in own.values()] == [1000]


def test_a_process_that_has_gone_has_no_sockets() -> None:
    assert counters.socket_counts([2**22 + 1]) == {2**22 + 1: {}}


def test_none_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not allowed here")

    monkeypatch.setattr(counters, "_ask", refuse)
    assert counters.socket_counts([os.getpid()]) is None
    monkeypatch.undo()
    monkeypatch.delattr(socket, "AF_NETLINK")
    assert counters.socket_counts([os.getpid()]) is None


def test_counting_costs_little_more_than_finding_the_sockets() -> None:
    """Eight ranks, all connected, are 56 connections; both ends of them are here.

    The peer looks at each open file of this process, which every way to count must do.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        address = listener.getsockname()
        clients = [socket.create_connection(address) for _ in range(56)]
        servers = [listener.accept()[0] for _ in clients]
        counting, looking = [], []
        for _ in range(20):
            start = time.perf_counter()
            counters.socket_counts([os.getpid()])
            counting.append(time.perf_counter() - start)
            start = time.perf_counter()
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    os.readlink(f"/proc/self/fd/{name}")
            looking.append(time.perf_counter() - start)
        for sock in (*clients, *servers):
            sock.close()
    assert min(counting) < 15 * min(looking)  # connections of others that just ended cost time too


# On a separate network --------------------------------------------------------------------------


def alone(what: Callable[[], object]) -> object:
    """The result of `what` in a process that has a network namespace to itself."""

    def run(there: Any) -> None:
        kernel.unshare(kernel.NEW_NETWORK)
        kernel.loopback_up()
        there.send(what())

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        pytest.skip("the system gives us no network of our own")
    finally:
        process.join()


def _exchange(count: int) -> None:
    """Send `count` bytes over a connection that is closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            client.sendall(bytes(count))
            assert len(server.recv(count, socket.MSG_WAITALL)) == count


def test_the_loopback_counts_all_that_went_over_it() -> None:
    def what() -> list[int]:
        counts = [counters.loopback_bytes()]
        _exchange(10_000)
        counts.append(counters.loopback_bytes())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sock.sendto(bytes(1000), sock.getsockname())
        return [*counts, counters.loopback_bytes()]

    counts = alone(what)
    assert isinstance(counts, list)
    assert counts[0] == 0
    assert 10_000 < counts[1] < 11_000
    assert counts[2] - counts[1] == 1028  # with the headers of IP and UDP


def test_the_last_count_of_a_closed_socket_is_heard() -> None:
    def what() -> list[int]:
        closed, ends = counters.Closed(), []
        _exchange(12_345)
        deadline = time.monotonic() + 5
        while len(ends) < 3 and time.monotonic() < deadline:
            ends += [sent.payload for sent in closed.read().values()]
            time.sleep(0.01)
        return sorted(ends)

    assert alone(what) == [0, 0, 12_345]  # of the listener, the receiver and the sender


def test_what_was_sent_before_a_socket_closed_counts() -> None:
    def what() -> tuple[list[int | None], int | None, int | None]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            traffic = Traffic(store_port=1, alone=True)
            traffic.start([os.getpid()])
            client.sendall(bytes(70_000))
            assert len(server.recv(70_000, socket.MSG_WAITALL)) == 70_000
            client.close()
            server.close()
            seen = traffic.total([os.getpid()]), traffic.hidden
            _exchange(50_000)  # of which no sample is taken
            traffic.total([os.getpid()])
            return *seen, traffic.hidden

    counts = alone(what)
    assert isinstance(counts, tuple)
    assert counts[:2] == ([70_000], 0)
    assert counts[2] == pytest.approx(50_000, rel=0.03)


@pytest.mark.parametrize(
    ("loopback", "seen", "rendezvous", "hidden"),
    [
        (0, 0, 0, 0),
        (1_000_700, 1_000_000, 0, 0),  # packets that open and close connections
        (1_026_000, 1_000_000, 26_000, 0),  # a group was made
        (990_000, 1_000_000, 0, 0),  # more headers were reckoned than there were packets
        (1_010_000, 1_000_000, 0, 10_000),
        (1_400_000, 1_000_000, 400_000, 400_000 - 256 * 1024),  # the store as a mailbox
        (64_050_000, 64_000_000, 0, 0),
    ],
)
def test_hidden_bytes_are_those_of_no_recorded_connection(
    loopback: int, seen: int, rendezvous: int, hidden: int
) -> None:
    assert hidden_bytes(loopback, seen, rendezvous) == hidden
