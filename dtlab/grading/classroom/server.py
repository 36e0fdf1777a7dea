"""The warm server from which grading tasks launch their ranks."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable

from dtlab.errors import LaunchError
from dtlab.grading.classroom.tasks import Done, Task, carry_out
from dtlab.grading.judging.judge import WARM
from dtlab.grading.parts import known_parts
from dtlab.ranks.launch.client import Server
from dtlab.ranks.notices import no_notices

__all__ = ["JudgesServer", "Told", "carry_out_surely"]

Told = Callable[[str, str], None]  # hears which student's work is where


class JudgesServer(Server):
    """A warm server for judges, which does not come back once it has been stopped."""

    def __init__(self) -> None:
        super().__init__(*WARM)
        self.over = False

    def wait(self) -> None:
        """Until it has imported torch, so that nobody's seconds have that among them."""
        with no_notices(), self._lock:
            if not self.over:
                started = self._start_if_needed()
                importlib.import_module("torch")  # meanwhile: this process needs it too
                list(known_parts())
                self._wait_until_ready(started)

    def request(self, kind: bytes, fds: list[int]) -> None:
        """See `Server`. Raises `LaunchError` after `stop`."""
        if self.over:
            raise LaunchError("grading was stopped")
        super().request(kind, fds)

    def _share_modules(self, sock: socket.socket) -> None:
        """None: what ranks need is in `WARM`, and what this process has is for grading alone."""

    def stop(self) -> None:
        """End it for good, with whatever it still runs."""
        self.over = True
        super().stop()


def carry_out_surely(
    task: Task,
    server: JudgesServer,
    slot: int = 0,
    told: Callable[[str], None] = lambda _: None,
    waits: Callable[[bool], None] = lambda _: None,
) -> Done:
    """Carries out a task, once more where the server has ended: others fill memories too."""
    done = carry_out(task, server, slot, told, waits)
    if done.troubles and not server.over:
        done = carry_out(task, server, slot, told, waits)
    return done
