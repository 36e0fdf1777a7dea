"""00/train_within: repair a training script that runs out of memory after its first iteration."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.trials import Trial, drawn_seed
from dtlab.grading.parts import Part

_NEAR = 1e-4  # relative tolerance of a loss
_NEAR_MEAN = 1e-3  # of a mean, which is near 0
_SAME = "The function must return the same values as before: change only its memory use."


_ADVICE = {
    "leak": "Which tensors of each step still exist at the end? If memory grows with the number "
    "of steps, the usual reason is a list that holds tensors.",
    "evaluation": "Which activations does a forward pass save although no backward pass follows?",
    "gradients": "During which part of a step are gradients needed, and when do they exist?",
}


@dataclass(frozen=True)
class Running(Faulty):
    """A call of `train(model, optimizer, batches, held_out)` that shows the memory `fault`."""

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
        """Mean, losses and peak bytes of the repaired script, with `fault` put back if given."""
        from dtlab.units.unit00.leak_script import mended
        from dtlab.units.unit00.leak_training import run

        return run(lambda *given: mended(*given, fault=fault), **self.given(0, 1))

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (result,) = results
        if result.get("form"):
            yield "results", f"train {result['form']}.\n{_SAME}"
            return
        mean, losses, least = self.ran()
        if len(result["losses"]) != len(losses):
            count = len(result["losses"])
            message = f"train returns {count} losses; there are {self.steps} steps."
            yield "results", f"{message}\n{_SAME}"
            return
        for step, (got, right) in enumerate(zip(result["losses"], losses, strict=True)):
            if not abs(got - right) <= _NEAR * right:
                yield (
                    "results",
                    f"the loss on the held-out rows after step {step} is {got:.5f}; in the broken "
                    f"script it is {right:.5f}.\n{_SAME}",
                )
        if not abs(result["mean"] - mean) <= _NEAR_MEAN * abs(mean) + 1e-7:
            message = f"the mean of the outputs is {result['mean']:.5f}; it was {mean:.5f}."
            yield "results", f"{message}\n{_SAME}"
        limit = (least + self.ran(self.fault)[2]) // 2  # halfway between repaired and faulty run
        if result["peak"] > limit:
            yield (
                self.fault,
                f"the run peaks at {result['peak']:,} bytes, and the limit is {limit:,}.\n"
                f"{_ADVICE[self.fault]}",
            )


def _trials(seed: int) -> list[Trial]:
    """A trial with a run for each fault, in which that fault takes the most memory."""
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
            rule("results", 2, "it trains as before, and returns the same values"),
            rule("leak", 1, "no tensors accumulate from step to step", "results"),
            rule("evaluation", 2, "held-out rows keep no activations", "results"),
            rule("gradients", 1, "gradients are released when not needed", "results"),
        ),
    ),
)
