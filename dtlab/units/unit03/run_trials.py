"""What the four training runs of Level III have in common: 03/run_1 to 03/run_4.

The scripts are in `runs`, as the notebook shows them. Symptom and number are measured in a run of
the broken script on digits. The mended one is judged by how far each of its updates moves the
parameters, and by where it ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import Objection, judge_by
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.cases import Script, Seen, Training, trained
from dtlab.grading.scripts.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.grading.scripts.mend import MendScript, Proof
from dtlab.grading.scripts.reference import Optimizer, Step, gradient_of, mean, steps_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom, drift, too_many_bytes
from dtlab.grading.scripts.training import not_as_one_process, too_large_passes

if TYPE_CHECKING:
    import torch

__all__ = [
    "BATCH",
    "PROOFS",
    "RATE",
    "SYMPTOMS",
    "OnDigits",
    "accumulated",
    "linear",
    "moved_within_an_update",
    "moves",
    "of_gradients",
    "of_rates",
    "of_recipe",
    "one_recipe",
    "other_rates",
    "run_check",
    "run_part",
    "scene",
    "schedule",
]

# How a check runs the four training runs: on digits as the notebook does, and on small data ------

BASE_BATCH, BASE_RATE = 32, 0.05  # the recipe of one process: samples of an update, and its rate
_WARM_UP = 3, 8  # of the updates, as a fraction
_EPOCHS, _HIDDEN = 3, 256  # a model large enough to be seen on the wire


@dataclass(frozen=True)
class OnDigits(Training):
    """`script(model, data, epochs, *more)` on the first `samples` digits of a shuffled order.

    It is one of ours, and returns the loss and the rate of each update.
    """

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images [samples, 1, 8, 8] and labels of all ranks."""
        import torch

        from dtlab.training.datasets import digits

        train = digits().train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))
        images, labels = train[order[: self.samples]]
        return images, labels

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        seen, curve = trained(fn, given, given["more"])
        return {**seen, "curve": [[float(loss), float(rate)] for loss, rate in curve]}


def schedule(
    peak: float, updates: int, start_factor: float, warm: int | None = None
) -> list[float]:
    """The rate of each update as the scripts have it: a warm-up, then a cosine to 0.

    `warm` updates long, if not as long as the scripts have it.
    """
    warm = _WARM_UP[0] * updates // _WARM_UP[1] if warm is None else warm
    rising = [start_factor + (1 - start_factor) * step / warm for step in range(warm)]
    falling = [
        (1 + math.cos(math.pi * step / (updates - warm))) / 2 for step in range(updates - warm)
    ]
    return [peak * factor for factor in rising + falling]


# Trials of mended scripts -----------------------------------------------------------------------


def accumulated(draw: random.Random, seed: int) -> list[Trial]:
    """`script(model, data, epochs, micro, accumulate)` on three ranks and on two.

    The batch is as many times 32 as neither ranks nor microbatches nor both are, nor its root.
    And neither of the first trial's is 2: rates come to be off by that in other ways too.
    """

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 28))
        samples = ranks * accumulate * micro * steps
        given = _training(seed + number, samples, (micro, accumulate), accumulate, micro)
        return Trial(ranks, [given])

    return [case(3, 4, draw.randint(2, 3), 0), case(2, 3, 3, 1)]


def one_recipe(draw: random.Random, seed: int) -> list[Trial]:
    """`script(model, data, epochs, batch, rate, accumulate)`: one GPU's batch, shared out."""

    def case(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 24, 28))
        batch, rate = ranks * accumulate * micro, draw.choice((0.06, 0.08, 0.1))
        more = (batch, rate, accumulate)
        return Trial(ranks, [_training(seed + number, batch * steps, more, accumulate, micro)])

    return [case(2, draw.choice((3, 4)), 3, 0), case(3, 2, draw.randint(2, 3), 1)]


def _training(
    seed: int, samples: int, more: tuple[float, ...], passes: int, micro: int
) -> Training:
    return Training(seed, samples, _EPOCHS, _HIDDEN, more, passes, micro)


# The rate of each update of a mended script, measured by how far it moves the parameters ---------

MOMENTUM = 0.9  # of all the scripts
RatesOf = Callable[[Training, int], Sequence[float]]  # of each update, on so many ranks
Factors = Callable[[Training, int], Iterator[tuple[float, str]]]  # and where they come from

_ASTRAY = 0.05  # of the length of an update; rounding takes a thousandth
_NEAR = 0.01  # of the highest rate


class Move(NamedTuple):
    """An update: the rate that goes so far, and what part of it goes elsewhere."""

    rate: float
    astray: float


