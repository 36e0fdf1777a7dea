"""Runs a learner's function on real ranks and returns an observation for the judge.

    check's process                        rank r (fresh, by dtlab.launch)
    Trial(world_size, cases)
    case.given(r, world_size)  ─────────>  for each case:
                                               case.on_rank(fn, given)
                                                   fn(...)
    Observation(results, trace | error) <────  plain data
    case.mistake(results)

A judge gets plain data, the trace and the counters of the operating system. The learner's function
never runs in the judge's process. A rank gets its own inputs, but not their seed, and not the
inputs of other ranks.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.words import count_ranks, ranks_in_words
from dtlab.errors import (
    DeadlockError,
    Failure,
    RankError,
    RanksError,
    RankTimeoutError,
    Waiting,
    place_in_words,
)

if TYPE_CHECKING:
    from dtlab.predict import Cluster
    from dtlab.ranks.asking import Dialogue
    from dtlab.ranks.launch.launcher import Run
    from dtlab.show import Figure
    from dtlab.trace import Trace

__all__ = ["BEGIN", "LONG", "UNREADABLE", "Case", "Observation", "Recording", "Trial",
           "drawn_seed", "observe", "observed", "run_cases", "run_here"]  # fmt: skip

UNREADABLE = "what the ranks return is not what is asked for."
TIME_LIMIT = 4.0  # seconds for one launch: a right answer takes a tenth of one
LONG = 20.0  # the same, where much memory is used: it takes seconds on a machine that has little

BEGIN = "\x1e"  # followed by the number of a case: begins what a rank prints in this case

_NOTE = re.compile(r"\(in case (\d+) of this check\)")
_DEFINED = re.compile(r"^\(the answer is defined in ((.*?), line (\d+).*)\)$", re.MULTILINE)


class Case(ABC):
    """One use of the learner's function, with all data that judging it needs.

    It holds a seed rather than tensors; `str` describes it in words: "7 elements". It stays in the
    check's process, except for `on_rank`. A case that is `alone` does not concern several ranks,
    so messages mention none. `finished` are modules whose functions do not count as an answer;
    `allowed` are names in them that do. `advices` are hints by words of the message on a crash.
    `limit` is in seconds: that of a launch with this case.
    """

    alone: ClassVar[bool] = False
    limit: ClassVar[float] = TIME_LIMIT
    advices: ClassVar[Mapping[str, str]] = {}
    finished: ClassVar[tuple[str, ...]] = ()
    allowed: ClassVar[tuple[str, ...]] = ()

    @property
    def guilty(self) -> str | None:
        """The criterion that is lost by a crash in this case; None: the check's first one.

        It is empty if only the library's own code can fail here.
        """
        return None

    @abstractmethod
    def given(self, rank: int, world_size: int) -> Any:
        """Returns the inputs of one rank, which no other rank gets."""

    @staticmethod
    @abstractmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        """Runs on every rank: calls `fn` with its inputs and returns the data for the judge.

        The data are numbers, text, tensors, and lists and dicts of these.
        """

    def opened(self, result: Any) -> Any:
        """Converts a result of `on_rank`, with tuples as lists, to the form that the judge uses.

        May raise any exception if the result is invalid, since a rank may have sent anything.
        """
        return result

    def dialogue(self, rank: int, world_size: int) -> Dialogue | None:
        """The judge's replies to the calls of `ask` in `on_rank`, one piece at a time.

        The generator's return value becomes the rank's result, and what `on_rank` returns is not
        used: see `dtlab.ranks.asking.Dialogues`. It runs in the check's process, so the rank
        neither sees later replies nor can change what is kept. None if `on_rank` calls no `ask`.
        """
        return None

    def labelled(self) -> tuple[Case, str]:
        """The case with inputs that show whose they are, and a sentence about them.

        A case without such inputs returns itself.
        """
        return self, ""

    def beside(self, results: Sequence[Any]) -> list[str]:
        """The result of each rank next to the one that it should have, in short; may be empty."""
        return []

    def figures(self, results: Sequence[Any]) -> list[Figure]:
        """Figures of what the ranks returned, shown with the timeline when a case is run again."""
        return []

    @abstractmethod
    def mistake(self, results: Sequence[Any]) -> str:
        """Says what is wrong with the results of the ranks; empty if nothing is."""

    def advice(self, trouble: str) -> str:
        """Returns a hint about the likely cause of a crash or hang in this case; may be empty."""
        return next((hint for words, hint in self.advices.items() if words in trouble), "")


@dataclass(frozen=True)
class Recording(Case):
    """A call of a function of the library, for its trace and result. Nothing in it is judged."""

    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return "a run of the check"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return self.arguments

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


@dataclass(frozen=True)
class Trial:
    """One launch, in which every rank runs the same cases in the same order.

    `memory` is the limit of a rank in bytes, as `memory_limit` of `dtlab.launch`, if any.
    `cluster` is the emulated interconnect, if any. Messages about a `secret` trial contain only
    the number of ranks. `limit` is in seconds, by default that of its cases. It is longer for
    functions of the library that train for a while, since an answer must not lose points on a busy
    machine.
    """

    world_size: int
    cases: Sequence[Case]
    cluster: Cluster | None = None
    secret: bool = False
    limit: float = 0.0
    memory: int | None = None

    def __post_init__(self) -> None:
        if not self.limit:
            limits = [case.limit for case in self.cases]
            object.__setattr__(self, "limit", max(limits, default=TIME_LIMIT))

    @property
    def calls(self) -> list[Callable[..., Any]]:
        """The function that a rank runs for each case; these functions contain no seeds."""
        return [type(case).on_rank for case in self.cases]

    def given(self, rank: int) -> list[Any]:
        """Returns the inputs of a rank for each case."""
        return [case.given(rank, self.world_size) for case in self.cases]

    def words(self, case: int | None = None) -> str:
        """Describes the trial: "5 ranks, 7 elements".

        Omits the case if it is not known, and the ranks if the case is `alone`.
        """
        ranks = count_ranks(self.world_size)
        if self.secret or (case is None and len(self.cases) > 1):
            return ranks
        used = self.cases[case or 0]
        return str(used) if self.world_size == 1 and used.alone else f"{ranks}, {used}"


@dataclass(frozen=True)
class Observation:
    """The data observed in one trial.

    `results[case][rank]` is the result of a case; it is empty if the launch failed, and then
    `error` is set. `resident[rank]` are the kernel's counts of memory in bytes, in the order in
    which cases requested them. `printed[rank]` is what the rank printed. `warnings` are those of
    `dtlab.launch`, about tensors that were used too early.
    """

    trial: Trial
    results: list[list[Any]] = field(default_factory=list)
    trace: Trace | None = None
    error: RanksError | None = None
    resident: list[list[int | None]] = field(default_factory=list)
    printed: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def sent_beyond(self, rank: int, due: float) -> float | None:
        """The bytes that left a rank if they are more than the `due` ones; else None.

        Allowed are 5 % more, and 8 kB, which gloo itself sends.
        """
        sent = self.trace.bytes_wire(rank) if self.trace is not None else None
        return sent if sent is not None and sent > 1.05 * due + 8192 else None

    @property
    def hung(self) -> bool:
        """Whether the ranks ended in a deadlock or a timeout."""
        return isinstance(self.error, (DeadlockError, RankTimeoutError))

    @property
    def failure(self) -> Failure | None:
        """The failure of the rank that failed first, or None."""
        failures = self.error.failures if isinstance(self.error, RankError) else {}
        return next(iter(failures.values()), None)

    @property
    def unwritten(self) -> bool:
        """Whether the function is still the blank of the notebook."""
        message = self.failure.message if self.failure is not None else ""
        return next(iter(message.splitlines()), "").rstrip("():") == "NotImplementedError"

    @cached_property
    def mistakes(self) -> list[str]:
        """A sentence for each case with a mistake, or the reason why the launch failed."""
        if self.error is not None:
            case = self.trial.cases[self.stopped_in or 0]
            return [f"{self.trouble}\n{case.advice(self.trouble)}".rstrip()]
        numbered = enumerate(zip(self.trial.cases, self.results, strict=True))
        mistakes = [(number, _mistake(case, results)) for number, (case, results) in numbered]
        return [
            f"{self.trial.words(number)}, " + mistake for number, mistake in mistakes if mistake
        ]

    def is_wrong(self, case: int) -> bool:
        """Whether this case has a mistake, or may be the one in which the launch failed."""
        if self.error is not None:
            return self.failed_case in (case, None)
        return bool(_mistake(self.trial.cases[case], self.results[case]))

    @property
    def failed_case(self) -> int | None:
        """The number of the case in which the rank failed, None if it is not known."""
        failure = self.failure
        match = _NOTE.search(failure.traceback or failure.message) if failure else None
        number = int(match[1]) if match else None  # a learner's message can hold such a note too
        return number if number is not None and number < len(self.trial.cases) else None

    @property
    def stopped_in(self) -> int | None:
        """The case in which the ranks failed or hung, None if it is not known.

        Ranks that hang have printed which case they began. Isolated ranks print nothing.
        """
        if not self.hung:
            return self.failed_case
        begun = [re.findall(rf"{BEGIN}(\d+)\n", text) for text in self.printed]
        last = min((int(numbers[-1]) for numbers in begun if numbers), default=0)
        return last if begun and all(begun) and last < len(self.trial.cases) else None

    @property
    def failed_function(self) -> str:
        """The innermost function of the learner that failed; empty if it is not known."""
        failure = self.failure
        if failure is None or failure.line is None:
            return ""
        frames = re.findall(r", line (\d+), in (\w+)", failure.traceback or "")
        return next((name for line, name in reversed(frames) if int(line) == failure.line), "")

    @property
    def trouble(self) -> str:
        """Why this launch failed, in words; empty if it did not."""
        if self.error is None:
            return ""
        if self.hung:
            return _hang(self.error, self.trial, self.trial.words(self.stopped_in))
        return self._crash()

    def _crash(self) -> str:
        where, failure = self.trial.words(self.failed_case), self.failure
        if failure is None or not isinstance(self.error, RankError):
            return f"{where}: {self.error}"
        message = next(iter(failure.message.splitlines()), failure.kind)
        ranks = [rank for rank, each in self.error.failures.items() if each == failure]
        if len(ranks) < self.trial.world_size and not re.match(r"\w+: rank \d", message):
            message = f"{ranks_in_words(ranks)}: {message}"
        place = self._place(failure)
        return "\n".join(filter(None, [f"{where}: {message}", place, failure.advice]))

    @staticmethod
    def _place(failure: Failure) -> str:
        """The learner's line that failed, or the answer's first line if the check's own failed."""
        if _is_learners(failure):
            return failure.place
        defined = _DEFINED.search(failure.traceback or "")
        return _in_notebook(defined[1], defined[2], int(defined[3])) if defined else ""


