"""03/warmup_then_decay: a learning rate that goes up in a line, down a cosine, and can resume."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = [
    "PART",
    "Curve",
    "Rates",
    "Resuming",
    "Scheduled",
    "wrong_decay",
    "wrong_end",
    "wrong_warmup",
]

# The curve that is asked for, and what is wrong with another one ---------------------------------

_EXACT = 1e-6


@dataclass(frozen=True)
class Curve:
    """What part of the base rate each optimizer step has, counted from 0.

        1     ┤      ╭──╮
              │    ╱     ╲        step 0 has `start`, step `warmup` is the first with all of it,
        start ┤  ╱         ╲      and from step `total` on it is zero
        0     ┤              ╲____
              └──┬────┬────────┬─
                 0  warmup   total
    """

    warmup: int
    total: int
    start: float

    def __str__(self) -> str:
        return f"{self.warmup} of {self.total} steps warm-up from {self.start:g}"

    def factor(self, step: float) -> float:
        """At a step, or between two."""
        if step < self.warmup:
            return self.start + (1 - self.start) * step / self.warmup
        if step >= self.total:
            return 0.0
        return _cosine((step - self.warmup) / (self.total - self.warmup))


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _wrong_at(curve: Curve, seen: Sequence[float], steps: range) -> tuple[int, str] | None:
    """The first of these steps that has another factor, and that in words."""
    for step in steps:
        wanted = curve.factor(step)
        if not math.isclose(seen[step], wanted, rel_tol=_EXACT, abs_tol=_EXACT):
            return step, (
                f"step {step}: the rate is {seen[step]:.4g} times the base rate, where "
                f"{wanted:.4g} times is wanted."
            )
    return None


def _alike(seen: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(seen) == len(wanted) and all(
        math.isclose(one, other, rel_tol=_EXACT, abs_tol=_EXACT)
        for one, other in zip(seen, wanted, strict=True)
    )


def wrong_warmup(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong before step `warmup`, and what to look at; empty if nothing is."""
    steps = range(curve.warmup)
    wrong = _wrong_at(curve, seen, steps)
    if wrong is None:
        return ""
    step, words = wrong
    own = seen[: curve.warmup]
    compounded = [math.prod(curve.factor(k) for k in range(step + 1)) for step in steps]
    if _alike(own, [curve.factor(step + 1) for step in steps]):
        advice = (
            "This comes one step too early: step 0 has start_factor, and step warmup_steps is "
            "the first at the full rate."
        )
    elif _alike(own, [curve.factor(2 * step) for step in steps]):
        advice = "It goes on two steps at a time: only scheduler.step() should move it."
    elif _alike(own, compounded):
        advice = (
            "This is the factor times the rate before, and not times the base rate, which "
            "self.base_lrs has."
        )
    elif step == 0:
        advice = "Already the first step has the rate times start_factor."
    else:
        advice = "It goes up in a straight line from start_factor to 1, where warmup_steps ends."
    return f"{words}\n{advice}"


