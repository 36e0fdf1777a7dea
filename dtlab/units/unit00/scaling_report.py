"""00/scaling_report: what caps a run on N ranks, and what it would reach without that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.bench import HERE, Bench
from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.report import Criterion
from dtlab.predict import Cluster, Link
from dtlab.units.unit00.jobs import CAUSES, Job, Row, draw_job, rows_of, trace_events
from dtlab.units.unit00.shares import efficiencies, lost_seconds, speedup_without

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["PART", "Scaled", "clear_job", "recorded"]

# What is asked in 00/scaling_report: traces of known causes, made here or recorded on ranks ------

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
        return [[n, [list(row) for row in rows]] for n, rows in self.runs.items()], self.scaling

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.trace import Trace

        tables, scaling = given
        found = fn({n: Trace(trace_events(rows)) for n, rows in tables}, scaling)
        if not isinstance(found, Mapping):
            return f"returns {'None' if found is None else 'a ' + type(found).__name__}"
        missing = [key for key in KEYS if key not in found]
        return f"has no {missing[0]!r}" if missing else [_plain(found[key]) for key in KEYS]

    def opened(self, result: Any) -> Reported | str:
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


# Real runs on the emulated wire, whose traces 00/scaling_report is asked about -------------------

_RANKS, _STEPS = 4, 2
_LIMIT = 20.0  # seconds for a run that takes a tenth of one
_LINKS = {"latency": (4e-3, 5e9), "bandwidth": (1e-5, 2e7)}  # seconds, bytes/s one-way
_SIZES = (40_000, 160_000, 10_000)  # elements of 4 bytes


@dataclass(frozen=True)
class Steps(Case):
    """Steps of stand-in compute, each with its all-reduces."""

    forward: float
    steps: int

    def __str__(self) -> str:
        return f"{self.steps} steps"

    def given(self, rank: int, world_size: int) -> Any:
        return self.forward / world_size, self.steps

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        return fn(*given)

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


def _train(forward: float, steps: int) -> None:
    """Runs on every rank."""
    import torch
    import torch.distributed as dist

    import dtlab

    for _ in range(steps):
        for name, times in (("forward", 1), ("backward", 2)):
            with dtlab.span(name):
                dtlab.compute(times * forward)
        for size in _SIZES if dist.get_world_size() > 1 else ():
            dist.all_reduce(torch.zeros(size))
        with dtlab.span("optimizer"):
            dtlab.compute(0.002)


def recorded(seed: int, bench: Bench) -> Scaled | None:
    """The traces of one and of four ranks on a drawn network; None where they came to nothing."""
    draw = random.Random(seed)
    link = Link(*_LINKS[draw.choice(list(_LINKS))])
    runs: dict[int, list[Row]] = {}
    for ranks in (1, _RANKS):
        cluster = Cluster(gpus_per_node=ranks, intra=link, inter=link)
        trial = Trial(ranks, [Steps(0.02, _STEPS)], cluster=cluster, limit=_LIMIT)
        seen = bench.observe(trial, _train)
        if seen.trace is None:
            return None
        runs[ranks] = _rows(seen)
    case = Scaled(runs, topic="recorded")
    return case if case.is_clear else None


def _rows(seen: Observation) -> list[Row]:
    assert seen.trace is not None
    return [
        (one.rank, one.kind, one.name, one.bytes, one.start, one.end) for one in seen.trace.events
    ]


@dataclass(frozen=True)
class RecordedCheck(Check):
    """A check that asks about traces recorded just now beside those of `trials`."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        made = Check(lambda seed: self._with_recorded(seed, bench), self.rules)
        return made.run(symbol, answer, seed, learner, bench)

    def _with_recorded(self, seed: int, bench: Bench) -> Sequence[Trial]:
        case = recorded(seed, bench)
        extra = [Trial(1, [case])] if case is not None else []
        return [*self.trials(seed), *extra]


# The part ----------------------------------------------------------------------------------------

_NEAR = 2e-3  # of a number; of a run's time, for what was lost

# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """A job for each cause, and three in weak scaling."""
    draw = random.Random(seed)
    strong = [clear_job(draw, cause, False, (1, 2, draw.choice((6, 7, 8)))) for cause in CAUSES]
    weak = [
        clear_job(draw, cause, True, (1, draw.choice((6, 7, 8))))
        for cause in ("cores", "imbalance", draw.choice(("latency", "bandwidth")))
    ]
    draw.shuffle(strong)
    return [Trial(1, [*strong, *weak])]


# Judges -----------------------------------------------------------------------------------------


def _reports(seen: Seen, topic: str = "made") -> Iterator[tuple[str, Scaled, Reported]]:
    """Each case in words, with what came back."""
    for one in seen:
        for number, results in enumerate(one.results):
            case = one.trial.cases[number]
            if isinstance(case, Scaled) and case.topic == topic:
                yield one.trial.words(number), case, results[0]


def _formless(seen: Seen) -> str:
    return next((one.mistakes[0] for one in seen if one.mistakes), "")


