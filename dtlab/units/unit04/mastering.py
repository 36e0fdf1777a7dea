"""What a rank does in 04/master_step: steps on fp32 copies of its bf16 or fp16 parameters.

The judge works out the masters in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Case
from dtlab.units.unit04.scaling import FINISHED as SCALERS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Mastered", "Step", "Stepped"]

FINISHED = "dtlab.training.master_weights", *SCALERS
_SHAPES = (3, 2), (4,), (2, 2)
_RATE = 2.0**-6
_TINY = 2.0**-25  # no number of fp16: half of the smallest


@dataclass(frozen=True)
class Step:
    """What a rank saw after a step.

    `held` are the tensors that are left in `.grad` of masters and of parameters; `returned` is 0
    or 1 for a truth value, or what else it was.
    """

    masters: list[Tensor]
    parameters: list[Tensor]
    held: list[int]
    returned: int | str
    steps: int


@dataclass(frozen=True)
class Stepped:
    """What a rank saw: its steps, and which finished code was called."""

    steps: list[Step]
    finished: frozenset[str]


@dataclass(frozen=True)
class Mastered(Case):
    """`fn(optimizer, parameters, masters, scale)` in every step.

    `kinds` says of each step what its gradients are: "o" ordinary, "x" with inf or NaN, "-" with
    none for the second parameter, "t" so small that, divided in fp16, they would be 0.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    kinds: str
    dtype: str = "bfloat16"
    scale: float = 1.0
    topic: str = "masters"

    def __str__(self) -> str:
        return f"{len(self.kinds)} steps in {self.dtype}, a scale of {self.scale:g}"

    @cached_property
    def gradients(self) -> list[list[Tensor | None]]:
        """Of each step and parameter, times the scale, in the parameters' format."""
        import torch

        draw = torch.Generator().manual_seed(self.seed)
        steps: list[list[Tensor | None]] = []
        for number, kind in enumerate(self.kinds):
            each = [0.5 + torch.rand(shape, generator=draw) for shape in _SHAPES]
            if kind == "t":
                each = [one * _TINY for one in each]
            own = [(one * self.scale).to(getattr(torch, self.dtype)) for one in each]
            if kind == "x":
                own[number % len(own)].view(-1)[-1] = (math.nan, math.inf, -math.inf)[number % 3]
            steps.append([None if (kind, k) == ("-", 1) else one for k, one in enumerate(own)])
        return steps

    def start(self) -> list[Tensor]:
        """Parameters at the beginning, in fp32: from 1 to 2, where bf16 has few numbers.

        With tiny gradients they are tiny too, so that fp32 can tell where those lead.
        """
        import torch

        draw = torch.Generator().manual_seed(self.seed + 1)
        size = _TINY if "t" in self.kinds else 1
        return [size * (1 + torch.rand(shape, generator=draw)) for shape in _SHAPES]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        import torch

        dtype = getattr(torch, self.dtype)
        return {
            "parameters": [one.to(dtype) for one in self.start()],
            "masters": self.start(),
            "gradients": [
                [None if one is None else one.clone() for one in step] for step in self.gradients
            ],
            "scale": self.scale,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        from torch import nn

        from dtlab.units.unit04.stepping import Stepping

        parameters = [nn.Parameter(one) for one in given["parameters"]]
        masters = [nn.Parameter(one) for one in given["masters"]]
        optimizer = Stepping([masters], _RATE)
        steps = []
        with finished_calls(*FINISHED, refuse=True) as finished:
            for gradients in given["gradients"]:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                returned = fn(optimizer, parameters, masters, given["scale"])
                steps.append(_seen(parameters, masters, returned, optimizer.steps))
        return {"steps": steps, "finished": sorted(finished)}

    def opened(self, result: Any) -> Stepped:
        """See `Case`."""
        steps = [
            Step(
                [tensor.double() for tensor in one["masters"]],
                [tensor.double() for tensor in one["parameters"]],
                [int(count) for count in one["held"]],
                one["returned"] if isinstance(one["returned"], int) else str(one["returned"])[:60],
                int(one["steps"]),
            )
            for one in result["steps"]
        ]
        if len(steps) != len(self.kinds):
            raise ValueError("not as many steps")
        return Stepped(steps, frozenset(map(str, result["finished"])))

    # ------------------------------------------------------------------ what must come of it

    @cached_property
    def right(self) -> list[list[Tensor]]:
        """The masters after each step, in float64: SGD with momentum where all is finite."""
        import torch

        masters = [one.double() for one in self.start()]
        velocity = [torch.zeros_like(one) for one in masters]
        after = []
        for kind, gradients in zip(self.kinds, self.gradients, strict=True):
            if kind != "x":
                for k, gradient in enumerate(gradients):
                    if gradient is not None:
                        velocity[k] = 0.9 * velocity[k] + gradient.double() / self.scale
                        masters[k] = masters[k] - _RATE * velocity[k]
            after.append(list(masters))
        return after

    def mistake(self, results: Sequence[Stepped]) -> str:
        """See `Case`: it is for the judges to say."""
        return ""


def _seen(parameters: Any, masters: Any, returned: Any, steps: int) -> dict[str, Any]:
    """What there is after a step."""
    import torch

    if isinstance(returned, torch.Tensor) and returned.numel() == 1:
        returned = returned.item()
    truth = isinstance(returned, (bool, int, float))
    name = "None" if returned is None else f"a {type(returned).__name__}"
    return {
        "masters": [one.detach().clone() for one in masters],
        "parameters": [one.detach().clone() for one in parameters],
        "held": [sum(one.grad is not None for one in own) for own in (masters, parameters)],
        "returned": int(bool(returned)) if truth else name,
        "steps": steps,
    }
