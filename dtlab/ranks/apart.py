"""Runs a function in a fork of a rank, which can be killed while the rank continues.

    rank     apart(run) ── fork ──> child    run() ... killed, or to its end
      waits, returns True or False <───┘     what run raises is raised in the rank

A check uses this for runs that are killed and started again: nothing but files survives a kill,
and the killed code can neither catch the kill nor clean up after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

import torch

from dtlab.ranks import system
from dtlab.ranks.launch.process import RaisedApart, describe, flush
from dtlab.ranks.plain import decode, encode
from dtlab.ranks.protocol import RemoteFailure
from dtlab.ranks.watch import stacks

__all__ = ["apart", "die"]


def apart(run: Callable[[], None]) -> bool:
    """Call `run` in a fork of this rank; return whether it came to its end and was not killed.

    Raises `RaisedApart` with the failure if `run` raises. If the fork exits, so does this rank; if
    a signal other than SIGKILL ends it, this rank ends with the same signal.
    """
    reader, writer = os.pipe()
    flush()
    child = os.fork()
    if not child:
        os.close(reader)
        _be_child(run, writer)
    os.close(writer)
    with stacks.answered_by(child), open(reader, "rb") as pipe:
        sent = pipe.read()
        _, status = os.waitpid(child, 0)
    if sent:
        failure = decode(sent)
        if failure is not None:
            raise RaisedApart(RemoteFailure.of(failure))
        return True
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def die() -> NoReturn:
    """Kill this process, which a fork of `apart` may do at any moment."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def _be_child(run: Callable[[], None], writer: int) -> NoReturn:
    try:
        system.die_with_parent()
        torch.set_num_threads(1)  # the threads of the rank do not exist here
        try:
            run()
            failure = None
        except BaseException as error:  # noqa: BLE001  raised in the rank
            failure = tuple(vars(describe(error)).values())
        flush()
        os.write(writer, encode(failure))
    finally:
        die()
