"""A simulated cluster that executes an orchestrator's decisions: nodes, jobs, failures, messages.

    cluster ── Event: submitted, checkpoint, finished, failed, back ──> orchestrator.decide(event)
            <── a list of Start(job, gpus, step) ──────────────────────

The simulation jumps from one event to the next, and has no other time than its own minutes. It
executes wrong decisions too, as well as it can, and notes what is wrong with them: so one mistake
costs one criterion. In a check, the cluster is in the check's own process and sends an answer on a
rank one event at a time, so the answer cannot see what comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from dtlab.parallel.job import JobSpec

__all__ = ["GPU", "SPREAD", "Attempt", "Cluster", "Event", "Failure", "History", "Job", "Setting",
           "Start", "good_makespan", "habit_makespan", "longest", "planned_starts"]  # fmt: skip

SPREAD: Final = 1.5  # times the minutes if the processes of a job are on several nodes
_SIMULTANEOUS = ("finished", "checkpoint", "failed", "back", "submitted", "repeated")
_REPEATED, _LATEST = 0.15, 20  # share of messages that arrive twice, and minutes until then

GPU = tuple[str, int]  # the name of its node, and its number there


class Event(NamedTuple):
    """A message of the cluster. `number` is that of the message: a repeated one has the same."""

    number: int
    minute: float
    kind: str
    job: str = ""
    spec: JobSpec | None = None
    minutes: float = 0.0  # for all steps, on one node
    step: int = 0  # of a checkpoint
    node: str = ""


class Start(NamedTuple):
    """A decision: start the processes of a job on these GPUs, from a step."""

    job: str
    gpus: Sequence[GPU]
    step: int


@dataclass(frozen=True)
class Job:
    """A job of the simulation. `pace` are the minutes of a step on one node."""

    name: str
    submitted: int
    ranks: int
    backend: str
    steps: int
    every: int
    pace: float

    @property
    def processes(self) -> int:
        """As `JobSpec.processes`, which needs torch."""
        return self.ranks + (self.backend == "parameter_server")

    @property
    def minutes(self) -> float:
        """The time for all steps, on one node."""
        return self.steps * self.pace

    def spec(self) -> JobSpec:
        """A small job with these numbers that could really run."""
        from dtlab.parallel.job import JobSpec

        return JobSpec(
            _model, _data, self.steps, self.ranks, 8 * self.ranks, 0.05,
            backend=self.backend, checkpoint_every=self.every,  # type: ignore[arg-type]
        )  # fmt: skip


def _model() -> Any:
    from dtlab.training.models import MLP

    return MLP(64, 16, 10)


def _data() -> Any:
    from dtlab.training.datasets import digits

    return digits(shifts=False).train


class Failure(NamedTuple):
    """A node that fails, and the minute at which it is back."""

    node: str
    minute: int
    back: int


@dataclass(frozen=True)
class Setting:
    """A cluster of nodes with `gpus` each, its jobs, and its failures."""

    nodes: int
    gpus: int
    jobs: tuple[Job, ...]
    failures: tuple[Failure, ...] = ()
    seed: int | None = None  # of repeated messages; None: there are none

    @property
    def by_node(self) -> dict[str, int]:
        """The number of GPUs of each node."""
        return {f"node{number}": self.gpus for number in range(self.nodes)}


@dataclass
class Attempt:
    """A job that ran on GPUs, from a step; until it finished, or a node failed."""

    job: str
    gpus: tuple[GPU, ...]
    step: int
    begin: float
    end: float = 0.0
    saved: float = 0.0  # the minute of its last checkpoint
    outcome: str = "running"


@dataclass
class History:
    """What happened, and the faults: pairs of a criterion and a message."""

    attempts: list[Attempt] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    makespan: float = 0.0  # minutes until the last job finished


class Cluster:
    """A run of the simulation, whose caller decides after each event what is started."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.jobs = {job.name: job for job in setting.jobs}
        self.waiting: list[Job] = []
        self.saved = dict.fromkeys(self.jobs, 0)  # the step of the last checkpoint
        self.running: dict[str, Attempt] = {}
        self.finished: dict[str, float] = {}
        self.down: set[str] = set()
        self.minute = 0.0
        self.history = History()
        self._queue: list[tuple[float, int, int, Any]] = []
        self._order, self._numbers = count(), count(1)

    def run(self, decide: Callable[[Event], Sequence[Start]]) -> History:
        """Run until nothing happens any more; `decide(event)` returns decisions."""
        events, decisions = self.events(), None
        while True:
            try:
                decisions = decide(events.send(decisions))
            except StopIteration:
                return self.history

    def events(self) -> Generator[Event, Sequence[Start] | None, None]:
        """The run as a generator: it yields each event and receives the decisions after it."""
        for job in self.setting.jobs:
            self._later(job.submitted, "submitted", job)
        for failure in self.setting.failures:
            self._later(failure.minute, "failed", failure.node)
            self._later(failure.back, "back", failure.node)
        while self._queue:
            self.minute, kind, _, what = heapq.heappop(self._queue)
            if event := getattr(self, f"_{_SIMULTANEOUS[kind]}")(what):
                for start in (yield event) or ():
                    self._start(start)
        self._look_for_lost_jobs()
        self.history.makespan = max(self.finished.values(), default=0.0)

    def free(self) -> list[GPU]:
        """The GPUs of working nodes on which no job runs."""
        used = {gpu for attempt in self.running.values() for gpu in attempt.gpus}
        nodes = ((node, n) for node, n in self.setting.by_node.items() if node not in self.down)
        return [(node, i) for node, n in nodes for i in range(n) if (node, i) not in used]

    # Events -------------------------------------------------------------------------------------

    def _later(self, minute: float, kind: str, what: Any) -> None:
        order = _SIMULTANEOUS.index(kind), next(self._order)
        heapq.heappush(self._queue, (minute, *order, what))

    def _event(self, kind: str, **more: Any) -> Event:
        return Event(next(self._numbers), self.minute, kind, **more)

    def _submitted(self, job: Job) -> Event:
        self.waiting.append(job)
        return self._repeat(
            self._event("submitted", job=job.name, spec=job.spec(), minutes=job.minutes)
        )

    def _repeat(self, event: Event) -> Event:
        if self.setting.seed is not None:
            draw = Random(f"{self.setting.seed} {event.number}")
            if draw.random() < _REPEATED:
                self._later(self.minute + draw.randint(0, _LATEST), "repeated", event)
        return event

    def _repeated(self, event: Event) -> Event:
        return event._replace(minute=self.minute)

    def _checkpoint(self, what: tuple[Attempt, int]) -> Event | None:
        attempt, step = what
        if attempt.outcome != "running":
            return None
        attempt.saved, self.saved[attempt.job] = self.minute, step
        return self._repeat(self._event("checkpoint", job=attempt.job, step=step))

    def _finished(self, attempt: Attempt) -> Event | None:
        if attempt.outcome != "running":
            return None
        self._end(attempt, "finished")
        self.finished[attempt.job] = self.minute
        return self._repeat(self._event("finished", job=attempt.job))

    def _failed(self, node: str) -> Event:
        self.down.add(node)
        for attempt in list(self.running.values()):
            if any(place == node for place, _ in attempt.gpus):
                self._end(attempt, "killed")
                self.waiting.append(self.jobs[attempt.job])
        return self._repeat(self._event("failed", node=node))

    def _back(self, node: str) -> Event:
        self.down.discard(node)
        return self._repeat(self._event("back", node=node))

    def _end(self, attempt: Attempt, outcome: str) -> None:
        attempt.end, attempt.outcome = self.minute, outcome
        del self.running[attempt.job]

    # Decisions ----------------------------------------------------------------------------------

    def _start(self, start: Start) -> None:
        """Start a job, and note what is wrong with it. A job that runs, or has run, continues."""
        job = self.jobs.get(start.job)
        if wrong := self._not_now(start.job):
            self._fault("once", f"{start.job} is started, but {wrong}")
        if job not in self.waiting or job is None:
            return
        gpus = tuple((str(node), int(number)) for node, number in start.gpus)
        for wrong in self._wrong_gpus(gpus):
            self._fault("gpus", f"{job.name} gets {wrong}")
        if len(gpus) != job.processes:
            self._fault("processes", (
                f"{job.name} has {job.processes} processes (backend={job.backend!r}, "
                f"ranks={job.ranks}), but gets {len(gpus)} GPU{'s' * (len(gpus) != 1)}."
            ))  # fmt: skip
        if start.step != (saved := self.saved[job.name]):
            words = f"its last checkpoint is of step {saved}" if saved else "it has no checkpoint"
            words = f"is started from step {start.step}, but {words}."
            self._fault("checkpoint", f"{job.name} {words}")
        self.waiting.remove(job)
        self._begin(job, gpus, min(max(0, start.step), saved))

    def _begin(self, job: Job, gpus: tuple[GPU, ...], first: int) -> None:
        attempt = Attempt(job.name, gpus, first, self.minute, saved=self.minute)
        self.history.attempts.append(attempt)
        self.running[job.name] = attempt
        pace = job.pace * (SPREAD if len({node for node, _ in gpus}) > 1 else 1)
        for step in range(first + 1, job.steps):
            if step % job.every == 0:
                self._later(self.minute + (step - first) * pace, "checkpoint", (attempt, step))
        self._later(self.minute + (job.steps - first) * pace, "finished", attempt)

    def _not_now(self, name: str) -> str:
        """Why a job cannot start now; empty if it can."""
        if name in self.running:
            return f"it has been running since minute {self.running[name].begin:g}."
        if name in self.finished:
            return f"it finished at minute {self.finished[name]:g}."
        return "" if self.jobs.get(name) in self.waiting else "no such job was submitted."

    def _wrong_gpus(self, gpus: Sequence[GPU]) -> Iterator[str]:
        if len(set(gpus)) < len(gpus):
            yield "a GPU twice."
        used = {gpu: attempt.job for attempt in self.running.values() for gpu in attempt.gpus}
        for gpu in gpus:
            node, number = gpu
            if not 0 <= number < self.setting.by_node.get(node, 0):
                yield f"{gpu}, which does not exist."
            elif gpu in used:
                yield f"{gpu}, on which {used[gpu]} runs."
            elif node in self.down:
                yield f"{gpu}, but {node} has failed and is not back."

    def _fault(self, criterion: str, message: str) -> None:
        self.history.faults.append((criterion, f"at minute {self.minute:g} {message}"))

    def _look_for_lost_jobs(self) -> None:
        for job in self.waiting:
            last = [a.end for a in self.history.attempts if a.job == job.name]
            words = f"was submitted at minute {job.submitted}, and never started."
            if last:
                words = f"stopped at minute {last[-1]:g}, when its node failed, and never went on."
            self.history.faults.append(("lost", f"{job.name} {words}"))


