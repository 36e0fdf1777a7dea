"""07/one_slow_stage: what caps a pipeline, read off a trace, and a cut that lifts the cap.

`one_slow_stage(trace, goal)` is asked for three traces. What it answers is compared
with the seconds of which the traces were made; so nothing depends on how busy the machine is. The
first cut is then run with stand-ins on an emulated cluster, and the report says what that gave.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.predict import Cluster, Costs, Link, balance_stages, simulate
from dtlab.schedules import gpipe

if TYPE_CHECKING:
    from dtlab.trace import Event

__all__ = ["PART", "Layers", "draw_layers", "events_of", "filled", "rows_of"]

# Layers of 07/one_slow_stage: an even split of them that is slow, and the trace that it leaves ---
#
#     layers   12 of about 4 ms    36 others of about 0.5 ms    four ranks, twelve layers each
#     stages   48  6  6  5         sum / max = 1.35             the most that this cut can bring
#     cut anew 17 16 16 16         sum / max = 3.8
#
# A trace has three steps of GPipe. In the first one another rank takes far longer than ever after,
# as ranks do that compile their kernels; so what is added up over all steps says little.

STEPS: Final = 3
_BEGUN: Final = 4  # microbatches of the run that is slow
_MESSAGE: Final = 1e-4  # seconds
_GAP: Final = 5e-3  # seconds between steps
_EACH: Final = 12  # layers of a stage in the even split

Cut = list[list[int]]
Row = tuple[int, str, str, tuple[int, ...], float, float, dict[str, Any]]


@dataclass(frozen=True)
class Layers:
    """Seconds of each layer for a microbatch, forward and backward; `goal` is what is to be had.

    `compiles` is the rank that takes longest in the first step.
    """

    seconds: tuple[float, ...]
    ranks: int
    goal: float
    compiles: int

    @property
    def even(self) -> Cut:
        """As many layers on each rank."""
        each = len(self.seconds) // self.ranks
        return [list(range(each * rank, each * (rank + 1))) for rank in range(self.ranks)]

    def times(self, cut: Sequence[Sequence[int]]) -> list[float]:
        """Seconds of each stage for a microbatch."""
        return [math.fsum(self.seconds[layer] for layer in part) for part in cut]

    def ceiling(self, cut: Sequence[Sequence[int]]) -> float:
        """How many times as fast as one rank this can be at most."""
        return sum(self.seconds) / max(self.times(cut))

    def speedup(self, cut: Sequence[Sequence[int]], num_microbatches: int) -> float:
        """How many times as fast as one rank it is, as simulated."""
        step = simulate(gpipe(self.ranks, num_microbatches), self.costs(cut)).duration
        return num_microbatches * sum(self.seconds) / step

    def fewest(self, cut: Sequence[Sequence[int]]) -> int | None:
        """The fewest microbatches that reach the goal with a cut; None where none do."""
        limit = self.ceiling(cut)
        if limit <= self.goal:
            return None
        return math.ceil(self.goal * (limit - 1) / (limit - self.goal) - 1e-9)

    def costs(self, cut: Sequence[Sequence[int]], message: float = 0.0) -> Costs:
        """Of the stages: a third each for F, I and W."""
        thirds = [each / 3 for each in self.times(cut)]
        return Costs(thirds, thirds, thirds, message)

    @property
    def slow(self) -> int:
        """The stage that caps the even split."""
        times = self.times(self.even)
        return times.index(max(times))

    @cached_property
    def best(self) -> Cut:
        """The cut whose slowest stage is fastest."""
        return [list(part) for part in balance_stages(self.seconds, self.ranks)]


def filled(seconds: Sequence[float], ranks: int) -> Cut:
    """The cut of a greedy rule: a stage is full once it has its share of the time."""
    cut: Cut = [[]]
    for layer, each in enumerate(seconds):
        over = sum(seconds[one] for one in cut[-1]) + each / 2 > sum(seconds) / ranks
        if cut[-1] and over and len(cut) < ranks:
            cut.append([])
        cut[-1].append(layer)
    return cut


# The trace --------------------------------------------------------------------------------------


def rows_of(layers: Layers) -> list[Row]:
    """The events of the slow run, as plain data: rank, kind, name, peers, start, end, extra."""
    rows: list[Row] = []
    begin = 0.0
    for step in range(STEPS):
        trace = simulate(gpipe(layers.ranks, _BEGUN), _of_step(layers, step))
        for one in trace.events:
            own = (one.rank, one.kind, one.name, one.peers)
            rows.append((*own, begin + one.start, begin + one.end, dict(one.extra)))
            if one.kind == "compute":
                rows += _layers_in(layers, one, begin, step)
        begin += trace.duration + _GAP
    return rows


def _of_step(layers: Layers, step: int) -> Costs:
    """In the first step the rank that compiles takes longer than the slow one in all three."""
    costs = layers.costs(layers.even, _MESSAGE)
    thirds = list(layers.times(layers.even))
    if step == 0:
        thirds[layers.compiles] = 1.5 * STEPS * max(thirds)
    thirds = [each / 3 for each in thirds]
    return Costs(thirds, thirds, thirds, costs.communication)


def _layers_in(layers: Layers, span: Event, begin: float, step: int) -> Iterator[Row]:
    """The layers within a stage's forward, or its backward, last layer first and in two pieces."""
    own = layers.even[span.extra["stage"]]
    times = [layers.seconds[layer] for layer in own]
    pieces = list(zip(own, times, strict=True))
    if span.name == "backward":
        pieces = [(layer, each / 2) for layer, each in reversed(pieces) for _ in range(2)]
    stretch = (span.end - span.start) / sum(times)
    at = begin + span.start
    for layer, each in pieces:
        end = at + stretch * each
        yield span.rank, "compute", "layer", (), at, end, {"layer": layer, "step": step}
        at = end


