"""07/budget: find a schedule within a time limit and a memory limit, for several settings.

One rank calls `budget(setting)`. Then ranks run the returned schedule with a small
model, and count the microbatches that they hold. The time of a step is simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, Seen, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.errors import DtlabError
from dtlab.predict import Costs, peak_in_flight, simulate
from dtlab.predict.units import counted
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

# The settings: the limits of a step, and the needs of the library's plans ------------------------
#
#     batch of 16 samples      m = 4                     m = 16
#     memory                   4 samples per microbatch  1 sample per microbatch in flight
#     time                     4 x fixed, large bubble   16 x fixed, small bubble
#
# The limits of a setting are the needs of one plan, its target. No other plan of the library is
# within both. The last setting's target lies between ZB-H1 and ZB-H2, so no library plan fits it.


@dataclass(frozen=True)
class Setting:
    """A model on `ranks`, its costs, and the limits of a step.

    Costs in seconds are for one sample in a rank's part of the model, however it is divided into
    chunks. Each F and each B or I takes `fixed` seconds more, and each message to another rank
    takes `message` seconds. A step may take `step` seconds, and a rank may hold the activations
    of `memory` samples.
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
        """The setting as the dict that the learner's function receives."""
        return asdict(self)

    @property
    def counts(self) -> list[int]:
        """The numbers of microbatches into which the batch can be divided evenly."""
        return [count for count in range(1, self.samples + 1) if self.samples % count == 0]

    def __str__(self) -> str:
        return (
            f"{counted(self.samples, 'sample')} in {1e3 * self.step:.1f} ms, "
            f"{self.memory:g} samples' activations on each rank"
        )


