"""What ranks do in 04/scaled_backward: a backward pass in fp16, of a loss far too small for it.

    parameters, fp32  ──>  inputs and weights cast to fp16  ──>  outputs  ──>  loss x 5e-9
    gradients, fp32   <──  gradients in fp16, 0 below 3e-8   <────────────────────┘

The judge computes the same gradients in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["FINISHED", "Backward", "Backwards"]

FINISHED = "torch.amp.grad_scaler", "dtlab.training.loss_scaling", "dtlab.training.overflow"
SIZES = 6, 5, 4  # inputs, hidden, outputs of a small net
_NEAR = 0.03  # of a gradient's length: fp16 takes a hundredth
_SAMPLES = 7


@dataclass(frozen=True)
class Backward:
    """What a rank saw: gradients, None where there is none, and parameters afterwards.

    `returned` is 0 or 1 for False and True, or what else it was in words.
    """

    gradients: list[Tensor | None]
    parameters: list[Tensor]
    steps: int
    returned: int | str
    finished: frozenset[str]


@dataclass(frozen=True)
class Backwards(Case):
    """`fn(loss, optimizer, scale)` for a small net in fp16, whose loss is times `factor`.

    The net has four parameters, in groups of `groups`; where `spare` is set, there are one without
    a gradient and a frozen one besides. `bad` is what backward puts into the gradient of the
    parameter `where`: into its first or last place, and everywhere if it is finite.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    scale: float
    factor: float = 5e-9
    groups: tuple[int, ...] = (4,)
    spare: bool = False
    bad: float = 0.0
    where: int = 0
    topic: str = "plain"

    def __str__(self) -> str:
        words = [f"a scale of {self.scale:g}"]
        if len(self.groups) > 1:
            words.append(f"{len(self.groups)} parameter groups")
        if self.spare:
            words.append("a parameter without a gradient")
        if self.bad:
            words.append(f"{self.bad:g} in gradient {self.where + 1}")
        return ", ".join(words)

    @property
    def overflows(self) -> bool:
        """Whether a gradient has inf or NaN."""
        return not math.isfinite(self.bad)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The inputs; then weight, bias, weight, bias; then what the outputs are weighed with."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        width, hidden, outputs = SIZES
        shapes = [(_SAMPLES, width), (hidden, width), (hidden,), (outputs, hidden), (outputs,),
                  (_SAMPLES, outputs)]  # fmt: skip
        return [torch.randn(shape, generator=draw) for shape in shapes]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        return {
            "tensors": [one.clone() for one in self.tensors],
            "scale": self.scale,
            "factor": self.factor,
            "groups": self.groups,
            "spare": self.spare,
            "bad": (self.bad, self.where),
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        import torch
        from torch import nn

        from dtlab.units.unit04.stepping import Stepping

        inputs, *weights, coefficients = given["tensors"]
        own = [nn.Parameter(one) for one in weights]
        number, where = given["bad"]
        if number:
            own[where].register_hook(lambda gradient: _with(gradient, number, where))
        loss = _loss(inputs, own, coefficients, torch.half) * given["factor"]
        if given["spare"]:
            own += [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)]
        optimizer = Stepping(_in_groups(own, given["groups"], given["spare"]), rate=0.1)
        with finished_calls(*FINISHED, refuse=True) as finished:
            returned = fn(loss, optimizer, given["scale"])
        return {
            "gradients": [one.grad for one in own],
            "parameters": [one.detach() for one in own],
            "steps": optimizer.steps,
            "returned": _in_words(returned),
            "finished": sorted(finished),
        }

    def opened(self, result: Any) -> Backward:
        """See `Case`."""
        gradients = [None if g is None else g.double() for g in result["gradients"]]
        parameters = [one.double() for one in result["parameters"]]
        returned = result["returned"]
        returned = returned if isinstance(returned, int) else str(returned)[:60]
        finished = frozenset(map(str, result["finished"]))
        return Backward(gradients, parameters, int(result["steps"]), returned, finished)

    # ------------------------------------------------------------------ what must come of it

    @cached_property
    def true(self) -> list[Tensor]:
        """The gradients of the net's four parameters, in float64, without what is `bad`."""
        import torch

        inputs, *weights, coefficients = [one.double() for one in self.tensors]
        own = [one.requires_grad_() for one in weights]
        loss = _loss(inputs, own, coefficients, torch.double) * self.factor
        return list(torch.autograd.grad(loss, own))

    def factors(self, seen: Backward) -> list[float] | None:
        """By what each gradient is larger than it should be; None where one is another."""
        found = []
        for got, want in zip(seen.gradients, self.true, strict=False):
            if got is None or not bool(got.isfinite().all()):
                return None
            factor = float((got * want).sum() / want.square().sum())
            if not float((got - factor * want).norm()) <= _NEAR * abs(factor) * float(want.norm()):
                return None
            found.append(factor)
        return found if all(found) and len(found) == len(self.true) else None

    def mistake(self, results: Sequence[Backward]) -> str:
        """See `Case`: gradients are for the judges, which know what comes first."""
        return ""


def _loss(inputs: Tensor, own: Sequence[Tensor], coefficients: Tensor, dtype: Any) -> Tensor:
    """Of a net with one hidden layer that computes in `dtype`."""
    import torch
    import torch.nn.functional as F

    w1, b1, w2, b2 = [one.to(dtype) for one in own]
    hidden = torch.tanh(F.linear(inputs.to(dtype), w1, b1))
    outputs = F.linear(hidden, w2, b2)
    return (outputs.to(coefficients.dtype) * coefficients).sum()


def _in_groups(own: Sequence[Any], sizes: Sequence[int], spare: bool) -> list[list[Any]]:
    """Parameters in groups of these sizes; the last two are spare: in the first and last group."""
    rest = list(own[: sum(sizes)])
    groups = [[rest.pop(0) for _ in range(size)] for size in sizes]
    if spare:
        groups[0].insert(0, own[-2])
        groups[-1].append(own[-1])
    return groups


def _with(gradient: torch.Tensor, number: float, where: int) -> torch.Tensor:
    """The gradient with a number in its first or last place, or in all of them."""
    changed = gradient.clone()
    places = slice(None) if math.isfinite(number) else -1 if where % 2 else 0
    changed.view(-1)[places] = number
    return changed


def _in_words(returned: Any) -> int | str:
    """0 or 1 for a truth value, also one in a tensor of one number; else what it is."""
    import torch

    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        returned = returned.item()
    if isinstance(returned, (bool, int, float)):
        return int(bool(returned))
    return "None" if returned is None else f"a {type(returned).__name__}"
