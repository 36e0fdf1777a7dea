"""07/warm_up: compute how many forwards a rank does under 1F1B before its first 1F1B pair."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import short, whole
from dtlab.predict.units import counted
from dtlab.units.unit07.judging import LIMIT


@dataclass(frozen=True)
class Warming(Faulty):
    """Calls `fn(rank, stages, count)` for every rank; each number belongs to one criterion."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.simple", "dtlab.schedules.generators")
    alone = True

    stages: int
    count: int
    topic: str = "steady"

    def __str__(self) -> str:
        return f"p = {self.stages}, m = {self.count}"

    def given(self, rank: int, world_size: int) -> tuple[int, int]:
        return self.stages, self.count

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, int]) -> dict[str, Any]:
        stages, count = given
        with finished_calls(*Warming.finished, refuse=True) as finished:
            numbers = [fn(rank, stages, count) for rank in range(stages)]
        returned = [(whole(number), short(number)) for number in numbers]
        return {"returned": returned, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        returned = results[0]["returned"]
        numbers = [got for got, _ in returned]
        for rank in range(self.stages):
            got, text = returned[rank]
            behind = self.stages - 1 - rank
            name = "last" if not behind else "steady" if self.count >= self.stages else "few"
            if got is None:
                shown = f"{str(text)[:60]}, which is not a whole number."
                yield name, f"for rank {rank} it returns {shown}"
                continue
            if got != min(behind, self.count):
                yield name, f"{got} is wrong for rank {rank}. {self._why(rank, numbers)}"

    def _why(self, rank: int, numbers: list[int]) -> str:
        got, behind = numbers[rank], self.stages - 1 - rank
        ranks = range(self.stages)  # a confusion must explain all numbers, not one by chance
        if got > self.count:
            return f"The step has only {counted(self.count, 'microbatch', 'microbatches')}."
        if not behind:
            return "It has its first gradient as soon as its first forward is complete."
        if numbers == [min(self.stages - each, self.count) for each in ranks]:
            return "That is the most that it holds, which includes the forward of the first pair."
        if numbers == [min(each, self.count) for each in ranks]:
            return "That is the reverse order: which rank waits longest for a gradient?"
        few = counted(self.count, "microbatch", "microbatches")
        more = f", and the step has {few}" if self.count < behind else ""
        return (
            f"{counted(behind, 'stage')} {'comes' if behind == 1 else 'come'} after it{more}. How "
            "many forwards can it do until the gradient of its first microbatch arrives?"
        )


def _trials(seed: int) -> list[Trial]:
    """Trials with enough microbatches, few, one; and with a single stage."""
    draw = random.Random(seed)
    deep = draw.randint(5, 8)
    sizes = [(4, draw.randint(5, 12)), (deep, deep), (deep, draw.randint(2, deep - 2)), (3, 1)]
    sizes += [(1, draw.randint(1, 4))]
    return [Trial(1, [Warming(p, m) for p, m in sizes], limit=LIMIT)]


PART = Part(
    name="07/warm_up",
    level=2,
    title="The warm-up of 1F1B",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("steady", 2, "the number is right on all ranks before the last"),
            rule("last", 1, "the last rank needs no warm-up"),
            rule("few", 1, "the number is at most that of the microbatches"),
        ),
    ),
)
