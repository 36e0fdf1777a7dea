"""`dtlab.remeasure`: an emulated measurement next to its formula, on a machine that may be busy.

    seconds = remeasure(lambda: step_seconds(job), formula)    measures again while it is far off
    sent.reveal(seconds, formula=formula)                      judged by the formula if it stays so

An emulated link or kernel needs the time of its formula. What other programs take from the cores
comes on top, so a measurement that is far from its formula says more about the machine than about
the links. It is repeated; if it stays far off, one line says so, figures draw it in grey, and the
learner's guess is judged by the formula.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dtlab.predict.units import check_count
from dtlab.ranks.system import usable_cpus
from dtlab.show.notebook import running_cell
from dtlab.show.repeats import repeats
from dtlab.show.words import number_words, time_words

__all__ = ["far_off", "load_in_words", "remeasure"]

Result = TypeVar("Result")
Numbers = float | Sequence[float]

_ALLOWED: Final = 0.25  # of the predicted value
_ALLOWED_SHARE: Final = 0.1  # of the whole, since a share may be near 0


def far_off(
    measured: float, predicted: float, unit: str = "", allowed: float | None = None
) -> bool:
    """Return whether a measurement is further from its prediction than its kind allows.

    `allowed` is relative to the prediction, by default a quarter of it. Shares in percent are
    compared in points: `allowed` is relative to 100 %, by default 10 points.
    """
    return _distance(measured, predicted, unit, allowed) > 1


def _distance(measured: float, predicted: float, unit: str, allowed: float | None) -> float:
    """The difference, in multiples of what is allowed; NaN counts as far off."""
    if unit == "%":
        limit = 100 * (_ALLOWED_SHARE if allowed is None else allowed)
    else:
        limit = abs(predicted) * (_ALLOWED if allowed is None else allowed)
    distance = abs(measured - predicted) / limit if limit else float(measured != predicted) * 2
    return distance if distance == distance else float("inf")


def remeasure(
    measure: Callable[[], Result],
    predicted: Numbers,
    *,
    of: Callable[[Result], Numbers] | None = None,
    unit: str = "s",
    allowed: float | None = None,
    attempts: int | None = None,
) -> Result:
    """Call `measure` until what it returns is near `predicted`; return the nearest of its results.

    The measurement is the result, or its first item if it is a tuple, or what `of` finds in it. It
    and `predicted` may also be several numbers, of which the worst counts. `far_off` says what is
    near. There are at most `attempts` calls: 4 by default, 2 in a quick test.
    If none is near, one line for each cell names the load of the machine and the formula's value.

    Raises: ValueError if the numbers of predictions and measurements differ, or if `attempts` is
    less than 1.
    """
    attempts = check_count("remeasure: attempts", attempts or repeats(4, 2))
    wanted, nearest, worst = _listed(predicted), None, (float("inf"), 0.0, 0.0)
    for number in range(attempts):
        result = measure()
        found = _listed(of(result) if of else result[0] if isinstance(result, tuple) else result)  # type: ignore[arg-type]
        if len(found) != len(wanted):
            raise ValueError(
                f"remeasure: {len(found)} numbers were measured and {len(wanted)} are predicted. "
                "Give one prediction for each."
            )
        this = max((_distance(mine, formula, unit, allowed), mine, formula)
                   for mine, formula in zip(found, wanted, strict=True))  # fmt: skip
        if number == 0 or this[0] < worst[0]:
            nearest, worst = result, this
        if worst[0] <= 1:
            return result
    _say(attempts, *(_words(value, unit) for value in worst[1:]))
    return nearest  # type: ignore[return-value]


def load_in_words() -> str:
    """Describe how busy the machine is, as in "load 7.3 on 2 cores"."""
    return f"load {os.getloadavg()[0]:.1f} on {usable_cpus():g} cores"


def _listed(numbers: Numbers) -> list[float]:
    return [float(each) for each in numbers] if isinstance(numbers, Sequence) else [float(numbers)]


def _words(value: float, unit: str) -> str:
    return time_words(value) if unit == "s" else f"{number_words(value)} {unit}".strip()


_said_in: object = None


def _say(attempts: int, measured: str, predicted: str) -> None:
    """Print the line, once for each run of a cell."""
    global _said_in
    cell = running_cell()
    if cell is None or cell != _said_in:
        _said_in = cell
        print(
            f"This machine is too busy to show it ({load_in_words()}): {measured} in the best of "
            f"{attempts} attempts, {predicted} by the formula. Rely on the formula here."
        )
