"""10/bottlenecks: find in a trace on which axis of a mesh the ranks wait longest.

    check's process             four ranks, two emulated nodes     one rank
    draw_runs(seed) ────────>  three runs of a ParallelGPT
    last step of each  <──────  trace
    Reading(events, sizes)  ────────────────────────────────────>  bottleneck(trace, sizes)

The right answer is computed from the same events, so it does not depend on the machine's load.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Final

from dtlab.checks.functions.bench import Bench
from dtlab.checks.functions.checks import RecordedCheck
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Recording, Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import entries
from dtlab.errors import RanksError
from dtlab.parallel.mesh import group_of
from dtlab.predict import Cluster, Link
from dtlab.trace import Event, Trace

__all__ = ["PART", "Stepping", "draw_runs", "last_step"]

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
class Stepping(Recording):
    """Training steps on one mesh; `number` is the run's number."""

    sizes: Mapping[str, int]
    number: int


def draw_runs(seed: int) -> Trial:
    """Draws the trial with all runs, on one emulated cluster of two nodes of two GPUs."""
    draw = random.Random(seed)
    network = Link(2e-6, draw.choice((3e9, 4e9, 5e9)))
    cluster = Cluster(2, 2, Link(1e-6, 300e9), network, slowdown=1000)
    cases = []
    for number, (sizes, *drawn) in enumerate(draw.sample(_RUNS, len(_RUNS))):
        width, layers, batch = map(draw.choice, drawn)
        config = {
            "vocab_size": 64, "context": 32, "num_layers": layers, "num_heads": 4, "width": width
        }  # fmt: skip
        options = {"microbatches": 2} if sizes["pipeline"] > 1 else {}
        arguments = dict(sizes), config, options, batch, number
        cases.append(Stepping(arguments, sizes, number))
    return Trial(4, cases, cluster=cluster, limit=60.0)


def last_step(trace: Trace, run: int = 0) -> Trace:
    """The last step of a run: on each rank a span "batch", then a span "step" with its events."""
    last: dict[tuple[str, int], Event] = {}
    for event in trace.events:
        if event.name in ("batch", "step") and event.extra["run"] == run:
            last[event.name, event.rank] = event

    def belongs(event: Event) -> bool:
        step = last.get(("step", event.rank))
        inside = step is not None and step.start <= event.start <= event.end <= step.end
        return inside or event == last.get(("batch", event.rank))

    return Trace(filter(belongs, trace.events))


# The right answer --------------------------------------------------------------------------------


class Waits:
    """Seconds that ranks wait in a trace of one step, by axis, by operation and by rank.

    `axis` and `operation` are those with the longest waits, `share` is the fraction of the step
    that the ranks wait, and `step` has the seconds of each rank's step.
    """

    def __init__(self, trace: Trace, sizes: Mapping[str, int]) -> None:
        self.by_axis: Counter[str] = Counter()
        self.by_operation: Counter[tuple[str, str]] = Counter()
        self.by_rank: Counter[int] = Counter()
        self.step = {e.rank: e.end - e.start for e in trace.events if e.name == "step"}
        for event in trace.events:
            if event.kind != "comm":
                continue
            seconds = sum(end - start for start, end in event.extra["blocked"])
            self.by_rank[event.rank] += seconds
            group = sorted(event.extra["group"])
            for axis in sizes:
                if sizes[axis] > 1 and group == group_of(event.rank, axis, sizes):
                    self.by_axis[axis] += seconds
                    self.by_operation[axis, event.name] += seconds
        self.axis = max(self.by_axis, key=lambda axis: self.by_axis[axis])
        waits = {name: s for (axis, name), s in self.by_operation.items() if axis == self.axis}
        self.operation = max(waits, key=lambda name: waits[name])
        self.share = self.by_rank.total() / sum(self.step.values())


# The cases of the check --------------------------------------------------------------------------

_KEYS: Final = ("axis", "waiting", "operation")
_SAME = 0.01  # tolerance of a share of the step


