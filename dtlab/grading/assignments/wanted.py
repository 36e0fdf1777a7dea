"""What an assignment asks for: levels and parts of one unit, and their points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dtlab.errors import DtlabError
from dtlab.grading.parts import Part, known_parts

__all__ = ["Wanted", "listed", "wanted"]


@dataclass(frozen=True)
class Wanted:
    """What an assignment asks for: the parts of one unit, in order, and their points."""

    unit: str
    weights: Mapping[str, float]

    @property
    def parts(self) -> list[Part]:
        """The parts that are asked for."""
        return [part for part in known_parts() if part.name in self.weights]

    @property
    def levels(self) -> list[int]:
        """The levels that they are of."""
        return sorted({part.level for part in self.parts})

    @property
    def points(self) -> float:
        """Points that can be had."""
        return sum(self.weights.values())


def wanted(
    unit: str, levels: str | None = None, parts: str | None = None, points: str | None = None
) -> Wanted:
    """Reads what to ask for of the unit "01": "1,2", "01/step,01/results" and "01/step=12".

    Without `levels` and `parts` all of the unit; without `points` what the checks count. Raises
    `DtlabError` for names that are not known, and for what does not fit together.
    """
    known = {part.name: part for part in known_parts() if part.unit == unit}
    every = sorted({part.level for part in known.values()})
    chosen = [_level(word, every) for word in _words(levels)] or every
    named = {_part(word, known).name for word in _words(parts)}
    for part in (known[name] for name in sorted(named)):
        if part.level not in chosen:
            raise DtlabError(
                f"part {part.name} is of level {part.level}, and --levels {levels} leaves that "
                f"out. Add level {part.level}, or leave the part out."
            )
    asked = [
        part
        for part in known.values()
        if part.level in chosen and (not named or part.name in named)
    ]
    for level in chosen if levels else ():
        if all(part.level != level for part in asked):
            raise DtlabError(
                f"--levels has level {level}, and --parts none of its parts. Leave the level out, "
                f"or name some: {', '.join(p.name for p in known.values() if p.level == level)}."
            )
    return Wanted(
        unit, {part.name: part.points for part in asked} | _weights(points, known, asked)
    )


def listed(unit: str) -> list[str]:
    """The parts of a unit, a line for each: name, level, points, minutes, title."""
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
    """The part with this name, which may lack its unit."""
    unit = next(iter(known)).partition("/")[0]
    name = word if "/" in word else f"{unit}/{word}"
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise DtlabError(
        f"unit {unit} has no part {word!r}.{guess} Its parts: {', '.join(known)}. An assignment "
        "is of one unit."
    )


def _weights(
    text: str | None, known: Mapping[str, Part], asked: Sequence[Part]
) -> dict[str, float]:
    """The weights in "01/step=12,01/results=4"."""
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
                f"{part.name}=20."
            )
    return weights
