"""07/budget: a schedule within a step's time and a rank's memory, for several settings.

`budget(setting)` is called on one rank. Then our own ranks carry out what it returned with a small
model, and count the microbatches that they hold. Seconds are simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.predict import Costs, peak_in_flight, simulate
from dtlab.schedules import (
    Schedule,
    as_schedule,
    find_faults,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    zb_h1,
    zb_h2,
)
from dtlab.schedules.actions import Row
from dtlab.units.unit07.judging import Carried, train

# The settings: what a step may take, and what plans of the library come to ----------------------
#
#     batch of 16 samples      m = 4                     m = 16
#     memory                   4 samples in each of      1 sample in each of what is in flight
#     time                     4 x fixed, long ends      16 x fixed, short ends
#
# A setting has the limits of one plan, its target. No other plan of the library is within both
# limits. The target of the last setting lies between ZB-H1 and ZB-H2, so the library has none.


@dataclass(frozen=True)
class Setting:
    """What is to be trained on `ranks`, and within which limits.

    Seconds are those of one sample in a rank's part of the model, whatever chunks it is in;
    `fixed` seconds are for each F and each B or I, however small; `message` seconds for what goes
    to another rank. A step may take `step` seconds, and a rank hold activations of `memory`
    samples.
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

    @property
    def counts(self) -> list[int]:
        """The numbers of microbatches into which the batch can be cut evenly."""
        return [count for count in range(1, self.samples + 1) if self.samples % count == 0]

    def __str__(self) -> str:
        return (
            f"{self.samples} samples in {1e3 * self.step:.1f} ms, "
            f"{self.memory:g} samples' activations on each rank"
        )


