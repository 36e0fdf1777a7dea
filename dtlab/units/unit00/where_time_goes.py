"""00/where_time_goes: compute busy, exposed and idle time from the events of a trace.

The function gets a list of events, not a `Trace`: the learner writes what `dtlab.trace` computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit00.jobs import Row, trace_events

_FINISHED = ("dtlab.trace", "dtlab.trace.analysis", "dtlab.trace.columns", "dtlab.trace.chrome")
_NEAR = 1e-6  # seconds
_USES = ("busy", "exposed", "idle")
_ADVICE = {  # by criterion: the time that it judges, and advice
    "busy": ("busy", "Spans may be nested and overlap: each second counts once."),
    "hidden": (
        "exposed",
        "A rank that computes during a transfer is busy and loses nothing: only the time "
        "outside all of its spans is exposed.",
    ),
    "arrival": (
        "exposed",
        "A collective begins when the last rank joins; the k-th one of each rank is the "
        "same collective. Before that, a rank waits for another rank, not for the wire. It lasts "
        "until its end on this rank: ranks do not all finish it at the same time.",
    ),
    "idle": (
        "idle",
        "The three times add up to the whole trace, which lasts from the first start to the last "
        "end of any event on any rank.",
    ),
}


@dataclass(frozen=True)
class Divided(Faulty):
    """A call of `where_time_goes(events)` with these rows, which test the criterion `shown`."""

    finished: ClassVar[tuple[str, ...]] = _FINISHED
    allowed: ClassVar[tuple[str, ...]] = ("Event",)

    alone = True
    topic = "busy"

    rows: tuple[Row, ...]
    shown: str

    def __str__(self) -> str:
        return f"{len(self.rows)} events"

    def given(self, rank: int, world_size: int) -> Any:
        return [list(row) for row in sorted(self.rows, key=lambda row: row[4])]

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        events = trace_events(given)
        with finished_calls(*_FINISHED, allowed=("Event",)) as finished:
            answer = fn(events)
        try:
            rows = [[int(rank), *map(float, uses)] for rank, uses in answer.items()]
        except (AttributeError, TypeError, ValueError):
            rows = []
        return {"rows": rows, "kind": type(answer).__name__, "called": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        uses = {int(rank): [*map(float, times)] for rank, *times in result["rows"]}
        called = [str(name)[:100] for name in result["called"]]
        return Noted({"uses": uses, "kind": str(result["kind"])[:40], "called": called})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        from dtlab.trace import Trace

        (answer,) = results
        trace = Trace(trace_events(self.rows))
        lengths = {rank: len(times) for rank, times in answer["uses"].items()}
        form = ""
        if answer["called"]:
            form = f"{answer['called'][0]} does the work for you: write it yourself."
        elif lengths != dict.fromkeys(range(trace.world_size), len(_USES)):
            form = (
                f"where_time_goes returns {answer['kind']}: return a dict that maps each rank to "
                "the triple (busy, exposed, idle)."
            )
        if form:
            yield from ((name, form) for name in ("form", "busy"))
            return
        name, advice = _ADVICE[self.shown]
        seconds = {"busy": trace.busy, "exposed": trace.exposed_comm, "idle": trace.idle}[name]
        for rank, times in sorted(answer["uses"].items()):
            got, right = times[_USES.index(name)], seconds(rank)
            if not abs(got - right) <= _NEAR:
                yield (
                    self.shown,
                    f"rank {rank} is {name} for {1e3 * right:.2f} ms, and you have "
                    f"{1e3 * got:.2f} ms.\n{advice}",
                )


# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """For each criterion, two sets of events with drawn times that test it."""
    draw = random.Random(seed)
    makers = {"busy": _nested, "hidden": _overlapped, "arrival": _late, "idle": _shifted}
    return [
        Trial(1, [Divided(tuple(make(draw, ranks)), topic) for ranks in (2, 3)])
        for topic, make in makers.items()
    ]


def _times(draw: random.Random, count: int) -> list[float]:
    """`count` ascending times that start at 0 and are milliseconds apart."""
    return [*accumulate((draw.uniform(1e-3, 9e-3) for _ in range(count - 1)), initial=0.0)]


def _nested(draw: random.Random, ranks: int) -> list[Row]:
    """Nested, overlapping and separate spans without communication."""
    rows: list[Row] = []
    for rank in range(ranks):
        a, b, c, d, e, f, g, h = _times(draw, 8)
        spans = [("step", a, d), ("forward", a, b), ("backward", b, c), ("load", c, e)]
        spans += [("optimizer", f, g), ("log", f, h)]
        rows += [(rank, "compute", name, 0, begin, end) for name, begin, end in spans]
    return rows


def _overlapped(draw: random.Random, ranks: int) -> list[Row]:
    """Collectives that all ranks begin together, while some ranks compute and some do not."""
    a, b, c, d, e, f, g = _times(draw, 7)
    rows: list[Row] = []
    for rank in range(ranks):
        within = draw.uniform(0.2, 0.8)
        first = draw.choice((a, c))
        rows += [(rank, "compute", "forward", 0, a, b), (rank, "compute", "backward", 0, first, d)]
        rows += [
            (rank, "comm", "all_reduce", 4000, b, c),
            (rank, "comm", "all_reduce", 9000, d, f),
        ]
        rows.append((rank, "compute", "optimizer", 0, d + within * (e - d), e))
        rows.append((rank, "compute", "log", 0, f, g))
    return rows


def _late(draw: random.Random, ranks: int) -> list[Row]:
    """Three collectives that ranks begin and finish at different times."""
    rows: list[Row] = []
    free = [0.0] * ranks
    for _ in range(3):
        arrivals = [start + draw.uniform(1e-3, 2e-2) for start in free]
        ends = [max(arrivals) + draw.uniform(2e-3, 6e-3) for _ in range(ranks)]
        for rank in range(ranks):
            rows.append((rank, "compute", "forward", 0, free[rank], arrivals[rank]))
            rows.append((rank, "comm", "all_reduce", 4000, arrivals[rank], ends[rank]))
        free = ends
    return rows


def _shifted(draw: random.Random, ranks: int) -> list[Row]:
    """A trace that begins late, whose ranks begin and end at different times, with gaps."""
    rows: list[Row] = []
    meet = 0.35
    for rank in range(ranks):
        begin = 0.25 + draw.uniform(0, 0.02)
        rows.append((rank, "compute", "forward", 0, begin, begin + draw.uniform(0.01, 0.06)))
        rows.append((rank, "comm", "all_reduce", 4000, meet, 0.36))
        late = 0.36 + draw.uniform(0, 0.01)
        rows.append((rank, "compute", "optimizer", 0, late, late + draw.uniform(0.001, 0.02)))
    return rows


PART = Part(
    name="00/where_time_goes",
    level=2,
    title="Where the time goes",
    minutes=22,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("busy", 3, "nested and overlapping spans count once"),
            rule("hidden", 2, "communication hidden behind compute is not exposed", "form"),
            rule("arrival", 3, "a collective begins when the last rank joins", "form"),
            rule("idle", 2, "the rest of the trace is idle", "form"),
        ),
    ),
)
