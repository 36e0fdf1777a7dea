"""Stack traces of ranks on request: a signal makes a rank write its stack.

Python's `faulthandler` writes the stack from inside the signal handler, so this works while the
rank is blocked in C++, and also when it crashes. Each rank writes to a separate pipe.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from dtlab.ranks.protocol import Frame

# A real-time signal, which programs rarely use, if the system has real-time signals.
SIGNAL: int = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


_WRITERS: dict[int, int] = {}  # by process, since a fork inherits the dict


class StackPipe:
    """The pipe of one rank; created before the fork."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def close_writer(self) -> None:
        os.close(self.writer)

    def read(self, deadline: float = 0.0) -> list[Frame]:
        """The main thread's frames, outermost first; waits for them until `deadline`."""
        return self.read_all(deadline)[-1]

    def read_all(self, deadline: float = 0.0) -> list[list[Frame]]:
        """The frames of every thread, the main one last; waits for them until `deadline`."""
        text = b""
        while True:
            patience = max(0.0, deadline - time.monotonic()) if not text else 0.02
            if not select.select([self.reader], [], [], patience)[0]:
                break
            data = os.read(self.reader, 65536)
            if not data:
                break
            text += data
        return parse(text.decode(errors="replace"))


def report_on_signal(writer: int) -> None:
    """In a rank: write the stacks of all threads to `writer` on a signal and on a crash."""
    faulthandler.enable(file=writer, all_threads=True)
    faulthandler.register(SIGNAL, file=writer, all_threads=True)
    _WRITERS[os.getpid()] = writer


@contextmanager
def answered_by(process: int) -> Iterator[None]:
    """In a rank: pass requests for its stacks on to a fork of it, which then writes its own."""
    writer = _WRITERS.get(os.getpid())
    if writer is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    faulthandler.unregister(SIGNAL)
    before = signal.signal(SIGNAL, lambda *_: os.kill(process, SIGNAL))
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)
        faulthandler.register(SIGNAL, file=writer, all_threads=True)


def report_before_ending(writer: int) -> None:
    """In a rank: replace `os._exit` and `os.kill` so that they write the stack to `writer` first.

    `os.kill` writes the stack only if the rank sends the signal to itself.
    """
    rank = os.getpid()
    exit_at_once, send_signal = os._exit, os.kill

    def _exit(status: int) -> NoReturn:
        if os.getpid() == rank:
            faulthandler.dump_traceback(writer, all_threads=False)
        exit_at_once(status)

    def kill(pid: int, number: int, /) -> None:
        if pid == rank and os.getpid() == rank and number != 0:
            faulthandler.dump_traceback(writer, all_threads=False)
        send_signal(pid, number)

    os._exit, os.kill = _exit, kill


def parse(text: str) -> list[list[Frame]]:
    """Parse the output of `faulthandler`: the frames of each thread, outermost first.

    The main thread is the last one written: threads are listed from the newest to the oldest.
    """
    threads: list[list[Frame]] = [[]]
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            threads.append([])
        elif match := LINE.match(line):
            threads[-1].append(Frame(match["file"], int(match["line"]), match["function"]))
    return [frames[::-1] for frames in threads]