def wrong_decay(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong from step `warmup` on, before step `total`; empty if nothing is."""
    steps = range(curve.warmup, curve.total)
    wrong = _wrong_at(curve, seen, steps)
    if wrong is None:
        return ""
    _, words = wrong
    own, left = seen[curve.warmup : curve.total], curve.total - curve.warmup
    if _alike(own, [_cosine(step / curve.total) for step in steps]):
        advice = "This cosine begins at step 0: let it begin where the warm-up ends."
    elif _alike(own, [_cosine(step / curve.total) for step in range(left)]):
        advice = (
            "This cosine is as long as total_steps: after the warm-up only total_steps - "
            "warmup_steps are left."
        )
    elif _alike(own, [_cosine(step / (left - 1)) for step in range(left)]):
        advice = "Zero comes one step too early: step total_steps is the first that has it."
    elif _alike(own, [_cosine((step + 1) / left) for step in range(left)]):
        advice = "This is one step too early: step warmup_steps still has the full rate."
    else:
        advice = "It is half a cosine, from the full rate to zero: (1 + cos(pi x progress)) / 2."
    return f"{words}\n{advice}"


def wrong_end(curve: Curve, seen: Sequence[float]) -> str:
    """What is wrong from step `total` on; empty if nothing is."""
    wrong = _wrong_at(curve, seen, range(curve.total, len(seen)))
    if wrong is None:
        return ""
    step, words = wrong
    advice = (
        "After total_steps it goes up again: what does your formula say of progress above 1?"
        if step > curve.total
        else "From step total_steps on the rate is zero."
    )
    return f"{words}\n{advice}"


# What ranks do with a learner's schedule: steps of it, and a resumed one's -----------------------

FINISHED = ("dtlab.training.learning_rate", "torch.optim.lr_scheduler")
BASES = "LRScheduler", "LambdaLR"  # they know of no curve

_RELATIVE, _ABSOLUTE = 1e-5, 1e-7  # of the base rate


@dataclass(frozen=True)
class Rates:
    """What one rank saw: before each optimizer step the rate of every group, and `last_rates`.

    `kind` is empty for an LRScheduler, else what there was instead; `unwritable` names what of the
    state cannot be written.
    """

    rates: list[list[float]]
    last_rates: list[list[float]]
    kind: str
    unwritable: str
    finished: frozenset[str]


@dataclass(frozen=True)
class Scheduled(Case):
    """`fn(optimizer, warmup_steps, total_steps, start_factor)`, and steps of both.

    `bases` are the rates of the parameter groups.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = BASES

    curve: Curve
    bases: tuple[float, ...]
    steps: int
    topic: str = "curve"

    def __str__(self) -> str:
        groups = f", {len(self.bases)} parameter groups" if len(self.bases) > 1 else ""
        return f"{self.curve}{groups}"

    @property
    def first(self) -> int:
        """The step that the first rates belong to."""
        return 0

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        arguments = (self.curve.warmup, self.curve.total, self.curve.start)
        return {"arguments": arguments, "bases": self.bases, "steps": self.steps}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True, allowed=BASES) as finished:
            optimizer = _optimizer(given["bases"])
            scheduler = fn(optimizer, *given["arguments"])
            seen = _seen(optimizer, scheduler, given["steps"])
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        rates, last = (
            [[float(rate) for rate in step] for step in result[name]] for name in ("rates", "last")
        )
        texts = str(result["kind"])[:100], str(result.get("unwritable", ""))[:100]
        if not any(texts) and [len(step) for step in rates] != [len(self.bases)] * len(rates):
            raise ValueError("not a rate for each group")
        return Rates(rates, last, *texts, frozenset(map(str, result["finished"])))

    def mistake(self, results: Sequence[Rates]) -> str:
        """The first step in which a rate is wrong: see `Case`."""
        (seen,) = results
        if seen.kind or seen.unwritable:
            return (
                f"what comes of WarmupThenDecay(...) is {seen.kind}, not an LRScheduler."
                if seen.kind
                else f"state_dict() has {seen.unwritable}, which a checkpoint cannot hold: keep "
                "to plain numbers."
            )
        for place, rates in enumerate(seen.rates):
            step = self.first + place
            for group, (rate, base) in enumerate(zip(rates, self.bases, strict=True)):
                factor = self.curve.factor(step)
                if not same_rate(rate, base * factor, base):
                    which = f", group {group}" if len(self.bases) > 1 else ""
                    return (
                        f"step {step}{which}: the rate is {rate:.4g}, where {base * factor:.4g} "
                        f"is wanted, the base rate {base:g} times {factor:.4g}."
                    )
        return ""


