"""Runs a learner's function on real ranks and returns what a judge may see.

    check's process                        rank r (fresh, by dtlab.launch)
    Trial(world_size, cases)
    case.given(r, world_size)  ─────────>  for each case:
                                               case.on_rank(fn, given)
                                                   fn(...)
    Observation(results, trace | error) <────  plain data
    case.mistake(results)

A judge sees plain data, the trace and the counters of the operating system; the learner's function
never runs in the judge's process. A rank sees what it is given itself: neither the seed that it
was drawn from, nor what other ranks have.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.errors import DeadlockError, Failure, RankError, RanksError, RankTimeoutError
from dtlab.grading.words import count_ranks, ranks_in_words

if TYPE_CHECKING:
    from dtlab.predict import Cluster
    from dtlab.ranks.launch.launcher import Run
    from dtlab.trace import Trace

__all__ = ["UNREADABLE", "Case", "Observation", "Trial", "drawn_seed", "observe", "observed",
           "run_cases", "run_here"]  # fmt: skip

UNREADABLE = "what the ranks return is not what is asked for."
TIME_LIMIT = 4.0  # seconds for one launch: a right answer takes a tenth of one

_NOTE = re.compile(r"\(in case (\d+) of this check\)")


class Case(ABC):
    """One use of the learner's function, with all that is needed to judge it.

    It holds a seed rather than tensors, and says itself in words as `str`: "7 elements". It stays
    in the check's process, save for `on_rank`. Where it is `alone`, it is about no ranks at all,
    and words speak of none. `finished` are modules whose functions do not count as an answer,
    `allowed` names in them that do.
    """

    alone: ClassVar[bool] = False
    finished: ClassVar[tuple[str, ...]] = ()
    allowed: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def given(self, rank: int, world_size: int) -> Any:
        """What one rank gets to know, and no other: its inputs, what to call with them."""

    @staticmethod
    @abstractmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        """Runs on every rank: calls `fn` with what is given, returns what is to be seen of it.

        It returns numbers, text, tensors, and lists and dicts of these.
        """

    def opened(self, result: Any) -> Any:
        """What `on_rank` returned, as it came back (tuples as lists), in the judge's own form.

        Raises anything where it is no such thing: a rank may have sent whatever it wanted.
        """
        return result

    @abstractmethod
    def mistake(self, results: Sequence[Any]) -> str:
        """What is wrong with what the ranks returned; empty if nothing is."""


@dataclass(frozen=True)
class Trial:
    """One launch, in which every rank goes through the same cases in the same order.

    `cluster` is the emulated interconnect on which it runs, if any; of a `secret` trial, words
    tell no more than how many ranks there were. `limit` is in seconds: functions of ours that
    train for a while have more, since a busy machine must not cost an answer its points.
    """

    world_size: int
    cases: Sequence[Case]
    cluster: Cluster | None = None
    secret: bool = False
    limit: float = TIME_LIMIT

    @property
    def calls(self) -> list[Callable[..., Any]]:
        """What a rank runs for each case: functions, which know nothing of seeds."""
        return [type(case).on_rank for case in self.cases]

    def given(self, rank: int) -> list[Any]:
        """What a rank is given for each case."""
        return [case.given(rank, self.world_size) for case in self.cases]

    def words(self, case: int | None = None) -> str:
        """What is tried, "5 ranks, 7 elements"; without the case where that is not known.

        Without the ranks, where it is about none.
        """
        ranks = count_ranks(self.world_size)
        if self.secret or (case is None and len(self.cases) > 1):
            return ranks
        one = self.cases[case or 0]
        return str(one) if self.world_size == 1 and one.alone else f"{ranks}, {one}"


@dataclass(frozen=True)
class Observation:
    """What was seen of one trial.

    `results[case][rank]` is what a case returned; empty where the launch failed: then `error` is
    set. `resident[rank]` are bytes of memory by the kernel's count, each time that a case asked.
    """

    trial: Trial
    results: list[list[Any]] = field(default_factory=list)
    trace: Trace | None = None
    error: RanksError | None = None
    resident: list[list[int | None]] = field(default_factory=list)

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
        said = [(number, _mistake(case, results)) for number, (case, results) in found]
        return [f"{self.trial.words(number)}, {what}" for number, what in said if what]

    @property
    def failed_case(self) -> int | None:
        """Which case the failing rank was in, None where that is not known."""
        failure = self.failure
        noted = _NOTE.search(failure.traceback or failure.message) if failure else None
        return int(noted[1]) if noted else None

    @property
    def failed_function(self) -> str:
        """Which function of the learner's failed, the innermost one; empty if it is not known."""
        failure = self.failure
        if failure is None or failure.line is None:
            return ""
        frames = re.findall(r", line (\d+), in (\w+)", failure.traceback or "")
        return next((name for line, name in reversed(frames) if int(line) == failure.line), "")

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


