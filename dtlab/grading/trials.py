"""Runs a learner's function on real ranks and brings back what a judge may see.

    check's process                        ranks (fresh, by dtlab.launch)
    Trial(world_size, cases)  ──────────>  for case in cases:
                                               case.on_rank(fn)
                                                   inputs made from the case's seed
                                                   fn(inputs)
    Observation(results, trace | error) <────  tensors
    case.mistake(results)

A judge sees tensors, the trace and the counters of the operating system; the learner's function
never runs in the judge's process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, Protocol

from dtlab.errors import DeadlockError, Failure, RankError, RanksError, RankTimeoutError
from dtlab.grading.words import count_ranks, ranks_in_words

if TYPE_CHECKING:
    from dtlab.predict import Cluster
    from dtlab.trace import Trace

__all__ = ["Case", "Observation", "Trial", "observe"]

TIME_LIMIT = 4.0  # seconds for one launch: a right answer takes a tenth of one

_NOTE = re.compile(r"\(in case (\d+) of this check\)")


class Case(Protocol):
    """One use of the learner's function, with all that is needed to judge it.

    It holds a seed rather than tensors, and says itself in words as `str`: "7 elements".
    """

    def on_rank(self, fn: Callable[..., Any]) -> Any:
        """Runs on every rank: makes this rank's inputs, calls `fn`, returns what is to be seen."""
        ...

    def mistake(self, results: Sequence[Any]) -> str:
        """Runs in the check's process: what is wrong with what the ranks returned, or nothing."""
        ...


@dataclass(frozen=True)
class Trial:
    """One launch, in which every rank goes through the same cases in the same order.

    `cluster` is the emulated interconnect on which it runs, if any.
    """

    world_size: int
    cases: Sequence[Case]
    cluster: Cluster | None = None

    def words(self, case: int | None = None) -> str:
        """What is tried, "5 ranks, 7 elements"; without the case where that is not known."""
        ranks = count_ranks(self.world_size)
        if case is None and len(self.cases) > 1:
            return ranks
        return f"{ranks}, {self.cases[case or 0]}"


@dataclass(frozen=True)
class Observation:
    """What was seen of one trial.

    `results[case][rank]` is what a case returned; empty where the launch failed: then `error` is
    set.
    """

    trial: Trial
    results: list[list[Any]] = field(default_factory=list)
    trace: Trace | None = None
    error: RanksError | None = None

    @property
    def hung(self) -> bool:
        """Whether the ranks did not come back by themselves."""
        return isinstance(self.error, (DeadlockError, RankTimeoutError))

    @property
    def failure(self) -> Failure | None:
        """The failure of the guilty rank, None where none failed."""
        failures = self.error.failures if isinstance(self.error, RankError) else {}
        return next(iter(failures.values()), None)

    @property
    def unwritten(self) -> bool:
        """Whether the blank still stands as it was handed out."""
        message = self.failure.message if self.failure is not None else ""
        return next(iter(message.splitlines()), "").rstrip("():") == "NotImplementedError"

    @cached_property
    def mistakes(self) -> list[str]:
        """What is wrong, a sentence for each case that is; why the launch failed, where it did."""
        if self.error is not None:
            return [self.trouble]
        found = enumerate(zip(self.trial.cases, self.results, strict=True))
        said = [(number, case.mistake(results)) for number, (case, results) in found]
        return [f"{self.trial.words(number)}, {what}" for number, what in said if what]

    @property
    def failed_case(self) -> int | None:
        """Which case the failing rank was in, None where that is not known."""
        failure = self.failure
        noted = _NOTE.search(failure.traceback or failure.message) if failure else None
        return int(noted[1]) if noted else None

    @property
    def trouble(self) -> str:
        """What went wrong in this launch, in words; empty where nothing did."""
        if self.error is None:
            return ""
        return _hang(self.error, self.trial) if self.hung else self._crash()

    def _crash(self) -> str:
        where = self.trial.words(self.failed_case)
        if self.failure is None:
            return f"{where}: {self.error}"
        what = next(iter(self.failure.message.splitlines()), self.failure.kind)
        return f"{where}: {what}\n{self.failure.place}".rstrip()


def observe(trial: Trial, fn: Callable[..., Any]) -> Observation:
    """Launches `fn` on the ranks of `trial`, without showing what they print.

    Ranks talk through gloo, whose traffic the operating system counts, also where there are GPUs.
    Raises `LaunchError` where no ranks can run: that is not the learner's doing.
    """
    from dtlab.ranks.launch import launch

    ranks, limit = trial.world_size, TIME_LIMIT
    try:
        with redirect_stdout(StringIO()):
            run = launch(
                _run_cases,
                fn,
                trial,
                world_size=ranks,
                backend="gloo",
                timeout=limit,
                cluster=trial.cluster,
            )
    except RanksError as error:
        return Observation(trial, error=error)
    results = [list(case) for case in zip(*run.values, strict=True)]
    return Observation(trial, results, run.trace)


def _run_cases(fn: Callable[..., Any], trial: Trial) -> list[Any]:
    """Runs on every rank."""
    results = []
    for number, case in enumerate(trial.cases):
        try:
            results.append(case.on_rank(fn))
        except Exception as error:
            error.add_note(f"(in case {number} of this check)")
            raise
    return results


def _hang(error: RanksError, trial: Trial) -> str:
    """Who waits in which line, and the usual cause where it shows."""
    stuck = error.waiting if isinstance(error, DeadlockError) else []
    stuck = error.running if isinstance(error, RankTimeoutError) else stuck
    lines = [f"{trial.words()}: the ranks do not come back."]
    if isinstance(error, DeadlockError) and error.mismatch:
        lines.append(error.mismatch)
    alike: dict[tuple[str, str], list[int]] = {}
    for entry in stuck:
        alike.setdefault((entry.op, entry.place), []).append(entry.rank)
    for (operation, place), ranks in alike.items():
        verb = "is" if len(ranks) == 1 else "are"
        doing = "still computing" if operation == "compute" else f"in {operation}"
        lines.append(f"{ranks_in_words(ranks)} {verb} {doing}   {place}".rstrip())
    lines.append(_usual_cause({entry.op for entry in stuck}))
    return "\n".join(lines)


def _usual_cause(operations: Collection[str]) -> str:
    if operations and all(operation.startswith("recv") for operation in operations):
        return "Every rank receives before it sends, so nobody sends: post isend, then receive."
    if operations and all(operation == "compute" for operation in operations):
        return "Look for a loop that does not end."
    if operations and not any(one in ("send", "recv", "compute") for one in operations):
        return "All members of a group have to call its collectives, equally often and in order."
    return "Look for a receive whose send never comes, or the other way round."
