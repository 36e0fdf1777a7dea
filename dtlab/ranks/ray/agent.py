"""The agent: an actor on one node of a Ray cluster, which runs launches there.

It has a warm server, so the first launch on a node imports PyTorch once, and later
launches start at once. A launch on the node is the same as one from a notebook: its supervisor
forks the ranks, watches them, and ends them (launch/). The agent passes their output on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from queue import Empty, SimpleQueue

from dtlab.errors import LaunchError
from dtlab.ranks import protocol, system
from dtlab.ranks.launch import arguments, client
from dtlab.ranks.launch.output import Output, Stream
from dtlab.ranks.protocol import Spec
from dtlab.ranks.transport import Packed

__all__ = ["NEWS_EVERY", "THREADS", "Agent", "Printed"]

NEWS_EVERY = 0.5  # seconds after which `news` returns even if there are none
THREADS = 16  # calls of one agent that can run at the same time: `news` and `stop` during `run`
Printed = tuple[int, Stream, bytes]  # bytes that a rank has written to a stream
News = SimpleQueue[Printed | None]  # None: the launch is over


class Agent:
    """Runs launches on its node. Each has a name, under which `news` and `stop` refer to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news: dict[str, News] = {}
        self._running: dict[str, _Conversation] = {}
        self._server = client.Server()
        self._server.start()

    def version(self) -> str:
        """The version of dtlab on this node, as soon as the server can fork ranks."""
        self._server.wait()
        return version("dtlab")

    def run(
        self, name: str, spec: Spec, host: str, call: Packed, modules: Sequence[str]
    ) -> client.Collected | LaunchError:
        """Run a launch that was requested on `host`; its values stay packed.

        The server imports `modules` first. A LaunchError is returned, not raised.
        """
        self._server.share(*modules)
        if host != socket.gethostname() or not os.path.isdir(spec.folder):
            spec = replace(spec, **arguments.surroundings())
        cpus = int(system.usable_cpus())
        spec = replace(spec, threads=spec.threads or max(1, cpus // spec.world_size))
        news = self._news_of(name)
        running = self._running[name] = _Conversation(spec, call, _Relay(news), (), self._server)
        try:
            return running.run()
        except LaunchError as error:
            return error
        finally:
            news.put(None)
            del self._running[name]

    def news(self, name: str) -> tuple[list[Printed], bool]:
        """What the ranks have printed since the last call, and whether the launch is over."""
        printed: list[Printed] = []
        news, patience = self._news_of(name), NEWS_EVERY
        while True:
            try:
                entry = news.get(timeout=patience)
            except Empty:
                return printed, False
            if entry is None:
                del self._news[name]
                return printed, True
            printed.append(entry)
            patience = 0.0

    def stop(self, name: str) -> None:
        """End a launch that is running: its supervisor kills the ranks."""
        if name in self._running:
            self._running[name].hang_up()

    def _news_of(self, name: str) -> News:
        with self._lock:
            return self._news.setdefault(name, SimpleQueue())


class _Relay(Output):
    """Puts what ranks print into a queue; nothing is shown on the node."""

    def __init__(self, news: News) -> None:
        super().__init__(0)
        self._news = news

    def feed(self, rank: int, stream: Stream, data: bytes) -> None:
        self._news.put((rank, stream, data))


class _Conversation(client.Conversation):
    """A launch whose values are not loaded here, since the agent does not import torch."""

    def hang_up(self) -> None:
        """Tell the supervisor to end the launch; can be called from any thread."""
        with contextlib.suppress(AttributeError, OSError):  # it has not begun, or is over
            self.control.shutdown(socket.SHUT_WR)

    def _open(self, rank: int, tag: bytes, body: bytearray, value: Packed | None) -> None:
        if tag == protocol.VALUE:
            self.collected.values[rank] = value
        else:
            super()._open(rank, tag, body, value)