def costs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[Costs, float]:
    """What a stage costs, and the samples that it counts for in memory: a chunk counts in part."""
    setting, rows = Setting(**given), as_schedule(schedule)
    share = setting.samples / _num_microbatches(rows) / (len(stage_ranks(rows)) // setting.ranks)
    costs = Costs(
        setting.fixed + share * setting.forward,
        setting.fixed + share * setting.backward_input,
        share * setting.backward_weight,
        setting.message,
    )
    return costs, share


def needs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[float, float]:
    """Seconds of a step, simulated, and the most samples whose activations a rank holds.

    The schedule may be written as text.
    """
    rows = as_schedule(schedule)
    costs, share = costs_of(given, rows)
    return simulate(rows, costs).duration, max(peak_in_flight(rows)) * share


def _num_microbatches(schedule: Schedule) -> int:
    return 1 + max(action.microbatch for row in schedule for action in row)


class Plan(NamedTuple):
    """A schedule and what it comes to: seconds, and samples that a rank holds at most."""

    name: str
    schedule: Schedule
    seconds: float
    held: float


def library(setting: Setting) -> Iterator[Plan]:
    """Every schedule of `dtlab.schedules`, in every number of microbatches."""
    makes = {"naive": naive, "GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2}
    for count in setting.counts:
        made = {name: make(setting.ranks, count) for name, make in makes.items()}
        made |= {f"{v} chunks": interleaved(setting.ranks, count, v) for v in (2, 3, 4)}
        for name, schedule in made.items():
            yield Plan(name, schedule, *needs_of(setting.given, schedule))


def between(num_stages: int, num_microbatches: int, in_flight: int) -> Schedule:
    """A zero-bubble schedule that holds `in_flight` microbatches on every rank.

    num_stages of them is ZB-H1, 2 num_stages - 1 is ZB-H2. Each rank does as many forwards ahead
    as that allows, and each W is as late as it allows.
    """
    rows = []
    for rank in range(num_stages):
        behind = num_stages - 1 - rank
        ahead = behind + min(behind, in_flight - num_stages)
        late = in_flight - 1 - ahead
        row = [f"{rank}F{k}" for k in range(min(ahead, num_microbatches))]
        for k in range(num_microbatches):
            if k + ahead < num_microbatches:
                row.append(f"{rank}F{k + ahead}")
            row.append(f"{rank}I{k}")
            if k >= late:
                row.append(f"{rank}W{k - late}")
        left = range(max(0, num_microbatches - late), num_microbatches)
        rows.append(row + [f"{rank}W{k}" for k in left])
    return as_schedule(rows)


_ROOM, _APART = 1.002, 1.012  # times the target's seconds: the limit, and all other plans

# Samples; milliseconds of backward for the input, for the weights, fixed, and of a message.
# Forward takes 10.
_STORIES: Final[Mapping[str, tuple[tuple[int, ...], ...]]] = {
    "ZB-H1": ((20, 24), (8, 10, 12), (6, 8, 10), (3, 4, 5), (0, 1)),
    "2 chunks": ((12, 16, 20), (10, 12, 14), (1,), (1,), (2,)),
    "ZB-H2": ((20, 24), (8, 10, 12), (6, 8, 10), (4, 5), (6, 8, 10)),
    "between": ((16, 20, 24), (8, 10, 12), (6, 8, 10), (2, 3, 4), (3, 4, 6, 8)),
}


def draw_settings(draw: random.Random) -> list[Setting]:
    """Four of them, on equally many ranks, one for each story; the last is in no library."""
    ranks = draw.choice((3, 4))
    return [_drawn(draw, ranks, story) for story in _STORIES]


def _drawn(draw: random.Random, ranks: int, story: str) -> Setting:
    """A setting whose limits one plan of that name meets, with few or many microbatches."""
    for _ in range(1000):
        samples, *times = (draw.choice(each) for each in _STORIES[story])
        setting = Setting(ranks, samples, *(1e-3 * each for each in (10, *times)))
        plans = [*library(setting)]
        targets = plans
        if story == "between":
            targets = [
                Plan(story, schedule, *needs_of(setting.given, schedule))
                for count in setting.counts
                for in_flight in range(ranks + 1, 2 * ranks - 1)
                for schedule in [between(ranks, count, in_flight)]
            ]
        found = [one for one in targets if one.name == story and _is_clear(one, plans, setting)]
        if found:
            target = draw.choice(found)
            step = math.ceil(_ROOM * target.seconds * 1e4) / 1e4
            return replace(setting, step=step, memory=target.held)
    raise AssertionError(f"no draw has {story} as its only plan")


def _is_clear(target: Plan, plans: Sequence[Plan], setting: Setting) -> bool:
    """Whether all plans that hold no more are slower, and one that holds more is not.

    Without chunks neither the most nor the fewest microbatches are the answer.
    """
    count = len(target.schedule[0]) // 3
    if "chunks" not in target.name and (count in (1, setting.samples) or count < setting.ranks):
        return False
    others = [one for one in plans if (one.name, one.held) != (target.name, target.held)]
    no_more = (one for one in others if one.held <= target.held)
    return all(one.seconds > _APART * target.seconds for one in no_more) and any(
        one.seconds <= target.seconds for one in others
    )


# What is judged: a schedule for each setting, and a real step by each ----------------------------

_ASKED, _LIMIT = 10.0, 20.0  # seconds: a search takes one, all four steps half of one
_MOST = 5000  # actions: no schedule that fits has a tenth of it
_CLOSE = 1e-9  # what rounding of floats may do


@dataclass(frozen=True)
class Planned(Faulty):
    """`budget(setting)` returns a schedule that can run."""

    alone = True
    topic = "runs"

    setting: Setting

    def __str__(self) -> str:
        return str(self.setting)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return self.setting.given

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        found = fn(given)
        try:
            rows = [[str(action) for action in row] for row in as_schedule(found)]
        except (TypeError, ValueError) as error:
            return {"odd": f"{type(found).__name__}, which is no schedule: {error}"}
        count = sum(map(len, rows))
        return {"odd": f"a schedule of {count:,} actions"} if count > _MOST else {"rows": rows}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        odd = results[0].get("odd")
        if odd:
            yield "runs", f"budget returns {str(odd)[:160]}"
            return
        schedule, ranks = as_schedule(results[0]["rows"]), self.setting.ranks
        if len(schedule) != ranks:
            yield "runs", f"the schedule has {len(schedule)} rows, and there are {ranks} ranks."
            return
        for flaw in find_faults(schedule):
            yield "runs", f"the schedule cannot run. {flaw.kind}: {flaw.message}"
            return
        count = _num_microbatches(schedule)
        if count not in self.setting.counts:
            yield "runs", f"{self.setting.samples} samples cannot be cut evenly into {count}."
        homes = stage_ranks(schedule)
        if len({homes.count(rank) for rank in range(ranks)}) > 1:
            yield "runs", "each rank must have as many stages as the others: they share the model."


@dataclass(frozen=True)
class Stepping(Carried):
    """A step by the schedule for a setting. Of the `last` setting both limits are "between"."""

    setting: Setting
    last: bool

    def __str__(self) -> str:
        return str(self.setting)

    def shows(self, criterion: str) -> bool:
        return True

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        yield from super().faults(results)
        setting, schedule = self.setting, self.schedule
        _, share = costs_of(setting.given, schedule)
        peaks = [int(result["peak"]) for result in results]
        most, chunks = max(peaks), len(stage_ranks(schedule)) // setting.ranks
        if most * share > setting.memory + _CLOSE:
            piece = "microbatches" if chunks == 1 else f"{chunks}ths of microbatches"
            yield (
                "between" if self.last else "memory",
                f"rank {peaks.index(most)} holds {most} {piece} of {share * chunks:g} samples at "
                f"its peak, activations of {most * share:g} samples, where {setting.memory:g} "
                "fit. Fewer in flight, or smaller ones?",
            )
        seconds, _ = needs_of(setting.given, schedule)
        if seconds > setting.step + _CLOSE:
            forwards = max(sum(action.kind == "F" for action in row) for row in schedule)
            fixed = 2 * setting.fixed * forwards
            each = setting.forward + setting.backward_input + setting.backward_weight
            computed = setting.samples * each
            yield (
                "between" if self.last else "step",
                f"a step takes {1e3 * seconds:.1f} ms, {1e3 * (seconds - setting.step):.1f} too "
                f"many. A rank computes for {1e3 * computed:.0f} of them, spends "
                f"{1e3 * fixed:.0f} on what every F and every backward costs, and is idle for "
                f"{1e3 * (seconds - fixed - computed):.0f}. Which of these would other "
                "microbatches, or another schedule, change?",
            )


def _trials(seed: int) -> list[Trial]:
    """Three settings that a schedule of the library fits, and one that none of them fits."""
    cases = [Planned(setting) for setting in draw_settings(random.Random(seed))]
    return [Trial(1, cases, limit=_ASKED)]


def _steps(seen: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """A real step by each schedule, all of them in one launch, once they can run."""
    if seen[0].mistakes:
        return []
    settings = [case.setting for case in seen[0].trial.cases if isinstance(case, Planned)]
    schedules = [as_schedule(results[0]["rows"]) for results in seen[0].results]
    cases = [
        Stepping(schedule, number, setting, setting is settings[-1])
        for number, (setting, schedule) in enumerate(zip(settings, schedules, strict=True))
    ]
    return [(Trial(settings[0].ranks, cases, limit=_LIMIT), train)]


PART = Part(
    name="07/budget",
    level=3,
    title="A schedule within a budget",
    minutes=35,
    difficulty=3,
    check=Check(
        trials=_trials,
        then=_steps,
        rules=(
            rule("runs", 2, "carried out by ranks, all four leave the gradients of one process"),
            rule("memory", 3, "no rank holds more than fits, in three settings", "runs"),
            rule("step", 3, "no step takes longer than it may, in three settings", "runs"),
            rule("between", 4, "both, where no schedule of the library does", "runs"),
        ),
    ),
)
