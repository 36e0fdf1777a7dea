"""A bench in a sandbox, for the functions that a learner handed in.

    judge's process                             behind walls (sandbox/walls.py), another user
    trial.given(r)  ──── rank r only ────────►  ranks open the sealed function, and run it
    Observation     ◄─── plain data ──────────  tensors, records, failures
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dtlab.errors import RanksError, RankTimeoutError
from dtlab.grading.checking.trials import Observation, Trial, observed, run_cases
from dtlab.grading.report import Criterion
from dtlab.ranks.launch.client import Server
from dtlab.ranks.plain import Sealed
from dtlab.ranks.sandbox.enclosure import Enclosure
from dtlab.ranks.sandbox.walls import AbsentModules, Walls

if TYPE_CHECKING:
    from dtlab.ranks.launch.launcher import Run

__all__ = ["WalledBench"]

_OPERATION = re.compile(r"\w{1,20}(\([a-z]{0,5}=?[\d, ]{0,12}\))?")
_LOOK = "Run the check in your notebook: it says in which line."
MEMORY = 2 * 2**30  # bytes that a rank may take beyond what a fresh one has


class WalledBench:
    """Runs the functions of one submission. `Bench` says what it is for.

    It notes in `timed_out` whether ranks had to be ended at their time limit, and in `unwritten`
    whether a blank stands as it was handed out.
    """

    def __init__(self, server: Server, walls: Walls, student: str | None) -> None:
        self.student = student
        self._server, self._walls = server, walls
        self._enclosure: Enclosure | None = None
        self.begin(())

    def begin(self, absent: AbsentModules) -> None:
        """Forget the answer before; ranks of the next one lack these functions of the library."""
        if absent != self._walls.absent:
            self.close()
            self._walls = replace(self._walls, absent=absent)
        self.timed_out = self.unwritten = False
        self._troubles: list[tuple[str, str]] = []  # in full, and in words that are all ours

    @property
    def missing(self) -> list[str]:
        """The walls that the system refused."""
        return self._behind().missing

    def observe(self, trial: Trial, fn: Callable[..., Any]) -> Observation:
        """See `Bench`. What is said of it names no hidden input, only the number of ranks."""
        from dtlab.ranks.launch.launcher import launch_sealed

        def attempt() -> Run:
            return launch_sealed(
                _open_and_run,
                fn,
                trial.calls,
                inputs=[trial.given(rank) for rank in range(trial.world_size)],
                door=self._behind(),
                timeout=trial.limit,
                memory_limit=MEMORY,
                cluster=trial.cluster,
            )

        seen = observed(replace(trial, secret=True), attempt)
        self.timed_out = self.timed_out or isinstance(seen.error, RankTimeoutError)
        self.unwritten = self.unwritten or seen.unwritten
        if seen.error is not None and not _is_plain_hang(seen.error):
            what = "the ranks do not come back" if seen.hung else "a rank raises an exception"
            self._troubles.append((seen.trouble, f"{seen.trial.words()}: {what}. {_LOOK}"))
        return seen

    def without_troubles(self, one: Criterion) -> Criterion:
        """A criterion that tells nothing of what an answer may have said of its hidden inputs."""
        for trouble, harmless in self._troubles:
            if any(line and line in one.message for line in map(str.strip, trouble.splitlines())):
                return replace(one, message=harmless)
        return one

    def _behind(self) -> Enclosure:
        if self._enclosure is None:
            self._enclosure = Enclosure(self._server, self._walls)
        return self._enclosure

    def close(self) -> None:
        """End all that still runs."""
        if self._enclosure is not None:
            self._enclosure.close()
        self._enclosure = None


def _is_plain_hang(error: RanksError) -> bool:
    """Whether all that is said of it is lines of cells, and operations such as recv(src=1)."""
    return isinstance(error, RankTimeoutError) and all(
        _OPERATION.fullmatch(one.op) for one in error.running
    )


def _open_and_run(fn: Any, calls: Sequence[Callable[..., Any]], given: Any) -> bytes:
    """Runs on every rank: the only place where a sealed function is opened."""
    from dtlab.ranks.launch.process import fill_main
    from dtlab.ranks.transport import Packed

    if isinstance(fn, Sealed):
        fn = Packed(fn.pickled, fn.buffers).load()
        with contextlib.suppress(Exception):
            fill_main(fn)
    return run_cases(fn, calls, given)