# Schedules that look at the state of the cluster ------------------------------------------------


def good_makespan(setting: Setting) -> float:
    """The minutes of a good schedule: the better one of the two in the text of the exercise."""
    return min(_planned(setting, longest), _planned(setting, _largest))


def habit_makespan(setting: Setting, habit: str) -> float:
    """The minutes of a schedule with a bad habit: "in order", "spread" or "short first".

    Of "good", the worse one of the good schedules.
    """
    if habit == "good":
        return max(_planned(setting, longest), _planned(setting, _largest))
    if habit == "in order":
        return _planned(setting, lambda cluster, job: 0, passes=False)
    if habit == "spread":
        return _planned(setting, longest, packs=False)
    return _planned(setting, lambda cluster, job: job.minutes)


Order = Callable[["Cluster", Job], float]


def longest(cluster: Cluster, job: Job) -> float:
    """Sorts the jobs with the most minutes left first."""
    return -(job.steps - cluster.saved[job.name]) * job.pace


def _largest(cluster: Cluster, job: Job) -> float:
    return job.processes * longest(cluster, job)


def _planned(setting: Setting, order: Order, packs: bool = True, passes: bool = True) -> float:
    cluster = Cluster(setting)
    return cluster.run(lambda _: planned_starts(cluster, order, packs, passes)).makespan


def planned_starts(
    cluster: Cluster, order: Order, packs: bool = True, passes: bool = True
) -> list[Start]:
    """The jobs that start now, in this order; with `passes` also if one before has no room."""
    free, starts = cluster.free(), []
    for job in sorted(cluster.waiting, key=lambda job: order(cluster, job)):
        gpus = _on_one_node(free, job.processes) if packs else free[: job.processes]
        if len(gpus) == job.processes:
            free = [gpu for gpu in free if gpu not in gpus]
            starts.append(Start(job.name, gpus, cluster.saved[job.name]))
        elif not passes:
            break
    return starts


def _on_one_node(free: Sequence[GPU], processes: int) -> list[GPU]:
    """GPUs of the fullest node with room, or none."""
    by_node: dict[str, list[GPU]] = {}
    for gpu in free:
        by_node.setdefault(gpu[0], []).append(gpu)
    room = [gpus for gpus in by_node.values() if len(gpus) >= processes]
    return min(room, key=len)[:processes] if room else []
