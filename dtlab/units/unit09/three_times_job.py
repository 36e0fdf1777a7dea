"""09/three_times_job: find the levers that take a job from 3 to 6 times the speed of one rank.

    answer ──> levers in order ──> allowed? ──each run on the emulated cluster──> gains, speed-up

The job is drawn from the learner's id. Which lever gains most depends on what limits the job:

    limited by                            the lever that gains most
    input                                 prefetch
    the wire, on nodes of four ranks      hierarchical
    the wire, on nodes of one rank        samples

The answer "levers" earns points for three steps, in order, until the first that fails: it is
allowed, each lever gains, and the last one reaches the goal. A busy machine measures too many
seconds: so a gain or a speed-up counts if it is right as measured, or by the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache, partial
from itertools import combinations, pairwise
from random import Random
from typing import Any, Final, NamedTuple

from dtlab.checks.functions.bench import HERE, Bench
from dtlab.checks.functions.checks import UNANSWERED, Verdict, blocked, lost, ok
from dtlab.checks.functions.trials import Recording, Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Mistake, Question, Questions, Values, unanswered
from dtlab.checks.questions.declared import choice
from dtlab.checks.questions.quantities import plain, short
from dtlab.checks.questions.shapes import kind_in_words
from dtlab.checks.report import Criterion
from dtlab.predict import Cluster, Link
from dtlab.units.unit09.levers import Job, Levers, predicted_seconds

__all__ = ["GOAL", "NAMES", "PART", "Setting", "best_values", "first_lever", "measured_seconds",
           "read_levers"]  # fmt: skip

GOAL: Final = 6.0  # times one rank
NAMES: Final = tuple(field.name for field in fields(Levers))
_LEAST: Final = 1.03  # gain of a lever that is worth pulling
_NEAR, _NOISE = 0.15, 0.03  # tolerances of a gain: of what is above 1, and of a measurement
_REAL: Final = 0.3  # seconds that the first step takes on this machine
_STEPS, _LIMIT = 3, 60.0  # measured is the fastest step but the first; seconds for 5

# The setting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A job on eight ranks, its first levers, and the limits.

    `most_samples` is the largest microbatch that fits into the memory of a rank. A batch of more
    than `largest_batch` samples, over all ranks, trains no better.
    """

    job: Job
    cluster: Cluster
    first: Levers
    most_samples: int
    largest_batch: int

    @property
    def one_rank(self) -> float:
        """The samples per second of one rank alone, with its best microbatch and a prefetch."""
        levers = Levers(samples=self.most_samples, prefetch=1)
        return self.most_samples / predicted_seconds(self.job, levers, Cluster(1, 1))

    def speedup(self, levers: Levers, seconds: float | None = None) -> float:
        """The speed-up of a step over one rank, predicted unless its seconds are given."""
        if seconds is None:
            seconds = predicted_seconds(self.job, levers, self.job.on(self.cluster))
        return self.cluster.size * levers.per_step / seconds / self.one_rank

    def objection(self, levers: Levers) -> str:
        """Why a setting of the levers is not allowed; empty if it is."""
        batch = self.cluster.size * levers.per_step
        if levers.samples > self.most_samples:
            return f"{levers.samples} samples do not fit: a rank has room for {self.most_samples}"
        if batch > self.largest_batch:
            return f"a batch has {batch} samples then, and at most {self.largest_batch} are useful"
        return ""


