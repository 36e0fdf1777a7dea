"""What ranks do in 04/loss_scaler: steps of one or two optimizers with a learner's scaler.

The model is a sum of parameters times numbers, in fp16, so these numbers are its gradients. They
say what happens: inf or NaN overflows at every scale, `LARGE` from a scale of 2^13 on, and with
a finite loss. The judge goes through the same steps with the library's scaler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Case
from dtlab.units.unit04.scaling import FINISHED

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LARGE", "Kinds", "Recorded", "Scaling"]

LARGE = 2.0**14
SHAPES = (3, 2), (4,)  # of an optimizer's parameters, each in a group of its own
MAX_NORM, RATE = 0.5, 0.25
_FACTOR = 2.0**-11  # of the loss: so a scale of 2^24 fits fp16 where gradients are ordinary

Kinds = tuple[float, ...]  # in a step, for each optimizer: 1.0, or what its gradient has instead


@dataclass(frozen=True)
class Recorded:
    """What a rank saw: the scale before each step; after it, parameters and optimizers' steps.

    `form` says what is wrong with the class, empty where nothing is.
    """

    scales: list[float]
    parameters: list[Tensor]
    steps: list[list[int]]
    form: str
    finished: frozenset[str]


@dataclass(frozen=True)
class Scaling(Case):
    """`fn(init_scale, growth_interval)`, and steps with it; `kinds` has those of each rank.

    `clips`: whether each step calls `unscale_` and clips in between; `by_value`: each number, so
    that none is inf any more. `backwards`: whether the second optimizer steps before the first.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    kinds: tuple[tuple[Kinds, ...], ...]  # of each rank, the steps
    init_scale: float = 2.0**16
    growth_interval: int = 2000
    clips: tuple[bool, ...] = ()
    by_value: bool = False
    backwards: bool = False
    topic: str = "training"

    def __str__(self) -> str:
        words = [f"{len(self.kinds[0])} steps", f"a scale of {self.init_scale:g} at first"]
        if self.growth_interval < 2000:
            words.append(f"growth_interval={self.growth_interval}")
        if any(self.clips):
            words.append("gradients are clipped" + " by value" * self.by_value)
        if len(self.kinds[0][0]) > 1:
            words.append("two optimizers")
        return ", ".join(words)

    def numbers(self, rank: int) -> list[list[list[Tensor]]]:
        """What a rank's parameters are multiplied with: of each step, optimizer, parameter."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 101 + rank)
        steps = []
        for kinds in self.kinds[rank]:
            step = []
            for kind in kinds:
                each = [(1 + torch.rand(shape, generator=draw)) * 0.5 for shape in SHAPES]
                if kind != 1.0:
                    each[-1][1] = kind
                step.append(each)
            steps.append(step)
        return steps

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        """See `Case`."""
        return {
            "numbers": [self.numbers(rank)],
            "arguments": (self.init_scale, self.growth_interval),
            "clips": self.clips or (False,) * len(self.kinds[rank]),
            "by_value": self.by_value,
            "backwards": self.backwards,
            "ranks": world_size,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        """See `Case`."""
        with finished_calls(*FINISHED, refuse=True) as finished:
            scaler = fn(*given["arguments"])
            missing = [m for m in ("scale", "unscale_", "step", "update") if not _has(scaler, m)]
            if missing:
                form = f"it has no method {', '.join(missing)}"
                seen = {"scales": [], "parameters": [], "steps": [], "form": form}
            else:
                seen = _recorded(scaler, **given) | {"form": ""}
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Recorded:
        """See `Case`."""
        scales = [float(one) for one in result["scales"]]
        parameters = [one.double() for one in result["parameters"]]
        steps = [[int(one) for one in row] for row in result["steps"]]
        form, count = str(result["form"])[:100], len(self.kinds[0])
        if not form and [len(scales), len(parameters), len(steps)] != [count] * 3:
            raise ValueError("not as many steps")
        return Recorded(scales, parameters, steps, form, frozenset(map(str, result["finished"])))

    @cached_property
    def right(self) -> Recorded:
        """The same with the library's scaler, in one process with the numbers of all ranks."""
        from dtlab.training.loss_scaling import DynamicLossScaler

        given = self.given(0, 1)
        given["numbers"] = [self.numbers(rank) for rank in range(len(self.kinds))]
        scale, interval = given["arguments"]
        scaler = DynamicLossScaler(scale, growth_interval=interval)
        return self.opened(_recorded(scaler, **given) | {"form": "", "finished": []})

    def mistake(self, results: Sequence[Recorded]) -> str:
        """See `Case`: it is for the judges to say."""
        return ""


# Steps ------------------------------------------------------------------------------------------


def _recorded(
    scaler: Any,
    numbers: Sequence[Any],
    clips: Sequence[bool],
    by_value: bool,
    backwards: bool,
    ranks: int,
    arguments: Any,
) -> dict[str, Any]:
    """Goes through all steps; `numbers` are of one rank, or of several that are played here."""
    import torch

    from dtlab.units.unit04.stepping import Stepping

    models = [_model(ranks) for _ in numbers[0][0]]
    clipped = _clipped_by_value if by_value else _clipped
    optimizers = [Stepping([[one] for one in model.parameters()], RATE) for model in models]
    scales, parameters, steps = [], [], []
    for number, clip in enumerate(clips):
        scales.append(float(scaler.scale(torch.ones(()))))
        of_step = [[own[number][which] for own in numbers] for which in range(len(models))]
        _step(scaler, models, optimizers, of_step, clipped if clip else None, backwards)
        own = [one.detach().reshape(-1) for model in models for one in model.parameters()]
        parameters.append(torch.cat(own).clone())
        steps.append([optimizer.steps for optimizer in optimizers])
    return {"scales": scales, "parameters": parameters, "steps": steps}


def _step(
    scaler: Any, models: Any, optimizers: Any, numbers: Any, clipped: Any, backwards: bool
) -> None:
    for model, optimizer, all_ranks in zip(models, optimizers, numbers, strict=True):
        optimizer.zero_grad()
        loss = sum(model(own) for own in all_ranks) / len(all_ranks)
        scaler.scale(loss).backward()
    pairs = list(zip(models, optimizers, strict=True))
    for model, optimizer in pairs if clipped else []:
        scaler.unscale_(optimizer)
        clipped(model)
    for _, optimizer in reversed(pairs) if backwards else pairs:
        scaler.step(optimizer)
    scaler.update()


def _clipped(model: Any) -> None:
    from torch.nn.utils import clip_grad_norm_

    clip_grad_norm_(model.parameters(), MAX_NORM * _FACTOR)


def _clipped_by_value(model: Any) -> None:
    """Also where it is inf: whether it was is known to who has looked before."""
    from torch.nn.utils import clip_grad_value_

    clip_grad_value_(model.parameters(), MAX_NORM * _FACTOR)


def _model(ranks: int) -> Any:
    """Parameters, times numbers, added up; on several ranks within dtlab's DataParallel."""
    import torch
    from torch import nn

    from dtlab.parallel.data import DataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.ParameterList([torch.full(shape, 0.25) for shape in SHAPES])
            self.unused = nn.Parameter(torch.full((2,), 0.25))  # has no gradient

        def forward(self, numbers: Sequence[Tensor]) -> Any:
            products = (
                (one.half() * times.half()).float().sum()
                for one, times in zip(self.own, numbers, strict=True)
            )
            return sum(products) * _FACTOR

    return DataParallel(Model()) if ranks > 1 else Model()


def _has(scaler: Any, method: str) -> bool:
    return callable(getattr(scaler, method, None))
