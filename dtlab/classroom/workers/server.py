"""The warm server from which grading tasks launch their ranks."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable

from dtlab.checks.parts import known_parts
from dtlab.classroom.judging.judge import WARM
from dtlab.classroom.workers.tasks import Done, Task, carry_out
from dtlab.errors import LaunchError
from dtlab.ranks.launch.client import Server
from dtlab.ranks.notices import no_notices

__all__ = ["JudgesServer", "Progress", "carry_out_surely"]

Progress = Callable[[str, str], None]  # a callback for progress: called with student and step


class JudgesServer(Server):
    """A warm server for judges, which cannot be restarted after `stop`."""

    def __init__(self) -> None:
        super().__init__(*WARM)
        self.over = False

    def wait(self) -> None:
        """Waits until the server has imported torch, so that no time limit includes the import."""
        with no_notices(), self._lock:
            if not self.over:
                started = self._start_if_needed()
                importlib.import_module("torch")  # in parallel: this process needs it too
                list(known_parts())
                self._wait_until_ready(started)

    def request(self, kind: bytes, fds: list[int]) -> None:
        """See `Server`. Raises `LaunchError` after `stop`."""
        if self.over:
            raise LaunchError("grading was stopped")
        super().request(kind, fds)

    def _share_modules(self, sock: socket.socket) -> None:
        """Shares no modules: ranks need only those in `WARM`, not those of this process."""

    def stop(self) -> None:
        """Ends the server permanently, with all ranks that it still runs."""
        self.over = True
        super().stop()


def carry_out_surely(
    task: Task,
    server: JudgesServer,
    slot: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    waits: Callable[[bool], bool | None] = lambda _: None,
) -> Done:
    """Carries out a task, and repeats it once if it failed, for example if the server was killed.

    Other processes may use up the memory of the machine.
    """
    done = carry_out(task, server, slot, progress, waits)
    if done.troubles and not server.over:
        done = carry_out(task, server, slot, progress, waits)
    return done
