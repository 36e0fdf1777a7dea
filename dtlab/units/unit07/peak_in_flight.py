"""07/peak_in_flight: compute from the lists the most microbatches that each rank holds at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.quantities import plain, short, whole
from dtlab.predict import peak_in_flight
from dtlab.schedules import (
    Action,
    Schedule,
    gpipe,
    grid,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from dtlab.schedules.actions import needs
from dtlab.units.unit07.judging import LIMIT

_WHY = {
    "counts": "The number rises by one with each F, and falls by one with each B. What is its "
    "maximum?",
    "halves": "After I the activations are still held: W needs them. So the maximum may come "
    "after the first backward.",
    "chunks": "Each of a rank's two stages holds its own activations, even of one microbatch.",
    "any": "Go through the list to its end. A rank may also have nothing to do.",
}


@dataclass(frozen=True)
class Holding(Faulty):
    """Calls `fn(schedule)`; `name` names the schedule in messages."""

    finished: ClassVar[tuple[str, ...]] = ("dtlab.predict.simulate",)
    alone = True
    also_shows: ClassVar = {}

    schedule: Schedule
    name: str
    topic: str = "counts"

    def __str__(self) -> str:
        return self.name

    def given(self, rank: int, world_size: int) -> list[list[list[Any]]]:
        return [[list(action) for action in row] for row in self.schedule]

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: list[list[list[Any]]]) -> dict[str, Any]:
        schedule = Schedule([Action(*action) for action in row] for row in given)
        with finished_calls("dtlab.predict.simulate", refuse=True) as finished:
            returned = plain(fn(schedule))
        peaks = [whole(x) for x in returned] if isinstance(returned, list | tuple) else None
        return {"peaks": peaks, "text": short(returned), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        got, text = results[0]["peaks"], str(results[0]["text"])[:60]
        if got is None or len(got) != len(self.schedule) or None in got:
            form = "Return a list with a whole number for each rank."
            yield self.topic, f"it returns {text}. {form}"
            return
        for rank, (peak, right) in enumerate(zip(got, peak_in_flight(self.schedule), strict=True)):
            if peak != right:
                why = f"{_WHY[self.topic]}\n{grid(self.schedule)}"
                yield self.topic, f"{peak} is wrong on rank {rank}. {why}"
                return


def any_schedule(draw: random.Random, count: int) -> Schedule:
    """A schedule of two stages in a random valid order, on ranks 0 and 2; rank 1 is idle.

    Each stage holds the most only after its first backward.
    """
    while True:
        schedule = Schedule([[], [], []])
        left = {Action(s, kind, k) for s in (0, 1) for kind in "FB" for k in range(count)}
        while left:
            action = draw.choice([each for each in sorted(left) if _is_ready(each, left)])
            schedule[2 * action.stage].append(action)
            left.remove(action)
        early = ["".join(action.kind for action in row).find("B") for row in schedule]
        if all(few < most for few, most in zip(early, peak_in_flight(schedule), strict=True)):
            return schedule


def _is_ready(action: Action, left: set[Action]) -> bool:
    forward = Action(action.stage, "F", action.microbatch)
    return needs(action, 1) not in left and (action.kind == "F" or forward not in left)


def _trials(seed: int) -> list[Trial]:
    """Trials of schedules: with B, with I and W, with two stages on a rank, in random orders."""
    draw = random.Random(seed)
    p, m = draw.randint(3, 5), draw.randint(6, 8)
    counts = [Holding(one_f_one_b(p, m), "1F1B"), Holding(gpipe(p, m), "GPipe")]
    counts += [Holding(naive(2, m), "naive"), Holding(one_f_one_b(4, 2), "1F1B")]
    halves = [Holding(zb_h1(p, m), "ZB-H1", "halves"), Holding(zb_h2(p, m), "ZB-H2", "halves")]
    chunks = [Holding(interleaved(3, m, 2), "interleaved", "chunks")]
    odd = [Holding(any_schedule(draw, draw.randint(5, 7)), "a schedule without a name", "any")]
    return [Trial(1, cases, limit=LIMIT) for cases in (counts, halves, chunks, odd)]


PART = Part(
    name="07/peak_in_flight",
    level=2,
    title="What a rank holds",
    minutes=10,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("counts", 2, "the count is right for GPipe, 1F1B and naive"),
            rule("halves", 1, "a microbatch counts until its W, if backward is split"),
            rule("chunks", 1, "all stages of a rank count"),
            rule("any", 1, "right for any schedule, and where a rank is idle"),
        ),
    ),
    reference="dtlab.predict.peak_in_flight",
)
