"""The watcher: detects deadlocks and mismatched operations.

The board contains the operations of all ranks; the machine of `matching.py` tells whether they
match and whether a rank can make progress. The board does not show that a rank waits inside C++
without a call from Python, for instance in DDP's backward. Such a rank sleeps, has an unmatched
operation, and its stack ends in torch. The watcher requests the stack only if the first two hold.
"""

from __future__ import annotations

import linecache
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dtlab import torch_internals
from dtlab.ranks.protocol import Finding, Frame, OpInfo
from dtlab.ranks.watch.board import CALL, ISSUE, NEW_GROUP, QUEUE, Board, Record
from dtlab.ranks.watch.matching import KINDS, Machine, Misfit, Op

ASLEEP_BEFORE_ASKING = 0.25  # seconds without new records or CPU time before stacks are requested
ASK_AGAIN_AFTER = 0.5  # seconds
ACTIVE_FOR = 0.5  # seconds since the last record, for which ranks count as communicating
MOST_GROUPS = 100  # that are stored for explanations
Ask = Callable[[int], list[list[Frame]]]
# Where torch waits in C++ for communication that it issued itself.
WAITS_IN_CPP = (
    torch_internals.BACKWARD_FILE,
    torch_internals.DDP_FILE,
    torch_internals.C10D_FILE,
    torch_internals.MODULE_STATE_FILE,
    torch_internals.OPERATORS_FILE,
)
# Threads that never communicate by themselves.
HELPERS = (os.path.join("dtlab", "ranks", ""), os.path.join("tqdm", "_monitor.py"))
POOL = os.path.join("concurrent", "futures", "thread.py")  # its idle threads wait for work
THREADING = threading.__file__


