"""What ranks do in 04/keep_random_state: draw numbers, before, within and after second runs.

first   more   again   after           with second runs
first   more           after           wanted: the program's own are the same without them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Case, drawn_seed
from dtlab.units.unit04.checkpointing_runs import FINISHED

__all__ = ["Drawing", "Drawn", "Numbers"]

Numbers = list[list[float]]  # of PyTorch's own generator, and of each that is handed over


@dataclass(frozen=True)
class Drawn:
    """What a rank drew, step by step.

    `first` before any second run, `more` after it; then in each second run `again`, and `after`
    it. `through` says whether an error in a second run came through.
    """

    first: Numbers
    more: Numbers
    again: list[Numbers]
    after: list[Numbers]
    through: bool
    finished: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Drawing(Case):
    """`fn(*generators)`, then first run, and `runs` second ones; the last may end in an error."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    generators: int = 0
    runs: int = 1
    fails: bool = False
    topic: str = "same"

    def __str__(self) -> str:
        handed = f"{self.generators} generator{'s' * (self.generators != 1)} handed over"
        words = [handed] if self.generators else []
        words += [f"{self.runs} second runs"] if self.runs > 1 else []
        words += ["an error in the second run"] if self.fails else []
        return ", ".join(words) or "dropout"

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        named = {name: getattr(self, name) for name in ("generators", "runs", "fails")}
        return {"seed": drawn_seed(self.seed), **named}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = _draw(fn, **given)
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:
        """See `Case`."""

        def plain(numbers: Any) -> Numbers:
            return [[float(one) for one in row] for row in numbers]

        first, more = plain(result["first"]), plain(result["more"])
        again, after = ([plain(one) for one in result[name]] for name in ("again", "after"))
        if len(again) != self.runs or len(after) != self.runs:
            raise ValueError("not as many runs as there were")
        through = bool(result["through"])
        return Drawn(first, more, again, after, through, frozenset(map(str, result["finished"])))

    @cached_property
    def wanted(self) -> Drawn:
        """What is drawn where no second run disturbs anybody."""
        return Drawn(**_draw(None, **self.given(0, 1)))

    def mistake(self, results: Sequence[Any]) -> str:
        """See `Case`; what is wrong is told by the judges, each its own."""
        return ""


def _draw(
    fn: Callable[..., Any] | None, seed: int, generators: int, runs: int, fails: bool
) -> dict[str, Any]:
    """Runs on every rank, and in the judge's process with no `fn`: nobody draws again then."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        own = [torch.Generator().manual_seed(seed + 1 + place) for place in range(generators)]

        def draw(count: int) -> Numbers:
            drawn = [torch.rand(count), *(torch.rand(count, generator=one) for one in own)]
            return [one.tolist() for one in drawn]

        draw(3)  # the program has drawn something before
        again = fn(*own) if fn is not None else None
        first, more = draw(4), draw(2)
        second, after, through = [], [], not fails
        for number in range(runs):
            failing, drawn = fails and number == runs - 1, first
            if fn is not None:
                drawn, came = _again(again, draw, failing)
                through = through or (failing and came)
            second.append(drawn)
            after.append(draw(2 + number))
    return {"first": first, "more": more, "again": second, "after": after, "through": through}


def _again(again: Any, draw: Callable[[int], Numbers], failing: bool) -> tuple[Numbers, bool]:
    """What is drawn in a second run; and whether its error came through, if it fails."""
    drawn: Numbers = []
    try:
        with again():
            drawn = draw(4)
            if failing:
                raise _Stop
    except _Stop:
        return drawn, True
    return drawn, False


class _Stop(Exception):
    """Ends a second run: as where all is there that backward needs."""
