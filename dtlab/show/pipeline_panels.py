"""Lays traces of a pipeline out for drawing: actions, bubble, what is held. No drawing.

A trace is one of `dtlab.predict.simulate`, or of spans that `run_schedule` has left, of one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from dtlab.predict.simulate import bubble, peak_in_flight
from dtlab.schedules import Action
from dtlab.show.words import time_words

if TYPE_CHECKING:
    from dtlab.trace import Trace

__all__ = ["LETTERS", "Box", "Panel", "panel_of"]

LETTERS: Final[Mapping[str, str]] = {  # of actions, by the names of their spans
    "forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W",
}  # fmt: skip


class Box(NamedTuple):
    """An action on a rank, in seconds; `chunk` counts the stages of the rank before its own."""

    rank: int
    name: str
    start: float
    end: float
    action: Action
    chunk: int


@dataclass(frozen=True)
class Panel:
    """One trace: its boxes on a clock from its first action, and what of it is a bubble.

    `holds` says for each rank the most microbatches that it holds at once, in whole stages of the
    rank: "11/2" is eleven on chunks that are half of it. `shares` are the bubble's, of the total
    and of the ideal time; `ideal` is that time, in seconds.
    """

    name: str
    boxes: Sequence[Box]
    holds: Sequence[str]
    shares: tuple[float, float]
    ideal: float

    @property
    def end(self) -> float:
        """When the last action ends."""
        return max(box.end for box in self.boxes)

    @property
    def words(self) -> str:
        """How long the longest rank takes, and the bubble in both denominators."""
        total, ideal = self.shares
        return (f"{self.name}: {time_words(self.ideal * (1 + ideal))}, bubble {total:.1%} of it, "
                f"{ideal:.1%} of the ideal {time_words(self.ideal)}")  # fmt: skip


def panel_of(name: str, trace: Trace) -> Panel:
    """The panel of a trace. Raises: ValueError for one without forward and backward."""
    spans = [each for each in trace.events if each.kind == "compute" and each.name in LETTERS]
    if not spans:
        raise ValueError(f"pipeline: {name!r} has no forward and no backward to draw.")
    boxes: list[Box] = []
    stages: list[list[int]] = [[] for _ in range(trace.world_size)]
    rows: list[list[Action]] = [[] for _ in range(trace.world_size)]
    for each in spans:
        own, stage = stages[each.rank], each.extra.get("stage", each.rank)
        if stage not in own:
            own.append(stage)
        action = Action(stage, LETTERS[each.name], each.extra.get("microbatch", 0))
        rows[each.rank].append(action)
        times = each.start - spans[0].start, each.end - spans[0].start
        boxes.append(Box(each.rank, each.name, *times, action, own.index(stage)))
    ideal = sum(box.end - box.start for box in boxes) / sum(map(bool, rows))
    counts = zip(peak_in_flight(rows), stages, strict=True)
    holds = [f"{most}/{len(own)}" if len(own) > 1 else f"{most}" for most, own in counts]
    return Panel(name, boxes, holds, (bubble(trace), bubble(trace, of="ideal")), ideal)
