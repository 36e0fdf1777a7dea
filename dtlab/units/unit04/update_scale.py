"""04/update_scale: grow the scale after good steps in a row, and shrink it at each overflow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted

__all__ = ["PART", "Updating", "next_scale"]

Row = tuple[float, int, bool, int]  # scale, good steps in a row, overflow, growth interval


def next_scale(scale: float, good_steps: int, overflow: bool, interval: int) -> tuple[float, int]:
    """The scale and the number of good steps in a row after this step."""
    if overflow:
        return scale / 2, 0
    return (2 * scale, 0) if good_steps + 1 == interval else (scale, good_steps + 1)


@dataclass(frozen=True)
class Updating(Faulty):
    """Calls `fn(scale, good_steps, overflow, growth_interval)` for each of the rows."""

    rows: tuple[Row, ...]
    topic: str = "backoff"

    def __str__(self) -> str:
        return counted(len(self.rows), "step")

    def given(self, rank: int, world_size: int) -> list[Row]:
        return list(self.rows)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: list[Row]) -> dict[str, Any]:
        results: list[Any] = []
        for row in given:
            returned = fn(*row)
            try:
                scale, good_steps = returned
                results.append([float(scale), float(good_steps)])
            except (TypeError, ValueError):
                results.append("None" if returned is None else f"a {type(returned).__name__}")
        return {"results": results}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for row, result in zip(self.rows, results[0]["results"], strict=True):
            scale, good, overflow, interval = row
            call = f"update_scale({scale:g}, {good}, {overflow}, {interval})"
            if isinstance(result, str):
                wrong = f"{call} returns {result}, not a pair: the scale and the good steps."
                yield "backoff", wrong
                yield "form", wrong
                return
            (new_scale, new_good), (right_scale, right_good) = result, next_scale(*row)
            swapped = (new_good, new_scale) == (right_scale, right_good) != (new_scale, new_good)
            if new_scale != right_scale:
                wrong = f"{call} gives a scale of {new_scale:g}, not {right_scale:g}."
                why = _ORDER if swapped else _why_scale(row, new_scale)
                yield "backoff" if overflow else "growth", f"{wrong} {why}"
            if new_good != right_good:
                if swapped:
                    why = _ORDER
                elif overflow:
                    why = "Only good steps in a row count: an overflow ends the row."
                elif good + 1 == interval:
                    why = "The scale has just grown: growth needs as many good steps again."
                else:
                    why = "This step was good, too."
                wrong = f"{call} gives a count of {new_good:g} good steps, not {right_good}."
                yield "reset" if overflow else "count", f"{wrong} {why}"


_ORDER = "The order is wrong: return the scale first, then the count."


def _why_scale(row: Row, new: float) -> str:
    """Explains why this new scale is wrong after these steps."""
    scale, good, overflow, interval = row
    if overflow and new > scale:
        return "An overflow means that the scale is too large already."
    if overflow and new == scale:
        return "With the same scale the next step would overflow too."
    if overflow:
        return "Halve it."
    if good + 1 < interval and new != scale:
        return f"With this step there are {good + 1} good ones in a row; {interval} are needed."
    if new == scale:
        return f"With this step there are {interval} good ones in a row."
    return "Double it."


def _trials(seed: int) -> list[Trial]:
    """Trials with overflows, with good steps inside an interval, and with steps that end one."""
    draw = random.Random(seed)

    def row(good: int | None = None, overflow: bool = False, interval: int = 0) -> Row:
        interval = interval or draw.randint(4, 9)
        good = draw.randrange(1, interval - 2) if good is None else good
        return 2.0 ** draw.randint(3, 22), good, overflow, interval

    overflow = [row(overflow=True) for _ in range(4)]
    overflow += [(2.0**16, 1999, True, 2000), (4.0, 3, True, 4), (0.5, 0, True, 1)]
    within = [row() for _ in range(4)] + [row(2, interval=4), (2.0**16, 1998, False, 2000)]
    within += [row(0), row(0, interval=2)]
    end = [row(k - 1, interval=k) for k in draw.sample(range(4, 10), 3)]
    end += [(2.0**16, 1999, False, 2000), row(0, interval=1)]
    return [Trial(1, [Updating(tuple(rows))]) for rows in (overflow, within, end)]


PART = Part(
    name="04/update_scale",
    level=2,
    title="A scale that adapts",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("backoff", 2, "an overflow halves the scale"),
            rule("reset", 1, "an overflow resets the count", "form"),
            rule("growth", 2, "growth_interval good steps in a row double it, no fewer", "form"),
            rule("count", 1, "good steps are counted, from 0 after a growth", "form"),
        ),
    ),
)
