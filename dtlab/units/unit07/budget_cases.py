"""What is asked in 07/budget: a schedule for each setting, and then a real step by each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.trials import Case, Observation, Trial
from dtlab.schedules import Schedule, as_schedule, find_faults, stage_ranks
from dtlab.units.unit07.budget_settings import Setting, draw_settings

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Planned", "Ran", "Step", "schedules_of", "steps_of", "trials"]

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
        """See `Case`."""
        return self.setting.given

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> Any:
        """See `Case`."""
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
        """See `Case`."""
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
        """See `Case`."""
        return [list(row) for row in self.written], self.setting.samples

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """See `Case`."""
        return fn(*given)

    def opened(self, result: Any) -> Ran:
        """See `Case`."""
        return Ran(int(result["peak"]), {int(n): one for n, one in result["gradients"]})

    def mistake(self, results: Sequence[Ran]) -> str:
        """See `Case`."""
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