def drawn_seed(seed: int, what: str = "") -> int:
    """A seed that a rank may know: it draws with it, and cannot compute `seed` from it."""
    digest = hashlib.sha256(f"{seed} {what}".encode()).digest()
    return int.from_bytes(digest[:6])


def observe(trial: Trial, fn: Callable[..., Any]) -> Observation:
    """Launches `fn` on the ranks of `trial`, without showing what they print.

    Ranks talk through gloo, whose traffic the operating system counts, also where there are GPUs.
    Raises `LaunchError` where no ranks can run: that is not the learner's doing.
    """
    from dtlab.ranks.launch.launcher import launch

    given = [trial.given(rank) for rank in range(trial.world_size)]

    def attempt() -> Run:
        with redirect_stdout(StringIO()):
            return launch(
                run_here,
                fn,
                trial.calls,
                given,
                world_size=trial.world_size,
                backend="gloo",
                timeout=trial.limit,
                cluster=trial.cluster,
            )

    return observed(trial, attempt)


def observed(trial: Trial, attempt: Callable[[], Run]) -> Observation:
    """What comes of launching `run_cases` on the ranks of a trial."""
    from dtlab.ranks.plain import decode

    try:
        run = attempt()
    except RanksError as error:
        return Observation(trial, error=error)
    try:
        by_rank = [decode(value) for value in run.values]
        results = [
            [case.opened(result) for result in case_results]
            for case, case_results in zip(trial.cases, zip(*by_rank, strict=True), strict=True)
        ]
    except Exception as error:  # noqa: BLE001  ranks may send whatever they want
        failure = Failure("result", f"sent back what cannot be read: {type(error).__name__}")
        return Observation(trial, error=RankError(str(failure.message), failures={0: failure}))
    return Observation(trial, results, run.trace, resident=run.resident)


def run_cases(fn: Callable[..., Any], calls: Sequence[Callable[..., Any]], given: Any) -> bytes:
    """Runs on every rank."""
    from dtlab.ranks.plain import encode

    results = []
    for number, (on_rank, own) in enumerate(zip(calls, given, strict=True)):
        try:
            results.append(on_rank(fn, own))
        except Exception as error:
            error.add_note(f"(in case {number} of this check)")
            raise
    return encode(results)


def run_here(fn: Callable[..., Any], calls: Sequence[Callable[..., Any]], given: Any) -> bytes:
    """Runs on every rank of a learner's own machine, where there is nothing to hide."""
    import torch.distributed as dist

    return run_cases(fn, calls, given[dist.get_rank()])


def _mistake(case: Case, results: Sequence[Any]) -> str:
    """What a case says; ranks may have returned things that it cannot even be asked about."""
    try:
        return case.mistake(results)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return UNREADABLE


def _hang(error: RanksError, trial: Trial) -> str:
    """What happened, who is in which line, and what to do: as the watcher says it, if it does."""
    stuck = error.waiting if isinstance(error, DeadlockError) else []
    stuck = error.running if isinstance(error, RankTimeoutError) else stuck
    advice = error.advice if isinstance(error, DeadlockError) else ""
    misfit = (error.mismatch or "") if isinstance(error, DeadlockError) else ""
    if misfit and misfit not in advice:  # tags, in which ranks wait for each other, are in it
        lines = [f"{trial.words()}: what the ranks call does not fit together.", misfit]
    else:
        within = f" within {trial.limit:g} s" if isinstance(error, RankTimeoutError) else ""
        lines = [f"{trial.words()}: the ranks do not come back{within}."]
    alike: dict[tuple[str, str], list[int]] = {}
    for entry in stuck:
        alike.setdefault((entry.op, entry.place), []).append(entry.rank)
    for (operation, place), ranks in alike.items():
        verb = "is" if len(ranks) == 1 else "are"
        doing = "still computing" if operation == "compute" else f"in {operation}"
        lines.append(f"{ranks_in_words(ranks)} {verb} {doing}   {place}".rstrip())
    lines.append(advice or _usual_cause({entry.op for entry in stuck}))
    return "\n".join(lines)


def _usual_cause(operations: Collection[str]) -> str:
    """What to do where nobody else says it: a time limit has no watcher's advice."""
    if operations and all(operation.startswith("recv") for operation in operations):
        return "Every rank receives before it sends, so nobody sends: post isend, then receive."
    if operations and all(operation == "compute" for operation in operations):
        return "Look for a loop that does not end, or for work that takes far too long."
    if "compute" in operations:
        return (
            "Look for a loop that does not end, or for work that takes far too long: the other "
            "ranks wait for the one that is in it."
        )
    if operations and not any(one in ("send", "recv") for one in operations):
        return "All members of a group have to call its collectives, equally often and in order."
    return "Look for a receive whose send never comes, or the other way round."
