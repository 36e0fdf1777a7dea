"""04/master_step: one optimizer step on fp32 master weights of bf16 and fp16 parameters.

The judge computes the masters in float64.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit04.scaled_backward import FINISHED as SCALERS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Mastered"]

FINISHED = "dtlab.training.master_weights", *SCALERS
_SHAPES = (3, 2), (4,), (2, 2)
_RATE = 2.0**-6
_TINY = 2.0**-25  # half of the smallest number of fp16, so it is 0 there
_NEAR, _ROUNDING = 1e-4, 5e-7  # of the distance that masters move, and of their size: fp32


@dataclass(frozen=True)
class Mastered(Faulty):
    """Calls `fn(optimizer, parameters, masters, scale)` in every step.

    `kinds` has one letter for the gradients of each step: "o" ordinary, "x" with inf or NaN, "-"
    none for the second parameter, "t" so small that a division in fp16 would give 0.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    kinds: str
    dtype: str = "bfloat16"
    scale: float = 1.0
    topic: str = "masters"

    def __str__(self) -> str:
        return f"{counted(len(self.kinds), 'step')} in {self.dtype}, a scale of {self.scale:g}"

    def gradients(self) -> list[list[Tensor | None]]:
        """The gradients of each step and parameter, times the scale, in the parameters' format."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        steps: list[list[Tensor | None]] = []
        for number, kind in enumerate(self.kinds):
            each = [0.5 + torch.rand(shape, generator=draw) for shape in _SHAPES]
            size = self.scale * (_TINY if kind == "t" else 1)
            scaled = [(tensor * size).to(getattr(torch, self.dtype)) for tensor in each]
            if kind == "x":
                bad = (math.nan, math.inf, -math.inf)[number % 3]
                scaled[number % len(scaled)].view(-1)[-1] = bad
            steps.append([None if (kind, k) == ("-", 1) else g for k, g in enumerate(scaled)])
        return steps

    def start(self) -> list[Tensor]:
        """The initial parameters in fp32: from 1 to 2, where bf16 has few numbers.

        With tiny gradients they are tiny too, so that fp32 can represent the change.
        """
        import torch

        draw = torch.Generator().manual_seed(self.seed + 1)
        size = _TINY if "t" in self.kinds else 1
        return [size * (1 + torch.rand(shape, generator=draw)) for shape in _SHAPES]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        given = {"dtype": self.dtype, "scale": self.scale}
        return given | {"masters": self.start(), "gradients": self.gradients()}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch
        from torch import nn

        from dtlab.units.unit04.stepping import Stepping, truth_of

        dtype = getattr(torch, given["dtype"])
        parameters = [nn.Parameter(tensor.to(dtype)) for tensor in given["masters"]]
        masters = [nn.Parameter(tensor) for tensor in given["masters"]]
        optimizer = Stepping([masters], _RATE)
        steps = []
        with finished_calls(*FINISHED, refuse=True) as finished:
            for gradients in given["gradients"]:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                returned = fn(optimizer, parameters, masters, given["scale"])
                step: dict[str, Any] = {"returned": truth_of(returned), "hold": []}
                for name, tensors in (("masters", masters), ("parameters", parameters)):
                    step[name] = [tensor.detach().double() for tensor in tensors]
                    step["hold"] += [name for tensor in tensors if tensor.grad is not None]
                steps.append(step)
                others = [p.dtype for p in parameters if p.dtype != dtype]
                if others:
                    name = str(others[0]).removeprefix("torch.")
                    raise TypeError(
                        f"after the step a parameter is {name}, not {given['dtype']}: copy_ "
                        "rounds to the parameter's format, but assigning .data replaces it"
                    )
        return {"steps": steps, "finished": sorted(finished)}

    @cached_property
    def right(self) -> list[list[Tensor]]:
        """The masters after each step in float64: SGD with momentum, skipped on overflow."""
        import torch

        masters = [tensor.double() for tensor in self.start()]
        velocity = [torch.zeros_like(tensor) for tensor in masters]
        after = []
        for kind, gradients in zip(self.kinds, self.gradients(), strict=True):
            for k, gradient in enumerate(gradients):
                if gradient is not None and kind != "x":
                    velocity[k] = 0.9 * velocity[k] + gradient.double() / self.scale
                    masters[k] = masters[k] - _RATE * velocity[k]
            after.append(list(masters))
        return after

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        wrong = self._wrong_masters(results[0]["steps"])
        if wrong:
            yield self.topic, f"{wrong}\n{_ADVICE.get(self.topic, '')}".rstrip()
        dtype = getattr(torch, self.dtype)
        steps = zip(self.kinds, results[0]["steps"], strict=True)
        for number, (kind, step) in enumerate(steps):
            pairs = zip(step["masters"], step["parameters"], strict=True)
            if self.topic == "masters" and any((m.to(dtype) != p).any() for m, p in pairs):
                wrong = f"step {number}: a parameter is not its master, rounded to {self.dtype}."
                yield "copies", f"{wrong} Write it back after every step."
            if step["returned"] != int(kind != "x"):
                did = "was skipped" if kind == "x" else "was made"
                returns = {0: "False", 1: "True"}.get(step["returned"], step["returned"])
                yield "skips", f"step {number} {did}, but it returns {returns}."
            if step["hold"]:
                wrong = f"after step {number}, {step['hold'][0]} still have gradients."
                yield "gradients", f"{wrong} {_ADVICE['gradients']}"

    def _wrong_masters(self, steps: Sequence[Any]) -> str:
        """Names the first step after which a master is wrong, and how; empty if none is."""
        import torch

        before = [tensor.double() for tensor in self.start()]
        for number, (step, right) in enumerate(zip(steps, self.right, strict=True)):
            for old, got, want in zip(before, step["masters"], right, strict=True):
                way, size = float((want - old).norm()), float(want.norm())
                if not float((got - want).norm()) <= _NEAR * way + _ROUNDING * size:
                    how = self._how_wrong(step, got - old, want - old, self.kinds[number])
                    rounded = old.to(getattr(torch, self.dtype)).double()
                    error = float((got - rounded - (want - old)).norm())
                    if error <= _NEAR * way + _ROUNDING * size:
                        how = "a master begins at its rounded parameter: keep what rounding loses."
                    return f"step {number}: {how}"
            before = right
        return ""

    def _how_wrong(self, step: Any, way: Tensor, wanted: Tensor, kind: str) -> str:
        """Explains a master that moved by `way` and should have moved by `wanted`."""
        if kind == "x":
            return "a gradient is inf or NaN, but the masters have changed: skip the step."
        if not float(wanted.norm()):
            return "a master has moved although its parameter has no gradient in this step."
        if not float(way.norm()):
            return "the masters do not change. Does the optimizer step, and with gradients?"
        pairs = zip(step["masters"], step["parameters"], strict=True)
        if all(same(master, parameter) for master, parameter in pairs):
            return f"the masters have no more digits than {self.dtype}: they should be fp32."
        factor = float((way * wanted).sum() / wanted.square().sum())
        if self.scale != 1 and abs(factor / self.scale - 1) < 0.1:
            return "the masters move too far by a factor of the scale: divide the gradients by it."
        return f"the masters move {factor:.3g} times as far as in a step of SGD in fp32."


_ADVICE = {
    "small": (
        "Divided by the scale, these gradients are too small for fp16. In which format do you "
        "divide?"
    ),
    "gradients": (
        "After each step, made or skipped, set all gradients to None. A master must have a "
        "gradient only if its parameter has one: not zeros, and not that of an earlier step."
    ),
}


def _trials(seed: int) -> list[Trial]:
    """Trials with bf16 unscaled and fp16 scaled, tiny gradients, overflows, missing gradients."""
    draw = random.Random(seed)

    def case(topic: str, kinds: str, dtype: str = "float16", scale: float = 2.0**12) -> Mastered:
        return Mastered(draw.randrange(10**6), kinds, dtype, scale, topic)

    plain = [case("masters", "oooooo", "bfloat16", 1.0), case("masters", "oooo", scale=2.0**8)]
    skips = [case("skips", kinds) for kinds in draw.sample(["oxoo", "xoxo", "ooxxo", "oxxoo"], 3)]
    missing = [case("gradients", kinds) for kinds in ("o-oo", "-o-o")]
    return [Trial(1, cases) for cases in (plain, [case("small", "tttt")], skips, missing)]


PART = Part(
    name="04/master_step",
    level=2,
    title="The master-weight step",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("masters", 2, "the masters train in fp32"),
            rule("copies", 1, "the model's parameters are the masters, rounded", "masters"),
            rule("small", 1, "gradients too small for fp16 are not lost", "masters"),
            rule("skips", 1, "skips overflows, and returns whether it stepped", "masters"),
            rule("gradients", 1, "clears all gradients, and accepts missing ones", "masters"),
        ),
    ),
    reference="dtlab.training.master_weights.naive_master_step",
    stretch=True,
)
