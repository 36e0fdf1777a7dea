"""04/update_scale: the scale goes up after good steps in a row, and down at each overflow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part

__all__ = ["PART", "Updating", "next_scale"]

Row = tuple[float, int, bool, int]  # scale, good steps in a row, overflow, growth interval
Pair = tuple[float, int]  # scale and good steps afterwards


def next_scale(scale: float, good_steps: int, overflow: bool, interval: int) -> Pair:
    """What is right."""
    if overflow:
        return scale / 2, 0
    return (2 * scale, 0) if good_steps + 1 == interval else (scale, good_steps + 1)


@dataclass(frozen=True)
class Updating(Case):
    """`fn(scale, good_steps, overflow, growth_interval)` for each of the rows."""

    rows: tuple[Row, ...]
    topic: str

    def __str__(self) -> str:
        return f"{len(self.rows)} steps"

    def given(self, rank: int, world_size: int) -> list[list[Any]]:
        return [list(row) for row in self.rows]

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: list[list[Any]]) -> list[Any]:
        results: list[Any] = []
        for row in given:
            returned = fn(*row)
            try:
                scale, good_steps = returned
                results.append([float(scale), float(good_steps)])
            except (TypeError, ValueError):
                results.append("None" if returned is None else f"a {type(returned).__name__}")
        return results

    def opened(self, result: Any) -> list[Pair | str]:
        if len(result) != len(self.rows):
            raise ValueError("not as many as asked for")
        return [
            one[:60] if isinstance(one, str) else (float(one[0]), int(one[1])) for one in result
        ]

    def mistake(self, results: Sequence[list[Pair | str]]) -> str:
        """See `Case`: it is for the judges to say."""
        return ""


# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Overflows; good steps within an interval; the one that ends it; a whole run."""
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
    topics = {"overflow": overflow, "within": within, "end": end}
    return [Trial(1, [Updating(tuple(rows), topic)]) for topic, rows in topics.items()]


# Judges -----------------------------------------------------------------------------------------


def _calls(seen: Seen, *topics: str) -> Iterator[tuple[str, Row, Pair]]:
    """Calls in words, with what was given and what came back."""
    for topic in topics:
        for one in of_topic(seen, topic):
            for case, results in zip(one.trial.cases, one.results, strict=False):
                assert isinstance(case, Updating)
                for row, pair in zip(case.rows, results[0], strict=True):
                    scale, good, overflow, interval = row
                    words = f"update_scale({scale:g}, {good}, {overflow}, {interval})"
                    yield words, row, pair


def _form(seen: Seen) -> str:
    """Why nothing can be judged: an error, or something else than two numbers."""
    for one in seen:
        if one.error is not None:
            return one.trouble
    for words, _, pair in _calls(seen, "overflow", "within", "end"):
        if isinstance(pair, str):
            return f"{words} returns {pair}, and not a pair: the scale and the good steps."
    return ""


def _about(
    which: int, topics: Sequence[str], right: str, advise: Callable[[Row, Pair], str]
) -> Judge:
    """Judges the scale (0) or the good steps (1) of the calls of some topics."""

    def judge(seen: Seen) -> Verdict:
        if _form(seen):
            return blocked("judged once there are two numbers")
        for words, row, pair in _calls(seen, *topics):
            want = next_scale(*row)
            if pair[which] != want[which]:
                name = ("a scale of", "good steps:")[which]
                said = f"{words} gives {name} {pair[which]:g}, and not {want[which]:g}."
                return lost(f"{said} {advise(row, pair)}".rstrip())
        return ok(right)

    return judge


def _on_overflow(row: Row, pair: Pair) -> str:
    scale, (now, _) = row[0], pair
    if now > scale:
        return "An overflow says that the scale is too large already."
    if now == scale:
        return "With the same scale the next step would overflow too."
    return "It is halved."


def _judge_backoff(seen: Seen) -> Verdict:
    if _form(seen):
        return lost(_form(seen))
    return _about(0, ["overflow"], "an overflow halves the scale", _on_overflow)(seen)


def _on_growth(row: Row, pair: Pair) -> str:
    scale, good, _, interval = row
    if good + 1 < interval and pair[0] != scale:
        return f"With this step there are {good + 1} good ones in a row; {interval} are wanted."
    if pair[0] == scale:
        return f"With this step there are {interval} good ones in a row."
    return "It is doubled."


_judge_growth = _about(
    0,
    ["within", "end"],
    "growth_interval good steps in a row double it, and fewer leave it alone",
    _on_growth,
)
_judge_reset = _about(
    1,
    ["overflow"],
    "after an overflow the count begins anew",
    lambda row, pair: "Good steps count in a row: an overflow ends the row.",
)


def _on_count(row: Row, pair: Pair) -> str:
    if row[1] + 1 == row[3]:
        return "The scale has just grown: the next growth takes as many good steps again."
    return "This step was a good one too."


_judge_count = _about(
    1, ["within", "end"], "good steps are counted, and anew after a growth", _on_count
)


PART = Part(
    name="04/update_scale",
    level=2,
    title="A scale that finds its level",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule("backoff", 2, _judge_backoff),
            Rule("reset", 1, _judge_reset),
            Rule("growth", 2, _judge_growth),
            Rule("count", 1, _judge_count),
        ),
    ),
)
