"""11/orchestrator: a class that decides which jobs start where, on a simulated cluster.

    check's process                           rank
    cluster ── one Event at a time ──ask──>   the learner's decide(event)
            <── Starts, executed there ────

Small cases show one thing each. The large ones are drawn such that one bad habit is too slow in
each: not to let small jobs pass a large one that waits, to spread jobs over nodes, or to start
short jobs first. The makespan counts in all of them, compared with the better one of two good
schedules (`good_makespan`), which the text of the exercise defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import short
from dtlab.predict.units import counted
from dtlab.ranks.asking import ask
from dtlab.units.unit11.cluster import (
    Cluster,
    Event,
    Failure,
    History,
    Job,
    Setting,
    Start,
    good_makespan,
    habit_makespan,
    longest,
    planned_starts,
)

if TYPE_CHECKING:
    from dtlab.ranks.asking import Dialogue
    from dtlab.show import Figure

__all__ = ["PART", "Event", "Scheduling", "Setting", "Start", "drawn", "example", "played",
           "told"]  # fmt: skip

_LONGER: Final = 1.15  # times a good makespan
_NAMES: Final = "abcdefghijklmnopqrstuvwxyz"
_EARLIER: Final = 3  # messages that are named before one that decide cannot handle


# Settings ---------------------------------------------------------------------------------------


def example(seed: int = 0) -> Setting:
    """A small cluster: two jobs of each back end, and a failure."""
    draw = Random(seed)
    minute = draw.randint(9, 14)
    jobs = (
        Job("a", 0, 2, "all_reduce", 20, 4, 1),
        Job("b", 0, 2, "parameter_server", 12, 3, 2),
        Job("c", 4, 1, "all_reduce", 30, 5, 0.5),
        Job("d", 6, 1, "parameter_server", 10, 2, 1),
    )
    failures = (Failure("node0", minute, minute + draw.randint(12, 20)),)
    return Setting(2, 4, jobs, failures)


def _one_job_each(seed: int) -> Setting:
    """Both back ends, one after the other, without failures."""
    draw = Random(seed)
    jobs = [
        Job(name, 5 * number, ranks, backend, draw.randint(5, 9), 2, 1)
        for number, (name, ranks, backend) in enumerate(
            (("a", 3, "parameter_server"), ("b", 4, "all_reduce"), ("c", 1, "parameter_server"))
        )
    ]
    return Setting(2, 4, tuple(jobs))


def _often(seed: int) -> Setting:
    """One node that fails again and again, so that one job is stopped three times."""
    draw = Random(seed)
    jobs = (Job("a", 0, 2, "all_reduce", 40, 3, 1), Job("b", 3, 1, "all_reduce", 8, 3, 1))
    for _ in range(500):
        minutes = (draw.randint(9, 12), draw.randint(30, 34), draw.randint(50, 53))
        failures = tuple(Failure("node0", minute, minute + 6) for minute in minutes)
        setting = Setting(1, 2, jobs, failures, draw.randint(0, 999))
        if _repeats_an_old_checkpoint(setting):
            return setting
    raise AssertionError("no draw repeats the message about an old checkpoint")


def _repeats_an_old_checkpoint(setting: Setting) -> bool:
    """Whether it is a fault to take each message about a checkpoint for a new one."""
    told = dict[str, int]()

    def decide(event: Event) -> list[Start]:
        if event.kind == "checkpoint":
            told[event.job] = event.step
        starts = planned_starts(cluster, longest)
        return [start._replace(step=told.get(start.job, 0)) for start in starts]

    cluster = Cluster(setting)
    return bool(cluster.run(decide).faults)


@lru_cache(maxsize=64)
def _large(seed: int, habit: str) -> Setting:
    """A setting in which a bad habit is too slow, and in which several good ones are not."""
    draw = Random(f"{seed} {habit}")
    for _ in range(500):
        setting = _any_large(draw)
        good = good_makespan(setting)
        is_slow = habit_makespan(setting, habit) > 1.04 * _LONGER * good
        if is_slow and habit_makespan(setting, "good") < 1.06 * good:
            return setting
    raise AssertionError("no draw shows this habit")


def _any_large(draw: Random) -> Setting:
    nodes, jobs = draw.choice((3, 4)), []
    for name in _NAMES[: nodes * draw.choice((4, 5))]:
        backend = draw.choice(("all_reduce", "parameter_server"))
        ranks = draw.choice((1, 2, 2, 3, 4, 4) if backend == "all_reduce" else (1, 1, 2, 3))
        steps, every = 2 * draw.randint(6, 30), draw.choice((2, 3, 4, 5))
        jobs.append(Job(name, draw.randint(0, 60), ranks, backend, steps, every,
                        draw.choice((1, 2, 2, 3))))  # fmt: skip
    failures = []
    for number in range(draw.choice((3, 4))):
        minute = draw.randint(20, 200)
        failures.append(Failure(f"node{number % nodes}", minute, minute + draw.randint(20, 60)))
    if nodes == 3 and len(failures) == 4:  # node0 twice: not before it is back
        failures[3] = Failure("node0", failures[0].back + 30, failures[0].back + 60)
    jobs.sort(key=lambda job: job.submitted)
    first = jobs[0].submitted
    moved = tuple(replace(job, submitted=job.submitted - first) for job in jobs)
    return Setting(nodes, 4, moved, tuple(failures), draw.randint(0, 999))


# Runs -------------------------------------------------------------------------------------------


def played(setting: Setting, orchestrator: Callable[[dict[str, int]], Any]) -> History:
    """Run a cluster on which an orchestrator decides: its class is called with the nodes.

    Raises: TypeError if `decide` returns anything else than a list of `Start`.
    """
    decide = orchestrator(setting.by_node).decide
    return Cluster(setting).run(lambda event: _starts(decide(event)))


def _starts(decisions: Any) -> list[Start]:
    if not isinstance(decisions, list | tuple) or isinstance(decisions, Start):
        raise TypeError(f"decide returned {short(decisions)}. Return a list of Start; it may be "
                        "empty.")  # fmt: skip
    starts = []
    for entry in decisions:
        try:
            job, gpus, step = entry
            starts.append(Start(str(job), [(str(n), int(i)) for n, i in gpus], int(step)))
        except (TypeError, ValueError):
            raise TypeError(f"decide returned {short(entry)} in its list. Write Start(job, gpus, "
                            'step), as Start("a", [("node0", 1)], 0).') from None  # fmt: skip
    return starts


def told(setting: Setting, history: History) -> str:
    """What is wrong with a run, in lines; or its makespan, beside that of a good schedule."""
    if history.faults:
        return "\n".join(message for _, message in history.faults)
    good = f"with a good schedule at minute {good_makespan(setting):g}"
    return f"every job finishes, the last one at minute {history.makespan:g}; {good}"


def drawn(setting: Setting, history: History, title: str = "Jobs on the cluster") -> Figure:
    """Draw the jobs on each GPU over time."""
    from dtlab.show.figures.orchestration.cluster import JobBar, cluster_lanes

    bars = []
    for one in history.attempts:
        finished = one.outcome == "finished"
        kept = one.end if finished else one.saved
        bars.append(JobBar(one.job, one.gpus, one.begin, kept, one.end, finished))
    return cluster_lanes(setting.by_node, bars, setting.failures, title=title)


# The check --------------------------------------------------------------------------------------


@dataclass
class Progress:
    """How far a run has come: the messages so far, and what was wrong with the decisions."""

    events: list[Event] = field(default_factory=list)
    history: History = field(default_factory=History)
    over: bool = False

    @property
    def first(self) -> Event | None:
        """The same message as the last one, if that came for the second time; or None."""
        before = self.events[:-1]
        return next((event for event in before if event.number == self.events[-1].number), None)

    @property
    def words(self) -> str:
        """The message that is being handled, and what came before it; empty if there is none."""
        if not self.events:
            return ""
        *before, event = self.events
        words = f"This was in decide, at minute {event.minute:g}, with {_named(event)}."
        if self.first is not None:
            at = f"at minute {self.first.minute:g}"
            at = "in the same minute" if self.first.minute == event.minute else at
            words += f" It came twice: the first time {at}. What did decide do with it then?"
        if before:
            words += f"\nBefore it came {', '.join(map(_named, before[-_EARLIER:]))}."
        return words


def _named(event: Event) -> str:
    """A message by its number and in words: "message 7 (b has finished)"."""
    happened = {
        "submitted": f"{event.job} is submitted",
        "checkpoint": f"{event.job} has saved step {event.step}",
        "finished": f"{event.job} has finished",
        "failed": f"{event.node} has failed",
        "back": f"{event.node} is back",
    }
    return f"message {event.number} ({happened[event.kind]})"


@dataclass(frozen=True)
class Scheduling(Faulty):
    """A run of the simulated cluster, on which the learner's class decides.

    A crash belongs to `gpus`, and then nothing else is judged. But if the class cannot handle a
    message that comes twice, or a failure, it belongs to `lost`, because nothing is started any
    more. Then the decisions before it show some criteria: those that such a message cannot change.
    """

    topic = "gpus"
    alone = True

    words: str
    setting: Setting
    progress: Progress = field(default_factory=Progress, repr=False, compare=False)

    def __str__(self) -> str:
        return self.words

    @property
    def guilty(self) -> str:
        events = self.progress.events
        fails = bool(events) and events[-1].kind in ("failed", "back")
        return "lost" if fails or self.progress.first is not None else self.topic

    def shows(self, criterion: str) -> bool:
        if self.progress.over or self.guilty == self.topic:
            return True
        judged = ("processes", "gpus") if self.progress.first is not None else ("processes",)
        return criterion not in judged

    def faults_before_error(self) -> Iterator[Fault]:
        if self.guilty != self.topic:
            yield from self.progress.history.faults

    def advice(self, trouble: str) -> str:
        ends = self.guilty == "lost" and not self.progress.over
        return self.progress.words + "\nNo job is started any more after that." * ends

    def given(self, rank: int, world_size: int) -> Any:
        return self.setting.by_node

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, int]) -> None:
        decide, starts = fn(given).decide, None
        while (event := ask(starts)) is not None:
            spec = Job(*event["spec"]).spec() if event["spec"] else None
            starts = _starts(decide(Event(**event | {"spec": spec})))

    def dialogue(self, rank: int, world_size: int) -> Dialogue:
        """Sends an event after the decisions on the one before have been executed."""
        cluster, progress = Cluster(self.setting), self.progress
        progress.events, progress.history, progress.over = [], cluster.history, False
        events, decisions = cluster.events(), None
        yield  # the rank is ready
        while True:
            try:
                event = events.send(decisions)
            except StopIteration:
                progress.over = True
                return {"history": cluster.history}
            progress.events.append(event)
            job = astuple(cluster.jobs[event.job]) if event.spec else ()
            decisions = _starts((yield event._asdict() | {"spec": job}))

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        history: History = results[0]["history"]
        yield from history.faults
        good = good_makespan(self.setting)
        if not history.faults and history.makespan > _LONGER * good:
            late = (
                f"minute {history.makespan:g}, {history.makespan / good - 1:.0%} later than with"
            )
            words = f"a good schedule, at minute {good:g}. {_waste(history)}"
            yield "makespan", f"the last job finishes at {late} {words}"

    def figures(self, results: Sequence[Noted]) -> list[Figure]:
        """The jobs on each GPU."""
        return [drawn(self.setting, results[0]["history"], f"Jobs on the cluster, {self}")]


def _waste(history: History) -> str:
    """The larger of two wastes, as a question."""
    spread = [a for a in history.attempts if len({n for n, _ in a.gpus}) > 1]
    if len(spread) > len(history.attempts) / 10:
        return f"{counted(len(spread), 'start')} put a job on several nodes. Must they?"
    return "Which jobs run last, which GPUs are idle while jobs wait, and why?"


def _trials(seed: int) -> list[Trial]:
    small = [
        Scheduling("three jobs, no failures", _one_job_each(seed)),
        Scheduling("four jobs, one failure", example(drawn_seed(seed, "example"))),
        Scheduling("one node that fails three times", _often(seed)),
    ]
    large = []
    for name, habit in zip("ABC", ("in order", "spread", "short first"), strict=True):
        setting = _large(seed, habit)
        words = f"cluster {name}: {setting.nodes} nodes, {len(setting.jobs)} jobs"
        large.append(Scheduling(words, setting))
    return [Trial(1, [case], limit=20.0) for case in [*small, *large]]


PART = Part(
    name="11/orchestrator",
    level=3,
    title="A training orchestrator",
    minutes=45,
    difficulty=3,
    symbol="Orchestrator",
    check=Check(
        trials=_trials,
        rules=(
            rule("gpus", 3, "no GPU is promised twice, and none of a node that is down",
                 finish=True),
            rule("processes", 2, "a job of either back end gets a GPU for each of its processes",
                 finish=True),
            rule("once", 2, "no job is started while it runs, or after it has finished"),
            rule("lost", 3, "every job finishes, whatever fails"),
            rule("checkpoint", 2, "each job goes on from its last checkpoint"),
            rule("makespan", 3, "the makespan is within 15 % of a good schedule",
                 "gpus", "processes", "once", "lost", "checkpoint"),
        ),
    ),
)  # fmt: skip
