"""00/scaling_report: find what limits a run on N ranks, and the speed-up without that limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.checks.functions.bench import Bench
from dtlab.checks.functions.checks import RecordedCheck
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Recording, Trial
from dtlab.checks.parts import Part
from dtlab.predict import Cluster, Link
from dtlab.units.unit00.jobs import CAUSES, Job, Row, draw_job, rows_of, trace_events
from dtlab.units.unit00.shares import efficiencies, lost_seconds, speedup_without

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["PART", "Scaled", "clear_job", "recorded"]

_KEYS = ("ranks", "speedup", "efficiency", "lost", "cause", "levers")
_CLEAR = 1.2  # least ratio of the time lost to one cause and to the next smaller one
_NEAR = 2e-3  # relative tolerance of a number; for lost time, relative to the run's time
_CRITERIA = {  # the criterion that judges the time lost to a cause
    "input": "compute",
    "cores": "compute",
    "serial": "compute",
    "imbalance": "waiting",
    "latency": "wire",
    "bandwidth": "wire",
}
_ADVICE = {
    "input": 'Take the mean over the ranks of the spans called "input". Subtract the ideal time: '
    "a rank's share of the input time on one rank.",
    "cores": 'Use the spans called "forward" and "backward". How long do they take on one rank, '
    "and what is a rank's share of that?",
    "serial": "Use all spans with other names. In strong scaling, a rank's share of the time on "
    "one rank is 1/N of it. The time above that share is lost.",
    "imbalance": "Take `trace.idle`, the mean over the ranks.",
    "latency": "Fit seconds = a + b x bytes to the collectives, each measured from the start of "
    "the last rank. Latency's share of the exposed time is the share of a in their total time.",
    "bandwidth": "Take the mean exposed time over the ranks, minus the part that is latency.",
}


class Wanted(NamedTuple):
    """The right report."""

    numbers: Mapping[str, float]  # ranks, speed-up, efficiency
    lost: Mapping[str, float]  # seconds, by cause
    cause: str
    levers: list[tuple[str, float]]


@dataclass(frozen=True)
class Scaled(Faulty):
    """A call of `scaling_report(traces, scaling)`; `runs` has the rows for each number of ranks.

    For `recorded` runs only the cause is judged.
    """

    alone = True
    topic = "numbers"

    runs: Mapping[int, Sequence[Row]] = field(hash=False)
    scaling: str = "strong"
    recorded: bool = False

    @classmethod
    def of(cls, job: Job, sizes: Sequence[int]) -> Scaled:
        """The case for a job on each of these numbers of ranks."""
        return cls({n: rows_of(job, n) for n in sizes}, job.scaling)

    def __str__(self) -> str:
        kind = "recorded, " if self.recorded else ""
        return f"{kind}{self.scaling} scaling on 1 to {max(self.runs)} ranks"

    def given(self, rank: int, world_size: int) -> Any:
        return [[n, [list(row) for row in rows]] for n, rows in self.runs.items()], self.scaling

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.trace import Trace

        tables, scaling = given
        report = fn({n: Trace(trace_events(rows)) for n, rows in tables}, scaling)
        if not isinstance(report, Mapping):
            return {
                "form": f"returns {'None' if report is None else 'a ' + type(report).__name__}"
            }
        missing = [key for key in _KEYS if key not in report]
        if missing:
            return {"form": f"has no {missing[0]!r}"}
        return {key: _plain(report[key]) for key in _KEYS}

    def opened(self, result: Any) -> Noted:
        if "form" in result:
            return Noted({"form": f"scaling_report {str(result['form'])[:80]}."})
        lost, levers = result["lost"], result["levers"]
        numbers = {key: float(result[key]) for key in ("ranks", "speedup", "efficiency")}
        noted: dict[str, Any] = {"numbers": numbers, "cause": str(result["cause"])[:40]}
        if isinstance(lost, list) and {pair[0] for pair in lost} == set(CAUSES):
            noted["lost"] = {str(name): float(seconds) for name, seconds in lost}
        if isinstance(levers, list) and [len(lever) for lever in levers] == [2, 2]:
            noted["levers"] = [(str(name)[:40], float(reached)) for name, reached in levers]
        return Noted(noted)

    @cached_property
    def traces(self) -> Mapping[int, Trace]:
        """The traces that are passed to the learner's function, by number of ranks."""
        from dtlab.trace import Trace

        return {n: Trace(trace_events(rows)) for n, rows in self.runs.items()}

    @cached_property
    def right(self) -> Wanted:
        """The right report."""
        lost = lost_seconds(self.traces, self.scaling)
        ranks, order = max(self.runs), sorted(lost, key=lambda cause: -lost[cause])
        seconds = {n: trace.duration for n, trace in self.traces.items()}
        speedup, efficiency = efficiencies(seconds, self.scaling)[ranks]
        levers = [(c, speedup_without(self.traces, self.scaling, lost[c])) for c in order[:2]]
        numbers = {"ranks": ranks, "speedup": speedup, "efficiency": efficiency}
        return Wanted(numbers, lost, order[0], levers)

    @property
    def is_clear(self) -> bool:
        """Whether the lost times differ enough to make the order of the causes unambiguous."""
        most, second, third, *_ = sorted(self.right.lost.values(), reverse=True)
        return most > _CLEAR * second > _CLEAR**2 * third

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (report,) = results
        if report.get("form"):
            yield from ((name, report["form"]) for name in ("form", "numbers"))
            return
        right, lost, levers = self.right, report.get("lost"), report.get("levers")
        millis = sorted(((1e3 * time, name) for name, time in (lost or {}).items()), reverse=True)
        most = f"You lose {', '.join(f'{time:.1f} ms to {name}' for time, name in millis[:3])}."
        if report["cause"] != right.cause:
            yield (
                "cause",
                f'report["cause"] is {report["cause"]!r}. {most} Which of the six causes takes '
                "the largest part of the lost time?",
            )
        if self.recorded:
            return
        for name, wanted in right.numbers.items():
            got = report["numbers"][name]
            if not abs(got - wanted) <= _NEAR * wanted:
                yield (
                    "numbers",
                    f'report["{name}"] is {got:.4g}, not {wanted:.4g}. Compare the run on the '
                    "most ranks with the run on one rank, for the given kind of scaling.",
                )
        near = _NEAR * self.traces[max(self.runs)].duration
        for cause, criterion in _CRITERIA.items():
            if lost is None:
                message = f'report["lost"] must be a dict with the causes {", ".join(CAUSES)}.'
                yield criterion, message
            elif not abs(lost[cause] - right.lost[cause]) <= near:
                yield (
                    criterion,
                    f"{1e3 * right.lost[cause]:.1f} ms are lost to {cause}, and you have "
                    f"{1e3 * lost[cause]:.1f} ms. {_ADVICE[cause]}",
                )
        if levers is None:
            yield "levers", 'report["levers"] must be a list of two pairs (cause, speed-up).'
        elif [name for name, _ in levers] != [name for name, _ in right.levers]:
            yield (
                "levers",
                f"your levers are {' and '.join(name for name, _ in levers)}. {most} Name the two "
                "causes whose removal speeds the run up most, the better one first.",
            )
        else:
            for (name, got), (_, wanted) in zip(levers, right.levers, strict=True):
                if not abs(got - wanted) <= _NEAR * wanted:
                    yield (
                        "levers",
                        f"without the time lost to {name} the speed-up would be {wanted:.3f}, and "
                        f"you have {got:.3f}. How long would the run take without it?",
                    )


