"""03/reach: plan a training run that reaches a test error at 16 times the batch size.

A rank calls `plan(batch, samples, ranks, memory) -> dict` for several settings. Then the check
trains on the digits as planned (`reach_training`): first on two data-parallel ranks, to measure
what they send; then in full, with unknown seeds, each training on one rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.programs.judges import bytes_left
from dtlab.checks.questions.quantities import short
from dtlab.checks.words import amount, count_ranks
from dtlab.predict.units import counted

__all__ = ["BATCH", "FIRST", "MEMORY", "PART", "RANKS", "SAMPLES", "TARGET", "Setting"]

BATCH, SAMPLES, RANKS, MEMORY = 512, 8 * 12942, 2, 64
FIRST, TARGET = 12.0, 5.0  # test errors to reach, in %
_SEEDS, _HAVE_FIRST, _HAVE_TARGET = 6, 3, 4  # trainings; how many must reach each of the two

# What `plan` returns for a setting ---------------------------------------------------------------

_WHOLE = ("micro_batch", "micro_batches", "updates", "warmup")
_NUMBERS = (*_WHOLE, "rate", "start_factor")
_DECAYS = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Setting(Faulty):
    """Calls `plan(batch, samples, ranks, memory)` for one setting, and judges the plan.

    `seeds` are the seeds of the trainings by that plan, if there are any.
    """

    alone = True
    topic = "batch"

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
    def on_rank(fn: Callable[..., Any], given: tuple[int, ...]) -> dict[str, Any]:
        plan = fn(*given)
        if not isinstance(plan, Mapping):
            return {"plan": type(plan).__name__}
        return {"plan": {str(name): _plain(value) for name, value in plan.items()}}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        plan = results[0]["plan"]
        misfit = next(_misfits(plan), "")
        if misfit:
            yield from (("batch", misfit), ("no plan", misfit))
            return
        micro, count, updates = plan["micro_batch"], plan["micro_batches"], plan["updates"]
        taken, needed = micro * count * self.ranks, updates * self.batch
        if micro > self.memory:
            yield (
                "batch",
                f"a forward pass has {counted(micro, 'sample')}, but a rank has memory for "
                f"{self.memory}.",
            )
        elif taken != self.batch:
            yield (
                "batch",
                f"{counted(micro, 'sample')} x {counted(count, 'microbatch', 'microbatches')} x "
                f"{count_ranks(self.ranks)} are {taken} "
                f"in an update, but the batch is {self.batch}.",
            )
        elif micro < min(self.memory, self.batch // self.ranks):
            yield (
                "batch",
                f"{counted(count, 'microbatch', 'microbatches')} of {counted(micro, 'sample')}, "
                f"but there is memory for {self.memory}. "
                "Each extra microbatch costs a forward and a backward pass. Use larger ones.",
            )
        if needed > self.samples:
            yield (
                "updates",
                f"{counted(updates, 'update')} of {counted(self.batch, 'sample')} take {needed}, "
                f"but there are only {self.samples}.",
            )
        elif needed + self.batch <= self.samples:
            yield (
                "updates",
                f"{counted(updates, 'update')} leave {counted(self.samples - needed, 'sample')} "
                f"over, enough for another update.",
            )


def _plain(value: Any) -> Any:
    """Converts to a number, a string or a list of integers; other values to their type's name.

    Integers that come as floats, such as 202.0, become int.
    """
    if type(value).__module__.partition(".")[0] in ("torch", "numpy") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset | range):
        return [item if isinstance(item, int) else type(item).__name__ for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str) else {"type": type(value).__name__}


def _misfits(plan: Any) -> Iterator[str]:
    """Yields the reasons why a plan is invalid. Only the first counts; later ones rely on it."""
    if not isinstance(plan, Mapping):
        yield f"returns {plan}. Return a dict like `recipe`."
    for name in (*_NUMBERS, "decay", "travel_in"):
        if name not in plan:
            yield f"returns a dict without {name!r}."
    for name in _NUMBERS:
        value = plan[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"returns {short(value)} for {name!r}: it must be a number."
        if name in _WHOLE and not isinstance(value, int):
            yield f"returns {short(value)} for {name!r}: it must be a whole number."
    for name, least in {"micro_batch": 1, "micro_batches": 1, "updates": 1, "warmup": 0}.items():
        if plan[name] < least:
            yield f"returns {plan[name]} for {name!r}."
    if not 0 < plan["rate"] < 1e3:
        yield f"returns {short(plan['rate'])} for 'rate'."
    if not 0 <= plan["start_factor"] <= 1:
        yield f"returns {short(plan['start_factor'])} for 'start_factor': it must be in 0 to 1."
    if plan["warmup"] > plan["updates"]:
        yield f"has a warm-up of {plan['warmup']} updates, but only {plan['updates']} in all."
    if plan["decay"] not in _DECAYS:
        yield f"returns {short(plan['decay'])} for 'decay'. There are: {', '.join(_DECAYS)}."
    travel = plan["travel_in"]
    if not isinstance(travel, list) or not all(isinstance(item, int) for item in travel):
        yield "must list microbatches by their numbers from 0 in 'travel_in', as [0, 1]."


# Training by a plan ------------------------------------------------------------------------------

_REHEARSED = 40  # updates


@dataclass(frozen=True)
class Rehearsal(Faulty):
    """Runs the first updates of a plan at a low rate, to judge traffic and equality of copies."""

    topic = "traffic"
    guilty = ""  # a failure here is not the plan's fault

    plan: Mapping[str, Any]

    def __str__(self) -> str:
        return counted(_REHEARSED, "update")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {**self.plan, "updates": _REHEARSED, "warmup": 0, "rate": 0.05}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.training.datasets import digits

        return {"copy": fn(given, digits(), 0)[2]}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        if not all(same(result["copy"], results[0]["copy"]) for result in results):
            yield (
                "traffic",
                f"gradients are averaged in the microbatches {self.plan['travel_in']} of "
                f"{self.plan['micro_batches']}, counted from 0, and in the end the copies of the "
                "ranks differ. Gradients after the last all-reduce stay on their rank.",
            )


@dataclass(frozen=True)
class Trainings(Faulty):
    """Runs a whole training by the plan for each seed, on one rank, and judges the test errors.

    The rank processes all samples of an update in one pass, which gives the same gradient up to
    rounding.
    """

    topic = "error"
    guilty = ""

    plan: Mapping[str, Any]
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.plan['updates']} updates"

    def given(self, rank: int, world_size: int) -> tuple[dict[str, Any], list[int]]:
        in_one_pass = {"micro_batch": BATCH, "micro_batches": 1, "travel_in": [0]}
        return {**self.plan, **in_one_pass}, list(self.seeds[rank::world_size])

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[dict[str, Any], list[int]]) -> dict[str, Any]:
        import torch.distributed as dist

        from dtlab.training.datasets import digits

        (plan, seeds), data = given, digits()
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return {"errors": [fn(plan, data, seed, alone[dist.get_rank()])[0] for seed in seeds]}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        errors = sorted(error for result in results for error in result["errors"])
        shown = ", ".join(f"{error:.1f}" for error in errors)
        for name, limit, wanted, look in (
            ("error", FIRST, _HAVE_FIRST, "Which rate does a batch of this size need?"),
            (
                "target",
                TARGET,
                _HAVE_TARGET,
                "How high does the rate go, and how does it get there?",
            ),
        ):
            reached = sum(error <= limit for error in errors)
            if reached < wanted:
                yield (
                    name,
                    f"test errors {shown} %: {reached} of {len(errors)} are at most {limit:g} %, "
                    f"and {wanted} must be. {look}",
                )


def _carry_out(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The trials that carry out the plan for the digits, once the plan is valid."""
    if seen[0].mistakes:
        return []
    setting, plan = seen[0].trial.cases[0], seen[0].results[0][0]["plan"]
    assert isinstance(setting, Setting)
    cases = (Rehearsal(plan), Trainings(plan, setting.seeds))
    return [(Trial(RANKS, [case], limit=60.0), _train_by) for case in cases]  # it takes 3 s


