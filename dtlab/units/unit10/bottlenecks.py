"""10/bottlenecks: which axis of a mesh makes the ranks wait, read off a trace.

    check's process             four ranks, two emulated nodes     one rank
    draw_runs(seed) ────────>  three runs of a ParallelGPT
    last step of each  <──────  trace
    Reading(events, sizes)  ────────────────────────────────────>  bottleneck(trace, sizes)

The right answer is computed from the same events, so nothing depends on how busy the machine is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from dtlab.errors import RanksError
from dtlab.grading.checking.bench import HERE, Bench, warm_up
from dtlab.grading.checking.checks import Check, Rule, blocked
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import plain
from dtlab.grading.report import Criterion
from dtlab.predict import Cluster, Link
from dtlab.trace import Event, Trace

__all__ = ["PART", "Stepping", "draw_runs", "found_in", "last_step"]

# The runs ----------------------------------------------------------------------------------------
#
#     mesh, outermost axis first    crosses the network    ranks wait longest for
#     data 2 x tensor 2             data                   gradients, which have fewer bytes
#     the same, with many tokens    data                   activations, whose link is fast
#     pipeline 2 x tensor 2         pipeline               recv, as the pipeline fills and drains
#     tensor 2 x data 2             tensor                 activations

_DATA, _TENSOR = ({"data": 2, "pipeline": 1, "tensor": 2}, {"tensor": 2, "pipeline": 1, "data": 2})
_PIPELINE = {"pipeline": 2, "data": 1, "tensor": 2}
_RUNS: Final = (  # the mesh; widths, numbers of layers and of sequences that are drawn
    (_DATA, (48, 64), (3, 5), (12, 16, 20)),
    (_DATA, (16,), (8, 10), (80,)),
    (_PIPELINE, (48, 64), (3,), (24, 32, 40)),  # stages of one and of two layers
    (_TENSOR, (48, 64), (3, 5), (12, 16, 20)),
)


@dataclass(frozen=True)
class Stepping(Faulty):
    """Training steps on one mesh, run to record a trace. Nothing in this case is judged."""

    topic = "form"

    sizes: Mapping[str, int]
    width: int
    layers: int
    batch: int
    number: int

    def __str__(self) -> str:
        return " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        config = {
            "vocab_size": 64, "context": 32, "num_layers": self.layers, "num_heads": 4,
            "width": self.width,
        }  # fmt: skip
        options = {"microbatches": 2} if self.sizes["pipeline"] > 1 else {}
        return dict(self.sizes), config, options, self.batch, self.number

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        fn(*given)
        return {}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        return iter(())


def draw_runs(seed: int) -> Trial:
    """Draws the trial with all runs, on one emulated cluster of two nodes of two GPUs."""
    draw = random.Random(seed)
    network = Link(2e-6, draw.choice((3e9, 4e9, 5e9)))
    cluster = Cluster(2, 2, Link(1e-6, 300e9), network, slowdown=1000)
    cases = [
        Stepping(sizes, draw.choice(widths), draw.choice(layers), draw.choice(batches), number)
        for number, (sizes, widths, layers, batches) in enumerate(draw.sample(_RUNS, len(_RUNS)))
    ]
    return Trial(4, cases, cluster=cluster, limit=60.0)


def last_step(trace: Trace, run: int = 0) -> Trace:
    """The last step of a run: on each rank a span "batch", then a span "step" with its events."""
    last: dict[tuple[int, str], Event] = {}
    for event in trace.events:
        if event.name in ("batch", "step") and event.extra["run"] == run:
            last[event.rank, event.name] = event
    spans = {rank: event for (rank, name), event in last.items() if name == "step"}
    inside = [
        event
        for event in trace.events
        if event.rank in spans
        and spans[event.rank].start <= event.start <= event.end <= spans[event.rank].end
    ]
    before = [event for (_, name), event in last.items() if name == "batch"]
    return Trace(_bare(event) for event in [*before, *inside])


def _bare(event: Event) -> Event:
    """A copy of an event that keeps only the `extra` entries that an answer may need."""
    extra = {
        name: event.extra[name]
        for name in ("group", "blocked", "tag", "thread", "stage", "microbatch")
        if name in event.extra
    }
    return replace(event, extra=extra)


# The right answer --------------------------------------------------------------------------------


class Waits(NamedTuple):
    """Seconds that ranks wait, by axis, by operation and by rank; and each rank's step time."""

    by_axis: Counter[str]
    by_operation: Counter[tuple[str, str]]
    by_rank: Counter[int]
    step: dict[int, float]

    @property
    def axis(self) -> str:
        """The axis on which the ranks wait longest."""
        return max(self.by_axis, key=lambda axis: self.by_axis[axis])

    @property
    def operation(self) -> str:
        """The operation in which the ranks wait longest on that axis."""
        own = {name: s for (axis, name), s in self.by_operation.items() if axis == self.axis}
        return max(own, key=lambda name: own[name])

    @property
    def share(self) -> float:
        """The fraction of the step that the ranks wait, over all ranks."""
        return self.by_rank.total() / sum(self.step.values())


