"""00/train_within: fix a training script that runs out of memory after its first iteration."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.predict.units import counted

_NEAR = 1e-4  # relative tolerance of a loss
_NEAR_MEAN = 1e-3  # relative tolerance of the mean, which is near 0
_SAME = "The function must return the same values as before: change only its memory use."


_ADVICE = {
    "steps": "This run has many steps, and its memory grows with their number.",
    "rows": "This run has many held-out rows, and its memory grows with their activations.",
    "weights": "This run has large weights, and the forward pass holds twice their bytes.",
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

        return {"result": run(fn, **given)}

    def opened(self, result: Any) -> Noted:
        if isinstance(result["result"], str):
            return Noted({"form": result["result"][:80]})
        mean, losses, peak = result["result"]
        return Noted({"mean": float(mean), "losses": [*map(float, losses)], "peak": int(peak)})

    def reference(self, fault: str = "") -> Any:
        """Mean, losses and peak bytes of the fixed script, with `fault` put back if given."""
        from dtlab.units.unit00.leak_script import fixed
        from dtlab.units.unit00.leak_training import run

        return run(lambda *given: fixed(*given, fault=fault), **self.given(0, 1))

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (result,) = results
        if result.get("form"):
            yield "results", f"train {result['form']}.\n{_SAME}"
            return
        mean, losses, least = self.reference()
        if len(result["losses"]) != len(losses):
            count = len(result["losses"])
            losses = counted(count, "loss", "losses")
            message = f"train returns {losses}; there are {self.steps} steps."
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
        limit = (least + self.reference(self.fault)[2]) // 2  # halfway between both runs
        if result["peak"] > limit:
            yield (
                self.fault,
                f"the run peaks at {result['peak']:,} bytes, and the limit is {limit:,}.\n"
                f"{_ADVICE[self.fault]}",
            )


def _trials(seed: int) -> list[Trial]:
    """One trial: for each fault, a run in which that fault takes the most memory."""
    draw = random.Random(seed)
    wide, narrow = (16 * draw.randint(*bounds) for bounds in ((8, 12), (1, 3)))
    rows = 8 * draw.randint(2, 4)
    long = Running(seed, (16, 32, wide), rows, 24, 4, "steps")
    tall = Running(seed + 1, (narrow, 96, 96, 96, 16), rows, 2, 16 * rows, "rows")
    large = Running(seed + 2, (64, wide, wide, narrow), 4, 3, rows, "weights")
    return [Trial(1, [long, tall, large])]


PART = Part(
    name="00/train_within",
    level=3,
    title="A run under a limit",
    minutes=20,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("results", 2, "train returns the same values as before"),
            rule("steps", 1, "many steps need no more memory than a few", "results"),
            rule("rows", 2, "many held-out rows stay within the limit", "results"),
            rule("weights", 1, "large weights stay within the limit", "results"),
        ),
    ),
)
