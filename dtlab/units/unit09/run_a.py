"""09/run_a: fix the input pipeline of a job whose GPUs are busy 40 % of the time.

It has two faults. A thread loads the next batch while the GPU computes. With u for the seconds in
which the workers of a rank read its own samples, the GPU computes for 1.6 u in each step:

    both faults             4 u    GPU busy 40 %    each rank reads the whole batch, one by one
    only the samples fixed  2 u             80 %    its own samples, one by one
    only the workers fixed  2 u             80 %    the whole batch, two at a time
    none                    1.6 u          100 %    loading is hidden

The check judges counts and order, not seconds, so the load of the machine does not matter: a read
waits a while for the reads that should run beside it, and a step for the first read of the next.
One step also waits a while for a read that is too far ahead, so that it begins in that step.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.criteria import Seen, rule
from dtlab.checks.functions.trials import Case, Observation, Trial
from dtlab.checks.programs.training import Scene, proof, script_part

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Feeding", "Machine"]

_READ = 1e-2  # seconds to read a sample
_BUSY = 0.8  # of the seconds in which one worker reads a rank's own samples, the GPU computes
_AHEAD = 3  # batches
_PATIENCE = 1.0  # seconds, after which a read or a step has waited in vain
_LIMIT = 30.0  # seconds for runs that take one


@dataclass(frozen=True)
class Feeding(Case):
    """A run of `program(read, step, steps, batch, workers)`; `batch` is that of one rank."""

    steps: int
    batch: int
    workers: int

    def __str__(self) -> str:
        return f"{self.steps} steps, {self.batch} samples for each rank, {self.workers} workers"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        machine = Machine(**given, patience=_PATIENCE)
        fn(machine.read, machine.step, *given.values())
        return machine.notes

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`; empty, since objections say what is wrong with a run."""
        return ""


