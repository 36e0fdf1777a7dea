"""The supervisor process of one launch: forks the ranks, watches them, and ends them.

      notebook ── control ──► supervisor ── fork ──► rank 0, rank 1, ...
          ▲                       ▲                     │   │
          │                       └── status letters ───┘   │
          └── values, failures, records, output ────────────┘

No rank calls the function before all ranks have joined the process group. Otherwise a rank could
return and exit while its peers still connect to it, and their initialisation would fail. No rank
exits before all ranks have delivered their results, because the exit of a rank resets its peers'
connections. The supervisor is a "subreaper": it becomes the parent of every orphan among the
ranks' descendants. It kills its children until it has none, which ends all processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtlab.ranks import protocol, system
from dtlab.ranks.emulate.ports import Ports
from dtlab.ranks.launch.process import Ends, run_rank
from dtlab.ranks.protocol import Frame, Outcome, RankEnd, Reason, Spec
from dtlab.ranks.record import resident_memory as resident
from dtlab.ranks.record.counters import Traffic
from dtlab.ranks.sandbox.isolation import Isolation, end_all_of
from dtlab.ranks.sandbox.time_limits import Patience
from dtlab.ranks.sandbox.untrusted_ranks import (
    UntrustedRanksWatcher,
    UntrustedStackPipe,
    reap_some,
)
from dtlab.ranks.transport import Closed, Packed
from dtlab.ranks.watch import stacks
from dtlab.ranks.watch.board import Board
from dtlab.ranks.watch.watcher import Watcher

__all__ = ["Rank", "Supervisor"]

SETTLE = 0.15  # seconds for other failures to appear, even if all other ranks wait
GRACE = 1.0  # seconds for the other ranks to fail too, or to finish, once one has failed
LOOK_EVERY = 0.1  # seconds between two checks of what the ranks announced
SAMPLE_SOCKETS_EVERY = 0.25  # seconds
DELIVERY_LIMIT = 60.0  # seconds to pickle and send the results, or the timeout if longer
START_LIMIT = 30.0  # seconds until all ranks of a graded launch have joined
STUBBORN = 0.2  # seconds after which the remaining processes are killed all at once
STACK_WAIT = 0.5  # seconds to wait for ranks to write their stacks
QUIET = 0.25  # seconds within which a rank notices that emulated links have delivered


class Supervisor:
    """Runs the ranks of one launch, from the fork until the last child has been reaped."""

    stay: Callable[[int, Spec, Ends, Any], None] | None = None  # main loop of a session's rank

    def __init__(self, spec: Spec, control: socket.socket, isolation: Isolation | None) -> None:
        self.spec = spec
        self.isolation = isolation
        self.control = control
        self.ranks: list[Rank] = []
        self.begun = False
        self.stopped = False  # whether the notebook has sent STOP
        self.failed: list[int] = []
        self.lost: list[int] = []  # ranks that died in a launch that goes on without them
        self.failed_at: float | None = None
        self.deadline: float | None = None
        self.waiting: Patience | None = None  # the time limit, without waiting for a CPU
        self.delivering = False
        self.child_ended = system.wake_on_child()
        self.board = Board(spec.world_size)
        self.ports = Ports(spec.cluster, spec.world_size) if spec.cluster else None
        self.finding: protocol.Finding | None = None
        self.looked_at = self.sampled_at = 0.0

    def run(self, call: Packed, fds: list[int]) -> Outcome:
        """Run the whole launch, and return its outcome."""
        self.start(call, fds)
        if self.spec.graded:
            self.deadline = time.monotonic() + START_LIMIT
        outcome = self.outcome_of(self._watch())
        if outcome.reason == "returned" and not self.spec.graded:
            self._tell(protocol.LEAVE)  # the notebook need not wait until they have ended
        else:
            self.end_all()
        return outcome

    def start(self, call: Packed | None, fds: list[int]) -> None:
        """Fork the ranks, and start to watch them."""
        store = socket.create_server(("127.0.0.1", 0), backlog=max(64, self.spec.world_size))
        alone = self.isolation is not None and self.isolation.has("network")
        self.traffic = Traffic(store.getsockname()[1] if self.spec.trace else None, alone)
        self._fork(call, fds, store)
        watch = UntrustedRanksWatcher if self.spec.graded else Watcher
        self.watcher = watch(self.board, self.pids)

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, by rank."""
        return [rank.pid for rank in self.ranks]

    def outcome_of(self, reason: Reason) -> Outcome:
        """The `Outcome` of ranks that are done or must be ended."""
        if reason == "failed":
            self.finding = self.watcher.misfit()
        waiting = self.watcher.waiting()
        if reason in ("timeout", "failed", "interrupted"):
            self._collect_stacks()
        wire = self.traffic.total(self.pids)
        ends = [replace(rank.end) for rank in self.ranks]
        unreceived = self.watcher.unreceived() if reason == "returned" and not self.lost else []
        posted = self.watcher.posted() if reason == "timeout" else []
        polled = self.watcher.polled() if reason == "timeout" else []
        return Outcome(
            reason, ends, self.failed, wire, self.finding, waiting, unreceived,
            self.traffic.loopback, self.traffic.hidden, self.traffic.pairs(self.pids),
            resident=[resident.until_now(rank.resident, rank.pid) for rank in self.ranks],
            calls=self.watcher.calls, active=self.watcher.active, posted=posted, polled=polled,
            lost=self.lost,
        )  # fmt: skip

    # ------------------------------------------------------------------ begin

    def _fork(self, call: Packed | None, fds: list[int], store: socket.socket) -> None:
        for number in range(self.spec.world_size):
            ours, theirs = socket.socketpair()
            pipe = UntrustedStackPipe() if self.spec.graded else stacks.StackPipe()
            rank = Rank(number, ours, pipe)
            self.ranks.append(rank)
            cutter = None
            if call is None:
                rank.cutter, cutter = socket.socketpair()
            rank.pid = os.fork()
            if rank.pid == 0:
                mine, stack = fds[3 * number : 3 * number + 3], rank.stack.writer
                ends = Ends(mine, theirs, store, stack, self.board, self.ports, cutter)
                run_rank(number, self.spec, call, ends, self.isolation, self.stay)
            theirs.close()
            if cutter is not None:
                cutter.close()
            rank.stack.close_writer()
        store.close()
        for fd in fds:
            os.close(fd)

    def _tell(self, letter: bytes, ranks: Sequence[Rank] | None = None) -> None:
        for rank in self.ranks if ranks is None else ranks:
            rank.tell(letter)

    # ------------------------------------------------------------------ watch

    def _watch(self) -> Reason:
        """Wait until all ranks are done or must be ended, and return the reason."""
        while True:
            self._wait_for_news()
            now = time.monotonic()
            if all(rank.has(protocol.DELIVERED) for rank in self.left):
                return self._verdict_at_the_end()
            if not self.begun and all(rank.has(protocol.READY) for rank in self.ranks):
                self.go(self.ranks, self.spec.timeout)
            if self.stopped:
                return "interrupted"
            if self.failed_at is not None:
                if self._others_done() or now > self.failed_at + GRACE:
                    return "failed"
            elif self.begun:
                self._begin_delivery(now)
                if self._look(now):
                    return "deadlock"
            if self.deadline is not None and now > self.deadline and not self._waits_on():
                return "timeout"

    @property
    def left(self) -> list[Rank]:
        """The ranks with which the launch goes on: all, except in a launch with survivors."""
        return [rank for rank in self.ranks if rank.rank not in self.lost]

    def _waits_on(self) -> bool:
        """Whether the ranks get more time because they waited for a CPU; moves the deadline."""
        left = self.waiting.left if self.waiting is not None else 0.0
        self.deadline = time.monotonic() + max(left, LOOK_EVERY)
        return left > 0

    def go(self, ranks: Sequence[Rank], timeout: float | None) -> None:
        """Tell these ranks to start, and start their time limit."""
        self.begun = True
        self.traffic.start(self.pids)
        self.deadline = time.monotonic() + timeout if timeout else None
        if timeout:
            self.waiting = Patience(timeout, lambda: self.pids)
        self._tell(protocol.GO, ranks)

    def _verdict_at_the_end(self) -> Reason:
        if self.failed:
            return "failed"
        if self.lost:
            return "returned"  # their operations are not complete, and never will be
        self.finding = self.watcher.look()
        return "returned" if self.finding is None else "deadlock"

    def _look(self, now: float) -> bool:
        """Whether the watcher has found a deadlock or a mismatch; looks every `LOOK_EVERY` s."""
        if now - self.looked_at >= LOOK_EVERY:
            self.looked_at = now
            if self.ports and now < self.ports.busy_until() * 1e-9 + QUIET:
                self.watcher.blocked()  # no verdict: a rank may be waiting for an emulated link
            else:
                self.finding = self.watcher.look(self._request_stacks)
                if self.finding is not None and self._needs_the_lost(self.finding):
                    self.finding = None  # gloo will tell the ranks that their peer is gone
        return self.finding is not None

    def _needs_the_lost(self, finding: protocol.Finding) -> bool:
        """Whether a finding is about operations in which a rank that died takes part."""
        members = {rank for op in finding.ops for rank in (*op.members, *op.partners)}
        return not members.isdisjoint(self.lost)

    def _request_stacks(self, number: int) -> list[list[Frame]]:
        rank = self.ranks[number]
        system.kill(rank.pid, stacks.SIGNAL)
        return rank.stack.read_all(time.monotonic() + STACK_WAIT)

    def _begin_delivery(self, now: float) -> None:
        """Start the time limit for sending results, once every function has returned."""
        if not self.delivering and all(rank.has(protocol.RETURNED) for rank in self.left):
            self.delivering = True
            # A graded rank could send RETURNED too early, to get more time.
            if self.deadline is not None and not self.spec.graded:
                self.deadline = now + max(DELIVERY_LIMIT, self.spec.timeout or 0)

    def _others_done(self) -> bool:
        """Whether each rank has delivered, has died, or waits for a rank that failed."""
        over = [not rank.alive or rank.has(protocol.DELIVERED) for rank in self.ranks]
        if all(over):
            return True
        if self.failed_at is None or time.monotonic() < self.failed_at + SETTLE:
            return False  # the rank that caused the failure may be about to die
        blocked = self.watcher.blocked()
        done = (protocol.RETURNED, protocol.RAISED)
        return all(
            end or (rank.rank in blocked and rank.talks and not rank.has(*done))
            for end, rank in zip(over, self.ranks, strict=True)
        )

    def _wait_for_news(self, patience: float | None = None) -> None:
        by_socket = {rank.status: rank for rank in self.ranks if rank.talks}
        watched: list[Any] = [self.control, self.child_ended, *by_socket]
        if patience is None:
            patience = self._patience()
        ready, _, _ = select.select(watched, [], [], patience)
        if self.control in ready:
            self._handle_control()
        for status in ready:
            if status in by_socket:
                self._read_letters(by_socket[status])
        if self.child_ended in ready:
            os.read(self.child_ended, 4096)
            self._note_deaths(reap_some())
        self._sample_traffic()

    def _handle_control(self) -> None:
        """Handle a message of the notebook; in a launch it only means that the launch must end."""
        raise Closed("the notebook has closed the control socket")

    def _sample_traffic(self) -> None:
        now = time.monotonic()
        if now - self.sampled_at > SAMPLE_SOCKETS_EVERY:
            self.sampled_at = now
            self.traffic.sample([rank.pid for rank in self.ranks if rank.alive])

    def _patience(self) -> float | None:
        """Seconds to wait for events before the next check is due."""
        now = time.monotonic()
        times = [LOOK_EVERY]
        if self.deadline is not None:
            times.append(self.deadline - now)
        if self.failed_at is not None:
            limits = (self.failed_at + SETTLE, self.failed_at + GRACE)
            times.append(min((t for t in limits if t > now), default=now) - now)
        return max(0.0, min(times)) + 0.001 if times else None

    def _read_letters(self, rank: Rank) -> None:
        letters = rank.read_letters()
        if protocol.RETURNED in letters:
            rank.end.state = "returned"
        if protocol.RAISED in letters:
            rank.end.state = "raised"
            self._note_failure(rank)

    def _note_failure(self, rank: Rank) -> None:
        if rank.rank not in self.failed:
            self.failed.append(rank.rank)
        if self.failed_at is None:
            self.failed_at = time.monotonic()

    def _note_deaths(self, ended: dict[int, int]) -> None:
        for rank in self.ranks:
            if rank.pid not in ended:
                continue
            if rank.talks:
                self._read_letters(rank)
            rank.alive = False
            if not rank.has(protocol.DELIVERED):
                rank.end.state, rank.end.status = "died", ended[rank.pid]
                rank.end.stack = rank.stack.read()
                if self.spec.survivors and self.begun and len(self.left) > 1:
                    self.lost.append(rank.rank)
                    self.watcher.lose(rank.rank)
                else:
                    self._note_failure(rank)

    # ------------------------------------------------------------------ end

    def end_all(self) -> None:
        """Kill the ranks and all their descendants, however often these fork."""
        since = time.monotonic()
        while system.children():
            for pid in system.children():
                system.kill(pid)
            reap_some()
            if self.isolation is not None and time.monotonic() > since + STUBBORN:
                end_all_of(self.isolation, self.spec.world_size)
                since = time.monotonic()
            time.sleep(0.002)

    def _collect_stacks(self) -> None:
        """Read the stacks of the ranks that are still running."""
        done = (protocol.RETURNED, protocol.RAISED)
        running = [rank for rank in self.ranks if rank.alive and not rank.has(*done)]
        for rank in running:
            system.kill(rank.pid, stacks.SIGNAL)
        deadline = time.monotonic() + STACK_WAIT
        for rank in running:
            rank.end.stack = rank.stack.read(deadline)

    def wait_until_gone(self) -> None:
        """Wait up to a second for ranks that were told to exit."""
        deadline = time.monotonic() + 1.0
        while any(rank.alive for rank in self.ranks) and time.monotonic() < deadline:
            select.select([self.child_ended], [], [], 0.05)
            ended = system.reap()
            for rank in self.ranks:
                rank.alive = rank.alive and rank.pid not in ended


