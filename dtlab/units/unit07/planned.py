"""Schedules that an answer makes: read as the library reads them, and searched for faults.

fn(p, m) ──► rows of actions ──► complete? ──► can ranks do it? ──► what the part asks for
                                               then: on real ranks, see `carried`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dtlab.grading.checking.faults import Fault, Faulty, Noted
from dtlab.grading.checking.finished import finished_calls
from dtlab.schedules import Action, Schedule, as_schedule, find_faults, grid
from dtlab.schedules import Fault as Flaw
from dtlab.schedules.clock import clock

__all__ = ["Planned", "drawn", "slow", "written"]

_FINISHED = ("dtlab.schedules.generators", "torch.distributed.pipelining.schedules")
_MOST, _SAID = 5_000, 3  # actions of a schedule; flaws that a message tells
_FORM = 'Return a list for each rank, with actions like "2F0" or (2, "F", 0) in it.'
_CANNOT_RUN = ("order", "wait")
_HALVES = re.compile(r", nor \d+I\d+ and \d+W\d+")


@dataclass(frozen=True)
class Planned(Faulty):
    """`fn(stages, count)`, a schedule; `more` says what else is wrong with one that can run.

    With the topic "edges", what makes a schedule incomplete or impossible belongs to it.
    """

    finished: ClassVar[tuple[str, ...]] = _FINISHED

    alone = True

    stages: int
    count: int
    more: Callable[[Schedule, int, int], Iterator[Fault]]
    topic: str = "complete"

    def __str__(self) -> str:
        return f"{_counted(self.stages, 'stage')}, {_counted(self.count, 'microbatch', 'es')}"

    def shows(self, criterion: str) -> bool:
        """See `Faulty`."""
        return (criterion == "edges") == (self.topic == "edges")

    def given(self, rank: int, world_size: int) -> tuple[int, int]:
        """See `Case`."""
        return self.stages, self.count

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[int, int]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls(*_FINISHED, refuse=True) as finished:
            found = fn(*given)
        return {"found": written(found), "finished": sorted(finished)}

    def opened(self, result: Any) -> Noted:
        """See `Case`."""
        found = result["found"]
        if isinstance(found, str):
            return Noted({**result, "found": None, "form": found[:300]})
        return Noted({**result, "found": as_schedule([list(map(str, row)) for row in found])})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        """See `Faulty`."""
        schedule = results[0]["found"]
        lacking = results[0].get("form") or _incomplete(schedule, self.stages, self.count)
        if lacking:
            yield self.topic, self._of_few() + lacking
            return
        flaws = find_faults(schedule, self.stages, self.count)
        if flaws:
            yield "edges" if self.topic == "edges" else "runs", drawn(schedule, flaws)
            return
        yield from self.more(schedule, self.stages, self.count)

    def _of_few(self) -> str:
        """What is likely where there are fewer microbatches than stages."""
        if self.topic != "edges" or self.count >= self.stages:
            return ""
        return "is a warm-up longer than there are microbatches?\n"


def written(found: Any) -> list[list[str]] | str:
    """The actions of a schedule as text, row by row; why it is none, in words."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        return f"what is returned is {_named(found)}. {_FORM}"
    rows = list(found)
    odd = [row for row in rows if isinstance(row, str) or not isinstance(row, Iterable)]
    if odd:
        return f"what is returned for a rank is {_named(odd[0])}. {_FORM}"
    rows = [list(row) for row in rows]
    if sum(map(len, rows)) > _MOST:
        return f"there are {sum(map(len, rows)):,} actions in what is returned. Where do they end?"
    try:
        texts = [
            [one if isinstance(one, str) else "{:d}{}{:d}".format(*Action(*one)) for one in row]
            for row in rows
        ]
        return [[str(one) for one in row] for row in as_schedule(texts)]
    except (TypeError, ValueError, IndexError) as error:
        why = str(error) if "no action" in str(error) else "something in it is no action."
        return f"{why} {_FORM}"


def drawn(schedule: Schedule, flaws: Sequence[Flaw]) -> str:
    """What is wrong, above the grid in which it is marked."""
    said = [flaw.message for flaw in flaws[:_SAID]]
    said += [f"And {len(flaws) - _SAID} more."] * (len(flaws) > _SAID)
    marked = {place for flaw in flaws for place in flaw.places}
    return "\n".join([*said, grid(schedule, marked=marked)])


def slow(schedule: Schedule, stages: int, count: int) -> str:
    """What is wrong with its makespan, every action being one slot; empty if nothing is."""
    slots = 1 + max(row[-1] for row in clock(schedule).slots)
    least = 2 * (count + stages - 1)
    if slots == least:
        return ""
    return (
        f"the last action ends after {slots} slots, and 2(m + p - 1) = {least} are enough. "
        f"Who waits, and for what?\n{grid(schedule)}"
    )


def _incomplete(schedule: Schedule, stages: int, count: int) -> str:
    """What is not there, too often, or in another rank's list; empty if nothing is."""
    if len(schedule) != stages:
        lists = _counted(len(schedule), "list")
        return f"{lists} for {_counted(stages, 'rank')}: rank r has stage r."
    flaws = [*_elsewhere(schedule), *find_faults(schedule, stages, count)]
    flaws = [_in_whole(flaw) for flaw in flaws if flaw.kind not in _CANNOT_RUN]
    return drawn(schedule, flaws) if flaws else ""


def _in_whole(flaw: Flaw) -> Flaw:
    """Without the halves of a backward, which nobody is asked for."""
    return flaw._replace(message=_HALVES.sub("", flaw.message))


def _elsewhere(schedule: Schedule) -> Iterator[Flaw]:
    """Actions of other stages, and halves of a backward."""
    for rank, row in enumerate(schedule):
        for index, action in enumerate(row):
            if action.kind in "IW":
                what = f"{action} on rank {rank} is half a backward: write B, the whole of it."
                yield Flaw("unknown", what, ((rank, index),))
            elif action.stage != rank:
                what = f"rank {rank} does {action}: rank r has stage r."
                yield Flaw("placement", what, ((rank, index),))


def _counted(count: int, one: str, plural: str = "s") -> str:
    return f"{count} {one}{plural * (count != 1)}"


def _named(found: Any) -> str:
    if isinstance(found, str):
        return "text"
    return "None" if found is None else f"a {type(found).__name__}"
