"""Bytes that ranks put on their sockets during a launch, as the kernel counted them."""

from __future__ import annotations

from collections.abc import Sequence

from dtlab.ranks import counters


class Traffic:
    """Sums over all sockets that were ever seen, so that one closed midway still counts.

    `store_port` is the port of the rendezvous, whose traffic is not the learner's; None switches
    the counting off.
    """

    def __init__(self, store_port: int | None) -> None:
        self.ignore = None if store_port is None else (store_port,)
        self.before: dict[int, dict[int, int]] = {}
        self.latest: dict[int, dict[int, int]] = {}

    def start(self, pids: Sequence[int]) -> None:
        """What was sent until now (connecting, greeting) does not count."""
        self.sample(pids)
        self.before = {pid: dict(sockets) for pid, sockets in self.latest.items()}

    def sample(self, pids: Sequence[int]) -> None:
        """Look once."""
        seen = None if self.ignore is None else counters.socket_bytes(pids, self.ignore)
        if seen is None:
            self.ignore = None
            return
        for pid, sockets in seen.items():
            self.latest.setdefault(pid, {}).update(sockets)

    def total(self, pids: Sequence[int]) -> list[int | None]:
        """Bytes sent by each process since `start`; None where they cannot be counted."""
        if self.ignore is None:
            return [None] * len(pids)
        self.sample(pids)
        return [self._of(pid) for pid in pids]

    def _of(self, pid: int) -> int:
        before = self.before.get(pid, {})
        now = self.latest.get(pid, {})
        return sum(count - before.get(inode, 0) for inode, count in now.items())
