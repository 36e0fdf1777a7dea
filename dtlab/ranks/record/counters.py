"""Counts the bytes that a process has sent over TCP, from the kernel's counters.

    /proc/<pid>/fd/7 -> socket:[4711]         which sockets are open in the process
    netlink sock_diag:  inode 4711 -> tcp_info.tcpi_bytes_sent

A rank's own report can be forged, and can miss traffic that bypasses the recorder. The kernel's
counters cannot be forged, so grading relies on them. A counter exists as long as its connection,
so it is read at the start, at the end and several times between, and differences are taken for
each socket. As root, `Closed` also receives the final count of each socket when it is destroyed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Closed", "Sent", "Traffic", "hidden_bytes", "loopback_bytes", "socket_counts"]

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_CONNECTED = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11))  # not LISTEN, not TIME_WAIT

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBBI48s")  # inet_diag_req_v2: family, protocol, ext, pad, states, id
_PORTS = struct.Struct("!HH")  # inet_diag_msg.id: source and destination port, at byte 4
_COOKIE_AT, _INODE_AT, _MESSAGE_BYTES = 44, 68, 72  # inet_diag_msg
_ATTRIBUTE = struct.Struct("=HH")  # rtattr: length, type
_ACKED_AT, _SEGMENTS_AT, _SENT_AT = 120, 136, 200  # tcp_info; bytes_sent came with Linux 4.19
_U32, _U64, _U64_PAIR = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=QQ")
# Bytes of a segment's headers
_HEADERS: dict[int, int] = {socket.AF_INET: 52, socket.AF_INET6: 72}  # IP, TCP, timestamps
_TCP_CLOSED = 1  # sock_diag.h: SKNLGRP_INET_TCP_DESTROY


class Sent(NamedTuple):
    """Bytes that a socket has sent: payload, and `whole` with headers and retransmissions."""

    payload: int
    whole: int
    aside: bool = False  # its local or remote port is one of `aside_ports`
    ports: tuple[int, int] = (0, 0)  # local and remote port


def socket_counts(
    pids: Sequence[int], aside_ports: Collection[int] = ()
) -> dict[int, dict[int, Sent]] | None:
    """The bytes that each TCP socket of each process has sent so far.

    Returns `{pid: {socket: counts}}`, where a socket is the kernel's unique number (cookie); a
    process that has ended has no sockets. Connections whose local or remote port is in
    `aside_ports` (the rendezvous store) are marked. Returns None if the counters cannot be read:
    not Linux, netlink refused, or another user's process. Never raises for these reasons. Takes
    about a millisecond for eight ranks.
    """
    try:
        counts = _tcp_counts(frozenset(aside_ports))
        return {
            pid: dict(counts[inode] for inode in _inodes(pid) if inode in counts) for pid in pids
        }
    except (OSError, AttributeError):  # AttributeError: no AF_NETLINK, so not Linux
        return None


def loopback_bytes() -> int:
    """Bytes that this network namespace's loopback device has carried so far, with headers.

    They include all traffic between processes in the namespace, of every protocol. Raises OSError.
    """
    with open("/proc/self/net/dev") as lines:
        for line in lines:
            name, _, counts = line.partition(":")
            if name.strip() == "lo":
                return int(counts.split()[8])
    raise OSError("this network has no loopback device")


class Closed:
    """Receives a kernel message for each TCP socket of this network that is destroyed.

    Raises OSError if that is not allowed: it requires root rights in the network namespace.
    """

    def __init__(self) -> None:
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._news.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._news.bind((0, _TCP_CLOSED))
        self._news.setblocking(False)

    def read(self, aside_ports: Collection[int] = ()) -> dict[int, Sent]:
        """The final counts of the sockets that were destroyed since the last call."""
        gone: dict[int, Sent] = {}
        for _ in range(100_000):
            try:
                data = memoryview(self._news.recv(1 << 16))
            except BlockingIOError:
                break
            except OSError:  # too many messages at once: some were dropped, and stay uncounted
                continue
            body = data[_HEADER.size :]
            sent = _sent(body, aside_ports)
            if sent is not None:
                gone[_cookie(body)] = sent
        return gone


def _inodes(pid: int) -> set[int]:
    """The inodes of the sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    inodes: set[int] = set()
    try:
        names = os.listdir(folder)  # pathlib would cost more than the reading
    except (FileNotFoundError, ProcessLookupError):
        return inodes
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed in the meantime
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return inodes


