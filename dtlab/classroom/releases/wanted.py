"""Parses the contents of an assignment: levels and parts of some units, and their points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dtlab.checks.course import level_file
from dtlab.checks.parts import Part, known_parts
from dtlab.classroom.releases.cutting import extra_points
from dtlab.errors import DtlabError

__all__ = ["Wanted", "listed", "wanted"]


@dataclass(frozen=True)
class Wanted:
    """The contents of an assignment: units, their chosen parts in order, and the points.

    With `old_names` its notebooks are named as an earlier dtlab named them.
    """

    units: tuple[str, ...]
    weights: Mapping[str, float]
    old_names: bool = False

    @property
    def parts(self) -> list[Part]:
        """The chosen parts."""
        return [part for part in known_parts() if part.name in self.weights]

    def levels(self, unit: str) -> list[int]:
        """Returns the levels of a unit's chosen parts."""
        return sorted({part.level for part in self.parts if part.unit == unit})

    def file(self, unit: str, level: int) -> str:
        """Names the notebook: "01_level_2.ipynb"."""
        if self.old_names:
            return f"{unit}-" * (len(self.units) > 1) + f"level-{level}.ipynb"
        return level_file(unit, level)

    @property
    def points(self) -> float:
        """The highest possible score."""
        return sum(self.weights.values())

    @property
    def extra(self) -> float:
        """The points of extra parts, which count towards the highest possible score too."""
        return extra_points(self.parts, self.weights)


def wanted(
    units: Sequence[str],
    levels: str | None = None,
    parts: str | None = None,
    points: str | None = None,
) -> Wanted:
    """Parses levels, parts and points of units: "1,2", "01/step,01/results" and "01/step=12".

    Without `levels` and `parts` it chooses all; without `points` it uses the points of the checks.
    Raises `DtlabError` for unknown names and for arguments that contradict each other.
    """
    known = {part.name: part for part in known_parts() if part.unit in units}
    every = sorted({part.level for part in known.values()})
    chosen = [_level(word, every) for word in _words(levels)] or every
    named = {_part(word, known).name for word in _words(parts)}
    for part in (known[name] for name in sorted(named)):
        if part.level not in chosen:
            raise DtlabError(
                f"part {part.name} is of level {part.level}, but --levels {levels} omits this "
                f"level. Add level {part.level}, or leave the part out."
            )
    asked = [
        part
        for part in known.values()
        if part.level in chosen and (not named or part.name in named)
    ]
    for level in chosen if levels else ():
        if all(part.level != level for part in asked):
            raise DtlabError(
                f"--levels names level {level}, but --parts none of its parts. Leave the level "
                "out, or name some: "
                f"{', '.join(part.name for part in known.values() if part.level == level)}."
            )
    for unit in units:
        if all(part.unit != unit for part in asked):
            raise DtlabError(
                f"no part of unit {unit} is chosen: leave it out, or name parts with --levels or "
                "--parts."
            )
    return Wanted(
        tuple(units), {part.name: part.points for part in asked} | _weights(points, known, asked)
    )


def listed(unit: str) -> list[str]:
    """Returns a line for each part of a unit: name, level, points, minutes, title.

    Raises `DtlabError` for an unknown unit.
    """
    parts = [part for part in known_parts() if part.unit == unit]
    if not parts:
        units = sorted({part.unit for part in known_parts()})
        raise DtlabError(f"there is no unit {unit!r}. There are: {', '.join(units)}.")
    width = max(len(part.name) for part in parts)
    return [
        f"{part.name:<{width}}  level {part.level}  {part.points:>3g} points  "
        f"{part.minutes:>3} minutes  {part.title}"
        for part in parts
    ]


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _level(word: str, every: Sequence[int]) -> int:
    if word in map(str, every):
        return int(word)
    raise DtlabError(
        f"--levels: there is no level {word!r}. There are {', '.join(map(str, every))}; write 1,2."
    )


def _part(word: str, known: Mapping[str, Part]) -> Part:
    """Returns the part with this name, which may lack its unit."""
    for name in known:
        if word in (name, name.partition("/")[2]):
            return known[name]
    units = sorted({part.unit for part in known.values()})
    close = get_close_matches(word if "/" in word else f"{units[0]}/{word}", known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise DtlabError(
        f"unit {' and '.join(units)} has no part {word!r}.{guess} Its parts: {', '.join(known)}. "
        "For parts of several units, name the units, as in: dtlab release 01,02."
    )


def _weights(
    text: str | None, known: Mapping[str, Part], asked: Sequence[Part]
) -> dict[str, float]:
    """Parses the points in "01/step=12,01/results=4"."""
    weights: dict[str, float] = {}
    for word in _words(text):
        name, _, number = word.partition("=")
        part = _part(name.strip(), known)
        if part not in asked:
            raise DtlabError(f"--points names {part.name}, which is not in the assignment.")
        try:
            weights[part.name] = float(number)
        except ValueError:
            weights[part.name] = math.nan
        if not 0 <= weights[part.name] < math.inf:
            raise DtlabError(
                f"--points {word}: {number.strip()!r} is no number of points. Write 0 or more, as "
                f"in {part.name}=20."
            )
    return weights
