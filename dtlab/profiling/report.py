"""The report of a diagnosis: the table of a step's time, its causes, and what to try."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from dtlab.profiling.replay import COMPUTING, EXPOSED, INPUT, LAUNCH, OTHER, WAITING

__all__ = [
    "NAMES",
    "Cause",
    "Diagnosis",
    "about",
    "as_bytes",
    "listed",
    "named",
    "percent",
    "secs",
]

FORMAT = 1  # is increased when a key of the JSON changes or is removed
_WIDTH: Final = 98  # characters
NAMES: Final = ("compute", "input", "launch gaps", "other", "waiting", "communication")
_ORDER: Final = (COMPUTING, INPUT, WAITING, EXPOSED, LAUNCH, OTHER)


@dataclass(frozen=True)
class Cause:
    """Something that makes steps longer.

    `seconds` is how much shorter a step would be without it, and `share` the same as a share of
    the step. `seconds_last` is how much shorter it would be if all other causes were removed
    already: more than `seconds` if another cause hides this one. `ranks` are the ranks that cause
    it; empty if all do. `advice` lists what to try, the most promising first.
    """

    kind: str
    seconds: float
    share: float
    seconds_last: float
    ranks: tuple[int, ...]
    message: str
    advice: tuple[str, ...]

    @property
    def cost(self) -> float:
        """The larger one of `seconds` and `seconds_last`."""
        return max(self.seconds, self.seconds_last)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Where the time of a step went; `print` it, or show it at the end of a notebook's cell.

    `seconds[rank]` are the seconds per step of each kind of time; they add up to the rank's step.
    Without steps they are those of the whole trace.
    `causes` are sorted by the seconds that a step would save without them. `verdict` is the kind
    of the first one, if it stands out, or "compute-bound", "waiting in turn" or "unmarked". It is
    "kernels not recorded", "file incomplete" or "times unreadable" if the trace lacks what another
    verdict needs.
    `steps` is the number of steps that count, 0 if none were found; the first and the slowest are
    left out if there are enough.
    """

    verdict: str
    message: str
    advice: tuple[str, ...]
    causes: tuple[Cause, ...]
    seconds: dict[int, dict[str, float]]
    world_size: int
    steps: int
    steps_left_out: int
    step_seconds: float
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(_lines(self))

    def as_json(self) -> str:
        """Return one JSON object; keys name their units, and times are seconds per step."""
        content = {"format": FORMAT, **asdict(self)}
        content["ranks"] = [
            {"rank": rank, **{f"{kind.replace(' ', '_')}_seconds": each[kind] for kind in each}}
            for rank, each in content.pop("seconds").items()
        ]
        return json.dumps(content, indent=2)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    step = diagnosis.step_seconds
    what = "a step" if diagnosis.steps else "the job"
    ranks = f"{diagnosis.world_size} rank{'s' * (diagnosis.world_size > 1)}"
    if diagnosis.steps:
        counted = f"{diagnosis.steps} step{'s' * (diagnosis.steps > 1)} of {secs(step)}"
        without = ["", " (without the first)", " (without the first and the slowest)"]
        left_out = without[diagnosis.steps_left_out]
        yield f"{ranks}, {counted}{left_out}. Where a step went, in {_table_unit(step)[0]}:"
    else:
        yield f"{ranks}, {secs(step)}. Where the time went, in {_table_unit(step)[0]}:"
    yield ""
    yield from _table(diagnosis)
    yield ""
    for note in diagnosis.notes:
        yield from _wrapped(f"Note: {note}", "      ")
    if diagnosis.notes:
        yield ""
    found = [cause for cause in diagnosis.causes if cause.kind == diagnosis.verdict]
    for cause in found:
        yield from _cause_lines("Likely cause", cause, step, what)
    if not found:
        yield from _wrapped(f"Result: {diagnosis.verdict}. {diagnosis.message}")
        yield from _tries(diagnosis.advice)
    for cause in diagnosis.causes:
        if cause not in found:
            yield from _cause_lines("Also", cause, step, what)


def _cause_lines(title: str, cause: Cause, step: float, what: str) -> Iterator[str]:
    yield from _wrapped(f"{title}: {cause.kind}. {cause.message}")
    shorter = f"{secs(cause.seconds)} ({percent(cause.share)}) shorter"
    saves = f"Without it, {what} would be {shorter}"
    if cause.seconds_last > 1.5 * cause.seconds + 0.02 * step:
        saves += f"; {secs(cause.seconds_last)} if the other causes were gone too"
    yield from _wrapped(f"  {saves}.")
    yield from _tries(cause.advice)


def _tries(advice: Sequence[str]) -> Iterator[str]:
    for each in advice:
        yield from _wrapped(f"  try: {each}", "       ")


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(diagnosis: Diagnosis) -> Iterator[str]:
    shown = [
        kind for kind in (NAMES[number] for number in _ORDER)
        if kind != "launch gaps" or any(each[kind] for each in diagnosis.seconds.values())
    ]  # fmt: skip
    _, factor = _table_unit(diagnosis.step_seconds)
    yield " " * 9 + "".join(f"{kind:>{len(kind) + 3}}" for kind in shown)
    for rank, each in diagnosis.seconds.items():
        yield _row(f"rank {rank}", shown, each, factor)
    total = {kind: np.mean([each[kind] for each in diagnosis.seconds.values()]) for kind in shown}
    if len(diagnosis.seconds) > 1:
        yield _row("mean", shown, total, factor)
    shares = {kind: total[kind] / diagnosis.step_seconds * 100 for kind in shown}
    yield _row("share", shown, shares, 1, " %")
    yield ""
    yield "waiting: another rank has not arrived yet. communication: all ranks have arrived, and"
    yield "this one computes nothing until the operation ends. input: waits for the next batch."


def _row(
    head: str, kinds: Sequence[str], values: dict[str, Any], factor: float, unit: str = ""
) -> str:
    cells = ""
    for kind in kinds:
        number = values[kind] * factor
        text = f"{number:.0f}{unit}" if unit else f"{number:.1f}"
        cells += f"{text:>{len(kind) + 3}}"
    return f"{head:<9}{cells}"


def _unit(seconds: float) -> tuple[str, float]:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return unit, factor
    return "µs", 1e6


def _table_unit(seconds: float) -> tuple[str, float]:
    """A unit in which one decimal is enough for the parts of a step."""
    return _unit(seconds / 10)


def secs(seconds: float, beside: float = 0.0) -> str:
    """The seconds in a unit that suits them, or else the larger value `beside` them."""
    unit, factor = _unit(beside or seconds) if seconds else ("ms", 1e3)
    number = round(seconds * factor, 3)
    return f"{number:.3g} {unit}" if number < 999.5 else f"{seconds:.0f} s"


def percent(share: float) -> str:
    """A share, 0 to 1, as percent."""
    return f"{share * 100:.0f} %"


def as_bytes(count: float) -> str:
    """Bytes in GB, MB or kB, powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def about(number: float) -> str:
    """A mean count as a whole number: "3", "about 3", "fewer than one"."""
    if number < 0.95:
        return "fewer than one"
    whole = f"{number:.0f}"
    return whole if abs(number - round(number)) < 0.005 else f"about {whole}"


def named(ranks: Sequence[int]) -> str:
    """The beginning of a sentence: "Rank 3", "Ranks 0 and 2"."""
    return f"Rank{'s' * (len(ranks) > 1)} {listed(ranks)}"


def listed(ranks: Sequence[int]) -> str:
    """The ranks in a sentence: "0, 1 and 3"."""
    if len(ranks) < 2:
        return "".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
