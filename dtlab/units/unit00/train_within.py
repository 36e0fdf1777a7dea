"""00/train_within: a run that dies later than its first iteration, to be mended."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial, drawn_seed
from dtlab.grading.parts import Part

_NEAR = 1e-4  # of a loss
_NEAR_MEAN = 1e-3  # of a mean, which is near 0
_SAME = "What is returned is to stay as it is: only the memory is to change."


_ADVICE = {
    "leak": "What is made in each step and is still there at the end? Memory that grows with the "
    "number of steps is of a list, as a rule.",
    "evaluation": "Which tensors does a forward pass keep of which nobody will ask the gradient?",
    "gradients": "From when to when are gradients needed, and when are they there?",
}


@dataclass(frozen=True)
class Running(Faulty):
    """`train(model, optimizer, batches, held_out)`; `fault` is what takes too much memory here."""

    alone = True
    topic = "results"

    seed: int
    widths: tuple[int, ...]
    rows: int
    steps: int
    held_out: int
    fault: str

    def __str__(self) -> str:
        return f"{self.steps} steps of {self.rows} rows, {self.held_out} rows held out"

    def given(self, rank: int, world_size: int) -> Any:
        names = ("widths", "rows", "steps", "held_out")
        return {"seed": drawn_seed(self.seed)} | {name: getattr(self, name) for name in names}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> Any:
        from dtlab.units.unit00.leak_training import run

        return {"ran": run(fn, **given)}

    def opened(self, result: Any) -> Noted:
        if isinstance(result["ran"], str):
            return Noted({"form": result["ran"][:80]})
        mean, losses, peak = result["ran"]
        return Noted({"mean": float(mean), "losses": [*map(float, losses)], "peak": int(peak)})

    def ran(self, fault: str = "") -> Any:
        """Mean, losses and peak of the mended script's run, or with this fault put back."""
        from dtlab.units.unit00.leak_script import mended
        from dtlab.units.unit00.leak_training import run

        return run(lambda *given: mended(*given, fault=fault), **self.given(0, 1))

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (found,) = results
        if found.get("form"):
            yield "results", f"train {found['form']}.\n{_SAME}"
            return
        mean, losses, least = self.ran()
        if len(found["losses"]) != len(losses):
            count = len(found["losses"])
            words = f"train returns {count} losses; there are {self.steps} steps."
            yield "results", f"{words}\n{_SAME}"
            return
        for step, (got, right) in enumerate(zip(found["losses"], losses, strict=True)):
            if not abs(got - right) <= _NEAR * right:
                yield (
                    "results",
                    f"the loss on the held-out rows after step {step} is {got:.5f}; in the broken "
                    f"script it is {right:.5f}.\n{_SAME}",
                )
        if not abs(found["mean"] - mean) <= _NEAR_MEAN * abs(mean) + 1e-7:
            words = f"the mean of the outputs is {found['mean']:.5f}; it was {mean:.5f}."
            yield "results", f"{words}\n{_SAME}"
        limit = (least + self.ran(self.fault)[2]) // 2  # between the mended run and the other one
        if found["peak"] > limit:
            yield (
                self.fault,
                f"{found['peak']:,} bytes at the peak, and the limit is {limit:,}.\n"
                f"{_ADVICE[self.fault]}",
            )


def _trials(seed: int) -> list[Trial]:
    """For each fault a run in which it takes the most; the last batch has half the rows."""
    draw = random.Random(seed)
    wide, narrow = (16 * draw.randint(*bounds) for bounds in ((8, 12), (1, 3)))
    rows = 8 * draw.randint(2, 4)
    leak = Running(seed, (16, 32, wide), rows, 24, 4, "leak")
    evaluation = Running(seed + 1, (narrow, 96, 96, 96, 16), rows, 2, 16 * rows, "evaluation")
    gradients = Running(seed + 2, (64, wide, wide, narrow), 4, 3, rows, "gradients")
    return [Trial(1, [leak, evaluation, gradients])]


PART = Part(
    name="00/train_within",
    level=3,
    title="A run that dies later",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("results", 2, "it trains as before, and returns the same"),
            rule("leak", 1, "nothing is kept from step to step", "results"),
            rule("evaluation", 2, "held-out rows keep no activations", "results"),
            rule("gradients", 1, "gradients are gone when not needed", "results"),
        ),
    ),
)
