"""00/best_ranks: predict the fastest number of ranks from a few measured times (extra)."""

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

_NEAR = 1e-3  # relative tolerance of a time


_ADVICE = {
    "best": "Fit three numbers to the times: T(N) = a + b/N + c N. Then try every N.",
    "time": "Evaluate the fitted curve at that number of ranks.",
    "edges": "The curve may fall all the way to the largest number of ranks, or rise from one "
    "rank on.",
}


@dataclass(frozen=True)
class Curve(Faulty):
    """A call of `best_ranks(times, most)`, with T(N) = serial + work / N + each x N in seconds.

    `shown` is the criterion that this case tests.
    """

    alone = True
    topic = "best"

    serial: float
    work: float
    each: float
    sizes: tuple[int, ...]
    most: int
    shown: str

    def __str__(self) -> str:
        return f"times on {', '.join(map(str, self.sizes))} ranks, at most {self.most}"

    def seconds(self, ranks: int) -> float:
        """T(N), the time on N ranks."""
        return self.serial + self.work / ranks + self.each * ranks

    def given(self, rank: int, world_size: int) -> Any:
        return [[n, self.seconds(n)] for n in self.sizes], self.most

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        pairs, most = given
        answer = fn(dict(pairs), most)
        try:
            ranks, seconds = answer
            return {"ranks": float(ranks), "seconds": float(seconds)}
        except (TypeError, ValueError):
            return {"form": "None" if answer is None else f"a {type(answer).__name__}"}

    def opened(self, result: Any) -> Noted:
        if "form" in result:
            return Noted({"form": str(result["form"])[:60]})
        return Noted({name: float(result[name]) for name in ("ranks", "seconds")})

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (answer,), best = results, min(range(1, self.most + 1), key=self.seconds)
        ranks, seconds, right = answer.get("ranks"), answer.get("seconds"), self.seconds(best)
        if answer.get("form"):
            message = f"best_ranks returns {answer['form']}. Return a pair: (ranks, seconds)."
            yield self.shown, message
            if self.shown == "best":
                yield "form", message
        elif self.shown != "time" and ranks != best:
            message = f"the run is fastest on {counted(best, 'rank')}, and you return {ranks:g}."
            yield self.shown, f"{message}\n{_ADVICE[self.shown]}"
        elif self.shown == "time" and not abs(seconds - right) <= _NEAR * right:
            message = f"the least time is {right:.4f} s, and you return {seconds:.4f} s."
            yield "time", f"{message}\n{_ADVICE['time']}"


def _trials(seed: int) -> list[Trial]:
    draw = random.Random(seed)

    def curve(topic: str, *, each: float | None = None, most: int = 64) -> Curve:
        work = draw.uniform(0.5, 2.0)
        slope = work / draw.uniform(9.3, 38.0) ** 2 if each is None else each
        sizes = draw.choice(((1, 2, 4, 8), (1, 2, 3, 4, 6), (2, 4, 8)))
        return Curve(draw.uniform(0.01, 0.1), work, slope, sizes, most, topic)

    best = [curve("best") for _ in range(6)]
    times = [Curve(c.serial, c.work, c.each, c.sizes, c.most, "time") for c in best]
    edges = [curve("edges", most=draw.randint(4, 7)), curve("edges", each=0.0)]
    edges += [Curve(0.02, 0.01, 0.05, (1, 2, 4), 16, "edges")]
    return [Trial(1, cases) for cases in (best, times, edges)]


PART = Part(
    name="00/best_ranks",
    level=2,
    title="When more ranks no longer help",
    minutes=15,
    difficulty=2,
    stretch=True,
    check=Check(
        trials=_trials,
        rules=(
            rule("best", 3, "the fastest number of ranks"),
            rule("time", 1, "the predicted time on that number of ranks", "form"),
            rule("edges", 2, "right even if one rank or the most ranks are fastest", "form"),
        ),
    ),
)