def costs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[Costs, float]:
    """The costs of a stage, and its memory for a microbatch in samples of a whole rank."""
    setting, rows = Setting(**given), as_schedule(schedule)
    stages = len(stage_ranks(rows))
    if stages < setting.ranks:
        raise DtlabError(
            f"the schedule has {counted(stages, 'stage')}, but this setting has "
            f"{counted(setting.ranks, 'rank')}: give each rank at least one stage."
        )
    share = setting.samples / _num_microbatches(rows) / (stages // setting.ranks)
    costs = Costs(
        setting.fixed + share * setting.forward,
        setting.fixed + share * setting.backward_input,
        share * setting.backward_weight,
        setting.message,
    )
    return costs, share


def needs_of(given: Mapping[str, Any], schedule: Iterable[Row]) -> tuple[float, float]:
    """The simulated seconds of a step, and the most samples whose activations a rank holds.

    The actions of the schedule may be text.
    """
    rows = as_schedule(schedule)
    costs, share = costs_of(given, rows)
    return simulate(rows, costs).duration, max(peak_in_flight(rows)) * share


def _num_microbatches(schedule: Schedule) -> int:
    return 1 + max(action.microbatch for row in schedule for action in row)


class Plan(NamedTuple):
    """A schedule and its needs: seconds of a step, and the most samples that a rank holds."""

    name: str
    schedule: Schedule
    seconds: float
    held: float


def library(setting: Setting) -> Iterator[Plan]:
    """Yields every schedule of `dtlab.schedules`, with every number of microbatches."""
    makes = {"naive": naive, "GPipe": gpipe, "1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2}
    for count in setting.counts:
        schedules = {name: make(setting.ranks, count) for name, make in makes.items()}
        schedules |= {f"{v} chunks": interleaved(setting.ranks, count, v) for v in (2, 3, 4)}
        for name, schedule in schedules.items():
            yield Plan(name, schedule, *needs_of(setting.given, schedule))


def between(num_stages: int, num_microbatches: int, in_flight: int) -> Schedule:
    """A zero-bubble schedule that holds `in_flight` microbatches on every rank.

    With num_stages it is ZB-H1, with 2 num_stages - 1 ZB-H2. Each rank runs as many forwards ahead
    as that allows, and each W as late as it allows.
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


_ROOM, _APART = 1.002, 1.012  # times the target's seconds: the limit; other plans exceed this

# Samples; then milliseconds: backward for the input, for the weights, fixed, of a message.
# Forward takes 10.
_RANGES: Final[Mapping[str, tuple[tuple[int, ...], ...]]] = {
    "ZB-H1": ((20, 24), (8, 10, 12), (6, 8, 10), (3, 4, 5), (0, 1)),
    "2 chunks": ((12, 16, 20), (10, 12, 14), (1,), (1,), (2,)),
    "ZB-H2": ((20, 24), (8, 10, 12), (6, 8, 10), (4, 5), (6, 8, 10)),
    "between": ((16, 20, 24), (8, 10, 12), (6, 8, 10), (2, 3, 4), (3, 4, 6, 8)),
}


def draw_settings(draw: random.Random) -> list[Setting]:
    """Draws four settings on equally many ranks; no plan of the library meets the last."""
    ranks = draw.choice((3, 4))
    return [_drawn(draw, ranks, name) for name in _RANGES]


def _drawn(draw: random.Random, ranks: int, name: str) -> Setting:
    """Draws a setting whose limits are met only by plans with the name `story`."""
    for _ in range(1000):
        samples, *times = (draw.choice(each) for each in _RANGES[name])
        setting = Setting(ranks, samples, *(1e-3 * each for each in (10, *times)))
        plans = [*library(setting)]
        targets = plans
        if name == "between":
            targets = [
                Plan(name, schedule, *needs_of(setting.given, schedule))
                for count in setting.counts
                for in_flight in range(ranks + 1, 2 * ranks - 1)
                for schedule in [between(ranks, count, in_flight)]
            ]
        clear = [
            plan for plan in targets if plan.name == name and _is_clear(plan, plans, setting)
        ]
        if clear:
            target = draw.choice(clear)
            step = math.ceil(_ROOM * target.seconds * 1e4) / 1e4
            return replace(setting, step=step, memory=target.held)
    raise AssertionError(f"no draw has {name} as its only plan")


def _is_clear(target: Plan, plans: Sequence[Plan], setting: Setting) -> bool:
    """Whether all plans that hold no more are slower, and some plan that holds more is not.

    Unless the target has chunks, its number of microbatches must not be an extreme either.
    """
    count = len(target.schedule[0]) // 3
    if "chunks" not in target.name and (count in (1, setting.samples) or count < setting.ranks):
        return False
    others = [plan for plan in plans if (plan.name, plan.held) != (target.name, target.held)]
    no_more = (plan for plan in others if plan.held <= target.held)
    return all(plan.seconds > _APART * target.seconds for plan in no_more) and any(
        plan.seconds <= target.seconds for plan in others
    )


# The checks: a schedule for each setting, and a real step with each ------------------------------

_SEARCH, _LIMIT = 10.0, 20.0  # seconds: a search takes 1 s, all four steps half a second
_MOST = 5000  # actions: a schedule that fits has less than a tenth of them
_CLOSE = 1e-9  # float rounding


@dataclass(frozen=True)
class Planned(Faulty):
    """Checks that `budget(setting)` returns a schedule that can run."""

    alone = True
    topic = "runs"

    setting: Setting

    def __str__(self) -> str:
        return str(self.setting)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return self.setting.given

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        returned = fn(given)
        try:
            rows = [[str(action) for action in row] for row in as_schedule(returned)]
        except (TypeError, ValueError) as error:
            return {"odd": f"{type(returned).__name__}, which is no schedule: {error}"}
        count = sum(map(len, rows))
        return {"odd": f"a schedule of {count:,} actions"} if count > _MOST else {"rows": rows}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        odd = results[0].get("odd")
        if odd:
            yield "runs", f"budget returns {str(odd)[:160]}"
            return
        schedule, ranks = as_schedule(results[0]["rows"]), self.setting.ranks
        if len(schedule) != ranks:
            rows = counted(len(schedule), "row")
            yield "runs", f"the schedule has {rows}, but there are {ranks} ranks."
            return
        for flaw in find_faults(schedule):
            yield "runs", f"the schedule cannot run. {flaw.kind}: {flaw.message}"
            return
        count = _num_microbatches(schedule)
        if count not in self.setting.counts:
            yield "runs", f"{self.setting.samples} samples cannot be divided evenly into {count}."
        homes = stage_ranks(schedule)
        if len({homes.count(rank) for rank in range(ranks)}) > 1:
            yield "runs", "each rank must have the same number of stages: they share the model."


@dataclass(frozen=True)
class Stepping(Carried):
    """Runs a step of a schedule. In the `last` setting both limits belong to "between"."""

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
            pieces = counted(most, "microbatch", "microbatches")
            layers = "" if chunks == 1 else f", each in 1/{chunks} of its layers,"
            yield (
                "between" if self.last else "memory",
                f"rank {peaks.index(most)} holds {pieces} of "
                f"{counted(round(share * chunks), 'sample')}{layers} at its peak, activations of "
                f"{most * share:g} samples, but only {setting.memory:g} "
                "fit. Can you hold fewer, or smaller ones?",
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
                f"{1e3 * fixed:.0f} on the fixed cost of every F and every backward, and is idle "
                f"for {1e3 * (seconds - fixed - computed):.0f}. Which of these would change with "
                "other microbatches, or with another schedule?",
            )


def _trials(seed: int) -> list[Trial]:
    """A trial with three settings that library schedules fit, and one that none of them fits."""
    cases = [Planned(setting) for setting in draw_settings(random.Random(seed))]
    return [Trial(1, cases, limit=_SEARCH)]


def _steps(observations: Seen) -> list[tuple[Trial, Callable[..., Any]]]:
    """The trial with a real step of each schedule, once all schedules can run."""
    if observations[0].mistakes:
        return []
    settings = [case.setting for case in observations[0].trial.cases if isinstance(case, Planned)]
    schedules = [as_schedule(results[0]["rows"]) for results in observations[0].results]
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
            rule("runs", 2, "on ranks, all four schedules give the gradients of one process"),
            rule("memory", 3, "no rank holds more than fits, in three settings", "runs"),
            rule("step", 3, "no step takes longer than it may, in three settings", "runs"),
            rule("between", 4, "both limits are kept in the fourth setting", "runs"),
        ),
    ),
)
