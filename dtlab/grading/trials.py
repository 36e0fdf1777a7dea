"""Runs a learner's function on real ranks and brings back what a judge may see.

    check's process                               ranks (fresh, by dtlab.launch)
    Trial(world_size, sizes, seed)  ───────────>  tensor = labelled_input(seed, case, rank)
                                                  fn(tensor)
    Observation(answers, trace | error)  <──────  Answer(tensor, returned)

A judge sees tensors, the trace and the counters of the operating system; the learner's function
never runs in the judge's process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from types import FrameType
from typing import TYPE_CHECKING, Any

from dtlab.errors import DeadlockError, Failure, RankError, RanksError, RankTimeoutError
from dtlab.grading.words import count_ranks, ranks_in_words

if TYPE_CHECKING:
    import torch

    from dtlab.trace import Trace

__all__ = ["Answer", "Observation", "Trial", "labelled_input", "observe"]

TIME_LIMIT = 4.0  # seconds for one launch: a right answer takes a tenth of one

_NOTE = re.compile(r"\(called with (\d+) elements")

_LARGEST = 9999  # sums of such integers are exact in float32, and tell whose values are in them


@dataclass(frozen=True)
class Trial:
    """One launch: the function is called once for each of `sizes` (in elements), in that order."""

    world_size: int
    sizes: tuple[int, ...]
    seed: int

    def inputs(self, case: int) -> list[torch.Tensor]:
        """What the ranks begin with in case number `case`."""
        size = self.sizes[case]
        return [labelled_input(self.seed, size, rank) for rank in range(self.world_size)]


@dataclass(frozen=True)
class Answer:
    """What one rank has after the call: its tensor, and what the function returned if a tensor."""

    tensor: torch.Tensor
    returned: torch.Tensor | None


@dataclass(frozen=True)
class Observation:
    """What was seen of one trial.

    `answers[case][rank]` is empty where the launch failed: then `error` is set. `finished` names
    the ready-made functions of `dtlab.collectives` that were called.
    """

    trial: Trial
    answers: list[list[Answer]] = field(default_factory=list)
    trace: Trace | None = None
    finished: tuple[str, ...] = ()
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

    @property
    def failed_size(self) -> int | None:
        """With how many elements the failing call was made, None where that is not known."""
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
        size = f", {self.failed_size} elements" if self.failed_size is not None else ""
        where = f"{count_ranks(self.trial.world_size)}{size}"
        if self.failure is None:
            return f"{where}: {self.error}"
        what = next(iter(self.failure.message.splitlines()), self.failure.kind)
        return f"{where}: {what}\n{self.failure.place}".rstrip()


def labelled_input(seed: int, size: int, rank: int) -> torch.Tensor:
    """Whole numbers as float32, different on every rank: `size` elements."""
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + size * 101 + rank)
    return torch.randint(-_LARGEST, _LARGEST + 1, (size,), generator=generator).float()


def observe(trial: Trial, fn: Callable[..., Any]) -> Observation:
    """Launches `fn` on the ranks of `trial`, without showing what they print.

    Raises `LaunchError` where no ranks can run: that is not the learner's doing.
    """
    from dtlab.ranks.launch import launch

    try:
        with redirect_stdout(StringIO()):
            run = launch(_call_on_rank, fn, trial, world_size=trial.world_size, timeout=TIME_LIMIT)
    except RanksError as error:
        return Observation(trial, error=error)
    per_rank = [answers for answers, _ in run.values]
    finished = {name for _, names in run.values for name in names}
    return Observation(
        trial,
        answers=[list(case) for case in zip(*per_rank, strict=True)],
        trace=run.trace,
        finished=tuple(sorted(finished)),
    )


def _call_on_rank(fn: Callable[..., Any], trial: Trial) -> tuple[list[Answer], set[str]]:
    """Runs on every rank: one call for each size of the trial."""
    import torch
    import torch.distributed as dist

    answers = []
    with _finished_collectives() as finished:
        for size in trial.sizes:
            tensor = labelled_input(trial.seed, size, dist.get_rank())
            try:
                returned = fn(tensor)
            except Exception as error:
                error.add_note(f"(called with {size} elements on {trial.world_size} ranks)")
                raise
            kept = returned if isinstance(returned, torch.Tensor) else None
            answers.append(Answer(tensor, None if kept is tensor else kept))
    return answers, finished


@contextmanager
def _finished_collectives() -> Iterator[set[str]]:
    """Collects the names of the functions of `dtlab.collectives` that are called meanwhile."""
    names: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        home, name = frame.f_globals, frame.f_code.co_name
        if event == "call" and home.get("__name__") == "dtlab.collectives":
            names.update({name} & set(home["__all__"]))

    sys.setprofile(look)
    try:
        yield names
    finally:
        sys.setprofile(None)


def _hang(error: RanksError, trial: Trial) -> str:
    """Who waits in which line, and the usual cause where it shows."""
    stuck = error.waiting if isinstance(error, DeadlockError) else []
    stuck = error.running if isinstance(error, RankTimeoutError) else stuck
    lines = [f"{count_ranks(trial.world_size)}: the ranks do not come back."]
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
    return "Look for a receive whose send never comes, or the other way round."