class Resuming(Scheduled):
    """Half of the steps; then all begins anew with what was saved, and goes on."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    allowed: ClassVar[tuple[str, ...]] = BASES

    @property
    def first(self) -> int:
        return self.steps

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True, allowed=BASES) as finished:
            optimizer = _optimizer(given["bases"])
            scheduler = fn(optimizer, *given["arguments"])
            seen = _seen(optimizer, scheduler, given["steps"])
            if not seen["kind"]:
                state = scheduler.state_dict()
                unwritable = _unwritable(state)
                if unwritable:
                    return seen | {"unwritable": unwritable, "finished": sorted(finished)}
                another = _optimizer(given["bases"])
                resumed = fn(another, *given["arguments"])
                another.load_state_dict(optimizer.state_dict())
                resumed.load_state_dict(_read_back(state))
                seen = _seen(another, resumed, given["steps"])
        return seen | {"finished": sorted(finished)}


def same_rate(rate: float, wanted: float, base: float) -> bool:
    """Whether two rates of a group with this base rate are the same up to rounding."""
    return math.isclose(rate, wanted, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE * base)


# What ranks do ----------------------------------------------------------------------------------


def _optimizer(bases: Sequence[float]) -> Optimizer:
    """An optimizer with a parameter group for each of these rates."""
    import torch

    from dtlab.units.unit03.optimizer import Still

    return Still([{"params": [torch.zeros(1)], "lr": base} for base in bases], bases[0])


def _seen(optimizer: Optimizer, scheduler: Any, steps: int) -> dict[str, Any]:
    """The rates before each optimizer step, with which the schedule goes on."""
    from torch.optim.lr_scheduler import LRScheduler

    if not isinstance(scheduler, LRScheduler):
        kind = "None" if scheduler is None else f"a {type(scheduler).__name__}"
        return {"rates": [], "last": [], "kind": kind}
    rates, last = [], []
    for _ in range(steps):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        last.append([float(rate) for rate in scheduler.get_last_lr()])
        optimizer.step()
        scheduler.step()
    return {"rates": rates, "last": last, "kind": ""}


def _unwritable(state: Any) -> str:
    """What of a state a checkpoint cannot hold, in words; empty where it holds all."""
    if not isinstance(state, dict):
        return f"no dict, but a {type(state).__name__},"
    for name, value in state.items():
        try:
            _read_back(value)
        except Exception:  # noqa: BLE001  a learner's objects may raise anything
            return f"{str(name)[:40]!r}, a {type(value).__name__}"
    return ""


def _read_back(state: Any) -> Any:
    """As it comes back from a file."""
    import torch

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Three curves past their ends; no warm-up, and nothing but that; groups; resuming."""
    draw = random.Random(seed)

    def curve(warmup: int, decay: int) -> Curve:
        return Curve(warmup, warmup + decay, draw.choice([0.0625, 0.1, 0.125, 0.2, 0.25, 0.3]))

    def bases(count: int) -> tuple[float, ...]:
        return tuple(draw.sample([0.02, 0.05, 0.1, 0.4, 0.8, 1.6], count))

    curves = [curve(draw.randint(4, 7), draw.randint(9, 14)) for _ in range(3)]
    short, of_groups, early, late = (curve(draw.randint(4, 6), 8) for _ in range(4))
    edges = [Curve(0, short.total, short.start), Curve(short.warmup, short.warmup, short.start)]
    return [
        Trial(1, [Scheduled(one, bases(1), one.total + 6) for one in curves]),
        Trial(1, [Scheduled(one, bases(1), one.total + 3, "edges") for one in edges]),
        Trial(1, [Scheduled(of_groups, bases(3), of_groups.total, "groups")]),
        Trial(
            1,
            [
                Resuming(early, bases(1), draw.randint(2, early.warmup - 1), "resume"),
                Resuming(late, bases(1), late.warmup + 1, "resume"),
            ],
        ),
    ]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Scheduled, Rates]]:
    """The cases of a topic, in words, with what was seen."""
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Scheduled):
                yield one.trial.words(number), case, results[0]