def _train_by(*given: Any) -> Any:
    from dtlab.units.unit03.reach_training import train_by

    return train_by(*given)


def _too_much_sent(seen: Seen) -> str:
    for run in seen:
        if isinstance(run.trial.cases[0], Rehearsal) and run.trace is not None:
            gradient, sent = 4 * run.results[0][0]["copy"].numel(), bytes_left(run.trace, 0)
            # Allowed: the initial parameters, 1.25 times the gradients, 64 KiB for gloo itself.
            if sent > 1.25 * _REHEARSED * gradient + gradient + (1 << 16):
                return (
                    f"rank 0 sent {amount(sent)} in {counted(_REHEARSED, 'update')}, "
                    f"{sent / _REHEARSED / gradient:.1f} gradients in each. Accumulate them on a "
                    "rank until the last microbatch."
                )
    return ""


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """The notebook's setting and four drawn ones; in the last, a rank's share fits into memory."""
    draw = random.Random(seed)
    seeds = tuple(draw.randrange(1000, 1 << 30) for _ in range(_SEEDS))
    settings = [Setting(BATCH, SAMPLES, RANKS, MEMORY, seeds)]
    for ranks, micro_batches in ((1, 4), (draw.choice((4, 8)), 8), (2, 2), (4, 1)):
        memory = draw.choice((8, 16, 32))
        batch = ranks * micro_batches * memory
        if micro_batches == 1:
            memory += draw.choice((4, 8, 24))  # more memory than a rank's share needs
        samples = draw.randint(150, 900) * batch + draw.randint(1, batch - 1)
        settings.append(Setting(batch, samples, ranks, memory))
    return [Trial(1, settings)]


PART = Part(
    name="03/reach",
    level=3,
    title="Sixteen times the batch",
    minutes=31,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_carry_out,
        rules=(
            rule("batch", 3, "the batch is right in all settings"),
            rule("updates", 3, "as many updates as the samples allow", "no plan"),
            rule(
                "traffic",
                4,
                "a rank sends one gradient for each update",
                "batch",
                "updates",
                also=_too_much_sent,
            ),
            rule("error", 4, f"test error at most {FIRST:g} %", "batch", "updates"),
            rule("target", 6, f"test error at most {TARGET:g} %", "batch", "updates", "error"),
        ),
        compiles=True,
    ),
    symbol="plan",
    grade_id="plan-check",
)