def _tcp_counts(aside_ports: frozenset[int]) -> dict[int, tuple[int, Sent]]:
    """Cookie and counts of each connected TCP socket of this network, by inode."""
    counts: dict[int, tuple[int, Sent]] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        for family in (socket.AF_INET, socket.AF_INET6):
            _ask(netlink, family)
            for body in _replies(netlink):
                sent = _sent(body, aside_ports)
                if sent is not None:
                    counts[_inode(body)] = _cookie(body), sent
    return counts


def _ask(netlink: socket.socket, family: int, states: int = _CONNECTED) -> None:
    """Request a dump of the TCP sockets of one address family, with their tcp_info."""
    body = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, states, bytes(48)
    )
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0)
    netlink.send(header + body)


def _replies(netlink: socket.socket) -> Iterator[memoryview]:
    """Yield the bodies of the messages of one dump. Raises OSError if the kernel refuses it."""
    while True:
        data = memoryview(netlink.recv(1 << 16))
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise OSError("netlink sock_diag refused the dump")
            yield data[_HEADER.size : length]
            data = data[(length + 3) & ~3 :]


def _inode(body: memoryview) -> int:
    return int(_U32.unpack_from(body, _INODE_AT)[0])


def _cookie(body: memoryview) -> int:
    """The kernel's unique number of a socket."""
    return int(_U64.unpack_from(body, _COOKIE_AT)[0])


def _sent(body: memoryview, aside_ports: Collection[int]) -> Sent | None:
    """The bytes that a socket has sent, without retransmissions; None if there is no tcp_info.

    These are `tcpi_bytes_acked` if the kernel does not count `tcpi_bytes_sent`.
    """
    source, target = _PORTS.unpack_from(body, 4)
    at, aside = _MESSAGE_BYTES, source in aside_ports or target in aside_ports
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == _INET_DIAG_INFO:
            info = body[at + _ATTRIBUTE.size : at + length]
            if len(info) < _SEGMENTS_AT + _U32.size:
                return None
            headers = _HEADERS[body[0]] * _U32.unpack_from(info, _SEGMENTS_AT)[0]
            if len(info) >= _SENT_AT + _U64_PAIR.size:
                sent, again = _U64_PAIR.unpack_from(info, _SENT_AT)
                return Sent(sent - again, sent + headers, aside, (source, target))
            sent = int(_U64.unpack_from(info, _ACKED_AT)[0])
            return Sent(sent, sent + headers, aside, (source, target))
        at += max((length + 3) & ~3, _ATTRIBUTE.size)
    return None


# Bytes that ranks send on their sockets during a launch, as the kernel counts them ---------------
#
#     counter of                             read                      result
#     a socket that a rank has open          every 0.25 s              `total`
#     a socket that it has closed            as it closes (sandbox)    `total`
#     the loopback device                    at start, end (sandbox)   minus the above: `hidden`
#
# In a sandbox, one launch has its own network. So traffic of unknown sockets shows too:
# datagrams, sockets of processes that a rank has started, or sockets open for a short time.

# Bytes that remained unexplained in 200 honest launches, of 1 kB to 64 MB and 2 to 6 ranks:
# 0.7 kB at most, and 26 kB at the rendezvous for each group that six ranks create.
TOLERANCE, TOLERANCE_PER_BYTE = 4096, 0.001  # bytes
RENDEZVOUS = 256 * 1024  # bytes
LOOKS = 20  # attempts to read the final counts of sockets that are being closed


def hidden_bytes(loopback: int, known: int, rendezvous: int) -> int:
    """Bytes on the loopback device that belong to no known socket; 0 if within the tolerance.

    `loopback` counts the bytes of the device, `known` those that known sockets have sent, and
    `rendezvous` those to and from the store, all with headers. Up to `RENDEZVOUS` bytes of the
    store's traffic are allowed, a little more than creating groups needs.
    """
    hidden = loopback - known - min(rendezvous, RENDEZVOUS)
    return hidden if hidden > TOLERANCE + TOLERANCE_PER_BYTE * known else 0