def drawn_seed(seed: int, purpose: str = "") -> int:
    """Derives a seed that a rank may know, since `seed` cannot be computed from it."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:6])


def observe(trial: Trial, fn: Callable[..., Any]) -> Observation:
    """Launches `fn` on the ranks of `trial`; what they print is only in the observation.

    Ranks use gloo even if there are GPUs, since the operating system counts gloo's traffic. Raises
    `LaunchError` if no ranks can run, which is not the learner's fault.
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
                memory_limit=trial.memory,
                cluster=trial.cluster,
            )

    return observed(trial, attempt)


def observed(trial: Trial, attempt: Callable[[], Run]) -> Observation:
    """Calls `attempt`, a launch of `run_cases` on the ranks of a trial; returns an observation."""
    from dtlab.ranks.asking import Dialogues, answering
    from dtlab.ranks.plain import decode

    asked = {
        (number, rank): dialogue
        for number, case in enumerate(trial.cases)
        for rank in range(trial.world_size)
        if (dialogue := case.dialogue(rank, trial.world_size)) is not None
    }
    dialogues = Dialogues(lambda number, rank: asked[number, rank])
    try:
        with answering(dialogues.reply):
            run = attempt()
    except RanksError as error:
        return Observation(trial, error=error, printed=error.stdout)
    try:
        by_rank = [decode(value) for value in run.values]
        for number, rank in asked:
            by_rank[rank][number] = dialogues.results[number, rank]
        results = [
            [case.opened(result) for result in case_results]
            for case, case_results in zip(trial.cases, zip(*by_rank, strict=True), strict=True)
        ]
    except Exception as error:  # noqa: BLE001  ranks may send anything
        failure = Failure("result", f"sent back data that cannot be read: {type(error).__name__}")
        return Observation(trial, error=RankError(str(failure.message), failures={0: failure}))
    return Observation(
        trial, results, run.trace,
        resident=run.resident, printed=run.stdout, warnings=run.warnings,
    )  # fmt: skip