def _judge_warmup(seen: Seen) -> Verdict:
    """Whose work it is, whether it is a scheduler, and the steps of the warm-up."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    for one in of_topic(seen, "curve"):
        if one.error is not None:
            return lost(one.trouble)
    for words, case, rates in _cases(seen, "curve"):
        if rates.kind:
            return lost(f"{words}, {case.mistake([rates])}")
        wrong = wrong_warmup(case.curve, _factors(case, rates))
        if wrong:
            return lost(f"{words}, {wrong}")
    return ok("goes up in a straight line from start_factor to 1")


def _judge_decay(seen: Seen) -> Verdict:
    """Also where the warm-up is wrong, if this is right."""
    return _judge_curve(seen, wrong_decay, "goes down half a cosine to zero", _judge_warmup)


def _judge_end(seen: Seen) -> Verdict:
    return _judge_curve(seen, wrong_end, "stays at zero from total_steps on", _judge_decay)


def _judge_curve(
    seen: Seen, wrong: Callable[[Curve, Sequence[float]], str], right: str, before: Judge
) -> Verdict:
    """A stretch of the curve: what is wrong is told once the stretch before it is right."""
    cases = [(words, case, rates) for words, case, rates in _cases(seen, "curve") if rates.rates]
    found = ((words, wrong(case.curve, _factors(case, rates))) for words, case, rates in cases)
    sentence = next((f"{words}, {what}" for words, what in found if what), "")
    if (sentence or not cases) and before(seen).status != "ok":
        return blocked("judged once what comes before it is right")
    return lost(sentence) if sentence else ok(right)


def _factors(case: Scheduled, rates: Rates) -> list[float]:
    """What part of the base rate the only group has in each step."""
    return [step[0] / case.bases[0] for step in rates.rates]


def _judge_groups(seen: Seen) -> Verdict:
    """Every group from its own base rate, and get_last_lr() with the optimizer."""
    waiting = _waits(seen, "groups", _judge_warmup, _judge_decay)
    if waiting:
        return waiting
    for one in of_topic(seen, "groups"):
        if one.mistakes:
            return lost("\n".join(filter(None, (one.mistakes[0], _advise_on_groups(one)))))
    for words, _, rates in _cases(seen, "groups"):
        for step, (now, last) in enumerate(zip(rates.rates, rates.last_rates, strict=True)):
            if len(now) != len(last) or not all(map(math.isclose, now, last)):
                return lost(
                    f"{words}, step {step}: get_last_lr() gives {last}, and the optimizer has "
                    f"{now}. Leave step() to LRScheduler, and say in get_lr() what the rates are."
                )
    return ok("every parameter group has its own base rate")


def _advise_on_groups(one: Observation) -> str:
    for _, case, seen in _cases([one], "groups"):
        for step, rates in enumerate(seen.rates):
            for rate, base in zip(rates, case.bases, strict=True):
                factor = case.curve.factor(step)
                others = [other for other in case.bases if other != base]
                if any(same_rate(rate, other * factor, base) for other in others) and factor:
                    return "That is the base rate of another group: self.base_lrs has all of them."
    return ""


def _judge_resume(seen: Seen) -> Verdict:
    """From a state that was written and read, the same curve goes on."""
    waiting = _waits(seen, "resume", _judge_warmup, _judge_decay)
    if waiting:
        return waiting
    for one in of_topic(seen, "resume"):
        if one.mistakes:
            return lost(f"{one.mistakes[0]}\n{_advise_on_resume(one)}".rstrip())
    return ok("goes on in the middle, from state_dict()")


def _advise_on_resume(one: Observation) -> str:
    for _, case, seen in _cases([one], "resume"):
        rates = [step[0] for step in seen.rates[1:]]
        anew = [case.bases[0] * case.curve.factor(step + 1) for step in range(len(rates))]
        pairs = zip(rates, anew, strict=True)
        if seen.unwritable:
            return ""  # nothing was resumed
        if rates and all(same_rate(*pair, case.bases[0]) for pair in pairs):
            return (
                "The schedule begins from the start again: self.last_epoch says where it is, and "
                "LRScheduler puts it and your attributes into the state."
            )
    return ""


def _judge_edges(seen: Seen) -> Verdict:
    waiting = _waits(seen, "edges", _judge_warmup, _judge_decay, _judge_end)
    if waiting:
        return waiting
    for one in of_topic(seen, "edges"):
        if one.mistakes:
            return lost(
                f"{one.mistakes[0]}\nThere may be no warm-up, and nothing but a warm-up: then "
                "step total_steps is at zero, after the line."
            )
    return ok("right without a warm-up, and with nothing else")


def _waits(seen: Seen, topic: str, *first: Judge) -> Verdict | None:
    if any(judge(seen).status != "ok" for judge in first):
        return blocked("judged once the curve is right")
    if not of_topic(seen, topic):
        return blocked("judged once the ranks come back")
    return None


PART = Part(
    name="03/warmup_then_decay",
    level=2,
    title="Warm up, then decay",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("warmup", 2, _judge_warmup),
            Rule("decay", 2, _judge_decay),
            Rule("end", 1, _judge_end),
            Rule("edges", 1, _judge_edges),
            Rule("groups", 1, _judge_groups),
            Rule("resume", 2, _judge_resume),
        ),
    ),
    reference="dtlab.training.learning_rate.WarmupThenDecay",
    symbol="WarmupThenDecay",
)
