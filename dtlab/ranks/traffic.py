"""Bytes that ranks put on their sockets during a launch, as the kernel counted them.

    a socket that a rank has open          every 0.25 s             its own: `total`
    one that it has closed meanwhile       as it closes (behind walls)
    all that went over the loopback        at begin and end (behind walls)
                                           less the above: `hidden`

Behind walls there is a network for one launch alone, so that what goes past the sockets that were
seen shows too: datagrams, sockets of processes that a rank has started, or of a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dtlab.ranks import counters
from dtlab.ranks.counters import Sent

__all__ = ["Traffic", "hidden_bytes"]

# What honest launches leave over, measured on 200 of them, of 1 kB to 64 MB and 2 to 6 ranks:
# 0.7 kB at most, and 26 kB at the rendezvous for each group that six ranks make.
TOLERANCE, TOLERANCE_PER_BYTE = 4096, 0.001  # bytes
RENDEZVOUS = 256 * 1024  # bytes
LOOKS = 20  # for the last counts of sockets that are just being closed


def hidden_bytes(loopback: int, seen: int, rendezvous: int) -> int:
    """Bytes on the loopback that are nobody's; 0 where it is not worth a word.

    `loopback` is what went over the device, `seen` what known sockets have sent, `rendezvous` what
    was sent to and from the store, all with headers. A store is there for groups to be made, and
    may be used for a little more than that needs.
    """
    hidden = loopback - seen - min(rendezvous, RENDEZVOUS)
    return hidden if hidden > TOLERANCE + TOLERANCE_PER_BYTE * seen else 0


class Traffic:
    """Sums over all sockets that were ever seen, so that one closed midway still counts.

    `store_port` is the port of the rendezvous, whose traffic is not the learner's; None switches
    the counting off. `alone`: nobody else is on this network.
    """

    def __init__(self, store_port: int | None, alone: bool = False) -> None:
        self.ignore = None if store_port is None else (store_port,)
        self.before: dict[int, dict[int, Sent]] = {}
        self.latest: dict[int, dict[int, Sent]] = {}
        self.loopback: int | None = None  # bytes since `start`, as of `total`
        self._closed = _listener() if alone and store_port is not None else None
        self._loopback_before = 0
        self._open: set[int] = set()  # sockets
        self._gone: set[int] = set()

    def start(self, pids: Sequence[int]) -> None:
        """What was sent until now (connecting, greeting) does not count."""
        self.sample(pids)
        self.before = {pid: dict(sockets) for pid, sockets in self.latest.items()}
        self._loopback_before = counters.loopback_bytes() if self._closed else 0

    def sample(self, pids: Sequence[int]) -> None:
        """Look once."""
        seen = None if self.ignore is None else counters.socket_counts(pids, self.ignore)
        if seen is None:
            self.ignore = None
            return
        gone = self._closed.read(self.ignore or ()) if self._closed is not None else {}
        self._gone |= gone.keys()
        for pid, sockets in seen.items():
            known = self.latest.setdefault(pid, {})
            known.update(sockets)
            known.update({key: gone[key] for key in known.keys() & gone.keys()})
        self._open = {key for sockets in seen.values() for key in sockets}

    def total(self, pids: Sequence[int]) -> list[int | None]:
        """Bytes sent by each process since `start`; None where they cannot be counted."""
        if self._closed is not None:  # first, so that no packet is counted here and not there
            self.loopback = counters.loopback_bytes() - self._loopback_before
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
        """Who has sent to whom, and bytes: (source, target, bytes), counted from 0 as in `pids`.

        Connections with nobody of `pids` are left out. None where it is not known. To be asked
        after `total`.
        """
        if self.ignore is None:
            return None
        owner = {
            sent.ports: rank
            for rank, pid in enumerate(pids)
            for sent in self.latest.get(pid, {}).values()
        }
        found: dict[tuple[int, int], int] = {}
        for rank, pid in enumerate(pids):
            for sent in self._since(pid):
                other = owner.get(sent.ports[::-1])
                if other is not None and sent.payload and not sent.aside:
                    found[rank, other] = found.get((rank, other), 0) + sent.payload
        return [(*pair, count) for pair, count in sorted(found.items())]

    @property
    def hidden(self) -> int | None:
        """See `hidden_bytes`; None where it is not known. To be asked after `total`."""
        if self.loopback is None or self.ignore is None:
            return None
        since = [sent for pid in self.latest for sent in self._since(pid)]
        seen = sum(sent.whole for sent in since if not sent.aside)
        return hidden_bytes(self.loopback, seen, sum(sent.whole for sent in since if sent.aside))

    def _all_known(self) -> bool:
        known = {key for sockets in self.latest.values() for key in sockets}
        return known <= self._open | self._gone

    def _since(self, pid: int) -> Iterator[Sent]:
        """What each socket of a process has sent since `start`."""
        before = self.before.get(pid, {})
        for key, now in self.latest.get(pid, {}).items():
            old = before.get(key, Sent(0, 0))
            payload, whole = now.payload - old.payload, now.whole - old.whole
            yield Sent(payload, whole, now.aside, now.ports)


def _listener() -> counters.Closed | None:
    try:
        return counters.Closed()
    except (OSError, AttributeError):  # AttributeError: not Linux
        return None
