"""04/keep_random_state: a second run draws the numbers of the first, and changes no others.

first   more   again   after           with second runs
first   more           after           wanted: the program's own are the same without them
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial, drawn_seed
from dtlab.grading.parts import Part
from dtlab.units.unit04.recompute import FINISHED

Numbers = list[list[float]]  # of PyTorch's own generator, and of each that is handed over


@dataclass(frozen=True)
class Drawing(Faulty):
    """`fn(*generators)`, then first run, and `runs` second ones; the last may end in an error."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    topic: str
    generators: int = 0
    runs: int = 1
    fails: bool = False

    def __str__(self) -> str:
        words = {
            "generators": f"{self.generators} generators handed over",
            "often": f"{self.runs} second runs",
            "error": "an error in the second run",
        }
        return words.get(self.topic, "dropout")

    def advice(self, trouble: str) -> str:
        about_calls = self.topic == "same" and ("again" in trouble or "call" in trouble)
        return _A_FUNCTION if about_calls else _ADVICE.get(self.topic, "")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return asdict(self) | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = _draw(fn, given)
        return seen | {"finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (seen,) = results
        wanted = _draw(None, self.given(0, 1))
        first, again, after = seen["first"], seen["again"], seen["after"]
        if self.topic == "same":
            if again[0] != first:
                shown = (", ".join(f"{one:.3f}" for one in run[0]) for run in (again[0], first))
                why = _NEXT if again[0][0][:2] == wanted["after"][0][0] else _KEPT
                runs = " and ".join(f"[{one}]" for one in shown)
                yield "same", f"the second run and the first draw {runs}. {why}"
            if first != wanted["first"]:
                wrong = "the first run draws other numbers than it would without you."
                yield "after", f"{wrong} {_LOOK}"
            elif after != wanted["after"]:
                why = _REPEATED if after[0] == seen["more"] else _PUT_BACK
                yield "after", f"after the second run the program draws other numbers. {why}"
            return
        if not seen["through"]:
            yield self.topic, "the error does not come through: do not suppress it."
        advice = _ADVICE[self.topic]
        for number in range(self.runs):
            run = f"run {number + 2}"
            rows = zip(again[number], first, after[number], wanted["after"][number], strict=True)
            for place, (got, right, then, right_then) in enumerate(rows):
                name = f"generator {place}" if place else "PyTorch's own generator"
                if got != right:
                    yield self.topic, f"in {run} {name} draws other numbers. {advice}"
                if then != right_then:
                    yield self.topic, f"after {run} {name} goes on with other numbers. {advice}"


_A_FUNCTION = "Return a function: each call of it gives something for `with`."
_ADVICE = {
    "generators": "Keep and put back the states of all generators.",
    "often": "What is kept has to be there for the next time too.",
    "error": "What is put back in `finally` is put back after an error, too.",
}
_KEPT = "Is the state kept before the first run, and put back before the second one draws?"
_NEXT = "The program would draw these next: put back the state that was kept at the call."
_LOOK = "To keep a state is to look at it, not to set it."
_REPEATED = "They are those that came after the first run, once more."
_PUT_BACK = "Put back, after the second run, the state from just before it."


class _Stop(Exception):
    """Ends a second run early, once backward has all that it needs."""


def _draw(fn: Callable[..., Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """What is drawn in the first run, after it, in each second run and after each of those.

    It runs on every rank, and in the judge's process with no `fn`: then there are no second runs.
    `through` says whether the error of the last one came through, if it fails.
    """
    import torch

    seed, runs = given["seed"], given["runs"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        own = [torch.Generator().manual_seed(seed + 1 + n) for n in range(given["generators"])]

        def draw(count: int) -> Numbers:
            drawn = [torch.rand(count), *(torch.rand(count, generator=one) for one in own)]
            return [one.tolist() for one in drawn]

        draw(3)  # the program has drawn something before
        again: Any = fn(*own) if fn is not None else None
        first, more = draw(4), draw(2)
        second, after, through = [], [], not given["fails"]
        for number in range(runs):
            drawn = first
            try:
                if fn is not None:
                    with again():
                        drawn = draw(4)
                        if given["fails"] and number == runs - 1:
                            raise _Stop
            except _Stop:
                through = True
            second.append(drawn)
            after.append(draw(2 + number))
    return {"first": first, "more": more, "again": second, "after": after, "through": through}


def _trials(seed: int) -> list[Trial]:
    """A second run; two or three generators; three second runs; one that ends in an error."""
    draw = random.Random(seed)

    def case(topic: str, **more: Any) -> Trial:
        return Trial(1, [Drawing(draw.randrange(10**6), topic, **more)])

    return [
        case("same"),
        case("generators", generators=draw.randint(2, 3)),
        case("often", runs=3),
        case("error", fails=True),
    ]


_FIRST = "same", "after"

PART = Part(
    name="04/keep_random_state",
    level=2,
    title="The same random numbers",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("same", 1, "the second run draws the numbers of the first"),
            rule("after", 1, "the program's own numbers go on as without a second run", "same"),
            rule("generators", 1, "the same for generators that it is given", *_FIRST),
            rule("often", 1, "there may be several second runs", *_FIRST),
            rule("error", 1, "an error comes out, and numbers go on", *_FIRST),
        ),
    ),
    reference="dtlab.training.activation.Surroundings",
)