def run_cases(
    fn: Callable[..., Any],
    calls: Sequence[Callable[..., Any]],
    given: Any,
    begin: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Runs on every rank: calls the function of each case and encodes the results.

    Calls `begin` with the number of each case before the case.
    """
    from dtlab.ranks.asking import in_dialogue
    from dtlab.ranks.plain import encode

    results = []
    for number, (on_rank, inputs) in enumerate(zip(calls, given, strict=True)):
        begin(number)
        try:
            with in_dialogue(number):
                results.append(on_rank(fn, inputs))
        except Exception as error:
            error.add_note(f"(in case {number} of this check)")
            if definition := _definition(fn):
                error.add_note(f"(the answer is defined in {definition})")
            raise
    return encode(results)


def _definition(fn: Callable[..., Any]) -> str:
    """The line with "def" of the learner's function, or of its class's `__init__`; or empty."""
    from dtlab.ranks.protocol import Frame
    from dtlab.ranks.watch.locate import is_learners, place

    function = getattr(fn, "__init__", fn) if isinstance(fn, type) else inspect.unwrap(fn)
    code = getattr(function, "__code__", None)
    if code is None or not is_learners(code.co_filename):
        return ""
    return place_in_words(**place(Frame(code.co_filename, code.co_firstlineno, code.co_name)))


def _in_notebook(words: str, file: str, line: int) -> str:
    """The place of a line that a rank named, with its cell's number if this is the notebook."""
    from dtlab.ranks.protocol import Frame
    from dtlab.ranks.watch.locate import place

    found = place(Frame(file, line, ""))
    return words if found["cell"] is None else place_in_words(**found)


def _is_learners(place: Failure | Waiting) -> bool:
    """Whether the quoted line is in the learner's code, and not in a check or a library."""
    from dtlab.ranks.watch.locate import is_learners

    file = place.file or ""
    return place.cell is not None or (is_learners(file) and is_learners(os.path.abspath(file)))


def run_here(fn: Callable[..., Any], calls: Sequence[Callable[..., Any]], given: Any) -> bytes:
    """Runs on every rank of a learner's own machine, where all ranks may get all inputs."""
    import torch.distributed as dist

    return run_cases(fn, calls, given[dist.get_rank()], lambda case: print(f"{BEGIN}{case}"))


def _mistake(case: Case, results: Sequence[Any]) -> str:
    """Calls `case.mistake`; ranks may have returned results for which it raises an exception."""
    try:
        return case.mistake(results)
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError):
        return UNREADABLE