def found_in(trace: Trace, sizes: Mapping[str, int]) -> Waits:
    """The waiting times in a trace of one step, which give the right answer."""
    from dtlab.parallel.mesh import group_of  # it imports torch

    step = {event.rank: event.end - event.start for event in trace.events if event.name == "step"}
    found = Waits(Counter(), Counter(), Counter(), step)
    for event in trace.events:
        if event.kind != "comm":
            continue
        seconds = sum(end - start for start, end in event.extra["blocked"])
        found.by_rank[event.rank] += seconds
        group = sorted(event.extra["group"])
        for axis in sizes:
            if sizes[axis] > 1 and group == group_of(event.rank, axis, sizes):
                found.by_axis[axis] += seconds
                found.by_operation[axis, event.name] += seconds
    return found


# What is judged ----------------------------------------------------------------------------------

_KEYS: Final = ("axis", "waiting", "operation")
_SAME = 0.01  # tolerance of a share of the step


@dataclass(frozen=True)
class Reading(Faulty):
    """A call of `bottleneck(trace, sizes)` on the recorded trace of one step."""

    alone = True
    topic = "axis"

    events: tuple[Event, ...]
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        rows = [{**vars(event), "extra": dict(event.extra)} for event in self.events]
        return rows, dict(self.sizes)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        rows, sizes = given
        events = []
        for row in rows:
            row["peers"] = tuple(row["peers"])
            for name in {"group", "blocked"} & set(row["extra"]):
                row["extra"][name] = tuple(row["extra"][name])
            events.append(Event(**row))
        found = fn(Trace(events), sizes)
        if not isinstance(found, Mapping):
            return {"odd": f"a {type(found).__name__}"}
        values = {key: plain(found[key]) for key in _KEYS if key in found}
        return {k: v if isinstance(v, int | float | str) else str(v)[:40]
                for k, v in values.items()}  # fmt: skip

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        axis, waiting, operation = values = [results[0].get(key) for key in _KEYS]
        if None in values:
            odd = results[0].get("odd") or f"a dict without {_KEYS[values.index(None)]!r}"
            words = f"bottleneck returns {odd}. Return a dict with {', '.join(_KEYS)}."
            yield from (("axis", words), ("form", words))
            return
        trace = Trace(self.events)
        found = found_in(trace, self.sizes)
        if axis != found.axis:
            yield "axis", self._why_not(axis, found)
        if operation != found.operation:
            right = found.by_operation[found.axis, found.operation]
            said = found.by_operation[found.axis, str(operation)]
            yield (
                "operation",
                f"on the axis that costs most the ranks wait {1e3 * said:.0f} ms in "
                f"{operation!r}, and {1e3 * right:.0f} ms in another operation. Add up the waits "
                "of that axis by the name of the event.",
            )
        if not isinstance(waiting, int | float) or not abs(waiting - found.share) <= _SAME:
            yield "waiting", self._which(waiting, found, trace)

    def _why_not(self, axis: Any, found: Waits) -> str:
        """A message on why `axis` is not the one on which the ranks wait longest."""
        if self.sizes.get(str(axis), 1) == 1:
            return f"{axis!r} has no group of several ranks in this mesh."
        own, most = (1e3 * found.by_axis[name] for name in (str(axis), found.axis))
        return (
            f"all ranks together wait {own:.0f} ms for operations of {axis!r}, and {most:.0f} ms "
            "for those of another axis. Is every event in the group of its own rank, and do you "
            "count the time in which a rank waits, not bytes or the time that a message takes?"
        )

    def _which(self, waiting: Any, found: Waits, trace: Trace) -> str:
        """A message for a wrong share `waiting`; it names the mistake if that is known."""
        total, all_ranks = found.by_rank.total(), sum(found.step.values())
        comm = [event for event in trace.events if event.kind == "comm"]
        busy = sum(e.end - e.start for e in trace.events if e.name in ("forward", "backward"))
        known = {
            "those are the seconds of all ranks over the step of one.": total * 4 / all_ranks,
            "that is rank 0 alone. Add up the waits of all ranks.":
                found.by_rank[0] / found.step[0],
            "that is one axis alone. A rank waits in other operations too.":
                found.by_axis.total() and found.by_axis[found.axis] / all_ranks,
            "that counts operations from start to end. In the part that is not in "
            'extra["blocked"], the rank computes.':
                sum(event.end - event.start for event in comm) / all_ranks,
            "that counts only what is outside of forward and backward. A rank also waits inside "
            "them.": 1 - busy / all_ranks,
        }  # fmt: skip
        if isinstance(waiting, int | float):
            for words, value in known.items():
                if abs(waiting - value) <= _SAME:
                    return f"{waiting:.3f} is no share of waiting: {words}"
        return (
            f"{waiting!r} is not the share of the step in which a rank waits. Divide the seconds "
            'in extra["blocked"] of all ranks by the seconds of their spans "step".'
        )