class Traffic:
    """Sums the bytes of all sockets of the ranks, including those closed during the launch.

    `store_port` is the port of the rendezvous store, whose traffic is not counted; None switches
    counting off. `alone` is True if no other processes use this network.
    """

    def __init__(self, store_port: int | None, alone: bool = False) -> None:
        self.ignore = None if store_port is None else (store_port,)
        self.before: dict[int, dict[int, Sent]] = {}
        self.latest: dict[int, dict[int, Sent]] = {}
        self.loopback: int | None = None  # bytes from `start` to `total`
        self._closed = _listener() if alone and store_port is not None else None
        self._loopback_before = 0
        self._open: set[int] = set()  # sockets
        self._gone: set[int] = set()

    def start(self, pids: Sequence[int]) -> None:
        """Start counting; bytes sent before (to set up connections) are left out."""
        self.sample(pids)
        self.before = {pid: dict(sockets) for pid, sockets in self.latest.items()}
        self._loopback_before = loopback_bytes() if self._closed else 0

    def sample(self, pids: Sequence[int]) -> None:
        """Read the counters once."""
        counts = None if self.ignore is None else socket_counts(pids, self.ignore)
        if counts is None:
            self.ignore = None
            return
        gone = self._closed.read(self.ignore or ()) if self._closed is not None else {}
        self._gone |= gone.keys()
        for pid, sockets in counts.items():
            known = self.latest.setdefault(pid, {})
            known.update(sockets)
            known.update({key: gone[key] for key in known.keys() & gone.keys()})
        self._open = {key for sockets in counts.values() for key in sockets}

    def total(self, pids: Sequence[int]) -> list[int | None]:
        """Bytes sent by each process since `start`; None if they cannot be counted."""
        if self._closed is not None:  # read before the sockets, so that these count every packet
            self.loopback = loopback_bytes() - self._loopback_before
        self.sample(pids)
        for _ in range(LOOKS):
            if self._closed is None or self._all_known():
                break
            time.sleep(0.005)
            self.sample(pids)
        if self.ignore is None:
            return [None] * len(pids)
        return [sum(sent.payload for sent in self._since(pid) if not sent.aside) for pid in pids]

    def pairs(self, pids: Sequence[int]) -> list[tuple[int, int, int]] | None:
        """Bytes by pair of processes: (source, target, bytes), with positions in `pids`.

        Connections with other processes are left out. None if the counts are not known. Call
        `total` first.
        """
        if self.ignore is None:
            return None
        owner = {
            sent.ports: rank
            for rank, pid in enumerate(pids)
            for sent in self.latest.get(pid, {}).values()
        }
        sums: dict[tuple[int, int], int] = {}
        for rank, pid in enumerate(pids):
            for sent in self._since(pid):
                other = owner.get(sent.ports[::-1])
                if other is not None and sent.payload and not sent.aside:
                    sums[rank, other] = sums.get((rank, other), 0) + sent.payload
        return [(*pair, count) for pair, count in sorted(sums.items())]

    @property
    def hidden(self) -> int | None:
        """The result of `hidden_bytes`; None if it is not known. Call `total` first."""
        if self.loopback is None or self.ignore is None:
            return None
        since = [sent for pid in self.latest for sent in self._since(pid)]
        known = sum(sent.whole for sent in since if not sent.aside)
        return hidden_bytes(self.loopback, known, sum(sent.whole for sent in since if sent.aside))

    def _all_known(self) -> bool:
        known = {key for sockets in self.latest.values() for key in sockets}
        return known <= self._open | self._gone

    def _since(self, pid: int) -> Iterator[Sent]:
        """The bytes that each socket of a process has sent since `start`."""
        before = self.before.get(pid, {})
        for key, now in self.latest.get(pid, {}).items():
            old = before.get(key, Sent(0, 0))
            payload, whole = now.payload - old.payload, now.whole - old.whole
            yield Sent(payload, whole, now.aside, now.ports)


def _listener() -> Closed | None:
    try:
        return Closed()
    except (OSError, AttributeError):  # AttributeError: not Linux
        return None
