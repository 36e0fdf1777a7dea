"""07/run_b: read from a trace what limits a pipeline, and cut its layers better.

`run_b(trace, goal)` is called with three traces. The answers are compared with the layer
times from which the traces were made, so nothing depends on the load of the machine. The first cut
is then run with stand-in layers on an emulated cluster, and the report gives the measured speedup.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any, Final

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import plain
from dtlab.predict import Costs, balance_stages, simulate
from dtlab.predict.units import counted
from dtlab.schedules import gpipe
from dtlab.trace import Event, Trace
from dtlab.units.unit07.balance_stages import odd_layers

# Layers: an even split of them is slow, and produces the trace -----------------------------------
#
#     layers   12 of about 4 ms    36 others of about 0.5 ms    four ranks, twelve layers each
#     stages   48  6  6  5         sum / max = 1.35             the largest speedup of this cut
#     new cut  17 16 16 16         sum / max = 3.8

Cut = list[list[int]]


@dataclass(frozen=True)
class Layers:
    """The time of each layer for a microbatch, forward and backward, and the speedup to reach.

    `compiles` is the rank that takes longest in the first step.
    """

    seconds: tuple[float, ...]
    ranks: int
    goal: float
    compiles: int

    @property
    def even(self) -> Cut:
        """The cut with the same number of layers on each rank."""
        each = len(self.seconds) // self.ranks
        return [list(range(each * rank, each * (rank + 1))) for rank in range(self.ranks)]

    @cached_property
    def best(self) -> Cut:
        """The cut with the fastest slowest stage."""
        return [list(part) for part in balance_stages(self.seconds, self.ranks)]

    def times(self, cut: Sequence[Sequence[int]]) -> list[float]:
        """The seconds of each stage for a microbatch."""
        return [math.fsum(self.seconds[layer] for layer in part) for part in cut]

    @property
    def slow(self) -> int:
        """The stage that limits the even split."""
        times = self.times(self.even)
        return times.index(max(times))

    def ceiling(self, cut: Sequence[Sequence[int]]) -> float:
        """The upper bound of a cut's speedup over one rank."""
        return sum(self.seconds) / max(self.times(cut))

    def speedup(self, cut: Sequence[Sequence[int]], num_microbatches: int) -> float:
        """The simulated speedup of a cut over one rank."""
        step = simulate(gpipe(self.ranks, num_microbatches), _costs(self.times(cut))).duration
        return num_microbatches * sum(self.seconds) / step


def _costs(times: Sequence[float], message: float = 0.0) -> Costs:
    """The costs of stages that take this long: a third each for F, I and W."""
    thirds = [time / 3 for time in times]
    return Costs(thirds, thirds, thirds, message)


def filled(seconds: Sequence[float], ranks: int) -> Cut:
    """The cut of a greedy rule, which ends a stage as near as it can to its share of the time."""
    cut: Cut = [[]]
    for layer, each in enumerate(seconds):
        over = sum(seconds[number] for number in cut[-1]) + each / 2 > sum(seconds) / ranks
        if cut[-1] and over and len(cut) < ranks:
            cut.append([])
        cut[-1].append(layer)
    return cut


_COUNT: Final = 4  # microbatches of the slow run
_PER_STAGE: Final = 12  # layers of a stage in the even split