# The check records the traces before it runs the answer ------------------------------------------


@lru_cache(maxsize=8)
def _recorded(seed: int, bench: Bench) -> tuple[Reading, ...]:
    """The last step of each run. Raises `RanksError` if the ranks did not finish."""
    from dtlab.units.unit10.bottlenecks_training import train  # loads torch

    trial = draw_runs(seed)
    seen = bench.observe(trial, train)
    if seen.error is not None or seen.trace is None:
        raise seen.error or RanksError("the ranks left no trace")
    return tuple(
        Reading(tuple(last_step(seen.trace, case.number).events), case.sizes)
        for case in trial.cases
        if isinstance(case, Stepping)
    )


@dataclass(frozen=True)
class Recorded:
    """A check that records runs of our own program, and passes their traces to the answer."""

    rules: tuple[Rule, ...]

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(rule.points for rule in self.rules)

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        """Record the runs, and judge the result of `answer` for each."""
        if bench is HERE:
            warm_up()
        try:
            cases = _recorded(seed, bench) if callable(answer) else ()  # type: ignore[arg-type]
        except RanksError:
            late = blocked("the runs did not finish in time: the machine is busy. Check again.")
            return [each.closed(late) for each in self.rules]
        reads = Check(lambda _: [Trial(1, cases, limit=10.0)], self.rules)
        return reads.run(symbol, answer, seed, learner, bench)


PART = Part(
    name="10/bottlenecks",
    symbol="bottleneck",
    level=3,
    title="Two runs, two bottlenecks",
    minutes=20,
    difficulty=2,
    check=Recorded(
        (
            rule("axis", 3, "the axis that costs most waiting, in all four runs"),
            rule("operation", 2, "the operation in which the ranks wait most", "form"),
            rule("waiting", 3, "the share of the step in which a rank waits", "form"),
        ),
    ),
)