def events_of(rows: Sequence[Sequence[Any]]) -> list[Event]:
    """The events of such rows, which may have come from another process."""
    from dtlab.trace import Event

    return [
        Event(rank, kind, name, tuple(peers), 0, start, end, dict(extra))
        for rank, kind, name, peers, start, end, extra in rows
    ]


# Draws ------------------------------------------------------------------------------------------


def draw_layers(draw: Random, ranks: int, goal: float) -> Layers:
    """Layers of which an even split brings little, and a greedy cut is not the best one."""
    for _ in range(5000):
        slow = draw.randrange(ranks)
        others = [rank for rank in range(ranks) if rank != slow]
        most = 8 if ranks > 3 else 12
        seconds = [
            1e-4 * (draw.randint(30, 50) if layer // _EACH == slow else draw.randint(2, most))
            for layer in range(ranks * _EACH)
        ]
        one = Layers(tuple(seconds), ranks, goal, draw.choice(others))
        if _teaches(one):
            return one
    raise AssertionError("no draw has a best cut that a greedy rule misses")


def _teaches(one: Layers) -> bool:
    """Slow at first; the greedy cut reaches the goal, yet another one is better."""
    even, greedy = one.ceiling(one.even), one.ceiling(filled(one.seconds, one.ranks))
    at_first = _BEGUN * even / (even + _BEGUN - 1)
    if not 1.15 < at_first < 1.25 or greedy <= 1.01 * one.goal:
        return False
    fewest = one.fewest(one.best)
    return fewest is not None and fewest <= 30 and greedy < 0.99 * one.ceiling(one.best)


# What is asked in 07/one_slow_stage: traces of slow runs; and then a run of one cut on ranks -----

KEYS: Final = ("stage", "ceiling", "cut", "num_microbatches")
MOST: Final = 500  # microbatches
_LONGEST: Final = 40  # of them in a real run: a right answer has fewer
_ASKED: Final = 6.0  # seconds for all answers: one takes a tenth of one
_LIMIT: Final = 20.0  # seconds for a run
_SLOWEST: Final = 0.04  # seconds of the slowest stage in a real run: Python adds little to that


class Said(NamedTuple):
    """An answer; what has another form is in `odd`, by its key."""

    stage: int
    ceiling: float
    cut: Cut
    num_microbatches: int
    odd: Mapping[str, str]


@dataclass(frozen=True)
class Sight(Case):
    """`one_slow_stage(trace, goal)` on the trace of some layers, split evenly."""

    alone = True

    layers: Layers

    def __str__(self) -> str:
        return f"{len(self.layers.seconds)} layers on {self.layers.ranks} ranks"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [list(row) for row in rows_of(self.layers)], self.layers.goal

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        from dtlab.trace import Trace

        rows, goal = given
        found = fn(Trace(events_of(rows)), goal)
        if not isinstance(found, Mapping):
            return f"returns {'None' if found is None else 'a ' + type(found).__name__}"
        missing = [key for key in KEYS if key not in found]
        return f"has no {missing[0]!r}" if missing else [_plain(found[key]) for key in KEYS]

    def opened(self, result: Any) -> Said | str:
        if isinstance(result, str):
            return result[:80]
        stage, ceiling, cut, count = result
        odd = {}
        if not _is_whole(stage):
            odd["stage"] = "is no whole number"
        if not isinstance(ceiling, int | float):
            odd["ceiling"] = "is no number"
        if not self._is_cut(cut):
            odd["cut"] = f"is no list of {self.layers.ranks} lists that have all layers in order"
        if not (_is_whole(count) and 1 <= count <= MOST):
            odd["num_microbatches"] = f"is no whole number from 1 to {MOST}"
        kept: list[Any] = [None if key in odd else result[n] for n, key in enumerate(KEYS)]
        return Said(kept[0], kept[1], kept[2], kept[3], odd)

    def _is_cut(self, cut: Any) -> bool:
        if not isinstance(cut, list) or not all(isinstance(part, list) and part for part in cut):
            return False
        in_order = [layer for part in cut for layer in part]
        return len(cut) == self.layers.ranks and in_order == [*range(len(self.layers.seconds))]

    def mistake(self, results: Sequence[Said | str]) -> str:
        """See `Case`; what is wrong with an answer is for the judges to say."""
        (found,) = results
        return f"one_slow_stage {found}. Return a dict with {KEYS}." if type(found) is str else ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Numbers and lists of them; text where it is anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple | range):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | float) else str(value)[:40]


