"""Trials and criteria of the four training runs 03/run_1 to 03/run_4.

The scripts are in `runs`, as the notebook shows them. The fixed script is judged by how far
each of its updates moves the parameters, and by its final parameters.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Rule
from dtlab.checks.functions.criteria import Objection, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import OnDigits, Seen, Training
from dtlab.checks.programs.data_parallel import trained
from dtlab.checks.programs.judges import (
    copies_differ,
    not_shared_out,
    too_large_passes,
    too_much_sent,
)
from dtlab.checks.programs.reference import (
    Optimizer,
    Step,
    gradient_of,
    mean,
    not_as_one_process,
    steps_of,
)

__all__ = [
    "BASE_BATCH", "BATCH", "RATE", "accumulated", "linear", "moved_within_an_update", "moves",
    "of_rates", "other_rates", "rates_and_end", "scene", "schedule", "training",
]  # fmt: skip

BASE_BATCH, BASE_RATE = 32, 0.05  # the recipe of one process: samples of an update, and its rate
BATCH, RATE = 512, 0.8  # of the runs in the notebook
MOMENTUM = 0.9  # of all the scripts
_WARM_UP = 3, 8  # the warm-up's part of the updates, as a fraction
_LIMIT = 30.0  # seconds for a broken run, which takes one second
_ASTRAY = 0.05  # of the length of an update; rounding causes a thousandth
_NEAR = 0.01  # of the highest rate

RatesOf = Callable[[Training, int], Sequence[float]]  # (case, ranks) -> the rate of each update
Factors = Callable[[Training, int], Iterator[tuple[float, str]]]  # factors and their causes


def schedule(
    peak: float, updates: int, start_factor: float, warm: int | None = None
) -> list[float]:
    """The rate of each update in the scripts: a linear warm-up, then a cosine to 0.

    The warm-up has `warm` updates; by default as many as in the scripts.
    """
    warm = _WARM_UP[0] * updates // _WARM_UP[1] if warm is None else warm
    rising = [start_factor + (1 - start_factor) * step / warm for step in range(warm)]
    falling = [
        (1 + math.cos(math.pi * step / (updates - warm))) / 2 for step in range(updates - warm)
    ]
    return [peak * factor for factor in rising + falling]


def linear(case: Training, ranks: int) -> list[float]:
    """The rate of each update if the peak follows the linear rule."""
    batch = ranks * case.passes * case.micro_batch
    peak = BASE_RATE * batch / BASE_BATCH
    return schedule(peak, case.updates(ranks), BASE_BATCH / batch)


# The trials of a check ---------------------------------------------------------------------------


def scene(passes: int, more: tuple[float, ...]) -> Trial:
    """The run of the notebook: an update takes 512 digits, on two ranks."""
    digits = OnDigits(0, 4096, 8, 128, more, passes, BATCH // (2 * passes))
    return Trial(2, [digits], limit=_LIMIT)


def training(
    seed: int, samples: int, more: tuple[float, ...], passes: int, micro: int
) -> Training:
    """The case for a fixed script: a model large enough for its traffic to be measured."""
    return Training(seed, samples, 3, 256, more, passes, micro)


def accumulated(seed: int) -> list[Trial]:
    """Trials of `script(model, data, epochs, micro, accumulate)` on three ranks and on two.

    The batch is chosen so that no two mistakes give the same factor: batch / 32 differs from the
    number of ranks, of microbatches, from their product and its root. In the first trial neither
    number is 2, because other mistakes also make rates wrong by a factor of 2.
    """
    draw = random.Random(seed)

    def trial(ranks: int, accumulate: int, steps: int, number: int) -> Trial:
        micro = draw.choice((20, 28))
        samples = ranks * accumulate * micro * steps
        more = micro, accumulate
        return Trial(ranks, [training(seed + number, samples, more, accumulate, micro)])

    return [trial(3, 4, draw.randint(2, 3), 0), trial(2, 3, 3, 1)]


# The rate of each update, measured by how far it moves the parameters ---------------------------


class Move(NamedTuple):
    """The learning rate that an update used, and the share of its length in another direction."""

    rate: float
    astray: float


def moves(case: Training, result: Seen, steps: Sequence[Step]) -> list[Move]:
    """The updates of a rank, compared with the samples' mean gradient and the momentum."""
    updates = []
    ends = [*result.before[case.passes :: case.passes], result.after]
    velocity = 0 * result.after
    for begin, end, step in zip(result.before[:: case.passes], ends, steps, strict=False):
        velocity = MOMENTUM * velocity + gradient_of(case, begin, mean(step))
        move = begin - end
        rate = float(move @ velocity) / max(float(velocity @ velocity), 1e-30)
        astray = float((move - rate * velocity).norm()) / max(float(move.norm()), 1e-12)
        updates.append(Move(rate, astray))
    return updates