class Watcher:
    """Detects deadlocks and mismatches among the ranks of one launch."""

    def __init__(self, board: Board, pids: Sequence[int]) -> None:
        self._board = board
        self._pids = pids
        self._machine = Machine(len(pids), self._describe)
        self._groups: dict[int, tuple[int, ...]] = {}
        self._work: dict[int, int] = {}  # CPU time of each rank at the last check
        self._quiet_since = time.monotonic()
        self._asked_at = 0.0
        self._begun = time.monotonic()
        self._idle: list[int] = []
        self.calls = [0] * len(pids)  # operations that each rank has called
        self._created: list[tuple[int, ...]] = []  # groups that new_group has created

    def resume(self, ranks: Sequence[int]) -> None:
        """Start a turn in which only these ranks take part."""
        self._follow()
        self._machine.take_part(ranks)
        self._idle = [rank for rank in range(len(self._pids)) if rank not in ranks]
        self.calls = [0] * len(self._pids)
        self._begun = self._quiet_since = time.monotonic()

    def lose(self, rank: int) -> None:
        """Go on without a rank that died."""
        self._follow()
        self._machine.lose(rank)
        self._idle.append(rank)

    def look(self, ask: Ask | None = None) -> Finding | None:
        """Process new records; returns a finding if the ranks must be ended.

        `ask` returns the stacks of a rank's threads, that of the main thread last. Without it,
        all ranks have returned, and this is the final check.
        """
        finding = self._look(ask)
        if finding is not None and ask is not None:
            finding.stacks.update({rank: ask(rank)[-1] for rank in self._in_main(finding)})
        return finding

    def _in_main(self, finding: Finding) -> set[int]:
        """The ranks whose main thread has called an operation of the finding."""
        return {op.rank for op in finding.ops} - {*finding.helpers, *finding.left}

    def _look(self, ask: Ask | None) -> Finding | None:
        now = time.monotonic()
        if self._follow():
            self._quiet_since = now
        machine = self._machine
        misfit = machine.misfit if machine.free() else machine.likely_misfit()
        if misfit is not None:
            return self._mismatch(misfit)
        blocked, free = machine.blocked(), machine.free()
        if any(machine.could_come(op) for op in blocked) and not self._nothing_comes(free, now):
            return None
        if ask is None:
            return self._standstill(blocked) if blocked else self._uneven_groups()
        if now - self._asked_at < ASK_AGAIN_AFTER:
            return None
        if not free and not blocked:
            return None  # all ranks have returned and deliver their results
        if not free:
            self._asked_at = now
            return None if self._threads_may_help(blocked, ask) else self._standstill(blocked)
        if now - self._quiet_since < ASLEEP_BEFORE_ASKING:
            return None
        return self._look_into(free, blocked, now, ask)

    def misfit(self) -> Finding | None:
        """A mismatch among all operations announced so far, even a likely one; or None."""
        self._follow()
        misfit = self._machine.likely_misfit() or self._machine.crossed_threads()
        return None if misfit is None else self._mismatch(misfit)

    def blocked(self) -> set[int]:
        """Ranks whose main thread waits for an operation that is not complete."""
        self._follow()
        return {op.rank for op in self._machine.blocked() if op.record.thread == 0}

    def waiting(self) -> list[OpInfo]:
        """The operation that each blocked rank waits for; on a GPU, its oldest incomplete one.

        GPU operations are queued, so the rank continues until it needs a result.
        """
        machine = self._machine
        waiting = machine.blocked()
        for rank in machine.free():
            waiting += [op for op in machine.unmatched(rank) if op.record.kind == QUEUE][:1]
        return [self._info(op) for op in sorted(waiting, key=lambda op: op.rank)]

    def anything_open(self) -> bool:
        """Whether some operation has been posted but is not complete."""
        self._follow()
        return any(self._machine.unmatched(rank) for rank in range(len(self._pids)))

    def unreceived(self) -> list[OpInfo]:
        """Sends that no rank has received."""
        return [op for op in self.posted() if op.name == "send"]

    def polled(self) -> list[tuple[OpInfo, list[int]]]:
        """Operations that ranks poll with is_completed(), and the ranks that each one lacks."""
        return [(self._info(op), lacks) for op, lacks in self._machine.polled()]

    def posted(self) -> list[OpInfo]:
        """Sends and receives that have not met their partner."""
        ops = [op for rank in range(len(self._pids)) for op in self._machine.unmatched(rank)]
        return [self._info(op) for op in ops if op.kind in ("send", "recv")]

    @property
    def active(self) -> bool:
        """Whether a rank called or awaited an operation in the last half second."""
        return time.monotonic() - self._quiet_since < ACTIVE_FOR

    # ------------------------------------------------------------------ following

    def _follow(self) -> bool:
        """Read the board into the machine; returns whether there were new records."""
        moved = False
        for rank, reader in enumerate(self._board.readers):
            records = reader.read()
            if records:
                moved = True
                self.calls[rank] += sum(record.kind in (ISSUE, CALL, QUEUE) for record in records)
                self._machine.feed(rank, records)
        return moved

    def _describe(self, rank: int, record: Record) -> Op:
        reader = self._board.readers[rank]
        if record.group not in self._groups:
            ranks = reader.text(record.group_text).partition("|")[2]
            self._groups[record.group] = tuple(int(rank) for rank in ranks.split(",") if rank)
        description = reader.text(record.text) or f"{KINDS[record.role]}()"  # table was full
        name = description.partition("(")[0]
        file = reader.text(record.place >> 24)
        if record.role == NEW_GROUP:
            members = tuple(map(int, re.findall(r"\d+", description)))
            if len(self._created) < MOST_GROUPS and members not in self._created:
                self._created.append(members)
        return Op(rank, record, name, self._groups[record.group], description, file)

    # ------------------------------------------------------------------ threads
    # A thread that has not announced anything may still issue an operation that others wait for.

    def _threads_may_help(self, blocked: list[Op], ask: Ask) -> bool:
        """Whether some blocked rank has threads that are not known to wait too."""
        for rank in {op.rank for op in blocked}:
            *others, _ = ask(rank)
            if _unknown(others) > _waiting_threads(rank, blocked):
                return True
        return self._follow()  # a rank may have continued while its stack was read

    # ------------------------------------------------------------------ ranks inside C++

    def _look_into(
        self, free: set[int], blocked: list[Op], now: float, ask: Ask
    ) -> Finding | None:
        """A deadlock finding if every rank that the machine regards as free waits inside C++.

        Or its main thread waits, without a time limit, for a thread that waits in an operation.
        """
        machine = self._machine
        stuck = {rank: machine.unmatched(rank)[:1] for rank in free}
        if not all(stuck.values()) or not self._asleep(free):
            self._quiet_since = now if not all(stuck.values()) else self._quiet_since
            return None
        self._asked_at = now
        joins = False
        for rank in sorted(free):
            *others, frames = ask(rank)
            threads = _waiting_threads(rank, blocked)
            if threads and _joins(frames):
                if _unknown(others) > threads:
                    return None  # another thread of the rank may continue
                joins = True
                del stuck[rank]  # its operations are those of its threads, which are blocked
            elif not frames or not any(part in frames[-1].file for part in WAITS_IN_CPP):
                return None
        elsewhere = [op for op in blocked if joins and op.rank not in free]
        if self._threads_may_help(elsewhere, ask):
            return None  # or a rank continued while its stack was read
        return self._standstill([*blocked, *(ops[0] for ops in stuck.values())])

    def _nothing_comes(self, free: set[int], now: float) -> bool:
        """Whether no message can reach an any-source receive any more.

        Which message such a receive took is known only after a wait for it. But if every thread of
        every rank sleeps, and has slept since the last check, no message is in flight.
        """
        if free or now - self._quiet_since < ASLEEP_BEFORE_ASKING:
            return False
        return self._asleep(set(range(len(self._pids))))

    def _asleep(self, ranks: set[int]) -> bool:
        """Whether all these ranks sleep and have used no CPU time since the last check."""
        work = {rank: _cpu_ticks(self._pids[rank]) for rank in ranks}
        same = all(self._work.get(rank) == ticks >= 0 for rank, ticks in work.items())
        self._work.update(work)
        return same

    # ------------------------------------------------------------------ findings

    def _mismatch(self, misfit: Misfit) -> Finding:
        ops = [self._info(op) for op in misfit.ops]
        group = misfit.ops[0].record.group
        return Finding(
            misfit.reason, ops, self._left(), idle=self._idle,
            threads=self._machine.several_threads(group), apart=self._apart(misfit.ops[-1]),
            groups=self._created, helpers=_called_by_threads(misfit.ops),
        )  # fmt: skip

    def _standstill(self, blocked: list[Op]) -> Finding:
        unmatched = [
            self._info(op)
            for rank in range(len(self._pids))
            for op in self._machine.unmatched(rank)
            if op not in blocked and not self._machine.could_come(op)
        ]
        infos = [self._info(op) for op in sorted(blocked, key=lambda op: op.rank)]
        seconds = time.monotonic() - self._begun
        return Finding(
            "standstill", infos, self._left(), unmatched, seconds, self._idle,
            apart=self._apart(blocked[0]), groups=self._created,
            exchanged=self._machine.exchanged, helpers=_called_by_threads(blocked),
        )  # fmt: skip

    def _apart(self, op: Op) -> list[OpInfo]:
        return [self._info(each) for each in self._machine.apart(op)]

    def _uneven_groups(self) -> Finding | None:
        """At the end: a finding if some ranks called `new_group` and others did not."""
        ops = [op for rank in range(len(self._pids)) for op in self._machine.unmatched(rank)]
        calls = [self._info(op) for op in ops if op.kind == "new_group"]
        first = [op for op in calls if op.description == calls[0].description]
        return Finding("new_group", first, self._left(), idle=self._idle) if first else None

    def _info(self, op: Op) -> OpInfo:
        wait_file = self._board.readers[op.rank].text(op.wait_place >> 24)
        return OpInfo(
            op.rank, op.name, op.description, op.partners, op.record.tag, op.record.group,
            op.members, op.file, op.line, wait_file, op.wait_place & 0xFFFFFF, op.sizes,
            tuple(self._machine.lacks(op)),
        )  # fmt: skip

    def _left(self) -> list[int]:
        return [rank for (rank, thread), actor in self._machine.actors.items()
                if thread == 0 and actor.left and rank not in self._idle]  # fmt: skip


