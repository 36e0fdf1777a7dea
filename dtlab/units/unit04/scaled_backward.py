"""04/scaled_backward: scale gradients that fp16 would lose, and detect overflows.

    parameters, fp32  ──>  inputs and weights cast to fp16  ──>  outputs  ──>  loss x 5e-9
    gradients, fp32   <──  gradients in fp16, 0 below 3e-8   <────────────────────┘

The judge computes the same gradients in float64.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial, drawn_seed
from dtlab.checks.parts import Part
from dtlab.predict.units import counted

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "PART", "Backwards"]

FINISHED = "torch.amp.grad_scaler", "dtlab.training.loss_scaling"
_FACTOR = 5e-9  # of the loss: without a scale, its gradients are 0 in fp16
_NEAR = 0.03  # of a gradient's length: rounding in fp16 causes a hundredth
_EXACT, _CLOSE = 0.02, 0.1  # tolerances of a factor that should be 1, and of a known one


@dataclass(frozen=True)
class Backwards(Faulty):
    """Calls `fn(loss, optimizer, scale)` with the loss of a small net in fp16.

    The net has four parameters, in groups of `groups`; with `spare`, the optimizer also has a
    parameter without a gradient and a frozen one. Backward puts `bad` into the gradient of the
    parameter `where`: into its first or last element, or into all elements if `bad` is finite.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    scale: float
    groups: tuple[int, ...] = (4,)
    spare: bool = False
    bad: float = 0.0
    where: int = 0
    topic: str = "survives"

    def __str__(self) -> str:
        words = [f"a scale of {self.scale:g}"]
        if len(self.groups) > 1:
            words.append(f"{len(self.groups)} parameter groups")
        if self.spare:
            words.append("a parameter without a gradient")
        if self.bad:
            words.append(f"{self.bad:g} in gradient {self.where + 1}")
        return ", ".join(words)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        return asdict(self) | {"seed": drawn_seed(self.seed)}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch
        from torch import nn

        from dtlab.units.unit04.stepping import Stepping, truth_of

        inputs, *weights, coefficients = _tensors(given["seed"])
        parameters = [nn.Parameter(weight) for weight in weights]
        bad, where = given["bad"], given["where"]
        if bad:
            parameters[where].register_hook(lambda gradient: _with(gradient, bad, where))
        loss = _loss(inputs, parameters, coefficients, torch.half)
        rest = iter(parameters)
        groups = [[next(rest) for _ in range(size)] for size in given["groups"]]
        if given["spare"]:
            spare = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)
            groups[0].insert(0, spare[0])
            groups[-1].append(spare[1])
            parameters += spare
        optimizer = Stepping(groups, rate=0.1)
        with finished_calls(*FINISHED, refuse=True) as finished:
            returned = fn(loss, optimizer, given["scale"])
        return {
            "gradients": [parameter.grad for parameter in parameters],
            "parameters": [parameter.detach() for parameter in parameters],
            "steps": optimizer.steps,
            "returned": truth_of(returned),
            "finished": sorted(finished),
        }

    @cached_property
    def true(self) -> list[Tensor]:
        """The gradients of the net's four parameters in float64, without `bad`."""
        import torch

        inputs, *weights, coefficients = [t.double() for t in _tensors(drawn_seed(self.seed))]
        parameters = [weight.requires_grad_() for weight in weights]
        loss = _loss(inputs, parameters, coefficients, torch.double)
        return list(torch.autograd.grad(loss, parameters))

    def factors(self, gradients: Sequence[Tensor | None]) -> list[float] | None:
        """The factor by which each gradient is too large; None if any has a wrong direction."""
        factors = []
        for got, want in zip(gradients, self.true, strict=False):
            if got is None or not bool(got.isfinite().all()):
                return None
            factor = float((got * want).sum() / want.square().sum())
            if not float((got - factor * want).norm()) <= _NEAR * abs(factor) * float(want.norm()):
                return None
            factors.append(factor)
        return factors if all(factors) else None

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (result,) = results
        returned = result["returned"]
        if isinstance(returned, str):
            yield "overflow", f"it returns {returned}, not True or False."
            yield "form", returned
        elif self.topic == "overflow" and not returned:
            number = "NaN" if math.isnan(self.bad) else f"{self.bad:g}"
            yield "overflow", f"it returns False. {number} counts too, in {_ANYWHERE}"
        elif self.topic != "overflow" and returned:
            why = _LARGE if self.bad else "Return True only if a gradient has inf or NaN."
            yield "finite", f"it returns True, although every gradient is finite. {why}"
        if self.bad:
            return
        gradients = [None if grad is None else grad.double() for grad in result["gradients"]]
        factors = self.factors(gradients)
        if factors is None:
            yield self.topic, _why_lost(gradients[:4])
        elif wrong := self._why_scaled(factors):
            yield "unscaled" if self.topic == "survives" else self.topic, wrong
        elif any(grad is not None for grad in gradients[4:]):
            yield self.topic, "a parameter without a gradient has one now: leave it at None."
        if result["steps"]:
            yield (
                "unscaled",
                f"the optimizer stepped {counted(result['steps'], 'time')}. The caller does that.",
            )
        before = _tensors(drawn_seed(self.seed))[1:5]
        if not all(map(same, result["parameters"], before)):
            yield "unscaled", "a parameter has changed. Divide only its gradient."

    def _why_scaled(self, factors: Sequence[float]) -> str:
        """Explains gradients that are too large by these factors; empty if they are right."""
        wrong = [factor for factor in factors if abs(factor - 1) > _EXACT]
        if not wrong:
            return ""
        if len(wrong) < len(factors):
            some = f"{len(wrong)} of {len(factors)} gradients"
            return f"{some} are not divided by the scale. Go through all groups."
        known = {
            self.scale: "That is the scale: after backward, divide the gradients by it.",
            1 / self.scale: "The loss was not multiplied, or the gradients were divided twice.",
            self.scale**2: "That is the scale squared: divide the gradients by the scale.",
        }
        why = next((why for k, why in known.items() if abs(wrong[0] / k - 1) < _CLOSE), "")
        return f"gradients are {wrong[0]:.3g} times those of the loss. {why}".rstrip()


