"""04/keep_random_state: a second run draws the numbers of the first, and nobody else notices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial, drawn_seed
from dtlab.grading.parts import Part
from dtlab.units.unit04.recompute import FINISHED

# What ranks do in 04/keep_random_state: draw numbers, before, within and after second runs -------
#
# first   more   again   after           with second runs
# first   more           after           wanted: the program's own are the same without them

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
        named = {name: getattr(self, name) for name in ("generators", "runs", "fails")}
        return {"seed": drawn_seed(self.seed), **named}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        with finished_calls(*FINISHED, refuse=True) as finished:
            seen = _draw(fn, **given)
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Any:

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


# The part ----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """A second run; two generators; three second runs; one that ends in an error."""
    draw = random.Random(seed)

    def case(topic: str, **more: Any) -> Trial:
        return Trial(1, [Drawing(draw.randrange(10**6), topic=topic, **more)])

    return [
        case("same"),
        case("generators", generators=draw.randint(2, 3)),
        case("often", runs=3),
        case("error", fails=True),
    ]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Drawing, Drawn]]:
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Drawing):
                yield one.trial.words(number), case, results[0]


def _trouble(seen: Seen, topic: str) -> str:
    return next((one.trouble for one in of_topic(seen, topic) if one.error is not None), "")


def _judge_same(seen: Seen) -> Verdict:
    """Whose work it is, and the numbers of the second run."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    trouble = _trouble(seen, "same")
    if trouble:
        advice = "Return a function: each call of it gives something for `with`."
        return lost(f"{trouble}\n{advice}" if "again" in trouble or "call" in trouble else trouble)
    for words, case, drawn in _cases(seen, "same"):
        wrong = _other_numbers(drawn.again[0][:1], drawn.first[:1], case, drawn)
        if wrong:
            return lost(f"{words}: {wrong}")
    return ok("the second run draws the numbers of the first")


def _other_numbers(got: Numbers, first: Numbers, case: Drawing, drawn: Drawn) -> str:
    if got == first:
        return ""
    shown = " and ".join("[" + ", ".join(f"{x:.3f}" for x in row[0]) + "]" for row in (got, first))
    why = "Is the state kept before the first run, and put back before the second one draws?"
    if got[0][:2] == case.wanted.after[0][0]:
        why = "The program would draw these next: put back the state that was kept at the call."
    return f"the second run and the first draw {shown}. {why}"


def _judge_after(seen: Seen) -> Verdict:
    if _judge_same(seen).status != "ok":
        return blocked("judged once the second run draws the numbers of the first")
    for words, case, drawn in _cases(seen, "same"):
        if drawn.first != case.wanted.first:
            return lost(
                f"{words}: the first run draws other numbers than it would without you. To keep a "
                "state is to look at it, not to set it."
            )
        if drawn.after != case.wanted.after:
            repeated = drawn.after[0][0] == drawn.more[0]
            why = (
                "They are those that came after the first run, once more."
                if repeated
                else "Put back, after the second run, the state from just before it."
            )
            return lost(f"{words}: after the second run the program draws other numbers. {why}")
    return ok("the program's own numbers go on as if there were no second run")


def _judge_generators(seen: Seen) -> Verdict:
    if _judge_after(seen).status != "ok":
        return blocked("judged once PyTorch's own generator is right")
    if _trouble(seen, "generators"):
        return lost(_trouble(seen, "generators"))
    for words, case, drawn in _cases(seen, "generators"):
        names = [
            "PyTorch's own generator",
            *(f"generator {n + 1}" for n in range(case.generators)),
        ]
        for name, got, wanted in zip(names, drawn.again[0], drawn.first, strict=True):
            if got != wanted:
                return lost(f"{words}: in the second run {name} draws other numbers.")
        for name, got, wanted in zip(names, drawn.after[0], case.wanted.after[0], strict=True):
            if got != wanted:
                return lost(f"{words}: after the second run {name} goes on with other numbers.")
    return ok("generators that are handed over draw the same again, and go on, too")


def _judge_often(seen: Seen) -> Verdict:
    if _judge_after(seen).status != "ok":
        return blocked("judged once a single second run is right")
    if _trouble(seen, "often"):
        return lost(f"{_trouble(seen, 'often')}\n{_ONCE}")
    for words, case, drawn in _cases(seen, "often"):
        for number, (got, after) in enumerate(zip(drawn.again, drawn.after, strict=True)):
            if got != drawn.first:
                return lost(f"{words}: run {number + 2} draws other numbers than run 1. {_ONCE}")
            if after != case.wanted.after[number]:
                return lost(f"{words}: after run {number + 2} the program draws other numbers.")
    return ok("there may be several second runs: backward may come twice")


_ONCE = "What is kept has to be there for the next time too."


def _judge_error(seen: Seen) -> Verdict:
    if _judge_after(seen).status != "ok":
        return blocked("judged once a second run that comes to its end is right")
    if _trouble(seen, "error"):
        return lost(_trouble(seen, "error"))
    for words, case, drawn in _cases(seen, "error"):
        if not drawn.through:
            return lost(
                f"{words}: the error does not come through. What is left, has to be heard."
            )
        if drawn.after != case.wanted.after:
            return lost(
                f"{words}: afterwards the program draws other numbers. What is put back in "
                "`finally` is put back then, too."
            )
    return ok("where the second run ends in an error, numbers go on too, and the error comes out")


PART = Part(
    name="04/keep_random_state",
    level=2,
    title="The same random numbers",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule("same", 1, _judge_same),
            Rule("after", 1, _judge_after),
            Rule("generators", 1, _judge_generators),
            Rule("often", 1, _judge_often),
            Rule("error", 1, _judge_error),
        ),
    ),
    reference="dtlab.training.activation.Surroundings",
)
