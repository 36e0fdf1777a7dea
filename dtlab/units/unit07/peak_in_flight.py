"""07/peak_in_flight: the most microbatches that each rank holds at once, from the lists."""

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
    "counts": "It goes up by one with each F, and down by one with each B. What is the most?",
    "halves": "After I the activations are still there: W needs them. So the most may come after "
    "the first backward.",
    "chunks": "Each of a rank's two stages has activations of its own, of one microbatch too.",
    "any": "Go through the list to its end. A rank may also have nothing to do.",
}


@dataclass(frozen=True)
class Holding(Faulty):
    """`fn(schedule)`; `name` is what it is called in words."""

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
        schedule = Schedule([Action(*one) for one in row] for row in given)
        with finished_calls("dtlab.predict.simulate", refuse=True) as finished:
            found = plain(fn(schedule))
        peaks = [whole(one) for one in found] if isinstance(found, list | tuple) else None
        return {"peaks": peaks, "text": short(found), "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        got, text = results[0]["peaks"], str(results[0]["text"])[:60]
        if got is None or len(got) != len(self.schedule) or None in got:
            form = "Return a list with a whole number for each rank."
            yield self.topic, f"it returns {text}. {form}"
            return
        for rank, (peak, right) in enumerate(zip(got, peak_in_flight(self.schedule), strict=True)):
            if peak != right:
                why = f"{_WHY[self.topic]}\n{grid(self.schedule)}"
                yield self.topic, f"not {peak} on rank {rank}. {why}"
                return


def any_schedule(draw: random.Random, count: int) -> Schedule:
    """Two stages on ranks 0 and 2 that do what they can in an order drawn, and rank 1 idle.

    Each of them holds the most only after its first backward.
    """
    while True:
        schedule = Schedule([[], [], []])
        left = {Action(s, kind, k) for s in (0, 1) for kind in "FB" for k in range(count)}
        while left:
            action = draw.choice([one for one in sorted(left) if _is_ready(one, left)])
            schedule[2 * action.stage].append(action)
            left.remove(action)
        early = ["".join(action.kind for action in row).find("B") for row in schedule]
        if all(few < most for few, most in zip(early, peak_in_flight(schedule), strict=True)):
            return schedule


def _is_ready(action: Action, left: set[Action]) -> bool:
    own = Action(action.stage, "F", action.microbatch)
    return needs(action, 1) not in left and (action.kind == "F" or own not in left)


def _trials(seed: int) -> list[Trial]:
    """Schedules with whole backwards, with halves, with two stages on a rank, and any."""
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
            rule("counts", 2, "right for GPipe, 1F1B and naive"),
            rule("halves", 1, "held until W, where backward is in two halves"),
            rule("chunks", 1, "each stage of a rank counts"),
            rule("any", 1, "right for any schedule, and where a rank is idle"),
        ),
    ),
    reference="dtlab.predict.peak_in_flight",
)