_ANYWHERE = "every element of every gradient: True means that the step must be skipped."
_LARGE = "Large numbers do not overflow in fp32, but the sum of their squares may be inf."


def _why_lost(gradients: Sequence[Tensor | None]) -> str:
    there = [grad for grad in gradients if grad is not None]
    if len(there) < 4:
        return f"{4 - len(there)} of 4 parameters have no gradient. Call backward once."
    if not any(bool(grad.any()) for grad in there):
        return "all gradients are 0. In fp16 they are too small: what must backward begin with?"
    if not all(bool(grad.isfinite().all()) for grad in there):
        return "gradients have inf or NaN, but nothing overflows. How large is the scaled loss?"
    return "a gradient has another direction than that of the loss. Has it lost digits in fp16?"


def _tensors(seed: int) -> list[Tensor]:
    """The inputs; then weight, bias, weight, bias; then the coefficients of the outputs."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=draw) for s in ((7, 6), (5, 6), (5,), (4, 5), (4,), (7, 4))]


def _loss(inputs: Tensor, weights: Sequence[Tensor], coefficients: Tensor, dtype: Any) -> Tensor:
    """The loss of a net with one hidden layer that computes in `dtype`."""
    import torch
    import torch.nn.functional as F

    w1, b1, w2, b2 = [weight.to(dtype) for weight in weights]
    hidden = torch.tanh(F.linear(inputs.to(dtype), w1, b1))
    outputs = F.linear(hidden, w2, b2)
    return (outputs.to(coefficients.dtype) * coefficients).sum() * _FACTOR


def _with(gradient: Tensor, number: float, where: int) -> Tensor:
    """The gradient with a number in its first or last element, or in all elements."""
    changed = gradient.clone()
    places = slice(None) if math.isfinite(number) else -1 if where % 2 else 0
    changed.view(-1)[places] = number
    return changed


def _trials(seed: int) -> list[Trial]:
    """Trials with two scales, several groups, inf and NaN anywhere, and large finite numbers."""
    draw = random.Random(seed)

    def case(topic: str, **more: Any) -> Backwards:
        scale = draw.choice((2.0**15, 2.0**16, 2.0**17))
        return Backwards(draw.randrange(10**6), **{"scale": scale, "topic": topic, **more})

    plain = [case("survives"), case("survives", scale=float(draw.randint(30000, 60000)))]
    grouped = case("groups", groups=draw.choice(((1, 3), (2, 2), (1, 2, 1))), spare=True)
    bad = [math.inf, -math.inf, math.nan, draw.choice((math.inf, math.nan))]
    draw.shuffle(bad)
    overflow = [case("overflow", bad=n, where=k, groups=(2, 2)) for k, n in enumerate(bad)]
    finite = [case("finite", bad=3e38, where=k) for k in draw.sample(range(4), 2)]
    return [Trial(1, cases) for cases in (plain, [grouped], overflow, finite)]


_FIRST = "survives", "unscaled"

PART = Part(
    name="04/scaled_backward",
    level=2,
    title="Scale the loss, unscale the gradients",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("survives", 2, "gradients that fp16 alone would lose are not lost"),
            rule(
                "unscaled", 2, "gradients are those of the loss, nothing else changed", "survives"
            ),
            rule("groups", 1, "right for groups and missing gradients", *_FIRST),
            rule("overflow", 2, "detects inf and NaN in any gradient", *_FIRST),
            rule("finite", 1, "returns False if all gradients are finite", *_FIRST, "form"),
        ),
    ),
    reference="dtlab.training.loss_scaling.StaticLossScaler",
    short_path="1, 2 and 4",
)
