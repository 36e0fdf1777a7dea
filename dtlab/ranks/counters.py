"""How many bytes a process has sent over TCP, as the kernel counted them: read from outside it.

    /proc/<pid>/fd/7 -> socket:[4711]         which sockets are open in the process
    netlink sock_diag:  inode 4711 -> tcp_info.tcpi_bytes_sent

What a rank reports about itself can be forged, or can miss traffic that went around the recorder.
The kernel's counters cannot, so grading rests on them. A counter lives as long as its connection:
ask at the start, at the end and now and then between, and take differences per socket. With the
rights of root, `Closed` also gets the last count of each socket as it goes.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Closed", "Sent", "loopback_bytes", "socket_counts"]

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
_TCP_CLOSED = 1  # sock_diag.h: the group of SKNLGRP_INET_TCP_DESTROY


class Sent(NamedTuple):
    """What a socket has sent, in bytes: of its owner's, and with headers and retransmissions."""

    payload: int
    whole: int
    aside: bool = False  # a connection of one of the ports asked about
    ports: tuple[int, int] = (0, 0)  # its own, and that of the socket at the other end


def socket_counts(
    pids: Sequence[int], aside_ports: Collection[int] = ()
) -> dict[int, dict[int, Sent]] | None:
    """What each TCP socket of each process has sent so far.

    Returns `{pid: {socket: counts}}`, with a number for each socket that no other will have; a
    process that has gone has no sockets. Connections whose local or remote port is in
    `aside_ports` (the rendezvous store) are marked. None where the counters cannot be had: not
    Linux, netlink refused, or a process that belongs to another user. Takes about a millisecond
    for eight ranks; never raises for these reasons.
    """
    try:
        counts = _tcp_counts(frozenset(aside_ports))
        return {
            pid: dict(counts[inode] for inode in _inodes(pid) if inode in counts) for pid in pids
        }
    except (OSError, AttributeError):  # AttributeError: no AF_NETLINK, so not Linux
        return None


def loopback_bytes() -> int:
    """Bytes that this network's loopback device has carried so far, with headers.

    All that its processes send to each other, by whichever protocol. Raises OSError.
    """
    with open("/proc/self/net/dev") as lines:
        for line in lines:
            name, _, counts = line.partition(":")
            if name.strip() == "lo":
                return int(counts.split()[8])
    raise OSError("this network has no loopback device")


class Closed:
    """Hears from the kernel of each TCP socket of this network that is gone.

    Raises OSError where that is not allowed: it takes root of the network.
    """

    def __init__(self) -> None:
        self._news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._news.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._news.bind((0, _TCP_CLOSED))
        self._news.setblocking(False)

    def read(self, aside_ports: Collection[int] = ()) -> dict[int, Sent]:
        """What each socket had sent in the end, of those that have gone since the last call."""
        gone: dict[int, Sent] = {}
        for _ in range(100_000):
            try:
                data = memoryview(self._news.recv(1 << 16))
            except BlockingIOError:
                break
            except OSError:  # too many at once: those that were dropped stay uncounted
                continue
            body = data[_HEADER.size :]
            sent = _sent(body, aside_ports)
            if sent is not None:
                gone[_cookie(body)] = sent
        return gone


def _inodes(pid: int) -> set[int]:
    """The inodes of the sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    found: set[int] = set()
    try:
        names = os.listdir(folder)  # pathlib costs more than the reading
    except (FileNotFoundError, ProcessLookupError):
        return found
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue  # closed while we were looking
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _tcp_counts(aside_ports: frozenset[int]) -> dict[int, tuple[int, Sent]]:
    """What each connected TCP socket of this network has sent, with its number, by inode."""
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
    """The bodies of the messages of one dump. Raises OSError where the kernel refuses it."""
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
    """The kernel's own number of a socket."""
    return int(_U64.unpack_from(body, _COOKIE_AT)[0])


def _sent(body: memoryview, aside_ports: Collection[int]) -> Sent | None:
    """`tcpi_bytes_sent` less retransmissions; `tcpi_bytes_acked` where a kernel lacks it."""
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