def moved_within_an_update(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message if the parameters change between two microbatches of one update."""
    rows = results[0].before
    for place in range(1, len(rows)):
        number = place % case.passes
        if number and not same(rows[place], rows[place - 1]):
            return (
                f"the parameters change within an update, before its microbatch {number + 1} of "
                f"{case.passes}. The optimizer must step once, after the last one."
            )
    return ""


def other_rates(rates_of: RatesOf, factors: Factors) -> Objection:
    """Makes an objection to updates that do not match their rates in length or direction.

    `factors` explains updates that are all wrong by the same factor.
    """

    def objection(case: Training, results: Sequence[Seen], run: Observation) -> str:
        wanted = rates_of(case, len(results))
        updates = moves(case, results[0], steps_of(case, results))
        if len(updates) != len(wanted):
            return (
                f"rank 0 makes {len(results[0].passes)} forward passes, but {len(wanted)} updates "
                f"of {case.passes} microbatches take {len(wanted) * case.passes}."
            )
        if updates[0].astray > _ASTRAY:
            return (
                "the first update does not follow the gradient of the mean loss over all its "
                "microbatches and ranks. What is in `.grad` when the optimizer steps?"
            )
        rates = [move.rate for move in updates]
        if _alike(rates, wanted):
            return ""
        far = [abs(got - want) for got, want in zip(rates, wanted, strict=True)]
        place = next(n for n, error in enumerate(far) if error >= _NEAR * max(wanted))
        times = sum(rates) / sum(wanted)
        words = (
            f"update {place} of {len(wanted)}, counted from 0, is as long as with a rate of "
            f"{rates[place]:.3g}; it should be {wanted[place]:.3g}."
        )
        if not _alike(rates, [times * rate for rate in wanted]):
            return f"{words} {_why_another_schedule(case, results, rates, wanted)}"
        known = factors(case, len(results))
        why = next(
            (why for factor, why in known if math.isclose(factor, times, rel_tol=_NEAR)), ""
        )
        return f"{words} All of them go {times:.3g} times as far as they should. {why}".rstrip()

    return objection


def _alike(rates: Sequence[float], wanted: Sequence[float]) -> bool:
    near = _NEAR * max(wanted)
    return all(abs(got - want) < near for got, want in zip(rates, wanted, strict=True))


def _why_another_schedule(
    case: Training, results: Sequence[Seen], rates: Sequence[float], wanted: Sequence[float]
) -> str:
    """Explains a schedule that is too fast or too slow, or another schedule."""
    updates, start = len(wanted), wanted[0] / max(wanted)
    part = updates // len(results)
    if _alike(rates, [*schedule(max(wanted), part, start), *[0.0] * (updates - part)]):
        return f"The schedule is over after {part} of {updates} updates."
    for count in range(2, updates + 1):
        if _alike(rates, [*wanted[::count], *[0.0] * updates][:updates]):
            return f"The schedule makes {count} steps where it should make one."
        if _alike(rates, [wanted[step // count] for step in range(updates)]):
            often = "never goes on" if count == updates else f"goes one step in {count} updates"
            return f"The schedule {often}: how often does `schedule.step()` run?"
    warm = wanted.index(max(wanted))
    for rising in (warm, case.passes * warm, None):  # lengths of the warm-up in likely mistakes
        longer = schedule(max(wanted), case.passes * updates, start, rising)
        if _alike(rates, longer[case.passes - 1 :: case.passes]):
            return (
                "The schedule makes one step per microbatch, and its length was given in "
                "microbatches: count updates."
            )
    return (
        "Print the rates, and compare them with the schedule in the task: one step for each "
        f"of {updates} updates."
    )


def of_rates(case: Training, ranks: int) -> Iterator[tuple[float, str]]:
    """Yields factors by which all rates may be off, and the cause of each."""
    batch = ranks * case.passes * case.micro_batch
    times = batch / BASE_BATCH
    yield (
        case.passes,
        "An update has that many microbatches. Each loss is divided by their number, and the rate "
        "grows with samples.",
    )
    yield 1 / case.passes, "That is one over the number of microbatches: you divide by it twice."
    yield ranks, f"There are {ranks} ranks. How many samples does an update take in all?"
    yield 1 / ranks, "An update takes the samples of all ranks, not those of one."
    yield 1 / times, f"That is the rate of batch {BASE_BATCH}; an update takes {batch} samples."
    yield 1 / math.sqrt(times), "That is the square-root rule; use the linear rule."
    yield case.passes / times, "The batch grows with the ranks too, not with microbatches alone."
    yield ranks / times, "The batch grows with the microbatches too, not with the ranks alone."
    yield ranks * case.passes / times, "Count samples, not forward passes."
    yield ranks * case.passes, "An update has that many forward passes. Should the rate grow?"


def rates_and_end(
    rates_of: RatesOf, name: str, right: str, factors: Factors = of_rates
) -> tuple[Rule, Rule]:
    """Makes two criteria: `name` for the lengths of updates, and one for the final parameters."""
    rates = other_rates(rates_of, factors)
    begin = rule(name, 2, right, by=(too_large_passes, moved_within_an_update, rates))
    as_one = not_as_one_process(lambda case, ranks: Optimizer(rates_of(case, ranks), MOMENTUM))
    return begin, trained(1, name, not_shared_out, copies_differ, too_much_sent, as_one)
