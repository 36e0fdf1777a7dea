"""What runs on the rank in 11/server and 11/sharded: the learner's object, and no judge.

    check's process (server.py, sharded.py)           rank
    one call of the script            ── answer ──>   a method of the learner's object
    notes, comparisons, stored values <── ask ─────   what has ended; what a handle is to do

The rank learns each call only when the one before it has been reported, so an answer can neither
read what comes nor change what has been noted. What it reports is checked where it arrives.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
from typing import Any

from dtlab.ranks.asking import ask
from dtlab.ranks.plain import Opaque, decode, encode

__all__ = ["Actors", "Reference", "host_client", "host_server", "running"]

TURN = 1e-3  # simulated seconds of a turn of the loop
SETTLES = 1.0  # simulated seconds for which the loop runs on after each call


# 11/server ---------------------------------------------------------------------------------------


class _Selector(DefaultSelector):
    """Never waits: a clock jumps to the next timer, and each turn of the loop takes `TURN`."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.clock += max(timeout or 0.0, TURN)
        return super().select(0)


def running(coroutine: Any) -> Any:
    """Runs a coroutine on a loop with a simulated clock, and returns its result."""
    clock = _Selector()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.clock  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def host_server(fn: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Makes the learner's actor and its calls, and reports the names of forgotten awaits."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        running(_actor(fn, arguments))
    texts = " ".join(str(each.message) for each in caught)
    ask(re.findall(r"'(\S+)' was never awaited", texts))


async def _actor(fn: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Makes the calls that the judge sends, as Ray does: arguments and results are copies.

    The report after a call is a list of the calls that have ended since: number and value. At the
    command "later" it has, for each call that has ended, what its result contains now, and what
    the tensors that were in it contain now.
    """
    actor, tasks = fn(*arguments), list[asyncio.Task[Any]]()
    results: dict[int, Any] = {}  # shallow copies, so that they show what happens to the tensors
    report: list[Any] = []
    while command := ask(report):
        method, *more = command
        if method == "later":
            report = [
                [n, _copied(tasks[n].result()), _copied(kept)] for n, kept in results.items()
            ]
            continue
        coroutine = getattr(actor, method)(*more)
        if not inspect.isawaitable(coroutine):
            raise TypeError(f"{method} is not a coroutine: write async def {method}(self, ...)")
        tasks.append(asyncio.ensure_future(coroutine))
        await asyncio.sleep(SETTLES)
        ended = [n for n, task in enumerate(tasks) if task.done() and n not in results]
        report = [[n, _copied(tasks[n].result())] for n in ended]
        results |= {n: copy.copy(tasks[n].result()) for n in ended}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _copied(tensors: Any) -> Any:
    if not isinstance(tensors, dict):
        return None
    return {str(name): tensor.detach().clone() for name, tensor in tensors.items()}


# 11/sharded --------------------------------------------------------------------------------------


def host_client(fn: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Makes the learner's client, and uses it as the judge says; reports what it returns."""
    actors = Actors(ask)
    client = fn(*arguments, actors.make)
    report: Any = None
    while command := ask(["next", report]):
        method, *more = command
        if method == "pull":
            report = _tensors(client.pull(*more, actors.get))
        elif method == "push":
            client.push(*more, actors.get)
            report = None
        else:
            count, data = more
            workers = [actors.worker(number) for number in range(count)]
            started = client.start(workers, data, actors.put) or ()
            report = [each.number if isinstance(each, Reference) else -1 for each in started]


class Reference:
    """What a call returns at once; `get` gives the value."""

    def __init__(self, number: int) -> None:
        self.number = number


class Actors:
    """Makes handles, gets and puts. All of them only send plain data to the judge by `tell`."""

    def __init__(self, tell: Callable[[Any], Any]) -> None:
        self._tell = tell

    def make(self, shard: Any) -> Any:
        """Starts a server with these parameters, and returns its handle."""
        return _Handle(self, self.send("make", dict(shard)))

    def worker(self, number: int) -> Any:
        """Returns the handle of a worker."""
        return _Handle(self, number)

    def get(self, references: Any) -> Any:
        """Returns the value of a reference, or a list of those of several."""
        many = isinstance(references, (list, tuple))
        chosen = list(references) if many else [references]
        if not all(isinstance(each, Reference) for each in chosen):
            raise TypeError(f"get takes a reference or a list of them, not {references!r}"[:200])
        values = self.send("get", [each.number for each in chosen])
        return values if many else values[0]

    def put(self, value: Any) -> Reference:
        """Stores a value, and returns its reference."""
        return Reference(self.send("put", value))

    def send(self, *message: Any) -> Any:
        """Returns what the judge answers, or raises the error that it names."""
        error, value = self._tell(decode(encode(list(message), _as_opaque)))
        if error:
            kinds = {kind.__name__: kind for kind in (TypeError, ValueError, AttributeError)}
            raise kinds.get(error, RuntimeError)(value)
        return value


class _Handle:
    """The handle of an actor: `handle.pull.remote(...)` starts a call."""

    def __init__(self, actors: Actors, number: int) -> None:
        self._actors, self._number = actors, number

    def __getattr__(self, method: str) -> Any:
        if method not in ("pull", "push", "train"):
            raise AttributeError(f"the actor has no method {method!r}")
        return _Method(self._actors, self._number, method)


class _Method:
    def __init__(self, actors: Actors, number: int, name: str) -> None:
        self._actors, self._number, self._name = actors, number, name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"an actor's method is called with .{self._name}.remote(...)")

    def remote(self, *arguments: Any, **named: Any) -> Reference:
        call = self._number, self._name, list(arguments), named
        return Reference(self._actors.send("call", *call))


def _as_opaque(value: Any) -> Opaque:
    """A reference as a mark with its number; of anything else only the name of its type."""
    is_reference = isinstance(value, Reference)
    return Opaque(f"reference {value.number}" if is_reference else type(value).__name__)


def _tensors(tensors: Any) -> dict[str, Any]:
    """A dict of tensors as plain data; anything else in it becomes None."""
    return {
        str(name): tensor.detach().clone() if hasattr(tensor, "detach") else None
        for name, tensor in dict(tensors).items()
    }