def best_values(setting: Setting, levers: Levers) -> dict[str, Any]:
    """The best value of each lever, if the others stay as they are."""
    rows = setting.largest_batch // setting.cluster.size
    return {
        "samples": min(setting.most_samples, rows // levers.accumulate),
        "accumulate": rows // levers.samples,
        "overlap": True, "bucket_mb": 25.0, "sixteen_bit": True, "hierarchical": True,
        "prefetch": 1,
    }  # fmt: skip


def gains_alone(setting: Setting) -> dict[str, float]:
    """The gain of each lever, at its best value, if it is the only one."""
    start = setting.speedup(setting.first)
    return {
        name: setting.speedup(replace(setting.first, **{name: value})) / start
        for name, value in best_values(setting, setting.first).items()
    }


def first_lever(setting: Setting) -> str:
    """The lever that gains most if it is the only one."""
    gains = gains_alone(setting)
    return max(gains, key=lambda name: gains[name])


def _pulled(setting: Setting, names: Sequence[str]) -> Levers:
    """All these levers, one after the other, at their best values."""
    levers = setting.first
    for name in names:
        levers = replace(levers, **{name: best_values(setting, levers)[name]})
    return levers


# By what limits the job: nodes, GPUs; bandwidth between nodes; MB of gradients in a layer;
# milliseconds of a kernel, and to load a sample
_KINDS: Final[Mapping[str, Sequence[Any]]] = {
    "input": (((2, 4), (8, 1)), (25e9,), (100, 110, 120, 130), (1.5, 2.0), (7, 8, 9)),
    "two nodes": (((2, 4),), (12.5e9,), (80, 90, 100, 110), (1.5, 2.0), (3, 4, 5)),
    "eight nodes": (((8, 1),), (12.5e9,), (70, 80, 90), (1.5, 2.0), (3, 4, 5)),
}


@lru_cache(maxsize=64)
def _drawn(seed: int) -> Setting:
    """Draws a setting whose first speed-up is about 3, and whose goal takes three levers."""
    draw = Random(seed)
    shapes, bandwidths, sizes, kernels, loads = _KINDS[draw.choice(sorted(_KINDS))]
    for _ in range(2000):
        (nodes, gpus), bandwidth, size, kernel, load = map(
            draw.choice, (shapes, bandwidths, sizes, kernels, loads)
        )
        job = Job((size * 1_000_000,) * 4, 1e-3 * kernel, 1e-3 * draw.choice((2.5, 3.0, 3.5)),
                  1e-3 * load, 4e-3)  # fmt: skip
        cluster = Cluster(nodes, gpus, Link(2e-6, 300e9), Link(30e-6, bandwidth))
        setting = Setting(job, cluster, Levers(4, bucket_mb=2 * size / 1.1), 8, 64)
        best, second, *_ = sorted(gains_alone(setting).values(), reverse=True)
        clear = best > 1.05 * second and 2.7 < setting.speedup(setting.first) < 3.3
        most = setting.speedup(_pulled(setting, NAMES))
        two = max(setting.speedup(_pulled(setting, pair)) for pair in combinations(NAMES, 2))
        if clear and two < GOAL < most / 1.05:
            return setting
    raise AssertionError("no draw takes three levers")


# Runs --------------------------------------------------------------------------------------------


def _steps(job: Mapping[str, Any], levers: Mapping[str, Any]) -> list[float]:
    """Runs on every rank: the seconds of some steps."""
    import dtlab
    from dtlab.units.unit09.emulated_job import train

    return train(Job(**job), Levers(**levers), dtlab.compute, _STEPS)


def measured_seconds(
    setting: Setting, tried: Sequence[Levers], bench: Bench = HERE
) -> list[float] | None:
    """The emulated seconds of a step with each of these levers; None if a run did not finish."""
    predicted = predicted_seconds(setting.job, setting.first, setting.job.on(setting.cluster))
    cluster = setting.job.on(setting.cluster, _REAL / predicted)
    cases = [Recording((asdict(setting.job), asdict(levers))) for levers in tried]
    run = bench.observe(Trial(cluster.size, cases, cluster=cluster, limit=_LIMIT), _steps)
    if run.error is not None:
        return None
    return [min(map(float, results[0])) / cluster.slowdown for results in run.results]


# Judging -----------------------------------------------------------------------------------------

_MOST_LEVERS: Final = 6
_BUSY: Final = blocked("the runs did not finish in time: the machine is busy. Check again.")


class Speeds(NamedTuple):
    """Speed-ups over one rank before the first lever and after each one."""

    measured: list[float]
    predicted: list[float]

    def gains(self) -> list[tuple[float, float]]:
        """For each lever, its gain as measured and as predicted."""
        pairs = (pairwise(self.measured), pairwise(self.predicted))
        return [(b / a, d / c) for (a, b), (c, d) in zip(*pairs, strict=True)]


def read_levers(setting: Setting, answer: Any) -> list[Levers]:
    """The levers at first and after each change. Raises ValueError if one is not allowed."""
    if not isinstance(answer, list | tuple) or isinstance(answer, str):
        raise ValueError(f'is {kind_in_words(answer)}: write a list, as [("overlap", True), ...]')
    if len(answer) > _MOST_LEVERS:
        raise ValueError(f"has {len(answer)} entries, and {_MOST_LEVERS} are allowed")
    tried = [setting.first]
    for number, entry in enumerate(answer, 1):
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise ValueError(f"has {short(entry)} as entry {number}: write one lever, as "
                             '("overlap", True)')  # fmt: skip
        name = str(entry[0])
        if name not in NAMES:
            raise ValueError(f"has {short(entry)} as entry {number}. The levers are "
                             f"{', '.join(NAMES)}")  # fmt: skip
        value = _value(name, plain(entry[1]))
        if value is None:
            form = "True or False" if isinstance(getattr(Levers(), name), bool) else "a number"
            raise ValueError(f"has {short(entry)} as entry {number}: the value is {form}")
        if value == getattr(tried[-1], name):
            raise ValueError(f"has {short(entry)} as entry {number}, and it is that already")
        tried.append(replace(tried[-1], **{name: value}))
        if wrong := setting.objection(tried[-1]):
            raise ValueError(f"has {short(entry)} as entry {number}: {wrong}")
    return tried


def _value(name: str, value: Any) -> Any:
    """The value of a lever in its type; None if it is of another type, or not above 0.

    A prefetch may be 0.
    """
    kind: Any = type(getattr(Levers(), name))
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if not isinstance(value, int | float) or kind(value) != value:
        return None
    return kind(value) if value > 0 or (name == "prefetch" and value == 0) else None


def _steps_of(answer: Any, given: Values) -> list[tuple[int, Verdict]]:
    """Points and a verdict for each step of an answer, up to the first loss."""
    setting = _setting(given)
    try:
        tried = read_levers(setting, answer)
    except ValueError as error:
        return [(1, lost(f"it {error}."))]
    speeds = given["measure"](tuple(tried))
    if speeds is None:
        return [(1, _BUSY)]
    steps = [(1, ok("each entry is allowed"))]
    for entry, gains in zip(answer, speeds.gains(), strict=True):
        if max(gains) < _LEAST:
            words = f"{entry[0]} gains nothing there: the job is {gains[0]:.2f} times as fast."
            return [*steps, (1, lost(f"{words} What does a step wait for at that point?"))]
    steps.append((1, ok("each lever gains")))
    reached = max(speeds.measured[-1], speeds.predicted[-1])
    if reached < GOAL:
        seconds = f"{speeds.measured[-1]:.2f} times as fast as one rank"
        words = f"after the last lever the job is {seconds}; the goal is {GOAL:g}."
        return [*steps, (3, lost(f"{words} What is left of the input and of the messages?"))]
    words = f"{speeds.predicted[-1]:.2f} times as fast as one rank by the formulas"
    return [*steps, (3, ok(f"{words}, {speeds.measured[-1]:.2f} as measured here"))]


def _last_step(answer: Any, given: Values) -> Verdict:
    return _steps_of(answer, given)[-1][1]


def _judge_gains(answer: Any, given: Values) -> Verdict:
    """A verdict on the predicted gains."""
    try:
        tried = read_levers(_setting(given), given["said"].get("levers"))
    except ValueError:
        return blocked("judged once the levers are allowed")
    if len(tried) == 1:
        return blocked("judged once there are levers")
    if not isinstance(answer, list | tuple) or len(answer) != len(tried) - 1:
        return lost(f"write a list of {len(tried) - 1} numbers, one for each lever")
    speeds = given["measure"](tuple(tried))
    if speeds is None:
        return _BUSY
    table = []
    for said, gains, (name, _) in zip(
        answer, speeds.gains(), given["said"]["levers"], strict=True
    ):
        said = plain(said)
        if not isinstance(said, int | float) or isinstance(said, bool):
            return lost(f"{short(said)} is no number. Write how many times as fast, as 1.25.")
        table.append(f"{name} {said:.2f} predicted, {gains[0]:.2f} measured")
        if all(abs(said - gain) > _NEAR * abs(gain - 1) + _NOISE for gain in gains):
            return lost(f"{table[-1]}. {_why(said, gains)}")
    return ok("; ".join(table))


def _why(said: float, gains: Sequence[float]) -> str:
    """What to look at next if a gain, as measured and as predicted, is not the one said."""
    if any(min(abs(said - (gain - 1)), abs(said - (1 - 1 / gain))) < _NOISE for gain in gains):
        return "That is a share. Write the factor: 1.25 for a quarter more samples per second."
    if any(abs(said - 1 / gain) < _NOISE for gain in gains):
        return "That is the ratio of the seconds. Write that of the samples per second."
    return (
        f"It gains {'less' if said > gains[0] else 'more'}. Compare the samples per second before "
        "and after it, with the levers before it in place. What is waited for, what is hidden?"
    )


# Questions and points ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """The kind of an answer that is judged by runs."""

    shape: str
    verdict: Callable[[Any, Values], Verdict]
    mistakes: tuple[Mistake, ...] = (
        Mistake("alone", "each lever is judged alone, not after the ones before it"),
        Mistake("hidden", "what is hidden already is gained once more"),
    )

    def form(self) -> str:
        return self.shape

    def judge(self, answer: Any, given: Values) -> Verdict:
        return self.verdict(answer, given)

    def distinct(self, given: Values) -> bool:
        return True


class _Stepwise(Question):
    """The question for the levers, with points for each step."""

    def settle(self, answer: Any, given: Values) -> Criterion:
        if unanswered(answer) or not answer:
            return self.closed(UNANSWERED)
        steps = _steps_of(answer, given)
        message = "; ".join(step.message for _, step in steps)
        criterion = self.closed(steps[-1][1]._replace(message=message))
        earned = sum(points for points, step in steps if step.status == "ok")
        return replace(criterion, earned=earned)


class _Run(Questions):
    """Questions about levers, which are run on ranks."""

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        @cache
        def measure(setting: Setting, tried: tuple[Levers, ...]) -> Speeds | None:
            seconds = measured_seconds(setting, tried, bench)
            if seconds is None:
                return None
            pairs = zip(tried, seconds, strict=True)
            measured = [setting.speedup(levers, each) for levers, each in pairs]
            return Speeds(measured, [setting.speedup(levers) for levers in tried])

        def where(given: Values) -> Values:
            said = answer if isinstance(answer, Mapping) else {}
            return {**given, "said": said, "measure": partial(measure, _setting(given))}

        questions = Questions(self.draw, self.rows, self.questions, where)
        return questions.run(symbol, answer, seed, learner, bench)


# The part ----------------------------------------------------------------------------------------


def _draw(draw: Random) -> Values:
    setting = _drawn(draw.getrandbits(32))
    return {field.name: getattr(setting, field.name) for field in fields(setting)}


def _setting(given: Values) -> Setting:
    return Setting(*(given[field.name] for field in fields(Setting)))


def _rows(given: Values) -> list[tuple[str, str]]:
    setting = _setting(given)
    job, first = setting.job, setting.first
    return [
        ("the cluster", str(setting.cluster)),
        ("a layer", f"{job.gradients[0] / 1e6:g} MB of fp32 gradients; there are "
                    f"{len(job.gradients)} layers"),
        ("a kernel", f"{1e3 * job.kernel:g} ms, once forward and once backward in each layer"),
        ("a sample", f"{1e3 * job.sample:g} ms forward and twice that backward, over all layers; "
                     f"{1e3 * job.load:g} ms to load"),
        ("the optimizer", f"{1e3 * job.optimizer:g} ms in each step"),
        ("the first levers", f"samples={first.samples}, bucket_mb={first.bucket_mb:.0f}, "
                             "accumulate=1, prefetch=0; all others are off"),
        ("the limits", f"{setting.most_samples} samples fit into a rank; a batch of more than "
                       f"{setting.largest_batch}, over all ranks, trains no better"),
        ("one rank alone", f"{setting.one_rank:.1f} samples per second, with its best microbatch "
                           "and a prefetch"),
        ("eight ranks now", f"{setting.speedup(setting.first):.2f} times as many, predicted"),
    ]  # fmt: skip


def _gains_less(name: str, given: Values) -> str:
    """The lever, if it is not the one that gains most alone; no lever otherwise."""
    return name if name != first_lever(_setting(given)) else "-"


_WHY: Final = {
    "samples": "count the kernels, the input and the messages of one sample before and after it.",
    "accumulate": "with the limit on the batch it is at most 2, which halves the messages per "
                  "sample. Kernels and input take as long as before.",
    "overlap": "it is the lever to try first, because it is free and exact. But which one gains "
               "most alone? Only what backward computes after a bucket is full can hide its "
               "messages.",
    "bucket_mb": "without overlap smaller buckets hide nothing.",
    "sixteen_bit": "it halves the messages. How long do they take now?",
    "hierarchical": "it helps messages between nodes of several ranks. Is that the largest part?",
    "prefetch": "it hides the input. Is that the largest part of a step?",
}

_QUESTIONS: Final = (
    choice(
        "first", "the lever that gains most if it is the only one, at its best value", NAMES,
        lambda given: first_lever(_setting(given)),
        "Write down the parts of a step in milliseconds: input, kernels, samples, messages.",
        {partial(_gains_less, name): why for name, why in _WHY.items()},
        points=2,
    ),
    _Stepwise("levers", 5, "one lever after the other, up to 6 times the speed of one rank",
              Judged('[("overlap", True), ...]', _last_step)),
    Question("gains", 3, "the factor by which each of them speeds up the job, at its place",
             Judged("[1.25, ...]", _judge_gains)),
)  # fmt: skip

PART: Final = Part(
    name="09/three_times_job",
    level=3,
    title="Three times as fast on eight ranks",
    minutes=35,
    difficulty=3,
    check=_Run(_draw, _rows, _QUESTIONS),
)
