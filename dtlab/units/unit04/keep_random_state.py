"""04/keep_random_state: a second run draws the numbers of the first, and changes no later draws.

first   more   again   after           with a second run ("again")
first   more           after           expected: the program's own numbers do not change
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.units.unit04.recompute import FINISHED

Numbers = list[list[float]]  # of PyTorch's default generator, and of each generator passed in


@dataclass(frozen=True)
class Drawing(Faulty):
    """Calls `fn(*generators)`; draws in a first run and `runs` second runs; the last may raise."""

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    topic: str
    generators: int = 0
    runs: int = 1
    fails: bool = False

    def __str__(self) -> str:
        words = {
            "generators": f"{self.generators} generators passed in",
            "often": f"{self.runs} second runs",
            "error": "an error in the second run",
        }
        return words.get(self.topic, "dropout")

    def advice(self, trouble: str) -> str:
        about_calls = any(word in trouble for word in ("again", "call", "context manager"))
        return _A_FUNCTION if self.topic == "same" and about_calls else _ADVICE.get(self.topic, "")

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return asdict(self) | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished:
            record = _draw(fn, given)
        return record | {"finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (record,) = results
        wanted = _draw(None, self.given(0, 1))
        first, again, after = record["first"], record["again"], record["after"]
        if self.topic == "same":
            if again[0] != first:
                shown = (", ".join(f"{x:.3f}" for x in run[0]) for run in (again[0], first))
                why = _NEXT if again[0][0][:2] == wanted["after"][0][0] else _KEPT
                runs = " and ".join(f"[{numbers}]" for numbers in shown)
                yield "same", f"the second run and the first draw {runs}. {why}"
            if first != wanted["first"]:
                wrong = "the first run draws other numbers than it would without your function."
                yield "after", f"{wrong} {_LOOK}"
            elif after != wanted["after"]:
                why = _REPEATED if after[0] == record["more"] else _PUT_BACK
                told = "after the second run the program draws other numbers than without you."
                yield "after", f"{told} {why}"
            return
        if not record["through"]:
            yield self.topic, "the error does not reach the caller: do not suppress it."
        advice = _ADVICE[self.topic]
        for number in range(self.runs):
            run = f"run {number + 2}"
            rows = zip(again[number], first, after[number], wanted["after"][number], strict=True)
            for place, (got, right, then, right_then) in enumerate(rows):
                name = f"generator {place}" if place else "PyTorch's own generator"
                if got != right:
                    yield self.topic, f"in {run} {name} draws other numbers. {advice}"
                if then != right_then:
                    yield self.topic, f"after {run} {name} continues with other numbers. {advice}"


_A_FUNCTION = "Return a function: each call of it must return a context manager for `with`."
_ADVICE = {
    "generators": "Save and restore the states of all generators.",
    "often": "The saved state must still be there for the next run.",
    "error": "Restore the state in `finally`, so that it is restored after an error, too.",
}
_KEPT = "Do you save the state before the first run, and restore it before the second one draws?"
_NEXT = "The program would draw these next: restore the state that was saved at the call."
_LOOK = "Saving a state must not change it."
_REPEATED = "They repeat the numbers that came after the first run."
_PUT_BACK = "After the second run, restore the state from just before it."


class _Stop(Exception):
    """Ends a second run early, as checkpoints do when backward has all that it needs."""


def _draw(fn: Callable[..., Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the first run, those after it, and those in and after each second run.

    It runs on every rank, and in the judge's process with `fn` None, without second runs.
    `through` says whether the error of the last run propagated, if that run fails.
    """
    import torch

    seed, runs = given["seed"], given["runs"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extra = [torch.Generator().manual_seed(seed + 1 + n) for n in range(given["generators"])]

        def draw(count: int) -> Numbers:
            drawn = [torch.rand(count), *(torch.rand(count, generator=each) for each in extra)]
            return [numbers.tolist() for numbers in drawn]

        draw(3)  # a program draws some numbers before
        again: Any = fn(*extra) if fn is not None else None
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
    """Trials with one second run, several generators, three second runs, and an error."""
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
            rule("after", 1, "the program's later draws are those without a second run", "same"),
            rule("generators", 1, "the same for generators passed in", *_FIRST),
            rule("often", 1, "right for several second runs", *_FIRST),
            rule("error", 1, "an error reaches the caller, and the state is restored", *_FIRST),
        ),
    ),
    reference="dtlab.training.activation.Surroundings",
)
