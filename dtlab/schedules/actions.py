"""What a rank does with one microbatch on one stage, and a schedule of such actions.

    F   forward               needs the output of the stage before
    B   backward, all of it   needs the input gradient of the stage behind
    I   input gradient        the same
    W   weight gradient       needs the stage's own I

B is I and W in one piece. The letters are PyTorch's; in the Zero Bubble paper our I is called B.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["KINDS", "Action", "Row", "Schedule", "as_schedule", "needs", "stage_ranks"]

KINDS = "FBIW"
_WRITTEN = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """One stage's work on one microbatch: kind "F", "B", "I" or "W". `Action.parse("2F0")`."""

    stage: int
    kind: str
    microbatch: int

    @classmethod
    def parse(cls, written: str) -> Action:
        """From the way it is written, as "2F0". Raises: ValueError where that is not the way."""
        found = _WRITTEN.fullmatch(written.strip())
        if not found:
            raise ValueError(
                f"{written!r} is no action. Write stage, letter and microbatch, as 2F0; the "
                "letters are F, B, I and W."
            )
        return cls(int(found[1]), found[2], int(found[3]))

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    def __repr__(self) -> str:
        return str(self)


Row = Sequence[Action | tuple[int, str, int] | str]


class Schedule(list[list[Action]]):
    """A list of actions per rank, each in the order in which the rank does them."""

    def __str__(self) -> str:
        from dtlab.schedules.grid import grid  # it draws what is defined here

        return grid(self)

    __repr__ = __str__


def as_schedule(rows: Iterable[Row]) -> Schedule:
    """Convert text ("2F0") and tuples in `rows` to actions; `rows` itself is not changed.

    Raises ValueError if `rows` is not one list of actions for each rank.
    """
    if isinstance(rows, Schedule):
        return rows
    return Schedule(
        [_as_action(each) for each in _as_list(row, f"rank {rank} has {row!r}")]
        for rank, row in enumerate(_as_list(rows, f"{rows!r} is no schedule"))
    )


def _as_list(value: Any, what: str) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(
            f"{what}. A schedule has one list of actions for each rank, as "
            '[["0F0", "0B0"], ["1F0", "1B0"]].'
        )
    return list(value)


def _as_action(written: Any) -> Action:
    if isinstance(written, str):
        return Action.parse(written)
    try:
        return Action(*written)
    except TypeError:
        raise ValueError(
            f'{written!r} is no action. Write it as text, "2F0", or as a tuple, (2, "F", 0).'
        ) from None


def needs(action: Action, last_stage: int) -> Action | None:
    """What has to be done first, I written as B, since either gives the gradient; None: nothing.

    That a stage's own forward comes before its backward goes without saying, except on the last.
    """
    stage, kind, microbatch = action
    if kind == "F":
        return Action(stage - 1, "F", microbatch) if stage else None
    if kind == "W":
        return Action(stage, "B", microbatch)
    if stage == last_stage:
        return Action(stage, "F", microbatch)
    return Action(stage + 1, "B", microbatch)


def stage_ranks(schedule: Sequence[Sequence[Action]]) -> list[int]:
    """The rank of each stage: that of its first action. Raises: ValueError for a stage of none."""
    homes: dict[int, int] = {}
    for rank, row in enumerate(schedule):
        for action in row:
            homes.setdefault(action[0], rank)
    lost = sorted(set(range(max(homes, default=-1) + 1)) - set(homes))
    if lost:
        raise ValueError(f"No rank has stage {lost[0]}.")
    return [homes[stage] for stage in range(len(homes))]