def _judge_numbers(seen: Seen) -> Verdict:
    if _formless(seen):
        return lost(_formless(seen))
    for words, case, found in _reports(seen):
        pairs = zip(("ranks", "speedup", "efficiency"), found.numbers, case.right.numbers,
                    strict=True)  # fmt: skip
        for name, got, right in pairs:
            if not abs(got - right) <= _NEAR * right:
                return lost(
                    f'{words}: report["{name}"] is {got:.4g}, not {right:.4g}. The report is on '
                    "the most ranks there are, beside one, for the scaling that is named."
                )
    return ok("ranks, speed-up and efficiency are right")


_ADVICE = {
    "input": 'Spans called "input", the mean over the ranks, less what one rank\'s share of that '
    "would be.",
    "cores": 'Spans called "forward" and "backward": on one rank, how long do they take, and what '
    "is a rank's share of it?",
    "serial": "All spans with other names. In strong scaling a rank's share of what one rank "
    "needs is 1/N of it; what does not shrink is lost.",
    "imbalance": "What `trace.idle` has, the mean over the ranks.",
    "latency": "Fit seconds = a + b x bytes to the collectives, each from when the last rank has "
    "come. The part of a in all their seconds is that of latency in what is exposed.",
    "bandwidth": "What is exposed, the mean over the ranks, and not latency.",
}


def _judge_lost(causes: tuple[str, ...], right: str) -> Judge:
    def judge(seen: Seen) -> Verdict:
        if _formless(seen):
            return blocked("judged once it returns a report")
        for words, case, found in _reports(seen):
            if "lost" in found.odd:
                return lost(f"{words}: {found.odd['lost']}")
            for cause in causes:
                got, wanted = found.lost[cause], case.right.lost[cause]
                if not abs(got - wanted) <= _NEAR * case.traces[max(case.runs)].duration:
                    return lost(
                        f"{words}: {1e3 * wanted:.1f} ms are lost to {cause}, and you have "
                        f"{1e3 * got:.1f} ms. {_ADVICE[cause]}"
                    )
        return ok(right)

    return judge


_PIECES = {
    "compute": ("input", "cores", "serial"),
    "waiting": ("imbalance",),
    "wire": ("latency", "bandwidth"),
}
_RIGHT = {
    "compute": "what compute loses is right: input, cores, serial",
    "waiting": "what is lost waiting for other ranks is right",
    "wire": "exposed communication is divided rightly: latency, bandwidth",
}
_JUDGES = {name: _judge_lost(_PIECES[name], _RIGHT[name]) for name in _PIECES}


def _after_lost(judge: Callable[[Seen], Verdict]) -> Judge:
    """Judged once all that is lost is right."""

    def judged(seen: Seen) -> Verdict:
        if _judge_numbers(seen).status != "ok":
            return blocked("judged once speed-up and efficiency are right")
        if any(one(seen).status != "ok" for one in _JUDGES.values()):
            return blocked("judged once what is lost is right")
        return judge(seen)

    return judged


def _judge_cause(seen: Seen) -> Verdict:
    for words, case, found in (*_reports(seen), *_reports(seen, "recorded")):
        if found.cause != case.right.cause:
            return lost(
                f'{words}: report["cause"] is {found.cause!r}. {_most(found)} Which of the six '
                "does the most of the gap come from?"
            )
    return ok("it names what caps each run, on recorded ranks too")


def _most(found: Reported) -> str:
    seconds = sorted(((1e3 * one, name) for name, one in found.lost.items()), reverse=True)
    return "Lost are " + ", ".join(f"{one:.1f} ms to {name}" for one, name in seconds[:3]) + "."


def _judge_levers(seen: Seen) -> Verdict:
    for words, case, found in _reports(seen):
        if "levers" in found.odd:
            return lost(f"{words}: {found.odd['levers']}")
        names = [name for name, _ in found.levers]
        if names != [name for name, _ in case.right.levers]:
            return lost(
                f"{words}: the levers are {' and '.join(names)}. {_most(found)} Name the two that "
                "bring most, the better one first."
            )
        for (name, got), (_, right) in zip(found.levers, case.right.levers, strict=True):
            if not abs(got - right) <= _NEAR * right:
                return lost(
                    f"{words}: without what is lost to {name} the speed-up would be {right:.3f}, "
                    f"and you have {got:.3f}. How long would the run take then?"
                )
    return ok("the two levers that bring most, and how far each would bring it")


PART = Part(
    name="00/scaling_report",
    level=2,
    title="The scaling report",
    minutes=25,
    difficulty=3,
    check=RecordedCheck(
        trials=_trials,
        rules=(
            Rule("numbers", 2, _judge_numbers),
            Rule("compute", 4, _JUDGES["compute"]),
            Rule("waiting", 1, _JUDGES["waiting"]),
            Rule("wire", 3, _JUDGES["wire"]),
            Rule("cause", 2, _after_lost(_judge_cause)),
            Rule("levers", 2, _after_lost(_judge_levers)),
        ),
    ),
)
