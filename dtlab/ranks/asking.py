"""Messages from a rank to the process that has launched it, in the middle of a function.

    launching process                       rank
    with answering(reply): launch(f)        f:  answer = ask(message)
         reply(rank, message)   <── plain data ──┘  ▲
                                 ── plain data ─────┘

A check uses this for data that an answer must not see too early, or must not be able to change:
the judge keeps the data in its own process, and the rank gets one piece at a time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from dtlab.ranks import protocol
from dtlab.ranks.plain import decode, encode
from dtlab.ranks.transport import receive_frame, send_frame

__all__ = ["Dialogue", "Dialogues", "Refused", "Reply", "answered", "answering", "ask", "connect",
           "current_reply", "in_dialogue"]  # fmt: skip

Reply = Callable[[int, Any], Any]  # of a rank and its message


class Refused(Exception):
    """The message is refused; its text says why. `ask` raises it in the rank."""


_REPLY: ContextVar[Reply | None] = ContextVar("reply", default=None)


@contextmanager
def answering(reply: Reply) -> Iterator[None]:
    """Answers with `reply(rank, message)` what the ranks of a launch in this context ask.

    `reply` runs in the thread that called `launch`, and takes and returns plain data (plain.py).
    The message may be anything that a rank can make, so `reply` must check it. If it raises
    `Refused`, or any other exception because the message is not what it expects, `ask` raises
    `Refused` in the rank.
    """
    token = _REPLY.set(reply)
    try:
        yield
    finally:
        _REPLY.reset(token)


def current_reply() -> Reply | None:
    """The function of the innermost `answering`, if there is one."""
    return _REPLY.get()


def answered(reply: Reply | None, rank: int, message: Any) -> bytes:
    """Calls `reply` for a message of a rank, and encodes what the rank's `ask` must do."""
    if reply is None:
        return encode(["a rank asks a question, but the launch is not inside `answering`.", None])
    try:
        return encode(["", reply(rank, message)])
    except Refused as why:
        return encode([str(why), None])
    except Exception as error:  # noqa: BLE001  a rank may have sent anything
        return encode([f"this message cannot be used: {type(error).__name__}: {error}", None])


Dialogue = Generator[Any, Any, Any]  # yields answers, receives messages, returns its result


class Dialogues:
    """Answers from generators, one for each rank and each number of a dialogue.

    `begin(number, rank)` makes one when the rank first asks in that dialogue. It runs up to its
    first `yield`, which receives the first message; the next one yields the answer to it:

        message = yield
        while message != "over":
            message = yield f"answer to {message}"
        return "the result"

    A rank that asks on after the end gets None. Whatever a rank sends, it only reaches the
    generator, so what the generator keeps and returns is out of the rank's reach.
    """

    def __init__(self, begin: Callable[[int, int], Dialogue]) -> None:
        self._begin = begin
        self._running: dict[tuple[int, int], Dialogue] = {}
        self.results: dict[tuple[int, int], Any] = {}  # by number and rank, of those at their end

    def reply(self, rank: int, message: Any) -> Any:
        """Passes a message of `ask` in `in_dialogue(number)` to its generator. A `Reply`."""
        number, content = message
        key = int(number), rank
        if key in self.results:
            return None
        if key not in self._running:
            self._running[key] = self._begin(*key)
            next(self._running[key])
        try:
            return self._running[key].send(content)
        except StopIteration as end:
            self.results[key] = end.value
            return None
        except Refused:
            raise
        except Exception:
            self.results[key] = None
            raise


# On the rank -------------------------------------------------------------------------------------


class _Line:
    """The rank's end of the channel to the process that launched it."""

    def __init__(self) -> None:
        self.channel: socket.socket | None = None
        self.sending: AbstractContextManager[Any] = nullcontext()
        self.asking = threading.Lock()  # one question at a time
        self.number: int | None = None  # of the dialogue


_LINE = _Line()


def connect(channel: socket.socket, sending: AbstractContextManager[Any]) -> None:
    """Makes `ask` in this rank use `channel`; `sending` is held while a frame is sent."""
    _LINE.channel, _LINE.sending = channel, sending


@contextmanager
def in_dialogue(number: int) -> Iterator[None]:
    """What is asked inside belongs to this dialogue of `Dialogues`."""
    _LINE.number = number
    try:
        yield
    finally:
        _LINE.number = None


def ask(message: Any) -> Any:
    """Sends plain data to the process that launched this rank, and returns its answer.

    Raises `NotPlain` for a message that is not plain data, and `Refused` if it gets no answer.
    """
    if _LINE.channel is None:
        raise Refused("no process answers here: only a rank of dtlab.launch can ask.")
    with _LINE.asking:
        encoded = encode(message if _LINE.number is None else [_LINE.number, message])
        with _LINE.sending:
            send_frame(_LINE.channel, protocol.ASK, encoded)
        _, body = receive_frame(_LINE.channel)
    why, answer = decode(body)
    if why:
        raise Refused(why)
    return answer
