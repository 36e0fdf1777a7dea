"""The kernel's counters, against bytes that were really sent."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator

import pytest

from dtlab.ranks import counters

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
    seen = counters.socket_bytes([os.getpid()])
    assert seen is not None
    return seen[os.getpid()][os.fstat(sock.fileno()).st_ino]


def test_counts_what_each_end_has_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    assert _sent(client) == _sent(server) == 0
    client.sendall(b"x" * 12_345)
    server.sendall(b"y" * 7)
    time.sleep(0.05)
    assert (_sent(client), _sent(server)) == (12_345, 7)


def test_ports_can_be_left_out(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    inodes = {os.fstat(sock.fileno()).st_ino for sock in pair}
    for port in (client.getsockname()[1], server.getsockname()[1]):
        seen = counters.socket_bytes([os.getpid()], ignore_ports=[port])
        assert seen is not None
        assert not inodes & set(seen[os.getpid()])


def _send_and_wait(port: int, ready: object) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"x" * 1000)
        ready.recv()  # type: ignore[attr-defined]


def test_reads_another_process_from_outside() -> None:
    here, there = multiprocessing.Pipe()
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
            seen = counters.socket_bytes([process.pid or 0])
        here.send(None)
        process.join()
    assert seen is not None
    assert list(seen[process.pid or 0].values()) == [1000]


def test_a_process_that_has_gone_has_no_sockets() -> None:
    assert counters.socket_bytes([2**22 + 1]) == {2**22 + 1: {}}


def test_none_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not allowed here")

    monkeypatch.setattr(counters, "_ask", refuse)
    assert counters.socket_bytes([os.getpid()]) is None
    monkeypatch.undo()
    monkeypatch.delattr(socket, "AF_NETLINK")
    assert counters.socket_bytes([os.getpid()]) is None


def test_takes_under_two_milliseconds_for_eight_ranks() -> None:
    """Eight ranks, all connected, are 56 connections; both ends of them are here."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        address = listener.getsockname()
        clients = [socket.create_connection(address) for _ in range(56)]
        servers = [listener.accept()[0] for _ in clients]
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            counters.socket_bytes([os.getpid()])
            seconds.append(time.perf_counter() - start)
        for sock in (*clients, *servers):
            sock.close()
    assert min(seconds) < 0.002
    assert statistics.median(seconds) < 0.006
