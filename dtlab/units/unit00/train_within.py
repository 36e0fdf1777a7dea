"""00/train_within: a run that dies later than its first iteration, to be mended."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from dtlab.grading.checking.checks import Check, Judge, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial, drawn_seed
from dtlab.grading.parts import Part

__all__ = ["PART", "Ran", "Running"]

_NEAR = 1e-4  # of a loss
_SAME = 1e-3  # of a mean, which is near 0


class Ran(NamedTuple):
    """What came of a run."""

    mean: float
    losses: list[float]
    peak: int


@dataclass(frozen=True)
class Running(Case):
    """`train(model, optimizer, batches, held_out)`; `topic` is the fault that is too much here."""

    alone = True

    seed: int
    widths: tuple[int, ...]
    rows: int
    steps: int
    held_out: int
    topic: str

    def __str__(self) -> str:
        return f"{self.steps} steps of {self.rows} rows, {self.held_out} rows held out"

    def given(self, rank: int, world_size: int) -> Any:
        names = ("widths", "rows", "steps", "held_out")
        return {"seed": drawn_seed(self.seed)} | {name: getattr(self, name) for name in names}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.units.unit00.leak_training import run

        return run(fn, **given)

    def opened(self, result: Any) -> Ran | str:
        if isinstance(result, str):
            return result[:80]
        return Ran(float(result[0]), [float(one) for one in result[1]], int(result[2]))

    def ran(self, fault: str = "") -> Ran:
        """The mended script's run, or with this fault put back."""
        from dtlab.units.unit00.leak_script import mended
        from dtlab.units.unit00.leak_training import run

        found = run(lambda *given: mended(*given, fault=fault), **self.given(0, 1))
        assert not isinstance(found, str)
        return Ran(*found)

    @cached_property
    def wanted(self) -> Ran:
        """What comes of the mended script."""
        return self.ran()

    @cached_property
    def limit(self) -> int:
        """Bytes: half-way between the mended run and one that has the fault of the topic."""
        least, most = self.wanted.peak, self.ran(self.topic).peak
        return (least + most) // 2

    def mistake(self, results: Sequence[Ran | str]) -> str:
        found = results[0]
        if isinstance(found, str):
            return f"train {found}."
        wanted = self.wanted
        if len(found.losses) != len(wanted.losses):
            return f"train returns {len(found.losses)} losses; there are {self.steps} steps."
        for step, (got, right) in enumerate(zip(found.losses, wanted.losses, strict=True)):
            if not abs(got - right) <= _NEAR * right:
                return (
                    f"the loss on the held-out rows after step {step} is {got:.5f}; in the "
                    f"broken script it is {right:.5f}."
                )
        if not abs(found.mean - wanted.mean) <= _SAME * abs(wanted.mean) + 1e-7:
            return f"the mean of the outputs is {found.mean:.5f}; it was {wanted.mean:.5f}."
        return ""


def _trials(seed: int) -> list[Trial]:
    """For each fault a run in which it takes the most; the last batch has half the rows."""
    draw = random.Random(seed)
    wide, narrow = (16 * draw.randint(*bounds) for bounds in ((8, 12), (1, 3)))
    rows = 8 * draw.randint(2, 4)
    leak = Running(seed, (16, 32, wide), rows, 24, 4, "leak")
    evaluation = Running(seed + 1, (narrow, 96, 96, 96, 16), rows, 2, 16 * rows, "evaluation")
    gradients = Running(seed + 2, (64, wide, wide, narrow), 4, 3, rows, "gradients")
    return [Trial(1, [leak, evaluation, gradients])]


# Judges -----------------------------------------------------------------------------------------


def _judge_results(seen: Seen) -> Verdict:
    if seen[0].mistakes:
        advice = "What is returned is to stay as it is: only the memory is to change."
        return lost(f"{seen[0].mistakes[0]}\n{advice}")
    return ok("it trains as before, and returns the same")


_ADVICE = {
    "leak": "What is made in each step and is still there at the end? Memory that grows with the "
    "number of steps is of a list, as a rule.",
    "evaluation": "Which tensors does a forward pass keep of which nobody will ask the gradient?",
    "gradients": "From when to when are gradients needed, and when are they there?",
}


def _judge(topic: str, right: str) -> Judge:
    def judge(seen: Seen) -> Verdict:
        if _judge_results(seen).status != "ok":
            return blocked("judged once it returns what it did")
        (one,) = of_topic(seen, topic)
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=True)):
            assert isinstance(case, Running)
            if case.topic == topic and results[0].peak > case.limit:
                return lost(
                    f"{one.trial.words(number)}: {results[0].peak:,} bytes at the peak, and the "
                    f"limit is {case.limit:,}.\n{_ADVICE[topic]}"
                )
        return ok(right)

    return judge


PART = Part(
    name="00/train_within",
    level=3,
    title="A run that dies later",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("results", 2, _judge_results),
            Rule("leak", 1, _judge("leak", "nothing is kept from step to step")),
            Rule("evaluation", 2, _judge("evaluation", "held-out rows keep no activations")),
            Rule("gradients", 1, _judge("gradients", "gradients are gone when not needed")),
        ),
    ),
)
