"""00/best_ranks: how many ranks to take, from a few measured times (extra)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part

__all__ = ["PART", "Curve"]

_NEAR = 1e-3


@dataclass(frozen=True)
class Curve(Case):
    """`best_ranks(times, most)` where T(N) = serial + work / N + each x N, in seconds."""

    alone = True

    serial: float
    work: float
    each: float
    sizes: tuple[int, ...]
    most: int
    topic: str

    def __str__(self) -> str:
        return f"times on {', '.join(map(str, self.sizes))} ranks, at most {self.most}"

    def seconds(self, ranks: int) -> float:
        """T(N)."""
        return self.serial + self.work / ranks + self.each * ranks

    @property
    def right(self) -> tuple[int, float]:
        """The number of ranks with the least time, and that time."""
        best = min(range(1, self.most + 1), key=self.seconds)
        return best, self.seconds(best)

    def given(self, rank: int, world_size: int) -> Any:
        return [[n, self.seconds(n)] for n in self.sizes], self.most

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        pairs, most = given
        found = fn(dict(pairs), most)
        try:
            ranks, seconds = found
            return [float(ranks), float(seconds)]
        except (TypeError, ValueError):
            return f"returns {'None' if found is None else 'a ' + type(found).__name__}"

    def opened(self, result: Any) -> tuple[float, float] | str:
        return result[:60] if isinstance(result, str) else (float(result[0]), float(result[1]))

    def mistake(self, results: Sequence[tuple[float, float] | str]) -> str:
        found, (best, seconds) = results[0], self.right
        if isinstance(found, str):
            return f"best_ranks {found}. Return a pair: a number of ranks, and seconds."
        if self.topic == "time":
            if not abs(found[1] - seconds) <= _NEAR * seconds:
                return f"the least time is {seconds:.4f} s, and you have {found[1]:.4f} s."
        elif found[0] != best:
            return f"the time is least on {best} ranks, and you say {found[0]:g}."
        return ""


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)

    def curve(topic: str, *, each: float | None = None, most: int = 64) -> Curve:
        work = draw.uniform(0.5, 2.0)
        slope = work / draw.uniform(9.3, 38.0) ** 2 if each is None else each
        sizes = draw.choice(((1, 2, 4, 8), (1, 2, 3, 4, 6), (2, 4, 8)))
        return Curve(draw.uniform(0.01, 0.1), work, slope, sizes, most, topic)

    best = [curve("best") for _ in range(6)]
    times = [Curve(one.serial, one.work, one.each, one.sizes, one.most, "time") for one in best]
    edges = [curve("edges", most=draw.randint(4, 7)), curve("edges", each=0.0)]
    edges += [Curve(0.02, 0.01, 0.05, (1, 2, 4), 16, "edges")]
    return [Trial(1, cases) for cases in (best, times, edges)]


_ADVICE = {
    "best": "Fit three numbers to the times: T(N) = a + b/N + c N. Then try every N.",
    "time": "What does the fitted curve say for that number of ranks?",
    "edges": "The curve may fall up to the most ranks there are, or rise from the first on.",
}


def _judge(topic: str, right: str) -> Judge:
    def judge(seen: Seen) -> Verdict:
        broken = next((one.trouble for one in seen if one.error is not None), "")
        formless = broken or any(isinstance(r[0], str) for r in seen[0].results)
        if formless and topic != "best":
            return blocked("judged once it returns a pair")
        if broken:
            return lost(broken)
        trials = of_topic(seen, topic)
        if not trials:
            return blocked("judged once what is tried before it is right")
        if trials[0].mistakes:
            return lost(f"{trials[0].mistakes[0]}\n{_ADVICE[topic]}")
        return ok(right)

    return judge


PART = Part(
    name="00/best_ranks",
    level=2,
    title="Where more ranks stop paying",
    minutes=15,
    difficulty=2,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            Rule("best", 3, _judge("best", "the number of ranks that is fastest")),
            Rule("time", 1, _judge("time", "and its time, which nobody measured")),
            Rule("edges", 2, _judge("edges", "also where the best is the first or the last")),
        ),
    ),
)
