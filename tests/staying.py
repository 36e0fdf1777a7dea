"""Ranks that stay from one test to the next, which makes a test on ranks several times cheaper.

A fresh rank costs about 30 ms of CPU time, and again what it takes to import the test's module.
Most tests on ranks are about numbers and bytes, not about launching, so they use sessions. Runs on
an emulated cluster are launched all the same: a session of each would be used once.

    on_ranks(fn, *args, world_size=4)          as dtlab.launch
    part.check.run(symbol, answer, bench=BENCH)   as dtlab.check

`make proof` judges every known answer on fresh ranks, as learners do.

Ranks that hung, died, left a collective half done or a thread behind are closed, so that no other
test runs where they did. After each turn the process groups that it made are destroyed.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from typing import Any

import psutil

import dtlab
from dtlab.checks.functions.bench import HERE, warm_up
from dtlab.checks.functions.trials import Observation, Trial, observe, observed, run_here
from dtlab.errors import RankError, RanksError, RankTimeoutError
from dtlab.ranks.launch import arguments as asked
from dtlab.ranks.launch.launcher import Run, launch
from dtlab.ranks.session.notebook import Session
from dtlab.ranks.transport import pack
from tests.leftovers import STAYING

__all__ = ["BENCH", "StayingBench", "on_ranks", "serve_this_process"]


class StayingBench:
    """A session for each world size, opened when it is first needed.

    It stands in for `checking.bench.HERE`, on which checks run answers on fresh ranks.
    """

    student: str | None = None

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}  # by world size
        self._processes: dict[int, set[int]] = {}  # the ranks and their supervisor
        self._ranks: dict[int, list[int]] = {}
        self._seen: deque[tuple[str, Callable[..., Any], Observation]] = deque(maxlen=8)

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        world_size: int = 2,
        timeout: float = 30.0,
    ) -> Run:
        """Run `fn` with the arguments, the result and the errors of `dtlab.launch`."""
        session = self._opened(world_size)
        self._signal(world_size, signal.SIGCONT)
        try:
            run = session.run(_turn, fn, args, timeout=timeout)
        except RanksError as error:
            plain = isinstance(error, RankError) and session.is_open and not session.renewed
            if not plain:
                self._close(world_size)
            raise
        else:
            if any(threads for _, threads in run.values):
                self._close(world_size)
        finally:  # gloo's idle threads wake up 100 times a second
            self._signal(world_size, signal.SIGSTOP)
        run.values = [value for value, _ in run.values]
        return run

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """The observation of `fn` in a trial, as `trials.observe` gives it on fresh ranks.

        The same function is observed once with the same inputs: answers that differ in their
        diagnosis only hand in the same program, and a check may compare every answer with the same
        broken program. On an emulated cluster, where times count, it is observed each time, and
        under a limit of memory, which fresh ranks have, too. Where a time limit has passed, it is
        observed once more, on fresh ranks.
        """
        if trial.cluster is not None or trial.memory is not None:
            return observe(trial, fn)
        given = [trial.given(rank) for rank in range(trial.world_size)]
        inputs = _digest((trial.calls, trial.limit, given))
        asks = any(case.dialogue(0, trial.world_size) is not None for case in trial.cases)
        for known, function, observation in self._seen:
            if function is fn and known == inputs and not asks:  # else inputs come later
                return replace(observation, trial=trial)

        def attempt() -> Run:
            with redirect_stdout(StringIO()):
                size, limit = trial.world_size, trial.limit
                return self.run(run_here, fn, trial.calls, given, world_size=size, timeout=limit)

        observation = observed(trial, attempt)
        if isinstance(observation.error, RankTimeoutError):
            # The machine may have stood still. An endless loop runs out of time there, too.
            observation = observe(trial, fn)
        self._seen.append((inputs, fn, observation))
        return observation

    def close(self) -> None:
        """End all ranks."""
        for size in list(self._sessions):
            self._close(size)

    def _opened(self, size: int) -> Session:
        if size in self._sessions and not self._lives(size):  # a test has ended the warm server
            self._close(size)
        if size not in self._sessions:
            if not self._sessions:
                warm_up()
            spec = asked.spec_for(size, "gloo", 30.0, True, 0, None, None, None)
            session = Session(replace(spec, stays=True))
            self._sessions[size] = session
            pids = session.run(_pids).values
            self._ranks[size] = [rank for rank, _ in pids]
            self._processes[size] = {pid for pair in pids for pid in pair}
            STAYING.update(self._processes[size])
        return self._sessions[size]

    def _lives(self, size: int) -> bool:
        return all(psutil.pid_exists(pid) for pid in self._processes[size])

    def _signal(self, size: int, what: signal.Signals) -> None:
        for pid in self._ranks.get(size, ()):
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def _close(self, size: int) -> None:
        self._signal(size, signal.SIGCONT)
        self._sessions.pop(size).close()
        STAYING.difference_update(self._processes.pop(size, ()))
        del self._ranks[size]


BENCH = StayingBench()


def on_ranks(fn: Callable[..., Any], *args: Any, **options: Any) -> Run:
    """Launch like `dtlab.launch`, on ranks that stay, or on fresh ones if an option needs them."""
    if options.get("backend") == "gloo":
        del options["backend"]
    if options.keys() <= {"world_size", "timeout"}:
        return BENCH.run(fn, *args, **options)
    return launch(fn, *args, **options)


def serve_this_process() -> None:
    """Have every check and every `dtlab.launch` in this process run on ranks that stay."""

    def on_bench(here: Any, trial: Trial, fn: Callable[..., Any]) -> Observation:
        return BENCH.observe(trial, fn)

    type(HERE).observe = on_bench  # type: ignore[method-assign]
    dtlab.launch = on_ranks  # type: ignore[attr-defined]


def _digest(inputs: Any) -> str:
    """A digest of the arguments of ranks."""
    packed, digest = pack(inputs), hashlib.sha256()
    for part in (packed.pickled, *packed.buffers):
        digest.update(part)
    return digest.hexdigest()


def _pids() -> tuple[int, int]:
    """Runs on a rank: its process and its supervisor's."""
    return os.getpid(), os.getppid()


def _turn(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, int]:
    """Runs on a rank: a call that begins in the state in which a fresh rank begins.

    Returns the value, and how many threads the call has left behind, without the recorder's.
    """
    import gc
    import random
    import threading

    import numpy as np
    import torch
    import torch.distributed as dist

    from dtlab.ranks.launch.process import fill_main

    # Only now has every rank returned from its last call: a group that one rank destroys at the
    # end of a call may still be connecting on another.
    world: Any = dist.distributed_c10d._world
    for group in [each for each in world.pg_map if each is not dist.group.WORLD]:
        dist.destroy_process_group(group)
    fill_main(fn)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    before = set(threading.enumerate())
    try:
        value = fn(*args)
        left = set(threading.enumerate()) - before
        return value, sum(not thread.name.startswith("dtlab-") for thread in left)
    finally:
        gc.collect()
        gc.freeze()  # without it, each turn would look through all that earlier ones imported
