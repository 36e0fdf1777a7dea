"""`IsolatedBench`: runs the functions of a submission in a sandbox.

    judge's process                             in the sandbox (ranks/sandbox/), another user
    trial.given(r)  ──── rank r only ────────►  ranks unpickle the function, and run it
    Observation     ◄─── plain data ──────────  tensors, records, failures
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.resident import opening
from dtlab.checks.functions.trials import Observation, Trial, observed, run_cases
from dtlab.checks.report import Criterion
from dtlab.checks.turns import turn_paused
from dtlab.classroom.judging.rank_needs import judges
from dtlab.errors import RanksError, RankTimeoutError
from dtlab.ranks.launch.client import Server
from dtlab.ranks.plain import PickledFunction
from dtlab.ranks.sandbox.isolation import HiddenModules, Isolation
from dtlab.ranks.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from dtlab.ranks.launch.launcher import Run

__all__ = ["IsolatedBench"]

_OPERATION = re.compile(r"\w{1,20}(\([a-z]{0,5}=?[\d, ]{0,12}\))?")
_LOOK = "Run the check in your notebook: it shows the line."
STARVED = 2  # times the limit: only ranks that wait for a CPU may take so long
MEMORY = 2 * 2**30  # bytes that a rank may use in addition to a fresh rank's memory


class IsolatedBench:
    """A `Bench` that runs the functions of one submission in a sandbox.

    Ranks that run a function of the library itself, instead of the answer, have all of it.
    `timed_out` is True if ranks reached their time limit, and `unwritten` if the answer is still
    the blank of the notebook.
    """

    def __init__(self, server: Server, isolation: Isolation, student: str | None) -> None:
        self.student = student
        self._server, self._isolation = server, isolation
        self._sandbox: Sandbox | None = None
        self._inside = isolation  # of the sandbox, while there is one
        self.begin(())

    def begin(self, hidden: HiddenModules) -> None:
        """Prepares for the next answer, whose ranks do not have the `hidden` library modules."""
        self._isolation = replace(self._isolation, hidden_modules=hidden)
        self.timed_out = self.unwritten = False
        self._troubles: list[tuple[str, str]] = []  # full message, message without learner's text

    @property
    def missing(self) -> list[str]:
        """The kinds of isolation that the system does not support."""
        return self._sandbox_for(is_answer=True).missing

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """See `Bench`. Messages contain no hidden input, only the number of ranks."""
        from dtlab.ranks.launch.launcher import launch_graded

        inputs = [trial.given(rank) for rank in range(trial.world_size)]

        def attempt() -> Run:
            with turn_paused():
                return launch_graded(
                    _open_and_run,
                    fn,
                    trial.calls,
                    inputs=inputs,
                    door=self._sandbox_for(is_answer=isinstance(fn, PickledFunction)),
                    timeout=trial.limit,
                    memory_limit=MEMORY if trial.memory is None else trial.memory,
                    cluster=trial.cluster,
                )

        begun = time.monotonic()
        result = observed(replace(trial, secret=True), attempt)
        waited = time.monotonic() - begun > STARVED * trial.limit
        if isinstance(result.error, RankTimeoutError) and waited:
            # The ranks had too little of the CPUs, even with a stretched limit.
            result = observed(replace(trial, secret=True), attempt)
        self.timed_out = self.timed_out or isinstance(result.error, RankTimeoutError)
        self.unwritten = self.unwritten or result.unwritten
        if result.error is not None and not _is_plain_hang(result.error):
            problem = "the ranks did not finish" if result.hung else "a rank raises an exception"
            self._troubles.append((result.trouble, f"{result.trial.words()}: {problem}. {_LOOK}"))
        return result

    def without_troubles(self, criterion: Criterion) -> Criterion:
        """Removes error messages, in which an answer may have revealed its hidden inputs."""
        for trouble, safe in self._troubles:
            if any(
                line and line in criterion.message for line in map(str.strip, trouble.splitlines())
            ):
                return replace(criterion, message=safe)
        return criterion

    def _sandbox_for(self, is_answer: bool) -> Sandbox:
        """A sandbox, in which ranks of an answer do not have what judges it."""
        hidden = self._isolation.hidden_modules
        if is_answer:
            hidden = (*hidden, *judges())
        isolation = replace(self._isolation, hidden_modules=hidden)
        if self._sandbox is None or isolation != self._inside:
            self.close()
            self._sandbox, self._inside = Sandbox(self._server, isolation), isolation
        return self._sandbox

    def close(self) -> None:
        """Ends all processes that still run."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._sandbox = None


def _is_plain_hang(error: RanksError) -> bool:
    """Whether the message contains only lines of cells and operations such as recv(src=1)."""
    return isinstance(error, RankTimeoutError) and all(
        _OPERATION.fullmatch(entry.op) for entry in error.running
    )


def _open_and_run(fn: Any, calls: Sequence[Callable[..., Any]], given: Any) -> bytes:
    """Runs on every rank: unpickles the function, which happens nowhere else, and runs it."""
    from dtlab.ranks.launch.process import fill_main
    from dtlab.ranks.transport import Packed

    opening(calls)
    if isinstance(fn, PickledFunction):
        fn = Packed(fn.pickled, fn.buffers).load()
        with contextlib.suppress(Exception):
            fill_main(fn)
    return run_cases(fn, calls, given)
