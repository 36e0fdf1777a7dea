"""The settings of 07/budget: what a step may take, and what plans of the library come to.

    batch of 16 samples      m = 4                     m = 16
    memory                   4 samples in each of      1 sample in each of what is in flight
    time                     4 x fixed, long ends      16 x fixed, short ends

A setting has the limits of one plan, its target: nothing of the library but that is within both,
and of the last setting nothing at all, for its target lies between ZB-H1 and ZB-H2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple

from dtlab.predict import Costs, peak_in_flight, simulate
from dtlab.schedules import (
    Action,
    Schedule,
    as_schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    zb_h1,
    zb_h2,
)
from dtlab.schedules.actions import Row

__all__ = [
    "Plan", "Setting", "between", "costs_of", "draw_settings", "library", "needs_of", "setting_of",
]  # fmt: skip

CHUNKS: Final = (2, 3, 4)
_ROOM, _APART = 1.002, 1.012  # times the target's seconds: the limit, and what else there is
_MS: Final = 1e-3


@dataclass(frozen=True)
class Setting:
    """What is to be trained on `ranks`, and within what.

    Seconds of one sample in a rank's part of the model, whatever chunks it is in; `fixed` seconds
    for each F and each B or I, however small; `message` seconds for what goes to another rank.
    A step may take `step` seconds, and a rank hold activations of `memory` samples.
    """

    ranks: int
    samples: int
    forward: float
    backward_input: float
    backward_weight: float
    fixed: float
    message: float
    step: float = math.inf
    memory: float = math.inf

    @property
    def given(self) -> dict[str, Any]:
        """As the learner's function gets it."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.samples} samples in {1e3 * self.step:.1f} ms, "
            f"{self.memory:g} samples' activations on each rank"
        )


class Plan(NamedTuple):
    """A schedule and what it comes to: samples that a rank holds at most, and seconds."""

    name: str
    schedule: Schedule
    held: float
    seconds: float


def setting_of(given: Mapping[str, Any]) -> Setting:
    """The setting of what a learner got."""
    return Setting(**given)


def needs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[float, float]:
    """Seconds of a step, simulated, and the most samples whose activations a rank holds.

    The schedule may be written as text, as everywhere.
    """
    schedule = as_schedule(schedule)
    costs, share = costs_of(given, schedule)
    return simulate(schedule, costs).duration, max(peak_in_flight(schedule)) * share


def costs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[Costs, float]:
    """What a stage costs, and the samples that it counts for in memory: chunks are parts."""
    one, rows = setting_of(given), as_schedule(schedule)
    num_microbatches = 1 + max(action.microbatch for row in rows for action in row)
    num_chunks = len(stage_ranks(rows)) // one.ranks
    share = one.samples / num_microbatches / num_chunks
    costs = Costs(
        one.fixed + share * one.forward,
        one.fixed + share * one.backward_input,
        share * one.backward_weight,
        one.message,
    )
    return costs, share


# Plans ------------------------------------------------------------------------------------------


def divisors(samples: int) -> list[int]:
    """The numbers of microbatches into which a batch can be cut evenly."""
    return [count for count in range(1, samples + 1) if samples % count == 0]


def library(one: Setting) -> Iterator[Plan]:
    """Every schedule of `dtlab.schedules`, in every number of microbatches."""
    makes: dict[str, Callable[[int, int], Schedule]] = {
        "naive": naive, "GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2,
    }  # fmt: skip
    for count in divisors(one.samples):
        made = {name: make(one.ranks, count) for name, make in makes.items()}
        made |= {f"{v} chunks": interleaved(one.ranks, count, v) for v in CHUNKS}
        for name, schedule in made.items():
            yield _plan(one, name, schedule)


def between(num_stages: int, num_microbatches: int, in_flight: int) -> Schedule:
    """A zero-bubble schedule that holds so many: num_stages is ZB-H1, 2 num_stages - 1 is ZB-H2.

    Each rank goes ahead by as many forwards more as that allows; W's wait for the rest.
    """
    schedule = Schedule()
    for rank in range(num_stages):
        behind = num_stages - 1 - rank
        ahead = behind + min(behind, in_flight - num_stages)
        row = [Action(rank, "F", k) for k in range(min(ahead, num_microbatches))]
        for k in range(num_microbatches):
            if k + ahead < num_microbatches:
                row.append(Action(rank, "F", k + ahead))
            row.append(Action(rank, "I", k))
            if k + 1 + ahead >= in_flight:
                row.append(Action(rank, "W", k + 1 + ahead - in_flight))
        done = sum(action.kind == "W" for action in row)
        schedule.append(row + [Action(rank, "W", k) for k in range(done, num_microbatches)])
    return schedule


def _plan(one: Setting, name: str, schedule: Schedule) -> Plan:
    seconds, held = needs_of(one.given, schedule)
    return Plan(name, schedule, held, seconds)


def _own(one: Setting) -> Iterator[Plan]:
    """The plans between ZB-H1 and ZB-H2."""
    for count in divisors(one.samples):
        for in_flight in range(one.ranks + 1, 2 * one.ranks - 1):
            yield _plan(one, "between", between(one.ranks, count, in_flight))


# Draws ------------------------------------------------------------------------------------------

# Samples; milliseconds of backward for the input, for the weights, fixed, and of a message.
# Forward takes 10.
_STORIES: Final[Mapping[str, tuple[tuple[float, ...], ...]]] = {
    "ZB-H1": ((20, 24), (8, 10, 12), (6, 8, 10), (3, 4, 5), (0, 1)),
    "2 chunks": ((12, 16, 20), (10, 12, 14), (1,), (1,), (2,)),
    "ZB-H2": ((20, 24), (8, 10, 12), (6, 8, 10), (4, 5), (6, 8, 10)),
    "between": ((16, 20, 24), (8, 10, 12), (6, 8, 10), (2, 3, 4), (3, 4, 6, 8)),
}


def draw_settings(draw: Random) -> list[Setting]:
    """Four of them, on equally many ranks, one for each story; the last is in no library."""
    ranks = draw.choice((3, 4))
    return [_drawn(draw, ranks, story) for story in _STORIES]


def _drawn(draw: Random, ranks: int, story: str) -> Setting:
    """A setting whose limits one plan of that name meets, with few or many microbatches."""
    for _ in range(1000):
        samples, *times = (draw.choice(each) for each in _STORIES[story])
        one = Setting(ranks, int(samples), *(_MS * each for each in (10, *times)))
        plans = [*library(one)]
        targets = [*(_own(one) if story == "between" else plans)]
        found = [each for each in targets if each.name == story and _is_clear(each, plans, one)]
        if found:
            target = draw.choice(found)
            step = math.ceil(_ROOM * target.seconds * 1e4) / 1e4
            return replace(one, step=step, memory=target.held)
    raise AssertionError(f"no draw has {story} as its only plan")


def _is_clear(target: Plan, plans: list[Plan], one: Setting) -> bool:
    """Whether all else that holds as little is slower, and something that holds more is not.

    Without chunks neither the most nor the fewest microbatches are the answer.
    """
    count = len(target.schedule[0]) // 3
    if "chunks" not in target.name and (count in (1, one.samples) or count < one.ranks):
        return False
    others = [each for each in plans if each.name != target.name or each.held != target.held]
    alike = (each for each in others if each.held <= target.held)
    return all(each.seconds > _APART * target.seconds for each in alike) and any(
        each.seconds <= target.seconds for each in others
    )
