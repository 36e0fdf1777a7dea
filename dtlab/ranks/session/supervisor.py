"""The supervisor process of a session: runs turns, and restores ranks after a failed turn.

If a turn fails, ranks that are still running it are interrupted in two steps. First, a signal
raises KeyboardInterrupt in ranks that run Python code. Then, cutting the connections between ranks
raises an error in ranks that wait in C++. Variables survive both steps, but the process group does
not survive the second, so the ranks create a new one. If a rank still runs, the session ends.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dtlab.ranks import protocol, system
from dtlab.ranks.launch.supervisor import Rank, Supervisor
from dtlab.ranks.protocol import Outcome, RankEnd, Reason, Turn
from dtlab.ranks.session.rank import stay
from dtlab.ranks.transport import Closed, receive_frame, send_frame
from dtlab.ranks.watch.watcher import Watcher
from dtlab.ranks.words import ranks_in_words

__all__ = ["SessionSupervisor"]

OPEN_LIMIT = 60.0  # seconds until all ranks have joined
SIGNAL_LIMIT = 0.3  # seconds within which a signal should interrupt a rank
CUT_LIMIT = 1.5  # seconds for cutting the peers' connections, and again for the store's
REJOIN_LIMIT = 20.0  # seconds to create a new process group


class SessionSupervisor(Supervisor):
    """Runs the turns of one session."""

    stay = staticmethod(stay)

    def serve(self, fds: list[int]) -> NoReturn:
        """Run the session, from the fork to the end. Raises `Closed` when the session ends."""
        self.deaths: dict[int, RankEnd] = {}
        self.start(None, fds)
        if not self._all_join(OPEN_LIMIT):
            self._tell_outcome(self.outcome_of("failed" if self.failed else "timeout"))
            raise Closed("the ranks did not form a process group")
        self._forget_turn(())
        send_frame(self.control, protocol.OPENED)
        while True:
            outcome = self._take_turn(self._next_turn())
            self._tell_outcome(outcome)
            if outcome.over:
                raise Closed(outcome.over)

    def _tell_outcome(self, outcome: Outcome) -> None:
        send_frame(self.control, protocol.OUTCOME, pickle.dumps(outcome))

    # ------------------------------------------------------------------ a turn

    def _next_turn(self) -> Turn:
        """Wait for the next turn. Record the ranks that die before it; that turn reports them."""
        while True:
            watched: list[Any] = [self.control, self.child_ended]
            ready, _, _ = select.select(watched, [], [])
            if self.child_ended in ready:
                os.read(self.child_ended, 4096)
                self._note_deaths(system.reap())
            if self.control in ready:
                tag, body = receive_frame(self.control)
                if tag == protocol.TURN:
                    return pickle.loads(body)  # type: ignore[no-any-return]

    def _take_turn(self, turn: Turn) -> Outcome:
        self._forget_turn(() if self.deaths else turn.ranks)
        for rank, end in self.deaths.items():
            self.ranks[rank].end = end
            self.failed.append(rank)
        reason: Reason = "failed"
        if not self.deaths:
            self.watcher.resume(turn.ranks)
            self.go([self.ranks[rank] for rank in turn.ranks], turn.timeout)
            reason = self._watch()
        outcome = self.outcome_of(reason)
        outcome.unreceived = []  # a later turn may receive these messages
        if reason != "returned":
            outcome.over = self._free()
            outcome.rejoined = not outcome.over and self._needs_another_group(reason)
            if outcome.rejoined:
                outcome.over = self._rejoin()
        return outcome

    def _forget_turn(self, taking_part: Sequence[int]) -> None:
        """Reset the state of the last turn; all ranks but `taking_part` count as done."""
        self.failed, self.failed_at, self.deadline = [], None, None
        self.finding, self.delivering, self.stopped = None, False, False
        self._cut_off = False
        for rank in self.ranks:
            takes_part = rank.rank in taking_part
            rank.resident = []
            rank.letters = set() if takes_part else {protocol.DELIVERED[0], protocol.RETURNED[0]}
            rank.end = RankEnd() if takes_part else RankEnd("idle")

    def _note_deaths(self, ended: dict[int, int]) -> None:
        super()._note_deaths(ended)
        for rank in self.ranks:
            if rank.pid in ended:
                is_noted = rank.end.state == "died"
                unnoted = RankEnd("died", ended[rank.pid], rank.stack.read())
                self.deaths[rank.rank] = rank.end if is_noted else unnoted

    def _handle_control(self) -> None:
        tag, _ = receive_frame(self.control)
        self.stopped = self.stopped or tag == protocol.STOP

    # ------------------------------------------------------------------ interrupting ranks

    def _free(self) -> str:
        """Interrupt all ranks that still run their turn.

        Returns the reason if the session must end, otherwise "".
        """
        if self._finish_within(0.0):
            return self._deaths_in_words()
        for rank in self._missing():
            system.kill(rank.pid, signal.SIGINT)
        if not self._finish_within(SIGNAL_LIMIT):
            self._cut_off = True
            for request in (protocol.CUT, protocol.CUT_STORE):
                for rank in self.ranks:
                    rank.cut(request)
                if self._finish_within(CUT_LIMIT):
                    break
        missing = [rank.rank for rank in self._missing() if rank.alive]
        if missing:
            return f"{ranks_in_words(missing)} did not stop when interrupted"
        return self._deaths_in_words()

    def _missing(self) -> list[Rank]:
        return [rank for rank in self.ranks if not rank.has(protocol.DELIVERED)]

    def _finish_within(self, seconds: float) -> bool:
        return self._wait_until(lambda: all(not rank.alive for rank in self._missing()), seconds)

    def _deaths_in_words(self) -> str:
        verb = "has" if len(self.deaths) == 1 else "have"
        return f"{ranks_in_words([*self.deaths])} {verb} ended" if self.deaths else ""

    def _needs_another_group(self, reason: str) -> bool:
        """Whether connections are cut, or unfinished operations remain, which later ones match."""
        return self._cut_off or reason == "deadlock" or self.watcher.anything_open()

    def _rejoin(self) -> str:
        """Have all ranks create a new process group.

        Returns the reason if the session must end, otherwise "".
        """
        if self.spec.cluster is not None:
            return "messages that are in flight on emulated links cannot be withdrawn"
        for rank in self.ranks:
            rank.letters = set()
            if not self._cut_off:
                rank.cut()
        self._tell(protocol.REJOIN)
        if not self._all_join(REJOIN_LIMIT):
            return "the ranks could not create a new process group"
        self.watcher.resume(())
        self.watcher = Watcher(self.board, self.pids)
        return ""

    # ------------------------------------------------------------------ waiting

    def _all_join(self, seconds: float) -> bool:
        """Whether all ranks join the process group within `seconds`."""

        def joined() -> bool:
            return all(rank.has(protocol.READY) for rank in self.ranks)

        def failed() -> bool:
            return bool(self.deaths) or any(rank.has(protocol.RAISED) for rank in self.ranks)

        self._wait_until(lambda: joined() or failed(), seconds)
        return joined() and not failed()

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Process events until `condition` holds; return False if it does not within `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait_for_news(min(left, 0.05))
        return True
