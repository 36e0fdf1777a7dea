"""One judge at a time uses what a process has only once.

These are the random generators of torch, NumPy and Python, the default dtype, and the number of
torch's threads. No judge changes the environment or the current folder: other threads use them
without a turn, so that no thread could restore them.

`dtlab grade` judges several submissions in threads of one process. A judge that computes the
right result with seeded random numbers would get other numbers if another judge drew in between.

    thread 1   own_turn ── trials ─┐ paused: its ranks run ┌─ faults ── done
    thread 2             waits     └─ own_turn ── trials ──┘ paused: its ranks run ...

A turn begins with the usual default dtype, keeps its own state over its pauses, and leaves
everything as it was found, so that a learner's kernel is not changed by a check.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["has_turn", "own_turn", "turn_paused"]

Restore = Callable[[], None]


class _Held(threading.local):
    """The turns of a thread: for each, what restores the state that it found."""

    def __init__(self) -> None:
        self.found: list[Restore] = []


_LOCK, _HELD = threading.Lock(), _Held()


@contextmanager
def own_turn() -> Iterator[None]:
    """Keeps other judges of this process waiting; restores the process's state at the end.

    May be used within another turn of the same thread, to restore the state earlier.
    """
    outermost = not _HELD.found
    if outermost:
        _LOCK.acquire()
    try:
        _HELD.found.append(_state())
        try:
            _usual_dtype()
            yield
        finally:
            _HELD.found[-1]()
            _HELD.found.pop()
    finally:
        if outermost:
            _LOCK.release()


def has_turn() -> bool:
    """Whether this thread has the turn now."""
    return bool(_HELD.found)


@contextmanager
def turn_paused() -> Iterator[None]:
    """Lets other judges continue, for example while ranks run. Does nothing outside of a turn."""
    if not _HELD.found:
        yield
        return
    found, own = _HELD.found, _state()
    found[0]()
    _HELD.found = []
    _LOCK.release()
    try:
        yield
    finally:
        _LOCK.acquire()
        _HELD.found = [_state(), *found[1:]]
        own()


def _state() -> Restore:
    """Returns a function that restores the present state of the process."""
    import numpy as np
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    of_torch, dtype = torch.get_rng_state(), torch.get_default_dtype()
    threads = torch.get_num_threads()

    def restore() -> None:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.set_rng_state(of_torch)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return restore


def _usual_dtype() -> None:
    """Sets the default dtype that fresh ranks have, since judges compare with their results."""
    import torch

    torch.set_default_dtype(torch.float32)