def _plain(value: Any) -> Any:
    """`value` as numbers, text and lists of these; a dict becomes a list of pairs."""
    if isinstance(value, Mapping):
        return [[str(name), _plain(item)] for name, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value[:40] if isinstance(value, str) else float(value)


# Synthetic runs with a known cause ---------------------------------------------------------------


def clear_job(draw: random.Random, cause: str, weak: bool, sizes: Sequence[int]) -> Scaled:
    """A job that loses the most time to `cause`, with a clear order of its three main causes."""
    causes = ("cores", "imbalance", "latency", "bandwidth") if weak else CAUSES
    for _ in range(200):
        second = draw.choice([name for name in causes if name != cause])
        case = Scaled.of(draw_job(draw, cause, second, weak), sizes)
        if case.is_clear and case.right.cause == cause:
            return case
    raise AssertionError(f"no draw is limited by {cause}")


def _trials(seed: int) -> list[Trial]:
    """A job in strong scaling for each cause, and three jobs in weak scaling."""
    draw = random.Random(seed)
    strong = [clear_job(draw, cause, False, (1, 2, draw.choice((6, 7, 8)))) for cause in CAUSES]
    weak = [
        clear_job(draw, cause, True, (1, draw.choice((6, 7, 8))))
        for cause in ("cores", "imbalance", draw.choice(("latency", "bandwidth")))
    ]
    draw.shuffle(strong)
    return [Trial(1, [*strong, *weak])]


# Real runs on an emulated interconnect -----------------------------------------------------------

_RANKS, _STEPS = 4, 2
_LIMIT = 20.0  # seconds for a run that takes 0.1 s
_LINKS = {"latency": (4e-3, 5e9), "bandwidth": (1e-5, 2e7)}  # seconds, bytes/s one-way
_SIZES = (40_000, 160_000, 10_000)  # elements of 4 bytes


def _train(forward: float) -> None:
    import torch
    import torch.distributed as dist

    import dtlab

    for _ in range(_STEPS):
        for name, times in (("forward", 1), ("backward", 2)):
            with dtlab.span(name):
                dtlab.compute(times * forward)
        for size in _SIZES if dist.get_world_size() > 1 else ():
            dist.all_reduce(torch.zeros(size))
        with dtlab.span("optimizer"):
            dtlab.compute(0.002)


def recorded(seed: int, bench: Bench) -> Scaled | None:
    """Traces of one and of four ranks on a drawn network; None if a run failed or is not clear."""
    draw = random.Random(seed)
    link = Link(*_LINKS[draw.choice(list(_LINKS))])
    runs: dict[int, list[Row]] = {}
    for ranks in (1, _RANKS):
        cluster = Cluster(gpus_per_node=ranks, intra=link, inter=link)
        steps = Recording((0.02 / ranks,))
        observation = bench.observe(Trial(ranks, [steps], cluster=cluster, limit=_LIMIT), _train)
        if observation.trace is None:
            return None
        runs[ranks] = [
            (event.rank, event.kind, event.name, event.bytes, event.start, event.end)
            for event in observation.trace.events
        ]
    case = Scaled(runs, recorded=True)
    return case if case.is_clear else None


def _of_recorded(seed: int, bench: Bench) -> list[Trial]:
    case = recorded(seed, bench)
    return [Trial(1, [case])] if case is not None else []


_LOST = ("compute", "waiting", "wire")

PART = Part(
    name="00/scaling_report",
    level=2,
    title="The scaling report",
    minutes=25,
    difficulty=3,
    check=RecordedCheck(
        trials=_trials,
        record=_of_recorded,
        rules=(
            rule("numbers", 2, "ranks, speed-up and efficiency are right"),
            rule("compute", 4, "time lost to input, cores and serial work is right", "form"),
            rule("waiting", 1, "time lost waiting for other ranks is right", "form"),
            rule("wire", 3, "exposed time is divided into latency and bandwidth", "form"),
            rule("cause", 2, "the main cause is right, even for recorded runs", "numbers", *_LOST),
            rule("levers", 2, "two best levers and speed-ups are right", "numbers", *_LOST),
        ),
    ),
)