@dataclass(frozen=True)
class Reading(Faulty):
    """A call of `bottleneck(trace, sizes)` on the recorded trace of one step."""

    alone = True
    topic = "axis"

    trace: Trace
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return " x ".join(f"{axis} {size}" for axis, size in self.sizes.items())

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [astuple(event) for event in self.trace.events], dict(self.sizes)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        rows, sizes = given
        return entries(fn(Trace(Event(*row) for row in rows), sizes), _KEYS)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        odd = results[0].get("odd")
        if odd:
            words = f"bottleneck returns {odd}. Return a dict with {', '.join(_KEYS)}."
            yield from (("axis", words), ("form", words))
            return
        axis, waiting, operation = (results[0][key] for key in _KEYS)
        waits = Waits(self.trace, self.sizes)
        if axis != waits.axis:
            yield "axis", self._why_not(axis, waits)
        if operation != waits.operation:
            right = waits.by_operation[waits.axis, waits.operation]
            got = waits.by_operation[waits.axis, str(operation)]
            yield (
                "operation",
                f"on the axis that costs most, the ranks wait {1e3 * got:.0f} ms in "
                f"{operation!r}, and {1e3 * right:.0f} ms in another operation. Add up the waits "
                "of that axis by the name of the event.",
            )
        if not isinstance(waiting, int | float) or not abs(waiting - waits.share) <= _SAME:
            yield "waiting", self._wrong_share(waiting, waits)

    def _why_not(self, axis: Any, waits: Waits) -> str:
        """A message on why `axis` is not the one on which the ranks wait longest."""
        if self.sizes.get(str(axis), 1) == 1:
            return f"{axis!r} has no group of several ranks in this mesh."
        got, most = (1e3 * waits.by_axis[name] for name in (str(axis), waits.axis))
        return (
            f"all ranks together wait {got:.0f} ms for operations of {axis!r}, and {most:.0f} ms "
            "for those of another axis. Is every event in the group of its own rank, and do you "
            "count the time in which a rank waits, not bytes or the time that a message takes?"
        )

    def _wrong_share(self, waiting: Any, waits: Waits) -> str:
        """A message about a wrong share `waiting`; it names the mistake if that is known."""
        all_ranks = sum(waits.step.values())
        events = self.trace.events
        comm = [event for event in events if event.kind == "comm"]
        busy = sum(e.end - e.start for e in events if e.name in ("forward", "backward"))
        known = {
            "those are the seconds of all ranks over the step of one.": 4 * waits.share,
            "that is rank 0 alone. Add up the waits of all ranks.":
                waits.by_rank[0] / waits.step[0],
            "that is one axis alone. A rank waits in other operations too.":
                waits.by_axis[waits.axis] / all_ranks,
            "that counts operations from start to end. In the part that is not in "
            'extra["blocked"], the rank computes.':
                sum(event.end - event.start for event in comm) / all_ranks,
            "that counts only what is outside of forward and backward. A rank also waits inside "
            "them.": 1 - busy / all_ranks,
        }  # fmt: skip
        if isinstance(waiting, int | float):
            for words, value in known.items():
                if abs(waiting - value) <= _SAME:
                    return f"{waiting:.3f} is not the share of waiting: {words}"
        return (
            f"{waiting!r} is not the share of the step in which a rank waits. Divide the seconds "
            'in extra["blocked"] of all ranks by the seconds of their spans "step".'
        )


def synthetic(seed: int) -> Reading:
    """A synthetic step, in which the ranks outside rank 0's groups determine the answer.

    In ms, over all ranks: data all_reduce 13 and all_gather 9, tensor reduce_scatter 16. So the
    operation that costs most is not on the axis that costs most, which is neither the first axis
    nor the last. The step does not begin at 0.
    """
    unit = random.Random(seed).uniform(0.8e-3, 1.2e-3)
    sizes = {"tensor": 2, "data": 2, "pipeline": 1}
    events = []
    for rank in range(4):
        slow = rank >= 2
        at = begin = 3 * unit
        events.append(Event(rank, "compute", "batch", (), 0, 0.0, begin, {}))
        for axis, name, waits in (
            ("data", "all_reduce", 6.0 if slow else 0.5),
            ("data", "all_gather", 4.0 if slow else 0.5),
            ("tensor", "reduce_scatter", 4.0),
        ):
            group, end = group_of(rank, axis, sizes), at + waits * unit
            peers = tuple(each for each in group if each != rank)
            extra = {"group": tuple(group), "blocked": ((at, end),)}
            events.append(Event(rank, "comm", name, peers, 4096, at, end, extra))
            at = end
        events.append(Event(rank, "compute", "step", (), 0, begin, begin + 20 * unit, {}))
    return Reading(Trace(events), sizes)


# The check records the traces before it runs the answer ------------------------------------------


@lru_cache(maxsize=8)
def _recorded(seed: int, bench: Bench) -> list[Trial]:
    """A trial with the last step of each run. Raises `RanksError` if the ranks did not finish."""
    from dtlab.units.unit10.bottlenecks_training import train  # loads torch

    runs = draw_runs(seed)
    observation = bench.observe(runs, train)
    trace = observation.trace
    if observation.error is not None or trace is None:
        raise observation.error or RanksError("the ranks recorded no trace")
    readings = [
        Reading(last_step(trace, case.number), case.sizes)
        for case in runs.cases
        if isinstance(case, Stepping)
    ]
    return [Trial(1, readings, limit=10.0)]


PART = Part(
    name="10/bottlenecks",
    symbol="bottleneck",
    level=3,
    title="Two runs, two bottlenecks",
    minutes=20,
    difficulty=2,
    check=RecordedCheck(
        trials=lambda seed: [Trial(1, [synthetic(seed)], limit=10.0)],
        record=_recorded,  # type: ignore[arg-type]
        compiles=True,
        rules=(
            rule("axis", 3, "the axis on which ranks wait longest, in all five traces"),
            rule("operation", 2, "the operation in which the ranks wait longest", "form"),
            rule("waiting", 3, "the share of the step in which a rank waits", "form"),
        ),
    ),
)