def draw_layers(draw: random.Random, ranks: int, goal: float) -> Layers:
    """Draws layers for which an even split is slow, and a greedy cut is not the best one."""
    for _ in range(5000):
        slow = draw.randrange(ranks)
        most = 8 if ranks > 3 else 12
        seconds = [
            1e-4 * (draw.randint(30, 50) if layer // _PER_STAGE == slow else draw.randint(2, most))
            for layer in range(ranks * _PER_STAGE)
        ]
        compiles = draw.choice([rank for rank in range(ranks) if rank != slow])
        layers = Layers(tuple(seconds), ranks, goal, compiles)
        even, greedy = layers.ceiling(layers.even), layers.ceiling(filled(seconds, ranks))
        if 1.15 < _COUNT * even / (even + _COUNT - 1) < 1.25 and greedy > 1.01 * goal:
            best = layers.ceiling(layers.best)
            if greedy < 0.99 * best and layers.speedup(layers.best, 30) >= goal:
                return layers
    raise AssertionError("no draw has a best cut that a greedy rule misses")


# The trace has three steps of GPipe. In the first step another rank takes far longer than later,
# like a rank that compiles its kernels. So sums over all steps are misleading.

_STEPS: Final = 3
_MESSAGE, _GAP = 1e-4, 5e-3  # seconds: of a message; between steps


def events_of(layers: Layers) -> list[Event]:
    """The events of the slow run."""
    events: list[Event] = []
    begin = 0.0
    for step in range(_STEPS):
        times = layers.times(layers.even)
        if step == 0:
            times[layers.compiles] = 1.5 * _STEPS * max(times)
        trace = simulate(gpipe(layers.ranks, _COUNT), _costs(times, _MESSAGE))
        for event in trace.events:
            events.append(replace(event, start=begin + event.start, end=begin + event.end))
            if event.kind == "compute":
                events += _pieces(layers, events[-1], step)
        begin += trace.duration + _GAP
    return events


def _pieces(layers: Layers, span: Event, step: int) -> Iterator[Event]:
    """The layers inside a stage's forward; inside its backward in reverse, in two pieces each."""
    layers_inside = layers.even[span.extra["stage"]]
    if span.name == "backward":
        layers_inside = [layer for layer in reversed(layers_inside) for _ in range(2)]
    stretch = (span.end - span.start) / sum(layers.seconds[layer] for layer in layers_inside)
    start = span.start
    for layer in layers_inside:
        end = start + stretch * layers.seconds[layer]
        about = {"layer": layer, "step": step}
        yield Event(span.rank, "compute", "layer", start=start, end=end, extra=about)
        start = end


# The check: the answer for each trace ------------------------------------------------------------

_KEYS: Final = ("stage", "ceiling", "cut", "num_microbatches")
_MOST: Final = 500  # microbatches
_SPARE: Final = 2  # with this many microbatches less, the answer must miss the goal


@dataclass(frozen=True)
class Reading(Faulty):
    """Calls `run_b(trace, goal)` with the trace of some layers, split evenly.

    An unreadable answer loses "stage". It also reports the fault "form", which blocks the other
    criteria.
    """

    alone = True
    topic = "stage"

    layers: Layers

    def __str__(self) -> str:
        return f"{len(self.layers.seconds)} layers on {self.layers.ranks} ranks"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [astuple(event) for event in events_of(self.layers)], self.layers.goal

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        rows, goal = given
        answer = fn(Trace([Event(*row) for row in rows]), goal)
        if not isinstance(answer, Mapping):
            return {"type": type(answer).__name__}
        return {key: _plain(answer[key]) for key in _KEYS if key in answer}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        stage, ceiling, cut, count = values = [results[0].get(key) for key in _KEYS]
        if None in values:
            kind = results[0].get("type")
            form = str(kind)[:80] if kind else f"dict that has no {_KEYS[values.index(None)]!r}"
            words = f"run_b returns a {form}. Return a dict with {_KEYS}."
            yield from (("stage", words), ("form", words))
            return
        yield from self._of_trace(stage, ceiling)
        if odd := self._odd(cut):
            yield from (("cut", odd), ("goal", odd))
            return
        yield from self._of_cut(cut)
        if _is_whole(count) and 1 <= count <= _MOST:
            yield from self._of_count(cut, count)
        else:
            yield "goal", f'"num_microbatches" is not a whole number from 1 to {_MOST}.'

    def _of_trace(self, stage: Any, ceiling: Any) -> Iterator[Fault]:
        """Yields what is wrong with the values read from the trace."""
        layers = self.layers
        if not _is_whole(stage):
            yield "stage", '"stage" is not a whole number.'
        elif stage != layers.slow:
            why = "Which stage is never idle after the first step?"
            if stage == layers.compiles:
                why = "It takes long only in the first step."
            yield "stage", f"stage {stage} is not the stage for which the others wait. {why}"
        right = layers.ceiling(layers.even)
        if not isinstance(ceiling, int | float):
            yield "ceiling", '"ceiling" is not a number.'
        elif not abs(ceiling - right) <= 0.02 * right:
            yield (
                "ceiling",
                f"you say that this cut is at most {ceiling:.2f} times as fast as one rank, but "
                f"its ceiling is {'lower' if ceiling > right else 'higher'}. From the second "
                "microbatch on, how often does the pipeline finish one?",
            )

    def _odd(self, cut: Any) -> str:
        """Says why `cut` is no cut of the layers; empty if it is one."""
        lists = f'"cut" is not a list of {self.layers.ranks} lists with all layers in order'
        if not isinstance(cut, list) or not all(isinstance(part, list) and part for part in cut):
            return f"{lists}."
        why = odd_layers(cut, len(self.layers.seconds))
        if why:
            return f"{lists} ({why})."
        return "" if len(cut) == self.layers.ranks else f"{lists}."

    def _of_cut(self, cut: Cut) -> Iterator[Fault]:
        times, best = self.layers.times(cut), max(self.layers.times(self.layers.best))
        if max(times) > 1.002 * best:  # rounding
            spans = ", ".join(f"{part[0]}-{part[-1]}" for part in cut)
            yield (
                "cut",
                f"in [{spans}] stage {times.index(max(times))} takes {max(times) / best:.2f} "
                "times as long as the slowest stage of the best cut. What do layers cost after "
                "kernels are compiled, and do you compare all cuts?",
            )

    def _of_count(self, cut: Cut, count: int) -> Iterator[Fault]:
        layers, enough = self.layers, self.layers.goal - 1e-9  # rounding
        got = layers.speedup(cut, count)
        if got < enough:
            yield (
                "goal",
                f"with {counted(count, 'microbatch', 'microbatches')} your cut is {got:.2f} "
                f"times as fast as one rank, but the goal is {layers.goal:g}. Its ceiling is "
                f"{layers.ceiling(cut):.2f}.",
            )
        elif count > _SPARE and layers.speedup(cut, count - _SPARE) >= enough:
            yield (
                "fewest",
                f"with your cut fewer than {counted(count, 'microbatch', 'microbatches')} are "
                f"{layers.goal:g} times as fast "
                "as one rank. Smaller microbatches make slower kernels.",
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Converts numbers and lists of them to plain ones, and other values to text."""
    value = plain(value)
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | float) else str(value)[:40]


def _trials(seed: int) -> list[Trial]:
    """A trial with two pipelines of four ranks and one of three."""
    draw = random.Random(seed)
    four = [
        Reading(draw_layers(draw, 4, 3.4)),
        Reading(draw_layers(draw, 4, draw.choice((3.2, 3.3)))),
    ]
    return [Trial(1, [*four, Reading(draw_layers(draw, 3, 2.6))], limit=6.0)]


PART = Part(
    name="07/run_b",
    level=3,
    title="Run B",
    minutes=30,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("stage", 2, "the stage is the one that limits the run, in each trace"),
            rule("ceiling", 2, "the ceiling of the even cut is right", "form"),
            rule("cut", 3, "no other cut has a faster slowest stage", "form"),
            rule("goal", 3, "the cut reaches the goal, as simulated, in all three traces", "form"),
            rule("fewest", 1, "fewer microbatches would miss the goal", "form", "goal"),
        ),
    ),
)
