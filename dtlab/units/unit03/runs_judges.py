"""The rate of each update of a mended script, measured by how far it moves the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dtlab.grading.checking.objections import Objection
from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen, Training
from dtlab.grading.scripts.reference import Step, gradient_of, mean, steps_of
from dtlab.units.unit03.runs_cases import BASE_BATCH, schedule

__all__ = [
    "MOMENTUM", "Factors", "Move", "RatesOf", "moved_within_an_update", "moves", "of_gradients",
    "of_rates", "other_rates",
]  # fmt: skip

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