def moves(case: Training, seen: Seen, steps: Sequence[Step]) -> list[Move]:
    """The updates of a rank, each beside the mean gradient of its samples and the momentum."""
    found = []
    ends = [*seen.before[case.passes :: case.passes], seen.after]
    velocity = 0 * seen.after
    for begin, end, step in zip(seen.before[:: case.passes], ends, steps, strict=False):
        velocity = MOMENTUM * velocity + gradient_of(case, begin, mean(step))
        way = begin - end
        rate = float(way @ velocity) / max(float(velocity @ velocity), 1e-30)
        astray = float((way - rate * velocity).norm()) / max(float(way.norm()), 1e-12)
        found.append(Move(rate, astray))
    return found


def moved_within_an_update(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The parameters change between two microbatches of one update."""
    rows = results[0].before
    for place in range(1, len(rows)):
        number = place % case.passes
        if number and not rows[place].equal(rows[place - 1]):
            return (
                f"the parameters move within an update, before its microbatch {number + 1} of "
                f"{case.passes}. The optimizer steps once, after the last one."
            )
    return ""


def other_rates(rates_of: RatesOf, factors: Factors) -> Objection:
    """Updates are longer or shorter than their rates make them, or go elsewhere.

    `factors` says why all of them are, by the same factor.
    """

    def objection(case: Training, results: Sequence[Seen], one: Observation) -> str:
        wanted = rates_of(case, len(results))
        found = moves(case, results[0], steps_of(case, results))
        if len(found) != len(wanted):
            return (
                f"rank 0 makes {len(results[0].passes)} forward passes. {len(wanted)} updates of "
                f"{case.passes} microbatches are {len(wanted) * case.passes}."
            )
        if found[0].astray > _ASTRAY:
            return (
                "the first update does not go along the gradient of the mean loss over all its "
                "microbatches and ranks. What is in `.grad` when the optimizer steps?"
            )
        rates = [move.rate for move in found]
        if _alike(rates, wanted):
            return ""
        return _which(case, factors(case, len(results)), rates, wanted)

    return objection


def _alike(rates: Sequence[float], wanted: Sequence[float]) -> bool:
    near = _NEAR * max(wanted)
    return all(abs(got - want) < near for got, want in zip(rates, wanted, strict=True))


def _which(
    case: Training,
    factors: Iterator[tuple[float, str]],
    rates: Sequence[float],
    wanted: Sequence[float],
) -> str:
    """How the rates are off, where it is in one of the ways that people know."""
    far = [abs(got - want) for got, want in zip(rates, wanted, strict=True)]
    place = next(n for n, one in enumerate(far) if one >= _NEAR * max(wanted))
    words = (
        f"update {place} of {len(wanted)}, counted from 0, goes as far as a rate of "
        f"{rates[place]:.3g} takes it; it should be {wanted[place]:.3g}."
    )
    times = sum(rates) / sum(wanted)
    if _alike(rates, [times * one for one in wanted]):
        why = next((why for factor, why in factors if _same(factor, times)), "")
        return f"{words} All of them go {times:.3g} times as far as they should. {why}".rstrip()
    return f"{words} {_steps_of_schedule(case, rates, wanted)}"


def _steps_of_schedule(case: Training, rates: Sequence[float], wanted: Sequence[float]) -> str:
    """What to say of a schedule that goes too fast or too slowly, or of another one."""
    updates = len(wanted)
    for count in range(2, updates + 1):
        hurried = [*wanted[::count], *[0.0] * updates][:updates]
        if _alike(rates, hurried):
            return f"The schedule goes {count} steps where it should go one."
        slow = [wanted[step // count] for step in range(updates)]
        if _alike(rates, slow):
            often = "never goes on" if count == updates else f"goes one step in {count} updates"
            return f"The schedule {often}: how often does `schedule.step()` run?"
    start, warm = wanted[0] / max(wanted), wanted.index(max(wanted))
    for rising in (warm, case.passes * warm, None):  # of so many microbatches that are told
        told = schedule(max(wanted), case.passes * updates, start, rising)
        if _alike(rates, told[case.passes - 1 :: case.passes]):
            return (
                "The schedule goes one step for each microbatch, and was told of as many: it "
                "counts them, and not updates."
            )
    return (
        "Print the rates, and compare them with the schedule that is asked for: one step for each "
        f"of {updates} updates."
    )


def of_gradients(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """What all gradients may be multiplied with, and where that comes from."""
    yield case.passes, "An update has as many microbatches: divide each loss by their number."
    yield 1 / case.passes, "An update has as many microbatches: they are divided by twice."
    yield (
        case.passes / ranks,
        f"That is {case.passes} microbatches by {ranks} ranks. DDP has divided by one of the two "
        "already.",
    )
    yield 1 / ranks, f"There are {ranks} ranks, and DDP has divided by their number already."


def of_rates(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """What all rates may be multiplied with, and where that comes from."""
    batch = ranks * case.passes * case.micro_batch
    times = batch / BASE_BATCH
    yield (
        case.passes,
        "An update has as many microbatches. Each loss is divided by their number, and the rate "
        "grows with samples.",
    )
    yield 1 / case.passes, "An update has as many microbatches: they are divided by twice."
    yield ranks, f"There are {ranks} ranks. How many samples does an update take, all in all?"
    yield 1 / ranks, "An update takes the samples of all ranks, not those of one."
    yield 1 / times, f"That is the rate of batch {BASE_BATCH}; an update takes {batch} samples."
    yield 1 / math.sqrt(times), "That is the square-root rule; the linear one is asked for."
    yield case.passes / times, "The batch grows with the ranks too, not with microbatches alone."
    yield ranks / times, "The batch grows with the microbatches too, not with the ranks alone."
    yield ranks * case.passes / times, "Count samples, not forward passes."
    yield ranks * case.passes, "As many as there are forward passes in an update. Does it grow?"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR)


# Symptoms of the four runs, as the notebook lists them, and the numbers that prove them ----------

_ABOUT = 1.1  # times: about the same
_TWICE = 1.5  # times what it should be: none of the scripts comes near


# What is measured -------------------------------------------------------------------------------


def _rates(scene: Scene) -> list[float]:
    return [rate for _, rate in scene.results[0].curve]


def _batch(scene: Scene) -> float:
    """Samples of an update, over all ranks."""
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    return fed / len(_rates(scene))


def _rate_for_batch(scene: Scene) -> float:
    """The peak rate that the linear rule has for the samples of an update."""
    return BASE_RATE * _batch(scene) / BASE_BATCH


def _stretch(scene: Scene) -> float:
    """How many times as long the first update is as rate and gradient of the mean loss say."""
    first = steps_of(scene.case, scene.results)[:1]
    (move,) = moves(scene.case, scene.results[0], first)
    return move.rate / _rates(scene)[0]


# Symptoms ---------------------------------------------------------------------------------------


def _peak(scene: Scene) -> str:
    peak, rule = max(_rates(scene)), _rate_for_batch(scene)
    other = "a lower" if peak > _ABOUT * rule else "about the same"
    other = "a higher" if rule > _ABOUT * peak else other
    return f"the peak rate was {peak:.3g}; for such updates the linear rule has {other} one"


def _too_low(scene: Scene) -> Finding:
    return Finding(_TWICE * max(_rates(scene)) < _rate_for_batch(scene), _peak(scene))


def _too_high(scene: Scene) -> Finding:
    return Finding(max(_rates(scene)) > _TWICE * _rate_for_batch(scene), _peak(scene))


def _gone(scene: Scene) -> Finding:
    rates = _rates(scene)
    none = sum(rate == 0 for rate in rates)
    often = "most" if 2 * none > len(rates) else "some" if none else "none"
    return Finding(2 * none > len(rates), f"{often} of {len(rates)} updates had a rate of 0")


def _still_rising(scene: Scene) -> Finding:
    rates = _rates(scene)
    top = rates.index(max(rates))
    return Finding(
        top == len(rates) - 1, f"the rate was highest in update {top} of {len(rates)}, from 0"
    )


def _too_long(scene: Scene) -> Finding:
    times = _stretch(scene)
    return Finding(times > _TWICE, _length(times))


def _too_short(scene: Scene) -> Finding:
    times = _stretch(scene)
    return Finding(_TWICE * times < 1, _length(times))


def _length(times: float) -> str:
    how = "longer than" if times > _TWICE else "as long as"
    how = "shorter than" if _TWICE * times < 1 else how
    return f"the first update was {how} its rate and the mean gradient make it"


def _left_out(scene: Scene) -> Finding:
    case = scene.case
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    words = f"{fed / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(fed < case.epochs * case.samples, words)


SYMPTOMS: dict[str, Symptom] = {
    "rate too low": Symptom("the peak rate fits a smaller batch than an update takes", _too_low),
    "rate too high": Symptom("the peak rate fits a larger batch than an update takes", _too_high),
    "rate gone": Symptom("most updates are made with a rate of 0", _gone),
    "still rising": Symptom("the rate is at its highest in the last update", _still_rising),
    "too long": Symptom("an update is longer than its rate times the mean gradient", _too_long),
    "too short": Symptom("an update is shorter than its rate times the mean gradient", _too_short),
    "too many bytes": Symptom(
        "updates are right, but more is sent for each than one gradient", too_many_bytes
    ),
    "drift": Symptom("the copies of the model differ, by more and more", drift),
    "samples left out": Symptom("an epoch does not take all samples", _left_out),
}


# Numbers ----------------------------------------------------------------------------------------


def _measured(scene: Scene) -> Mapping[str, Any]:
    rates, case = _rates(scene), scene.case
    return {
        "batch": _batch(scene),
        "times": _rate_for_batch(scene) / max(rates),
        "moving": sum(rate > 0 for rate in rates),
        "updates": len(rates),
        "stretch": _stretch(scene),
        "ranks": len(scene.results),
        "passes": case.passes,
        "micro": case.micro_batch,
    }


_BY_RULE = Number(
    lambda given: given["times"],
    (
        Mistake(lambda g: 1 / g["times"], "that is the other way round."),
        Mistake(lambda g: g["times"] ** 0.5, "that is the square-root rule."),
        Mistake(lambda g: g["times"] / g["ranks"], "an update takes the samples of all ranks."),
        Mistake(lambda g: g["times"] / g["passes"], "an update has several microbatches."),
        Mistake(lambda g: g["batch"], "these are the samples of an update: how many times 32?"),
    ),
    "Count the samples of an update, over all ranks and microbatches, and compare the peak with "
    "0.05 for every 32 of them.",
    unit="times",
    tolerance=0.02,
)
_MOVING = Number(
    lambda given: given["moving"],
    (
        Mistake(lambda g: g["updates"], "these are all updates. In how many is the rate not 0?"),
        Mistake(lambda g: g["updates"] - g["moving"], "these are the updates without a rate."),
        Mistake(lambda g: g["moving"] - 1, "they are counted from 0: how many are there?"),
    ),
    "Count those in the list of rates that are above 0.",
    unit="updates",
    tolerance=0,
)
_STRETCH = Number(
    lambda given: given["stretch"],
    (
        Mistake(lambda g: 1 / g["stretch"], "that is the other way round."),
        Mistake(lambda g: g["ranks"] * g["stretch"], "DDP has averaged over the ranks already."),
        Mistake(1, "then it would be as long as it should be. Divide the lengths."),
    ),
    "Divide the length of the first update by its rate times the length of the mean gradient.",
    unit="times",
    tolerance=0.02,
)
_BATCH = Number(
    lambda given: given["batch"],
    (
        Mistake(lambda g: g["batch"] / g["ranks"], "these are the samples of one rank."),
        Mistake(lambda g: g["batch"] / g["passes"], "an update has several microbatches."),
        Mistake(lambda g: g["micro"], "that is one forward pass on one rank."),
        Mistake(lambda g: g["batch"] / g["times"], "this is the batch that the rate would fit."),
    ),
    "Divide the samples of an epoch by its updates.",
    unit="samples",
    tolerance=0,
)

PROOFS = {
    "rate too low": Proof(_measured, _BY_RULE),
    "rate gone": Proof(_measured, _MOVING),
    "too long": Proof(_measured, _STRETCH),
    "rate too high": Proof(_measured, _BATCH),
}


# What the four training runs of Level III have in common: 03/run_1 to 03/run_4 -------------------

Trials = Callable[[random.Random, int], Sequence[Trial]]

_SCRIPTS = "dtlab.units.unit03.runs."
_DIGITS = (4096, 8, 128)  # samples, epochs, and width of the model, as in the notebook
BATCH, RATE = 512, 0.8
_LIMIT = 30.0  # seconds for a broken run, which takes one


def linear(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak grows with the batch, by the linear rule."""
    batch = ranks * case.passes * case.micro_batch
    peak = BASE_RATE * batch / BASE_BATCH
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def of_recipe(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak is that of the recipe."""
    batch, peak, _ = case.more
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def run_check(
    trials: Trials, rates_of: RatesOf, name: str, right: str, factors: Factors = of_rates
) -> Check:
    """Two criteria: how far updates go, under a name of its own, and where they end."""
    rates = other_rates(rates_of, factors)
    begin = judge_by(right, too_large_passes, moved_within_an_update, rates)
    end = judge_by(
        "every rank has the parameters of one process that takes all their samples",
        not_shared_out,
        copies_differ,
        too_much_sent,
        not_as_one_process(lambda case, ranks: Optimizer(rates_of(case, ranks), MOMENTUM)),
    )
    rules = (Rule(name, 1, begin), Rule("training", 1, end, after=name))
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def scene(passes: int, more: tuple[float, ...]) -> Trial:
    """The run of the notebook: an update takes 512 digits, on two ranks."""
    micro = BATCH // (2 * passes)
    digits = OnDigits(0, *_DIGITS, more, passes, micro)
    return Trial(2, [digits], limit=_LIMIT)


def run_part(
    number: int,
    title: str,
    minutes: int,
    difficulty: int,
    check: Check,
    scene: Trial,
    symptom: str,
    lines: Sequence[str],
    look: str,
) -> Part:
    mend = MendScript(
        f"{_SCRIPTS}train_{number}",
        scene,
        check,
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=lines,
        look=look,
        proof=PROOFS[symptom],
    )
    return Part(f"03/run_{number}", 3, title, minutes, difficulty, mend)
