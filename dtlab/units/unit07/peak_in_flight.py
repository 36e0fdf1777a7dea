"""07/peak_in_flight: compute from the lists the most microbatches that each rank holds at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, Final

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.checks.questions.quantities import plain, short, whole
from dtlab.predict import peak_in_flight
from dtlab.schedules import (
    Action,
    Schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from dtlab.schedules.actions import needs
from dtlab.units.unit07.judging import LIMIT, first_above, part_of_grid

Row = Sequence[Action]

# Known mistakes: what each returns for a schedule, and its message ------------------------------

_FREED: Final = {"F": 1, "B": -1, "W": -1}  # what an action adds to the microbatches held


def _held(row: Iterable[Action], steps: Mapping[str, int] = _FREED) -> list[int]:
    """The microbatches held before the first action, and after each one."""
    return list(accumulate((steps.get(action.kind, 0) for action in row), initial=0))


def _on_each_rank(count: Callable[[Row], int]) -> Callable[[Schedule], list[int]]:
    return lambda schedule: [count(row) for row in schedule]


def _first_backward(row: Row) -> int:
    """The index of the first action other than F; the length of the list if it has none."""
    return next((n for n, action in enumerate(row) if action.kind != "F"), len(row))


def _after_backwards(row: Row) -> int:
    """The most microbatches held after an action other than F."""
    held = zip(_held(row)[1:], row, strict=True)
    return max((count for count, action in held if action.kind != "F"), default=0)


def _largest_numbers(row: Row) -> int:
    """The largest number of different microbatches, whatever their stage."""
    held: set[int] = set()
    most = 0
    for action in row:
        (held.add if action.kind == "F" else held.discard)(action.microbatch)
        most = max(most, len(held))
    return most


def _of_stages(row: Row) -> list[int]:
    """The maximum of each stage of a rank, in the order of their first actions."""
    stages = dict.fromkeys(action.stage for action in row)
    return [max(_held(a for a in row if a.stage == stage)) for stage in stages]


_MISTAKES: Final[Mapping[str, Mapping[str, Callable[[Schedule], list[int]]]]] = MappingProxyType(
    {
        "counts": {
            "That counts every F, but a backward frees its microbatch.": _on_each_rank(
                lambda row: sum(action.kind == "F" for action in row)
            ),
            "That is held at the end of the list. What is the most on the way?": _on_each_rank(
                lambda row: _held(row)[-1]
            ),
            "That is the most after a backward, but a rank holds the most after a forward.": (
                _on_each_rank(_after_backwards)
            ),
            "That is the sum over all ranks.": (
                lambda schedule: [sum(peak_in_flight(schedule))] * len(schedule)
            ),
            "That goes on from the count of the rank before. Each rank begins with 0.": (
                lambda schedule: list(accumulate(peak_in_flight(schedule), max))
            ),
            "min(m, p - rank) is right for 1F1B only: count through the list.": (
                lambda schedule: [
                    min(1 + max(a.microbatch for a in schedule[0]), len(schedule) - rank)
                    for rank in range(len(schedule))
                ]
            ),
        },
        "halves": {
            "That is held before the first I, but the rank holds more later: only W frees a "
            "microbatch, since W needs the activations too.": _on_each_rank(
                lambda row: max(_held(row, {"F": 1, "B": -1, "I": -1}))
            ),
            "That is the number of its F. Here backward is split, and W frees the microbatch.": (
                _on_each_rank(lambda row: max(_held(row, {"F": 1, "B": -1})))
            ),
        },
        "chunks": {
            "That counts a microbatch once for a rank, but each stage of the rank holds its own "
            "activations of it.": _on_each_rank(_largest_numbers),
            "That counts one stage, but this rank has several.": _on_each_rank(
                lambda row: next(iter(_of_stages(row)), 0)
            ),
            "That adds up the most of each stage, but the stages hold their most at different "
            "times.": _on_each_rank(lambda row: sum(_of_stages(row))),
        },
        "any": {
            "That is held before the first backward, but the rank holds more later.": (
                _on_each_rank(lambda row: _held(row[: _first_backward(row)])[-1])
            ),
        },
    }
)

# The cases --------------------------------------------------------------------------------------


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

    def advice(self, trouble: str) -> str:
        """Advice on a crash, if a rank has no actions."""
        idle = next((rank for rank, row in enumerate(self.schedule) if not row), None)
        return "" if idle is None else f"Rank {idle} has an empty list here, and holds 0."

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        got, text = results[0]["peaks"], str(results[0]["text"])[:60]
        if got is None or len(got) != len(self.schedule) or None in got:
            form = "Return a list with a whole number for each rank."
            yield self.topic, f"it returns {text}. {form}"
            return
        for rank, (peak, right) in enumerate(zip(got, peak_in_flight(self.schedule), strict=True)):
            if peak != right:
                yield self.topic, f"{peak} is wrong on rank {rank}, {self._why(got, rank, right)}"
                return

    def _why(self, got: Sequence[int], rank: int, right: int) -> str:
        """What the rank holds and when, the mistake if it is known, and the grid around there."""
        known = [*_MISTAKES[self.topic].items()]  # several may return the same for a schedule
        known += (pair for topic in _MISTAKES.values() for pair in topic.items())
        mistake = next(
            (words for words, returned in known if returned(self.schedule) == got),
            "Go through its list by hand: what is your count there?",
        )
        if not right:
            return f"which has no actions, so it holds 0. {mistake}"
        index = first_above(self.schedule[rank], right - 1)
        return (
            f"which holds {right} after {self.schedule[rank][index]}, and never more. {mistake}\n"
            f"{part_of_grid(self.schedule, [(rank, index)])}"
        )


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
    odd = [Holding(any_schedule(draw, draw.randint(5, 7)), "a schedule with an idle rank", "any")]
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