def _unknown(threads: Sequence[Sequence[Frame]]) -> int:
    """How many threads are neither helpers nor idle; those that wait in an operation count too.

    A thread of a ThreadPoolExecutor without work gets work only from another thread.
    """
    count = 0
    for frames in threads:
        begun = next((frame.file for frame in frames if frame.file != THREADING), "")
        is_idle = bool(frames) and frames[-1].function == "_worker" and POOL in frames[-1].file
        count += bool(frames) and not is_idle and not any(part in begun for part in HELPERS)
    return count


def _waiting_threads(rank: int, blocked: Sequence[Op]) -> int:
    """How many threads of a rank, besides its main thread, wait in an operation."""
    return sum(op.rank == rank and op.record.thread != 0 for op in blocked)


def _joins(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits without a time limit: in join, in result, or for an event.

    From Python 3.13 on, the line in threading.py is the same with and without a time limit. Then
    the line that calls join() decides.
    """
    inside = [frame for frame in frames if frame.file == THREADING]
    if not inside or frames[-1].file != THREADING:
        return False
    last = frames[-1]
    line = linecache.getline(last.file, last.line)
    if last.function == "wait":  # of a Condition: an Event, or a Future
        return line.strip() == "waiter.acquire()"
    join = next((frame for frame in inside if frame.function == "join"), None)
    if join is None:
        return False
    if "_wait_for_tstate_lock()" in linecache.getline(join.file, join.line):
        return True
    if "_handle.join(" not in linecache.getline(join.file, join.line):
        return False
    caller = frames[frames.index(join) - 1]
    return ".join()" in linecache.getline(caller.file, caller.line)


def _called_by_threads(ops: Sequence[Op]) -> list[int]:
    """The ranks of which another thread than the main one has called an operation."""
    return sorted({op.rank for op in ops if op.record.thread != 0})


def _cpu_ticks(pid: int) -> int:
    """CPU time that a process has used, in ticks; -1 if one of its threads is not asleep."""
    try:
        stats = [_stat(place / "stat") for place in Path(f"/proc/{pid}/task").iterdir()]
        if any(state != "S" for state, *_ in stats):
            return -1
        _, *ticks = _stat(Path(f"/proc/{pid}/stat"))
        return sum(map(int, ticks))
    except (OSError, IndexError, ValueError):
        return -1  # the system has no such files


def _stat(place: Path) -> tuple[str, str, str]:
    """State, and CPU time in user and kernel mode, of a process or a thread."""
    fields = place.read_text().rpartition(")")[2].split()
    return fields[0], fields[11], fields[12]