def trials(seed: int) -> list[Trial]:
    """Two pipelines of four ranks, and one of three."""
    draw = random.Random(seed)
    four = [Sight(draw_layers(draw, 4, 3.4)), Sight(draw_layers(draw, 4, draw.choice((3.2, 3.3))))]
    return [Trial(1, [*four, Sight(draw_layers(draw, 3, 2.6))], limit=_ASKED)]


def answers_of(seen: Sequence[Observation]) -> Iterator[tuple[str, Layers, Said]]:
    """For each trace: what it is in words, its layers, and the answer; none where one is none."""
    one = seen[0]
    if one.mistakes:
        return
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        assert isinstance(case, Sight)
        yield one.trial.words(number), case.layers, results[0]


# A run of ours ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandIns(Case):
    """A step of stand-ins by a cut, in which the slowest stage takes `_SLOWEST` seconds."""

    layers: Layers
    cut: tuple[tuple[int, ...], ...]
    num_microbatches: int

    def __str__(self) -> str:
        return f"{self.num_microbatches} microbatches of stand-ins"

    @property
    def seconds(self) -> list[float]:
        """Of each layer, as it runs."""
        stretch = _SLOWEST / max(self.layers.times(self.cut))
        return [stretch * each for each in self.layers.seconds]

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [list(part) for part in self.cut], self.seconds, self.num_microbatches

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def opened(self, result: Any) -> float:
        """See `Case`. How many times as fast as one rank it was."""
        return self.num_microbatches * sum(self.seconds) / float(result)

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


def _measure(*given: Any) -> float:
    from dtlab.units.unit07.slow_training import stage_step

    return stage_step(*given)


