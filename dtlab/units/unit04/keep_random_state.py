"""04/keep_random_state: a second run draws the numbers of the first, and nobody else notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit04.checkpointing_draws import Drawing, Drawn, Numbers

__all__ = ["PART"]


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
    reference="dtlab.training.replay.Surroundings",
)
