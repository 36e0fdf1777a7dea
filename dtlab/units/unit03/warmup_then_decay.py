"""03/warmup_then_decay: write a learning-rate schedule with linear warm-up and cosine decay."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["PART", "Curve", "Scheduled", "still_optimizer", "wrong_stretches"]

# The curve, and mistakes in it -------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """The factor of the base rate in each optimizer step, counted from 0.

    1     ┤      ╭──╮
          │    ╱     ╲        step 0 has `start`, step `warmup` is the first with factor 1,
    start ┤  ╱         ╲      and from step `total` on the factor is 0
    0     ┤              ╲____
          └──┬────┬────────┬─
             0  warmup   total
    """

    warmup: int
    total: int
    start: float

    def __str__(self) -> str:
        return f"{self.warmup} of {self.total} steps warm-up from {self.start:g}"

    def factor(self, step: int) -> float:
        """The factor of the base rate in this step."""
        if step < self.warmup:
            return self.start + (1 - self.start) * step / self.warmup
        if step >= self.total:
            return 0.0
        return _cosine((step - self.warmup) / (self.total - self.warmup))


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _same(factor: float, wanted: float) -> bool:
    return math.isclose(factor, wanted, rel_tol=1e-6, abs_tol=1e-6)


def wrong_stretches(curve: Curve, factors: Sequence[float], base: float = 1.0) -> dict[str, str]:
    """A message about each stretch of a curve, in order; empty if the stretch is right.

    `factors` are the rates divided by the base rate.
    """
    warmup, total = curve.warmup, curve.total
    stopped = (step for step in range(2, total) if _same(factors[0], curve.factor(step)))
    ahead = next(stopped, total)  # where an earlier schedule may have stopped

    def wrong(
        steps: range, known: Mapping[str, Callable[[int], float]], later: str, at_first: str = ""
    ) -> str:
        """Names the first wrong step, with advice by a `known` mistake or by the step's place."""
        step = next((k for k in steps if not _same(factors[k], curve.factor(k))), None)
        if step is None:
            return ""
        alike = (
            advice
            for advice, mistaken in known.items()
            if all(_same(factors[k], mistaken(k)) for k in steps)
        )
        advice = next(alike, (step == steps[0] and at_first) or later)
        return f"{_off(step, factors[step], curve)}\n{advice}"

    return {
        "warmup": wrong(
            range(warmup),
            {
                "This comes one step too early: step 0 has start_factor.": (
                    lambda k: curve.factor(k + 1)
                ),
                "It moves two steps at a time: only scheduler.step() should move it.": (
                    lambda k: curve.factor(2 * k)
                ),
                "This multiplies the previous rate by the factor. Multiply self.base_lrs.": (
                    lambda k: math.prod(map(curve.factor, range(k + 1)))
                ),
                "This is the factor itself. Multiply self.base_lrs by it.": (
                    lambda k: curve.factor(k) / base
                ),
                "This goes on where an earlier schedule stopped: count with self.last_epoch.": (
                    lambda k: curve.factor(k + ahead)
                ),
            },
            "It rises in a straight line from start_factor to 1, reached at warmup_steps.",
            at_first="The first step already has the rate times start_factor.",
        ),
        "decay": wrong(
            range(warmup, total),
            {
                "This cosine begins at step 0. Begin it where the warm-up ends.": (
                    lambda k: _cosine(k / total)
                ),
                "This cosine is total_steps long. Fewer steps are left after the warm-up.": (
                    lambda k: _cosine((k - warmup) / total)
                ),
                "Zero comes one step too early: step total_steps is the first at zero.": (
                    lambda k: _cosine((k - warmup) / (total - warmup - 1))
                ),
                "This is one step too early: step warmup_steps still has the full rate.": (
                    lambda k: curve.factor(k + 1)
                ),
            },
            "It is half a cosine, from the full rate to zero: (1 + cos(pi x progress)) / 2.",
        ),
        "end": wrong(
            range(total, len(factors)),
            {},
            "After total_steps it rises again: what does your formula give for progress above 1?",
            at_first="From step total_steps on the rate is zero.",
        ),
    }


def _off(step: int, factor: float, curve: Curve, where: str = "") -> str:
    return (
        f"step {step}{where}: the rate is {factor:.4g} times the base rate, but it should be "
        f"{curve.factor(step):.4g} times."
    )


# A rank's run of a learner's schedule ------------------------------------------------------------

