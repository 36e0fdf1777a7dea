"""03/reach: a test error to be reached at sixteen times the batch, in a fixed number of samples.

`plan(batch, samples, ranks, memory) -> dict` is asked on a rank, for several settings. What it
plans for the digits is then carried out by ranks of ours (`reach_training`): first on two data-
parallel ranks, for what travels; then in full, with unseen seeds, each on a rank of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.bench import HERE, Bench, warm_up
from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import short
from dtlab.grading.report import Criterion
from dtlab.grading.scripts.judges import bytes_left
from dtlab.grading.words import amount, count_ranks

__all__ = [
    "BATCH",
    "FIRST",
    "MEMORY",
    "PART",
    "RANKS",
    "SAMPLES",
    "TARGET",
    "Setting",
    "judge_batch",
    "judge_updates",
]

# What `plan` of 03/reach is asked, and what it may return: settings, and misfits in words --------

_WHOLE = ("micro_batch", "micro_batches", "updates", "warmup")
_NUMBERS = (*_WHOLE, "rate", "start_factor")
_DECAYS = ("cosine", "linear", "constant")
@dataclass(frozen=True)
class Setting(Case):
    """`plan(batch, samples, ranks, memory)`: what it returns for one setting.

    `seeds` are those of the trainings that come of it, if any.
    """

    batch: int
    samples: int
    ranks: int
    memory: int
    seeds: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"plan({self.batch}, {self.samples}, {self.ranks}, {self.memory})"

    def given(self, rank: int, world_size: int) -> tuple[int, ...]:
        return self.batch, self.samples, self.ranks, self.memory

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, ...]) -> Any:
        planned = fn(*given)
        if not isinstance(planned, Mapping):
            return type(planned).__name__
        return {str(name): _plain(value) for name, value in planned.items()}

    def opened(self, result: Any) -> Any:
        """See `Case`. Whole numbers are whole, also where they came as 202.0."""
        if not isinstance(result, Mapping):
            return result
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in result.items()
        }

    def mistake(self, results: Sequence[Any]) -> str:
        (planned,) = results
        return _misfit(planned)


def _plain(value: Any) -> Any:
    """A number, a word or a list of whole numbers; of anything else the name of its type."""
    if type(value).__module__.partition(".")[0] in ("torch", "numpy") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset | range):
        return [one if isinstance(one, int) else type(one).__name__ for one in value]
    return {"type": type(value).__name__}


def _misfit(planned: Any) -> str:
    """Why this is no plan; empty if it is one."""
    if not isinstance(planned, Mapping):
        return f"returns {planned}. Return a dict, as the cell above does."
    missing = [name for name in (*_NUMBERS, "decay", "travel_in") if name not in planned]
    if missing:
        return f"returns a dict without {missing[0]!r}."
    for name in _NUMBERS:
        value = planned[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"returns {short(value)} for {name!r}: a number is asked for."
        if name in _WHOLE and not isinstance(value, int):
            return f"returns {short(value)} for {name!r}: a whole number is asked for."
    return _out_of_bounds(planned)


def _out_of_bounds(planned: Mapping[str, Any]) -> str:
    for name, least in {"micro_batch": 1, "micro_batches": 1, "updates": 1, "warmup": 0}.items():
        if planned[name] < least:
            return f"returns {planned[name]} for {name!r}."
    if not 0 < planned["rate"] < 1e3:
        return f"returns {short(planned['rate'])} for 'rate'."
    if not 0 <= planned["start_factor"] <= 1:
        return f"returns {short(planned['start_factor'])} for 'start_factor': a share, 0 to 1."
    if planned["warmup"] > planned["updates"]:
        return f"has a warm-up of {planned['warmup']} updates, of {planned['updates']} in all."
    if planned["decay"] not in _DECAYS:
        return f"returns {short(planned['decay'])} for 'decay'. There are: {', '.join(_DECAYS)}."
    if not isinstance(planned["travel_in"], list) or any(
        not isinstance(one, int) for one in planned["travel_in"]
    ):
        return "has to list microbatches by their numbers from 0 in 'travel_in', as [0, 1]."
    return ""


# What ranks of ours do with a plan of 03/reach: a rehearsal, and whole trainings -----------------

BATCH, SAMPLES, RANKS, MEMORY = 512, 8 * 12942, 2, 64
REHEARSED = 40  # updates
_SEEDS, _LAUNCHES = 6, 3
_LIMIT = 30.0  # seconds for a launch of trainings, which takes one
class _OfOurs(Case):
    """What our ranks do with a plan."""

    def mistake(self, results: Sequence[Any]) -> str:
        return ""


@dataclass(frozen=True)
class Rehearsal(_OfOurs):
    """The first updates of a plan, at a low rate: what travels, and whether copies stay equal."""

    plan: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{REHEARSED} updates"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {**self.plan, "updates": REHEARSED, "warmup": 0, "rate": 0.05}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        from dtlab.training.datasets import digits

        return fn(given, digits(), 0)[2]


@dataclass(frozen=True)
class Trainings(_OfOurs):
    """A whole training by the plan for each seed, on one rank: test errors in %.

    A rank takes the samples of an update at once, which comes to the same up to rounding.
    """

    plan: Mapping[str, Any]
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.plan['updates']} updates"

    def given(self, rank: int, world_size: int) -> tuple[dict[str, Any], list[int]]:
        at_once = {"micro_batch": BATCH, "micro_batches": 1, "travel_in": [0]}
        return {**self.plan, **at_once}, list(self.seeds[rank::world_size])

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[dict[str, Any], list[int]]) -> Any:
        import torch.distributed as dist

        from dtlab.training.datasets import digits

        (plan, seeds), data = given, digits()
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return [fn(plan, data, seed, alone[dist.get_rank()])[0] for seed in seeds]


def _train_by(*given: Any) -> Any:
    from dtlab.units.unit03.reach_training import train_by

    return train_by(*given)


def trials_for(seed: int) -> list[Trial]:
    """The setting of the notebook, and four that are drawn; some have memory for all at once."""
    draw = random.Random(seed)
    seeds = tuple(draw.randrange(1000, 1 << 30) for _ in range(_SEEDS))
    drawn = [
        _drawn(draw, ranks, micro_batches)
        for ranks, micro_batches in ((1, 4), (draw.choice((4, 8)), 8), (2, 2), (4, 1))
    ]
    return [Trial(1, [Setting(BATCH, SAMPLES, RANKS, MEMORY, seeds), *drawn])]


def _drawn(draw: random.Random, ranks: int, micro_batches: int) -> Setting:
    memory = draw.choice((8, 16, 32))
    batch = ranks * micro_batches * memory
    if micro_batches == 1:
        memory += draw.choice((4, 8, 24))  # there is room for more than the share of a rank
    updates, rest = draw.randint(150, 900), draw.randint(1, batch - 1)
    return Setting(batch, updates * batch + rest, ranks, memory)


def trainings_of(
    setting: Setting, plan: Mapping[str, Any]
) -> list[tuple[Trial, Callable[..., Any]]]:
    """What was planned for the digits, to be carried out with each seed."""
    shares = [setting.seeds[k::_LAUNCHES] for k in range(_LAUNCHES)]
    cases = [Rehearsal(plan), *(Trainings(plan, seeds) for seeds in shares)]
    return [(Trial(RANKS, [case], limit=_LIMIT), _train_by) for case in cases]


# How a plan of 03/reach is judged: by arithmetic, what travels, and the errors it reaches --------

FIRST, TARGET = 12.0, 5.0
HAVE_FIRST, HAVE_TARGET = 3, 4
_SENT_MORE, _OWN = 1.25, 1 << 16  # a factor; bytes of gloo's and of the start
_WAITING = blocked("judged once batch and updates are right")
def _each(one: Observation, objection: Callable[[Setting, Mapping[str, Any]], str]) -> str:
    """The first objection to a plan, with the setting that it is for."""
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        assert isinstance(case, Setting)
        what = objection(case, results[0])
        if what:
            where = "" if one.trial.secret and number else f"{case}: "
            return f"{where}{what}"
    return ""


def wrong_batch(one: Observation) -> str:
    def objection(case: Setting, plan: Mapping[str, Any]) -> str:
        micro, count = plan["micro_batch"], plan["micro_batches"]
        if micro > case.memory:
            return (
                f"a forward pass of {micro} samples on a rank that has memory for {case.memory}."
            )
        took = micro * count * case.ranks
        if took != case.batch:
            return (
                f"{micro} samples x {count} microbatches x {count_ranks(case.ranks)} are "
                f"{took} in an update; {case.batch} are asked for."
            )
        if micro < min(case.memory, case.batch // case.ranks):
            return (
                f"{count} microbatches of {micro} samples, and there is memory for "
                f"{case.memory}. Each one more costs a forward and a backward pass that could "
                "have been shared."
            )
        return ""

    return _each(one, objection)


def wrong_updates(one: Observation) -> str:
    def objection(case: Setting, plan: Mapping[str, Any]) -> str:
        needed = plan["updates"] * case.batch
        if needed > case.samples:
            return (
                f"{plan['updates']} updates of {case.batch} samples take {needed}, and there are "
                f"{case.samples}."
            )
        if needed + case.batch <= case.samples:
            return (
                f"{plan['updates']} updates leave {case.samples - needed} samples over, enough "
                "for another update."
            )
        return ""

    return _each(one, objection)


def judge_batch(seen: Sequence[Observation]) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    what = wrong_batch(seen[0])
    return lost(what) if what else ok(f"the batch is right in {len(seen[0].trial.cases)} settings")


def judge_updates(seen: Sequence[Observation]) -> Verdict:
    if seen[0].mistakes:
        return blocked("judged once plan returns a plan everywhere")
    what = wrong_updates(seen[0])
    return lost(what) if what else ok("as many updates as there are samples for")


def judge_traffic(seen: Sequence[Observation]) -> Verdict:
    if len(seen) == 1 or _untrained(seen):
        return _untrained(seen) or _WAITING
    what = _sent(seen[1])
    return lost(what) if what else ok("a rank sends one gradient for each update")


def _untrained(seen: Sequence[Observation]) -> Verdict | None:
    """What to say where a training of ours did not come to its end."""
    trouble = next((one.trouble for one in seen[1:] if one.error is not None), "")
    if not trouble:
        return None
    return blocked(f"{trouble}\nThat is not the plan's doing: run the check again.")


def _sent(one: Observation) -> str:
    """What is wrong with what a training has sent."""
    (case,), (copies,) = one.trial.cases, one.results
    assert isinstance(case, Rehearsal)
    if not all(copy.equal(copies[0]) for copy in copies):
        return (
            f"gradients travel in the microbatches {case.plan['travel_in']} of "
            f"{case.plan['micro_batches']}, counted from 0, and in the end the copies of the "
            "ranks differ. What comes after the last journey stays on its rank."
        )
    assert one.trace is not None
    updates, gradient = REHEARSED, 4 * copies[0].numel()
    left = bytes_left(one.trace, 0)
    if left > _SENT_MORE * updates * gradient + gradient + _OWN:
        return (
            f"{amount(left)} left rank 0 in {updates} updates, {left / updates / gradient:.1f} "
            "gradients for each. They add up on a rank until the last microbatch."
        )
    return ""


def judge_error(seen: Sequence[Observation]) -> Verdict:
    return _reached(seen, FIRST, HAVE_FIRST, "Which rate does a batch of this size take?")


def judge_target(seen: Sequence[Observation]) -> Verdict:
    if len(seen) > 1 and judge_error(seen).status != "ok":
        return blocked("judged once the first error is reached")
    look = "How high does the rate go, and how does it get there?"
    return _reached(seen, TARGET, HAVE_TARGET, look)


def _reached(seen: Sequence[Observation], limit: float, how_many: int, look: str) -> Verdict:
    if len(seen) == 1 or _untrained(seen):
        return _untrained(seen) or _WAITING
    errors = sorted(error for one in seen[2:] for rank in one.results[0] for error in rank)
    reached = sum(error <= limit for error in errors)
    shown = ", ".join(f"{error:.1f}" for error in errors)
    words = f"test errors {shown} %: {reached} of {len(errors)} are at most {limit:g} %"
    if reached >= how_many:
        return ok(words)
    return lost(f"{words}, and {how_many} have to be. {look}")


# The part ----------------------------------------------------------------------------------------


def _trainings(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """What was planned for the digits, once it fits, to be carried out."""
    if seen[0].mistakes or wrong_batch(seen[0]) or wrong_updates(seen[0]):
        return []
    setting, plan = seen[0].trial.cases[0], seen[0].results[0][0]
    assert isinstance(setting, Setting)
    return trainings_of(setting, plan)


@dataclass(frozen=True)
class _Warm:
    """A check of trainings: the server of ranks has imported what optimizers need."""

    check: Check

    @property
    def points(self) -> float:
        """Points that can be had."""
        return self.check.points

    def run(
        self,
        symbol: str,
        answer: Any,
        seed: int = 0,
        learner: str | None = None,
        bench: Bench = HERE,
    ) -> list[Criterion]:
        if bench is HERE:
            warm_up()
        return self.check.run(symbol, answer, seed, learner, bench)


PART = Part(
    name="03/reach",
    level=3,
    title="Sixteen times the batch",
    minutes=31,
    difficulty=3,
    check=_Warm(
        Check(
            trials=trials_for,
            then=_trainings,
            rules=(
                Rule("batch", 3, judge_batch),
                Rule("updates", 3, judge_updates),
                Rule("traffic", 4, judge_traffic),
                Rule("error", 4, judge_error),
                Rule("target", 6, judge_target),
            ),
        )
    ),
    symbol="plan",
    grade_id="plan-check",
)
