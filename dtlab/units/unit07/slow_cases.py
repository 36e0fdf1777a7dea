"""What is asked in 07/one_slow_stage: traces of slow runs; and then a run of one cut on ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.predict import Cluster, Link
from dtlab.units.unit07.slow_layers import Cut, Layers, draw_layers, events_of, rows_of

__all__ = ["KEYS", "MOST", "Said", "Sight", "StandIns", "answers_of", "runs_of", "trials"]

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
        """See `Case`."""
        return [list(row) for row in rows_of(self.layers)], self.layers.goal

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """See `Case`."""
        from dtlab.trace import Trace

        rows, goal = given
        found = fn(Trace(events_of(rows)), goal)
        if not isinstance(found, Mapping):
            return f"returns {'None' if found is None else 'a ' + type(found).__name__}"
        missing = [key for key in KEYS if key not in found]
        return f"has no {missing[0]!r}" if missing else [_plain(found[key]) for key in KEYS]

    def opened(self, result: Any) -> Said | str:
        """See `Case`."""
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
        """See `Case`."""
        return [list(part) for part in self.cut], self.seconds, self.num_microbatches

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """See `Case`."""
        return fn(*given)

    def opened(self, result: Any) -> float:
        """See `Case`. How many times as fast as one rank it was."""
        return self.num_microbatches * sum(self.seconds) / float(result)

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`."""
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
