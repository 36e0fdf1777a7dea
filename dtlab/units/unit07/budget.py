"""07/budget: a schedule within a step's time and a rank's memory, for several settings.

`budget(setting)` is asked on a rank. What it returns is carried out by ranks of ours with a small
model, for what they hold and for the gradients; seconds are simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen
from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.grading.parts import Part
from dtlab.predict import Costs, peak_in_flight, simulate
from dtlab.schedules import (
    Action,
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

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Planned", "Setting", "between", "draw_settings", "library", "needs_of"]

# The settings of 07/budget: what a step may take, and what plans of the library come to ----------
#
#     batch of 16 samples      m = 4                     m = 16
#     memory                   4 samples in each of      1 sample in each of what is in flight
#     time                     4 x fixed, long ends      16 x fixed, short ends
#
# A setting has the limits of one plan, its target: nothing of the library but that is within both,
# and of the last setting nothing at all, for its target lies between ZB-H1 and ZB-H2.

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


# What is asked in 07/budget: a schedule for each setting, and then a real step by each -----------

_ASKED, _LIMIT = 10.0, 20.0  # seconds: a search takes one, all four steps half of one
_MOST = 5000  # actions: no schedule that fits has a tenth of it
_NEAR = 1e-4  # of a gradient's length


# Schedules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned(Case):
    """`budget(setting)`: the schedule for one setting; `topic` says what it is to show."""

    alone = True

    setting: Setting
    topic: str = "library"

    def __str__(self) -> str:
        return str(self.setting)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return self.setting.given

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        found = fn(dict(given))
        try:
            rows = [[str(action) for action in row] for row in as_schedule(found)]
        except (TypeError, ValueError) as error:
            return f"{type(found).__name__}, which is no schedule: {error}"
        count = sum(map(len, rows))
        return rows if count <= _MOST else f"a schedule of {count:,} actions"

    def opened(self, result: Any) -> Schedule | str:
        """See `Case`. Words where it is no schedule."""
        return result[:160] if isinstance(result, str) else as_schedule(result)

    def mistake(self, results: Sequence[Schedule | str]) -> str:
        (found,) = results
        if isinstance(found, str):
            return f"budget returns {found}"
        if len(found) != self.setting.ranks:
            return f"the schedule has {len(found)} rows, and there are {self.setting.ranks} ranks."
        faults = find_faults(found)
        if faults:
            return f"the schedule cannot run. {faults[0].kind}: {faults[0].message}"
        return self._uneven(found)

    def _uneven(self, schedule: Schedule) -> str:
        """What is wrong with how it cuts the batch and the model; empty if nothing is."""
        count = 1 + max(action.microbatch for row in schedule for action in row)
        if self.setting.samples % count:
            return f"{self.setting.samples} samples cannot be cut evenly into {count}."
        homes = stage_ranks(schedule)
        if len({homes.count(rank) for rank in range(self.setting.ranks)}) > 1:
            return "each rank has to have as many stages as the others: they share the model."
        return ""


def trials(seed: int) -> list[Trial]:
    """Three settings that a schedule of the library fits, and one that none of them does."""
    *three, last = draw_settings(random.Random(seed))
    cases = [*(Planned(one) for one in three), Planned(last, "between")]
    return [Trial(1, cases, limit=_ASKED)]


def schedules_of(seen: Sequence[Observation]) -> Iterator[tuple[str, Planned, Schedule]]:
    """For each setting: what it is in words, and its schedule; none where one cannot run."""
    one = seen[0]
    if one.mistakes:
        return
    for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
        assert isinstance(case, Planned)
        yield one.trial.words(number), case, results[0]


# Steps of ours ----------------------------------------------------------------------------------


class Ran(NamedTuple):
    """What a rank was left with: microbatches that it held at most, gradients by stage."""

    peak: int
    gradients: dict[int, Tensor]


@dataclass(frozen=True)
class Step(Case):
    """One step by a schedule, with a small model, on ranks of ours."""

    setting: Setting
    written: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"a step of {self.setting.samples} samples"

    @property
    def num_stages(self) -> int:
        """Of the schedule."""
        return len(stage_ranks(as_schedule(self.written)))

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [list(row) for row in self.written], self.setting.samples

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        return fn(*given)

    def opened(self, result: Any) -> Ran:
        return Ran(int(result["peak"]), {int(n): one for n, one in result["gradients"]})

    def mistake(self, results: Sequence[Ran]) -> str:
        from dtlab.units.unit07.budget_training import gradients_of

        wanted = gradients_of(self.num_stages, self.setting.samples)
        for rank, one in enumerate(results):
            for stage, gradient in one.gradients.items():
                off = float((gradient - wanted[stage]).norm() / wanted[stage].norm())
                if not off <= _NEAR:
                    return f"on rank {rank} stage {stage} has not the gradient of one process."
        return ""


def _carry_out(*given: Any) -> Any:
    from dtlab.units.unit07.budget_training import step

    return step(*given)


def steps_of(seen: Sequence[Observation]) -> list[tuple[Trial, Callable[..., Any]]]:
    """A real step by each schedule, all of them in one launch."""
    cases = [
        Step(case.setting, tuple(tuple(map(str, row)) for row in schedule))
        for _, case, schedule in schedules_of(seen)
    ]
    return [(Trial(cases[0].setting.ranks, cases, limit=_LIMIT), _carry_out)] if cases else []


# The part ----------------------------------------------------------------------------------------

_CLOSE = 1e-9  # what rounding of floats may do
_MEMORY = "no rank holds more than fits, in three settings"
_STEP = "no step takes longer than it may, in three settings"
_BOTH = "both, where no schedule of the library does"
_WAITS = blocked("judged once all four schedules can run")


def _judge_runs(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        return lost(seen[0].mistakes[0])
    trouble = next((one.trouble for one in seen[1:] if one.error is not None), "")
    if trouble:
        return blocked(f"{trouble}\nThat is not the schedule's doing: run the check again.")
    for one in seen[1:]:
        if one.mistakes:
            return lost(one.mistakes[0])
    return ok("carried out by ranks, all four leave the gradients of one process")


# Memory -----------------------------------------------------------------------------------------


def _too_much_held(words: str, setting: Setting, schedule: Schedule, ran: list[Ran]) -> str:
    peaks = [one.peak for one in ran]
    count = 1 + max(action.microbatch for row in schedule for action in row)
    num_chunks = len(stage_ranks(schedule)) // setting.ranks
    held = max(peaks) * setting.samples / count / num_chunks
    if held <= setting.memory + _CLOSE:
        return ""
    piece = "microbatches" if num_chunks == 1 else f"{num_chunks}ths of microbatches"
    return (
        f"{words}: rank {peaks.index(max(peaks))} holds {max(peaks)} {piece} of "
        f"{setting.samples // count} samples at its peak, activations of {held:g} samples, where "
        f"{setting.memory:g} fit. Fewer in flight, or smaller ones?"
    )


# Time -------------------------------------------------------------------------------------------


def _too_slow(words: str, setting: Setting, schedule: Schedule) -> str:
    seconds, _ = needs_of(setting.given, schedule)
    if seconds <= setting.step + _CLOSE:
        return ""
    forwards = max(sum(one.kind == "F" for one in row) for row in schedule)
    fixed = 2 * setting.fixed * forwards
    each = setting.forward + setting.backward_input + setting.backward_weight
    idle = seconds - fixed - setting.samples * each
    return (
        f"{words}: a step takes {1e3 * seconds:.1f} ms, {1e3 * (seconds - setting.step):.1f} too "
        f"many. Of them a rank computes {1e3 * setting.samples * each:.0f}, spends "
        f"{1e3 * fixed:.0f} on what every F and every backward costs, and is idle for "
        f"{1e3 * idle:.0f}. Which of these would other microbatches, or another schedule, change?"
    )


# The criteria -----------------------------------------------------------------------------------


def _judge(topic: str, right: str, *, memory: bool, step: bool) -> Judge:
    """Judges the limits of the settings of a topic."""

    def judge(seen: Seen) -> Verdict:
        if _judge_runs(seen).status != "ok":
            return _WAITS
        wrong = next(filter(None, (_objection(*each, memory, step) for each in asked(seen))), "")
        return lost(wrong) if wrong else ok(right)

    def asked(seen: Seen) -> list[tuple[str, Planned, Schedule, list[Ran]]]:
        each = zip(schedules_of(seen), seen[1].results, strict=True)
        return [(*planned, ran) for planned, ran in each if planned[1].topic == topic]

    return judge


def _objection(
    words: str, case: Planned, schedule: Schedule, ran: list[Ran], memory: bool, step: bool
) -> str:
    over = _too_much_held(words, case.setting, schedule, ran) if memory else ""
    return over or (_too_slow(words, case.setting, schedule) if step else "")


PART = Part(
    name="07/budget",
    level=3,
    title="A schedule within a budget",
    minutes=35,
    difficulty=3,
    check=Check(
        trials=trials,
        then=steps_of,
        rules=(
            Rule("runs", 2, _judge_runs),
            Rule("memory", 3, _judge("library", _MEMORY, memory=True, step=False)),
            Rule("step", 3, _judge("library", _STEP, memory=False, step=True)),
            Rule("between", 4, _judge("between", _BOTH, memory=True, step=True)),
        ),
    ),
)