def runs_of(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """The first answer's cut on an emulated cluster, where it should get there."""
    for _, layers, said in answers_of(seen):
        if {"cut", "num_microbatches"} & set(said.odd):
            return []
        if said.num_microbatches > _LONGEST:
            return []
        if layers.speedup(said.cut, said.num_microbatches) < layers.goal - 1e-9:
            return []
        link = Link(2e-5, 12.5e9)
        cluster = Cluster(nodes=layers.ranks, gpus_per_node=1, intra=link, inter=link)
        case = StandIns(layers, tuple(map(tuple, said.cut)), said.num_microbatches)
        return [(Trial(layers.ranks, [case], cluster=cluster, limit=_LIMIT), _measure)]
    return []


# The part ----------------------------------------------------------------------------------------

_NEAR = 0.02  # of a ceiling
_BEST = 1.002  # times the best cut's slowest stage: rounding
_SPARE = 1  # microbatches more than the fewest
_CLOSE = 1e-9
_WAITS = blocked("judged once one_slow_stage returns a dict that can be read")

Objection = Callable[[Layers, Said], str]


def _judge(keys: set[str], right: str, objection: Objection, *, is_first: bool = False) -> Judge:
    """Judges what is said under these keys; the first criterion has to do with the form too."""

    def judge(seen: Seen) -> Verdict:
        if seen[0].mistakes:
            return lost(seen[0].mistakes[0]) if is_first else _WAITS
        for words, layers, said in answers_of(seen):
            odd = next((key for key in said.odd if key in keys), "")
            wrong = f'"{odd}" {said.odd[odd]}.' if odd else objection(layers, said)
            if wrong:
                return lost(f"{words}: {wrong}")
        return ok(right)

    return judge


def _another_stage(layers: Layers, said: Said) -> str:
    if said.stage == layers.slow:
        return ""
    why = "Which one is never idle once the first step is over?"
    if said.stage == layers.compiles:
        why = "It takes long in the first step, and never again."
    return f"stage {said.stage} is not what the others wait for. {why}"


def _another_ceiling(layers: Layers, said: Said) -> str:
    right = layers.ceiling(layers.even)
    if abs(said.ceiling - right) <= _NEAR * right:
        return ""
    return (
        f"no number of microbatches makes this cut {said.ceiling:.2f} times as fast as one rank: "
        "its ceiling is lower. From the second microbatch on, how often does one come out?"
        if said.ceiling > right
        else f"more microbatches make this cut more than {said.ceiling:.2f} times as fast as one "
        "rank: its ceiling is higher. From the second one on, how often does one come out?"
    )


def _a_slower_cut(layers: Layers, said: Said) -> str:
    times, best = layers.times(said.cut), max(layers.times(layers.best))
    if max(times) <= _BEST * best:
        return ""
    slowest = times.index(max(times))
    return (
        f"in {_spans(said.cut)} stage {slowest} takes {max(times) / best:.2f} times as long as "
        "the slowest stage of the best cut. What do layers cost once kernels are compiled, and "
        "are all cuts compared?"
    )


def _spans(cut: Cut) -> str:
    """Layers from first to last: "[0-20, 21-47]"."""
    ends = ((part[0], part[-1]) for part in cut)
    return f"[{', '.join(str(a) if a == b else f'{a}-{b}' for a, b in ends)}]"


def _too_few(layers: Layers, said: Said) -> str:
    got = layers.speedup(said.cut, said.num_microbatches)
    if got >= layers.goal - _CLOSE:
        return ""
    return (
        f"{said.num_microbatches} microbatches with your cut are {got:.2f} times as fast as one "
        f"rank, and {layers.goal:g} is the goal. With this cut the most is "
        f"{layers.ceiling(said.cut):.2f}."
    )


def _too_many(layers: Layers, said: Said) -> str:
    fewest = layers.fewest(said.cut)
    if fewest is None or said.num_microbatches <= fewest + _SPARE:
        return ""
    return (
        f"with your cut fewer than {said.num_microbatches} microbatches are {layers.goal:g} "
        "times as fast as one rank. Smaller microbatches make slower kernels."
    )


def _judge_goal(seen: Seen) -> Verdict:
    verdict = _judge({"cut", "num_microbatches"}, "as simulated, in all three", _too_few)(seen)
    if verdict.status != "ok" or len(seen) < 2 or seen[1].error is not None:
        return verdict
    measured = min(seen[1].results[0])
    return ok(f"{verdict.message}; measured here with stand-ins: {measured:.2f} times")


def _judge_fewest(seen: Seen) -> Verdict:
    if _judge_goal(seen).status != "ok":
        return blocked("judged once the goal is reached")
    return _judge({"num_microbatches"}, "no fewer would do", _too_many)(seen)


PART = Part(
    name="07/one_slow_stage",
    level=3,
    title="One slow stage",
    minutes=30,
    difficulty=2,
    check=Check(
        trials=trials,
        then=runs_of,
        rules=(
            Rule("stage", 2, _judge({"stage"}, "it caps each", _another_stage, is_first=True)),
            Rule("ceiling", 2, _judge({"ceiling"}, "sum / max", _another_ceiling)),
            Rule("cut", 3, _judge({"cut"}, "none has a faster slowest stage", _a_slower_cut)),
            Rule("goal", 3, _judge_goal),
            Rule("fewest", 1, _judge_fewest),
        ),
    ),
)