class Machine:
    """The stand-ins of a rank for its disk and its GPU, and their notes.

    `reads` are the numbers of the samples in the order in which they are read, and `begun` are the
    steps that ran when these reads began, or were the next ones. `most` is how many reads ran at
    the same time. `trained` are the samples of each step.
    """

    def __init__(self, steps: int, batch: int, workers: int, patience: float = 0.0) -> None:
        import torch.distributed as dist

        self._steps, self._batch = steps, batch * dist.get_world_size()
        self._workers, self._patience = workers, patience
        self._running, self._in_step, self._vain = 0, False, set[str]()
        self._news = threading.Condition()
        self.notes: dict[str, Any] = {"reads": [], "begun": [], "trained": [], "most": 0}
        self._ahead = 0  # batches, by the numbers of the samples

    def read(self, number: int) -> Tensor:
        """Read and decode a sample, without using a core."""
        import torch

        import dtlab

        with dtlab.span("read"):
            with self._news:
                self._begin(number)
            dtlab.compute(_READ)
            with self._news:
                self._running -= 1
        return torch.tensor(float(number))

    def _begin(self, number: int) -> None:
        notes = self.notes
        step = len(notes["trained"]) - self._in_step
        notes["reads"].append(number)
        notes["begun"].append(step)
        self._ahead = max(self._ahead, number // self._batch - step)
        self._running += 1
        notes["most"] = max(notes["most"], self._running)
        self._news.notify_all()
        self._wait("read", lambda: notes["most"] >= self._workers)

    def step(self, samples: Tensor) -> None:
        """Train on samples: take the GPU's time, and average gradients over the ranks."""
        import torch.distributed as dist

        import dtlab

        notes = self.notes
        with self._news:
            notes["trained"].append([int(number) for number in samples])
            self._in_step = True
        for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
            with dtlab.span(name):
                dtlab.compute(share * _BUSY * len(samples) * _READ)
        first = self._batch * len(notes["trained"])  # the first sample of the next step
        if len(notes["trained"]) < self._steps:
            used = sum(map(len, notes["trained"]))
            with self._news:
                self._wait("step", lambda: max(notes["reads"]) >= first)
                self._wait("step, by count", lambda: len(notes["reads"]) > used)
        if len(notes["trained"]) == self._steps - _AHEAD - 1:  # the last step with enough to come
            with self._news:
                self._wait("far ahead", lambda: self._ahead > _AHEAD)
        dist.all_reduce(samples.mean())
        self._in_step = False

    def _wait(self, who: str, seen: Callable[[], bool]) -> bool:
        """Wait with patience, but not again after a wait in vain; return what is seen."""
        patience = 0.0 if who in self._vain else self._patience
        if not self._news.wait_for(seen, patience):
            self._vain.add(who)
            return False
        return True


# Criteria of the fixed program -------------------------------------------------------------------


def _other_batches(case: Feeding, results: Sequence[Any], run: Observation) -> str:
    """A message if the ranks do not train on each sample once, batch after batch."""
    size = case.batch * len(results)
    for rank, result in enumerate(results):
        steps = [len(samples) for samples in result["trained"]]
        if steps != [case.batch] * case.steps:
            return f"rank {rank} calls step with {steps} samples, not with {case.batch} each time."
    for step in range(case.steps):
        found = {number for result in results for number in result["trained"][step]}
        if found != {*range(step * size, (step + 1) * size)}:
            return (
                f"in step {step} the ranks train on {len(found)} different samples, but not on "
                f"the {size} samples of this batch."
            )
    return ""


def _other_reads(case: Feeding, results: Sequence[Any], run: Observation) -> str:
    """A message if a rank reads samples that it does not train on, or reads one twice."""
    for rank, result in enumerate(results):
        trained = [number for samples in result["trained"] for number in samples]
        if sorted(result["reads"]) != sorted(trained):
            return (
                f"rank {rank} reads {len(result['reads'])} samples and trains on {len(trained)}. "
                "What happens to the others?"
            )
    return ""


def _few_at_a_time(case: Feeding, results: Sequence[Any], run: Observation) -> str:
    """A message if fewer reads than workers ran at the same time."""
    for rank, result in enumerate(results):
        if result["most"] < case.workers:
            return (
                f"rank {rank} never has more than {result['most']} read at the same time, with "
                f"{case.workers} workers. What do the other workers wait for?"
            )
    return ""


def _steps_of_reads(case: Feeding, results: Sequence[Any], rank: int) -> list[int] | None:
    """The step for which a rank reads each sample, or None if that cannot be told.

    The numbers of the samples tell it if the rank trains on samples of the right batches. If not,
    but if it reads what it trains on, the order tells it: the first step uses the first reads.
    """
    size, result = case.batch * len(results), results[rank]
    reads, trained = result["reads"], result["trained"]
    if all(n // size == step for step, samples in enumerate(trained) for n in samples):
        return [number // size for number in reads]
    if sorted(reads) == sorted(number for samples in trained for number in samples):
        return [step for step, samples in enumerate(trained) for _ in samples]
    return None


def _not_ahead(case: Feeding, results: Sequence[Any], run: Observation) -> str:
    """A message if the next batch is not read during a step, or if too many batches are."""
    for rank, result in enumerate(results):
        steps = _steps_of_reads(case, results, rank)
        if steps is None:
            continue
        reads = [*zip(steps, result["begun"], strict=True)]
        for step in range(len(result["trained"]) - 1):
            if not any(begun <= step < used_in for used_in, begun in reads):
                return f"rank {rank} reads nothing of the next batch during step {step}."
        if (ahead := max((used_in - begun for used_in, begun in reads), default=0)) > _AHEAD:
            return (
                f"rank {rank} reads {ahead} batches ahead of the step; its memory has room for "
                f"{_AHEAD}."
            )
    return ""


def _unclear_ahead(seen: Seen) -> str:
    """Until when it cannot be told for which step a rank reads; empty if it can be."""
    runs = [(run, run.trial.cases[0], run.results[0]) for run in seen if run.results]
    if any(_not_ahead(case, results, run) for run, case, results in runs):  # type: ignore[arg-type]
        return ""
    for _, case, results in runs:
        for rank in range(len(results)):
            if len(results[rank]["trained"]) < 2:
                return f"rank {rank} trains in two steps or more"
            if _steps_of_reads(case, results, rank) is None:  # type: ignore[arg-type]
                return (
                    f"each rank trains on samples of the right batch: rank {rank} does not, and "
                    "it reads other samples than those of its steps"
                )
    return ""


# The part ----------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, int]:
    reads, trained = scene.results[0]["reads"], scene.results[0]["trained"]
    return {"reads": len(reads), "trained": sum(map(len, trained))}


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)
    return [
        Trial(ranks, [Feeding(draw.randint(7, 9), workers * draw.randint(2, 3), workers)],
              limit=_LIMIT)
        for ranks, workers in ((2, 2), (2, 3), (3, 2))
    ]  # fmt: skip


PART = script_part(
    "09/run_a", "Run A", 20, 2,
    "dtlab.units.unit09.runs_scripts.feed",
    Trial(2, [Feeding(6, 4, 2)], limit=_LIMIT),
    _trials,
    (
        rule("batches", 1, "each sample of a batch is trained on once", by=_other_batches),
        rule("reads", 2, "a rank reads its own samples only", by=_other_reads),
        rule("workers", 2, "all workers read at a time", by=_few_at_a_time),
        rule("ahead", 1, "the next batch is read during a step", by=_not_ahead,
             waits=_unclear_ahead),
    ),
    [
        "whole = [pool.submit(read, number).result() for number in numbers]",
        "numbers = range(first, first + batch * ranks)",
        "return torch.stack(whole)[rank::ranks]",
    ],
    "Follow one sample: which ranks read it, which one needs it, and what waits meanwhile?",
    proof=proof(
        _measured,
        "reads / trained",
        "Divide the samples that rank 0 reads by those that it trains on.",
        {
            "1": "that is what a rank needs. What does it read?",
            "reads": "those are all that it reads. Divide them by those that it trains on.",
            "trained / reads": "upside down: how many does it read for one that it needs?",
            "reads / trained / 2": "that is half of it. Are both numbers of the same rank?",
        },
    ),
)  # fmt: skip
