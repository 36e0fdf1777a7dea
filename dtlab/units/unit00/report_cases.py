"""What is asked in 00/scaling_report: traces of known causes, made here or recorded on ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.trials import Case
from dtlab.units.unit00.jobs import CAUSES, Job, Row, draw_job, rows_of, trace_events
from dtlab.units.unit00.shares import efficiencies, lost_seconds, speedup_without

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["KEYS", "Reported", "Scaled", "clear_job"]

KEYS = ("ranks", "speedup", "efficiency", "lost", "cause", "levers")
_CLEAR = 1.2  # times as much is lost to the first cause as to the second, and so on


class Reported(NamedTuple):
    """A report, as it is to be; what has another form is in `odd`, by its key."""

    numbers: tuple[float, float, float]  # ranks, speed-up, efficiency
    lost: Mapping[str, float]
    cause: str
    levers: list[tuple[str, float]]
    odd: Mapping[str, str] = {}


@dataclass(frozen=True)
class Scaled(Case):
    """`scaling_report(traces, scaling)`; `runs` has the rows of each number of ranks."""

    alone = True

    runs: Mapping[int, Sequence[Row]] = field(hash=False)
    scaling: str = "strong"
    topic: str = "made"

    @classmethod
    def of(cls, job: Job, sizes: Sequence[int]) -> Scaled:
        """The traces of a job on these numbers of ranks."""
        return cls({n: rows_of(job, n) for n in sizes}, job.scaling)

    def __str__(self) -> str:
        kind = "recorded, " if self.topic == "recorded" else ""
        return f"{kind}{self.scaling} scaling on 1 to {max(self.runs)} ranks"

    def given(self, rank: int, world_size: int) -> Any:
        """See `Case`."""
        return [[n, [list(row) for row in rows]] for n, rows in self.runs.items()], self.scaling

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        """See `Case`."""
        from dtlab.trace import Trace

        tables, scaling = given
        found = fn({n: Trace(trace_events(rows)) for n, rows in tables}, scaling)
        if not isinstance(found, Mapping):
            return f"returns {'None' if found is None else 'a ' + type(found).__name__}"
        missing = [key for key in KEYS if key not in found]
        return f"has no {missing[0]!r}" if missing else [_plain(found[key]) for key in KEYS]

    def opened(self, result: Any) -> Reported | str:
        """See `Case`."""
        if isinstance(result, str):
            return result[:80]
        odd, (ranks, speedup, efficiency, lost, cause, levers) = {}, result
        if not (isinstance(lost, list) and {pair[0] for pair in lost} == set(CAUSES)):
            odd["lost"] = f'report["lost"] is no dict with the causes {", ".join(CAUSES)}.'
            lost = []
        if not (isinstance(levers, list) and [len(one) for one in levers] == [2, 2]):
            odd["levers"] = 'report["levers"] is no list of two pairs (cause, speed-up).'
            levers = []
        return Reported(
            (float(ranks), float(speedup), float(efficiency)),
            {str(name): float(seconds) for name, seconds in lost},
            str(cause)[:40],
            [(str(name)[:40], float(reached)) for name, reached in levers],
            odd,
        )

    @cached_property
    def right(self) -> Reported:
        """What is right."""
        lost = lost_seconds(self.traces, self.scaling)
        ranks, order = max(self.runs), sorted(lost, key=lambda cause: -lost[cause])
        seconds = {n: trace.duration for n, trace in self.traces.items()}
        levers = [(c, speedup_without(self.traces, self.scaling, lost[c])) for c in order[:2]]
        return Reported(
            (ranks, *efficiencies(seconds, self.scaling)[ranks]), lost, order[0], levers
        )

    @cached_property
    def traces(self) -> Mapping[int, Trace]:
        """The traces that the learner's function is given."""
        from dtlab.trace import Trace

        return {n: Trace(trace_events(rows)) for n, rows in self.runs.items()}

    @property
    def is_clear(self) -> bool:
        """Whether causes differ by so much that their order is beyond doubt."""
        most, second, third, *_ = sorted(self.right.lost.values(), reverse=True)
        return most > _CLEAR * second > _CLEAR**2 * third

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`: it is for the judges to say, where there is a report."""
        found = results[0]
        return f"scaling_report {found}." if isinstance(found, str) else ""


def _plain(value: Any) -> Any:
    """Numbers, text and lists of these; a dict as pairs."""
    if isinstance(value, Mapping):
        return [[str(name), _plain(one)] for name, one in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value[:40] if isinstance(value, str) else float(value)


def clear_job(draw: random.Random, cause: str, weak: bool, sizes: Sequence[int]) -> Scaled:
    """A job that this cause caps, another one comes second, and neither is in doubt."""
    others = ("cores", "imbalance", "latency", "bandwidth") if weak else CAUSES
    for _ in range(200):
        second = draw.choice([one for one in others if one != cause])
        case = Scaled.of(draw_job(draw, cause, second, weak), sizes)
        if case.is_clear and case.right.cause == cause:
            return case
    raise AssertionError(f"no draw is capped by {cause}")