# One rank, as its supervisor sees it: a process, and the status letters that it sends ------------


class Rank:
    """The supervisor's state of one rank."""

    def __init__(self, rank: int, status: socket.socket, stack: stacks.StackPipe) -> None:
        self.rank = rank
        self.cutter: socket.socket | None = None
        self.pid = -1
        self.status = status
        self.stack = stack
        self.end = RankEnd()
        self.letters: set[int] = set()  # every status letter so far
        self.resident: list[int | None] = []  # bytes of memory at each of its requests
        self.alive = True  # until it has been reaped
        self.talks = True  # until its end of `status` is closed

    def has(self, *letters: bytes) -> bool:
        return any(letter[0] in self.letters for letter in letters)

    def tell(self, letter: bytes) -> None:
        """Send the rank a letter, unless its end of the socket is closed."""
        if self.talks:
            with contextlib.suppress(OSError):  # it has just died and is not reaped yet
                self.status.send(letter)

    def cut(self, what: bytes = protocol.CUT) -> None:
        """Have a session's rank cut its connections to other ranks, or to the store."""
        if self.cutter is not None:
            with contextlib.suppress(OSError):
                self.cutter.send(what)

    def read_letters(self) -> bytes:
        """Read and record the letters that have arrived; at end of file, closes the socket."""
        try:
            letters = self.status.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""  # the rank has ended, and a child of it still has the socket
        except ConnectionError:
            letters = b""
        if not letters:
            self.status.close()
            self.talks = False
        self.letters.update(letters)
        for _ in range(letters.count(protocol.COUNT)):
            if len(self.resident) < resident.MOST:
                last = self.resident[-1] if self.resident else None
                self.resident.append(resident.counted(self.pid, last))
            self.tell(protocol.COUNTED)
        return letters