_FINISHED = ("dtlab.training.learning_rate", "torch.optim.lr_scheduler")
_BASES = ("LRScheduler", "LambdaLR")  # these do not contain the curve


@dataclass(frozen=True)
class Scheduled(Faulty):
    """Calls `fn(optimizer, warmup_steps, total_steps, start_factor)`, and makes `steps` steps.

    `bases` are the rates of the parameter groups. With the topic "resume", the rank then builds
    new objects, loads the saved states, and judges the next `steps`.
    """

    finished: ClassVar[tuple[str, ...]] = _FINISHED
    allowed: ClassVar[tuple[str, ...]] = _BASES
    also_shows: ClassVar = {"warmup": ("decay", "end")}

    curve: Curve
    bases: tuple[float, ...]
    steps: int
    topic: str = "warmup"

    def __str__(self) -> str:
        groups = f", {len(self.bases)} parameter groups" if len(self.bases) > 1 else ""
        return f"{self.curve}{groups}"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return {
            "bases": self.bases,
            "arguments": (self.curve.warmup, self.curve.total, self.curve.start),
            "steps": self.steps,
            "resumes": self.topic == "resume",
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from torch.optim.lr_scheduler import LRScheduler

        def begin() -> tuple[Optimizer, LRScheduler]:
            optimizer = still_optimizer(given["bases"])
            return optimizer, fn(optimizer, *given["arguments"])

        def rates() -> list[list[list[float]]]:
            """For each step, the optimizer's rates before it and those of `get_last_lr()`."""
            steps = []
            for _ in range(given["steps"]):
                now = [group["lr"] for group in optimizer.param_groups]
                pair = now, scheduler.get_last_lr()
                steps.append([list(map(float, group_rates)) for group_rates in pair])
                optimizer.step()
                scheduler.step()
            return steps

        with finished_calls(*_FINISHED, refuse=True, allowed=_BASES) as finished:
            optimizer, scheduler = begin()
            if not isinstance(scheduler, LRScheduler):
                kind = "None" if scheduler is None else f"a {type(scheduler).__name__}"
                return {"trouble": f"WarmupThenDecay(...) makes {kind}, not an LRScheduler."}
            recorded = rates()
            if given["resumes"]:
                saved = optimizer.state_dict()
                try:
                    state = _from_a_file(scheduler.state_dict())
                except TypeError as error:
                    return {"trouble": f"state_dict() has {error}: store plain numbers only."}
                optimizer, scheduler = begin()
                optimizer.load_state_dict(saved)
                scheduler.load_state_dict(state)
                recorded = rates()
        return {"rates": recorded, "finished": sorted(finished)}

    def advice(self, trouble: str) -> str:
        known = (words for sign, words in _TROUBLES.items() if sign in trouble)
        return next(known, _EDGES if self.topic == "edges" else "")

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        trouble = results[0].get("trouble")
        if trouble:
            waiting = ("decay waits", "end waits") if self.topic == "warmup" else ()
            yield from ((name, str(trouble)[:200]) for name in (self.topic, *waiting))
            return
        first = self.steps if self.topic == "resume" else 0
        recorded = dict(zip(range(first, first + self.steps), results[0]["rates"], strict=True))
        factors = {
            step: [rate / base for rate, base in zip(rates, self.bases, strict=True)]
            for step, (rates, _) in recorded.items()
        }
        if self.topic == "warmup":
            yield from self._wrong_stretches([only for (only,) in factors.values()])
            return
        for step, each in factors.items():
            for group, factor in enumerate(each):
                if not _same(factor, self.curve.factor(step)):
                    where = f", group {group}" if len(each) > 1 else ""
                    advice = self._look_at(factors, step, group)
                    yield self.topic, f"{_off(step, factor, self.curve, where)}\n{advice}".rstrip()
                    return
        for step, (now, last) in recorded.items() if self.topic == "groups" else ():
            if len(now) != len(last) or not all(map(math.isclose, now, last)):
                yield (
                    "groups",
                    f"step {step}: get_last_lr() gives {last}, but the optimizer has {now}. Leave "
                    "step() to LRScheduler, and return the rates from get_lr().",
                )
                return

    def _wrong_stretches(self, factors: Sequence[float]) -> Iterator[Fault]:
        """Blocks a stretch if the one before it is wrong: a shifted curve loses points once."""
        before = ""
        for name, wrong in wrong_stretches(self.curve, factors, *self.bases).items():
            if wrong:
                yield f"{name} waits" if before else name, wrong
            before = wrong

    def _look_at(self, factors: Mapping[int, Sequence[float]], step: int, group: int) -> str:
        """Advice on the factor of this step and group, which is wrong."""
        if self.topic == "edges":
            return _EDGES
        rate, wanted = factors[step][group] * self.bases[group], self.curve.factor(step)
        if wanted and any(_same(rate / base, wanted) for base in self.bases):
            return "That is the base rate of another group: self.base_lrs has all of them."
        firsts = [factor for factor, *_ in factors.values()]
        restarts = [_same(factor, self.curve.factor(k)) for k, factor in enumerate(firsts)]
        if self.topic == "resume" and all(restarts[1:]):  # the optimizer restored the first rate
            return (
                "The schedule begins from the start again: self.last_epoch holds the step, and "
                "LRScheduler saves it and your attributes in the state."
            )
        return ""


_EDGES = (
    "There may be no warm-up, or nothing but a warm-up. In the latter case step total_steps is "
    "at zero, right after the line."
)

_A_LIST = "get_lr() must return a list, with one rate for each parameter group."
_TROUBLES = {
    "no attribute '_last_lr'": "`__init__` did not call super().__init__(optimizer).",
    "object is not iterable": _A_LIST,
    "zip() argument 2": _A_LIST,
}


def still_optimizer(bases: Sequence[float]) -> Optimizer:
    """An optimizer that changes no parameter, with a parameter group for each of these rates.

    It manages groups and states itself, because PyTorch's own methods import its compiler at the
    first call, which takes a second or two.
    """
    import torch

    class Still(torch.optim.Optimizer):
        def add_param_group(self, param_group: dict[str, Any]) -> None:
            self.param_groups.append(param_group)

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

        def state_dict(self) -> dict[str, Any]:
            return {"param_groups": [{**group, "params": []} for group in self.param_groups]}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
                group.update({**saved, "params": group["params"]})

    groups = [{"params": [torch.zeros(1)], "lr": base} for base in bases]
    return Still(groups, {"lr": bases[0]})


def _from_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Saves and loads a state like a checkpoint. Raises TypeError for unsupported values."""
    import torch

    loaded = {}
    for name, value in state.items():
        file = io.BytesIO()
        try:
            torch.save(value, file)
            file.seek(0)
            loaded[name] = torch.load(file, weights_only=True)
        except Exception as error:
            kind = type(value).__name__
            raise TypeError(f"{name!r}, a {kind}, which a checkpoint cannot hold") from error
    return loaded


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Trials of curves past their ends, without one stretch, with groups, and with resuming."""
    draw = random.Random(seed)

    def curve(warmup: int, decay: int) -> Curve:
        return Curve(warmup, warmup + decay, draw.choice([0.0625, 0.1, 0.125, 0.2, 0.25, 0.3]))

    def bases(count: int) -> tuple[float, ...]:
        return tuple(draw.sample([0.02, 0.05, 0.1, 0.4, 0.8, 1.6], count))

    curves = [curve(draw.randint(4, 7), draw.randint(9, 14)) for _ in range(3)]
    short, of_groups, early, late = (curve(draw.randint(4, 6), 8) for _ in range(4))
    edges = [Curve(0, short.total, short.start), Curve(short.warmup, short.warmup, short.start)]
    resumed = [(early, draw.randint(2, early.warmup - 1)), (late, late.warmup + 1)]
    return [
        Trial(1, [Scheduled(each, bases(1), each.total + 6) for each in curves]),
        Trial(1, [Scheduled(each, bases(1), each.total + 3, "edges") for each in edges]),
        Trial(1, [Scheduled(of_groups, bases(3), of_groups.total, "groups")]),
        Trial(1, [Scheduled(each, bases(1), steps, "resume") for each, steps in resumed]),
    ]


PART = Part(
    name="03/warmup_then_decay",
    level=2,
    title="Warm up, then decay",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("warmup", 2, "rises in a straight line from start_factor to 1"),
            rule("decay", 2, "falls to zero along half a cosine", "decay waits"),
            rule("end", 1, "stays at zero from total_steps on", "end waits"),
            rule(
                "edges",
                1,
                "right without a warm-up, and with only a warm-up",
                "warmup",
                "decay",
                "end",
            ),
            rule("groups", 1, "every parameter group has its own base rate", "warmup", "decay"),
            rule("resume", 2, "resumes in the middle, from state_dict()", "warmup", "decay"),
        ),
    ),
    reference="dtlab.training.learning_rate.WarmupThenDecay",
    symbol="WarmupThenDecay",
)
