"""Hatches that tell collectives of one colour apart: the same one for a name in every figure.

    all_reduce [    ]   reduce_scatter [....]   all_gather [\\\\\\]   all_to_all [xxxx]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dtlab.show.lanes import Bar, Lane

__all__ = ["hatches", "look_of"]

_WAITING: Final = "//////"
_COLLECTIVES: Final[Mapping[str, str]] = {
    "all_reduce": "",
    "all_gather": "\\\\\\\\",
    "reduce_scatter": "....",
    "all_to_all": "xxxx",
    "broadcast": "||||",
    "reduce": "----",
    "gather": "++++",
    "scatter": "oo",
}
_OTHER: Final = "**"


def hatches(drawn: Sequence[Lane]) -> dict[str, str]:
    """The hatch of waiting, and of each collective where these lanes have several kinds."""
    names = {_name(bar) for lane in drawn for bar in lane.bars if bar.shade == "collective"}
    known = [*(name for name in _COLLECTIVES if name in names), *sorted(names - set(_COLLECTIVES))]
    marks = {name: _COLLECTIVES.get(name, _OTHER) for name in known} if len(names) > 1 else {}
    return marks | {"waiting": _WAITING}


def look_of(bar: Bar, marks: Mapping[str, str]) -> str:
    """What a bar is drawn as: its shade, or the collective that it is if they are told apart."""
    return _name(bar) if bar.shade == "collective" and _name(bar) in marks else bar.shade


def _name(bar: Bar) -> str:
    return bar.label.split(" ")[0]