def _hang(error: RanksError, trial: Trial, where: str) -> str:
    """Says how and `where` the ranks hung, in which line each rank is, and what to do."""
    stuck = error.waiting if isinstance(error, DeadlockError) else []
    stuck = error.running if isinstance(error, RankTimeoutError) else stuck
    advice = error.advice if isinstance(error, (DeadlockError, RankTimeoutError)) else ""
    mismatch = (error.mismatch or "") if isinstance(error, DeadlockError) else ""
    alone = trial.world_size == 1 and all(case.alone for case in trial.cases)
    if mismatch and mismatch not in advice:  # the advice about tags contains the mismatch
        lines = [f"{where}: the calls of the ranks do not match.", mismatch]
    else:
        within = f" within {trial.limit:g} s" if isinstance(error, RankTimeoutError) else ""
        lines = [f"{where}: {'your function' if alone else 'the ranks'} did not finish{within}."]
    loops = isinstance(error, RankTimeoutError) and error.loops
    alike: dict[tuple[str, str, str], list[int]] = {}
    for entry in stuck:
        place = entry.place if _is_learners(entry) else ""
        alike.setdefault((entry.op, place, entry.waits_in), []).append(entry.rank)
    for (operation, place, waits_in), ranks in alike.items():
        verb = "is" if len(ranks) == 1 else "are"
        doing = "still running" if operation == "compute" else f"in {operation}"
        doing = f"still running, now {doing}" if loops and operation != "compute" else doing
        who = "it" if alone else ranks_in_words(ranks)
        lines.append(f"{who} {verb} {doing}   {place}".rstrip())
        lines += [f"  in wait()   {waits_in}"] if waits_in else []
    lines.append(advice or _usual_cause({entry.op for entry in stuck}))
    return "\n".join(lines)


def _usual_cause(operations: Collection[str]) -> str:
    """Returns advice for a timeout, for which the watcher gives none."""
    if not operations:
        return (
            "It is not known in which line each rank was. Run the check again. If it fails again, "
            "look for a loop that does not end, or for work that takes far too long."
        )
    if operations and all(operation.startswith("recv") for operation in operations):
        return "Every rank receives before it sends, so no rank sends: post isend, then receive."
    if operations and all(operation == "compute" for operation in operations):
        return "Look for a loop that does not end, or for work that takes far too long."
    if "compute" in operations:
        return (
            "Look for a loop that does not end, or for work that takes far too long: the other "
            "ranks wait for the rank that is in it."
        )
    if operations and not any(operation in ("send", "recv") for operation in operations):
        return "All members of a group must call its collectives, equally often and in order."
    return "Look for a receive without a matching send, or a send without a matching receive."
