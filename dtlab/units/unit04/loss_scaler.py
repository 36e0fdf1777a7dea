"""04/loss_scaler: scale, unscale, skip and update in a class that trains like PyTorch's.

The model is a sum of parameters times numbers, in fp16, so these numbers are its gradients. One
of them says what happens: inf or NaN overflows at every scale, `LARGE` from a scale of 2^13 on,
and with a finite loss. The judge goes through the same steps with the library's scaler.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit04.scaled_backward import FINISHED

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Scaling", "train"]

LARGE = 2.0**14
SHAPES = (3, 2), (4,)  # of an optimizer's parameters, each in a group of its own
START, RATE, MAX_NORM = 0.25, 0.25, 0.5
_FACTOR = 2.0**-11  # of the loss: so a scale of 2^24 fits fp16 where gradients are ordinary
_NEAR = 1e-3  # of the way that parameters go: rounding in fp16 is the same in both


@dataclass(frozen=True)
class Scaling(Faulty):
    """`fn(init_scale, growth_interval)`, and steps with it.

    `kinds` has the steps of each rank, in each step a letter for each optimizer: its gradients
    are ordinary (o), have inf or NaN (x), -inf (i) or a large number (L).
    `clips`: whether each step calls `unscale_` and clips before the optimizer steps; `by_value`:
    each number, so that none is inf any more. `backwards`: the second optimizer steps first.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {}

    seed: int
    kinds: tuple[Sequence[str], ...]
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

    def advice(self, trouble: str) -> str:
        if "NoneType" not in trouble:
            return ""
        return "A parameter that the loss does not depend on has None in .grad: leave it out."

    def numbers(self, rank: int) -> list[list[list[Tensor]]]:
        """What a rank's parameters are multiplied with: of each step, optimizer, parameter."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 101 + rank)

        def drawn(kind: str, step: int) -> list[Tensor]:
            each = [(1 + torch.rand(shape, generator=draw)) * 0.5 for shape in SHAPES]
            bad = {"x": (math.nan, math.inf, -math.inf)[step % 3], "i": -math.inf, "L": LARGE}
            each[-1][1] = bad.get(kind, each[-1][1])
            return each

        steps = enumerate(self.kinds[rank])
        return [[drawn(kind, step) for kind in kinds] for step, kinds in steps]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
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
        with finished_calls(*FINISHED, refuse=True) as finished:
            scaler = fn(*given["arguments"])
            methods = "scale", "unscale_", "step", "update"
            missing = [one for one in methods if not callable(getattr(scaler, one, None))]
            seen = {"missing": missing} if missing else train(scaler, given)
        return seen | {"finished": sorted(finished)}

    def trained(self, scaler: Any) -> dict[str, Any]:
        """The steps with any scaler, in one process with the numbers of all ranks."""
        every = [self.numbers(rank) for rank in range(len(self.kinds))]
        return train(scaler, self.given(0, 1) | {"numbers": every})

    @cached_property
    def right(self) -> dict[str, Any]:
        """The steps with the library's scaler."""
        from dtlab.training.loss_scaling import DynamicLossScaler

        scaler = DynamicLossScaler(self.init_scale, growth_interval=self.growth_interval)
        return self.trained(scaler)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, seen in enumerate(results):
            if seen.get("missing"):
                yield "training", f"it has no method {', '.join(seen['missing'])}."
                return
            where = f"rank {rank}, " if len(results) > 1 else ""
            scales = zip(seen["scales"], self.right["scales"], strict=True)
            other = next((step for step, (got, want) in enumerate(scales) if got != want), None)
            if self.topic == "scale" and other is not None:
                before = ["good" if one == "o" else "overflow" for one in self.kinds[0]]
                yield (
                    "scale",
                    f"step {other}: the scale is {seen['scales'][other]:g}, and should be "
                    f"{self.right['scales'][other]:g}. The steps before it: "
                    f"{', '.join(before[:other]) or 'none'}. {_ADVICE['scale']}",
                )
            step = None if self.topic == "scale" else self._first_wrong(seen["parameters"])
            if step is not None:
                how = self._how_wrong(seen, step)
                advice = _ADVICE.get(self.topic, _BETWEEN if step else "")
                yield self.topic, f"{where}step {step}: {how}\n{advice}".rstrip()
            elif self.topic == "optimizers" and other is not None:
                wrong = "the scale is not halved once where one of them overflows."
                yield "optimizers", f"{wrong}\n{_ADVICE['optimizers']}"

    def _first_wrong(self, parameters: Sequence[Tensor]) -> int | None:
        """The first step after which parameters are not where they should be."""
        right = self.right["parameters"]
        most = _NEAR * float((right[-1] - START).norm())
        off = (float((got - want).norm()) for got, want in zip(parameters, right, strict=True))
        return next((step for step, one in enumerate(off) if not one <= most), None)  # or NaN

    def _how_wrong(self, seen: Noted, step: int) -> str:
        """What a step did to parameters that were right before it."""
        made, wanted = (
            [now - old for old, now in zip(steps[step], steps[step + 1], strict=True)]
            for steps in (seen["steps"], self.right["steps"])
        )
        for number, (got, want) in enumerate(zip(made, wanted, strict=True)):
            name = "the optimizer" if len(made) == 1 else f"optimizer {number + 1}"
            if got and not want:
                return f"{name} steps, and a gradient of it is inf or NaN."
            if want and not got:
                return f"{name} does not step, and all of its gradients are finite."
            if got != want:
                return f"{name} steps {got} times."
        start = self.right["parameters"][step - 1] if step else START
        way, right = seen["parameters"][step] - start, self.right["parameters"][step] - start
        factor = float((way * right).sum() / right.square().sum())
        if not math.isfinite(factor):
            return "parameters are inf or NaN."
        if abs(factor) < 1e-3:
            return f"parameters hardly move. Is the loss multiplied? {_DIVIDED}"
        if float((way - factor * right).norm()) > 0.01 * abs(factor) * float(right.norm()):
            return f"the parameters do not go where they should. {_DIVIDED}"
        is_scale = abs(factor / self.right["scales"][step] - 1) < 0.1
        why = _NOT_UNSCALED if is_scale else _DIVIDED
        return f"the parameters go {factor:.3g} times as far as they should. {why}"


_DIVIDED = "Is every gradient divided once, by the scale of this step's loss?"
_NOT_UNSCALED = "That is the scale: whoever has not called unscale_ leaves that to step."
_BETWEEN = "The steps before it are right. What does one step leave behind for the next?"
_ADVICE = {
    "scale": (
        "An overflow: that halves the scale, to any number. growth_interval good steps in a row: "
        "they double the scale, counted anew after each overflow and each growth."
    ),
    "skips": (
        "Whether to step is asked anew in each step: is every element of every gradient finite? "
        "inf and NaN stay what they are when they are divided."
    ),
    "clipping": (
        "Between unscale_ and step the gradients are those of the loss, to be clipped; step "
        "divides only what unscale_ has not, and skips all the same."
    ),
    "gradients": (
        "The loss does not tell: it can be finite where a gradient overflows, and averaging "
        "brings in another rank's gradients. Look at what the optimizer would step with."
    ),
    "optimizers": (
        "What was found, and whether it was unscaled, is kept for each optimizer; one overflow "
        "anywhere halves the scale, for both."
    ),
}


def train(scaler: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The scale before each step; parameters after it; how often optimizers stepped until then.

    The numbers are of one rank, or of several that are played here.
    """
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grad_value_

    from dtlab.units.unit04.stepping import Stepping

    clip: Any = clip_grad_value_ if given["by_value"] else clip_grad_norm_
    numbers = given["numbers"]
    models = [_model(given["ranks"]) for _ in numbers[0][0]]
    optimizers = [Stepping([[one] for one in model.parameters()], RATE) for model in models]
    pairs = list(zip(models, optimizers, strict=True))
    scales, parameters, steps = [], [], [[0] * len(models)]
    for step, clips in enumerate(given["clips"]):
        scales.append(float(scaler.scale(torch.ones(()))))
        for number, (model, optimizer) in enumerate(pairs):
            optimizer.zero_grad()
            losses = [model(of_rank[step][number]) for of_rank in numbers]
            scaler.scale(sum(losses) / len(losses)).backward()
        for model, optimizer in pairs if clips else []:
            scaler.unscale_(optimizer)
            clip(model.parameters(), MAX_NORM * _FACTOR)
        for _, optimizer in reversed(pairs) if given["backwards"] else pairs:
            scaler.step(optimizer)
        scaler.update()
        every = [one.detach().reshape(-1) for model in models for one in model.parameters()]
        parameters.append(torch.cat(every).double())
        steps.append([optimizer.steps for optimizer in optimizers])
    return {"scales": scales, "parameters": parameters, "steps": steps}


def _model(ranks: int) -> Any:
    """Parameters, times numbers, added up; on several ranks within dtlab's DataParallel."""
    import torch
    from torch import nn

    from dtlab.parallel.data import DataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.ParameterList([torch.full(shape, START) for shape in SHAPES])
            self.unused = nn.Parameter(torch.full((2,), START))  # has no gradient

        def forward(self, numbers: Sequence[Tensor]) -> Any:
            products = (
                (one.half() * times.half()).float().sum()
                for one, times in zip(self.own, numbers, strict=True)
            )
            return sum(products) * _FACTOR

    return DataParallel(Model()) if ranks > 1 else Model()


def _trials(seed: int) -> list[Trial]:
    """Each topic is what one criterion is about."""
    draw = random.Random(seed)

    def case(topic: str, *kinds: Sequence[str], **more: Any) -> Scaling:
        return Scaling(draw.randrange(10**6), kinds, topic=topic, **more)

    # Overflows before a growth, just after it, and two in a row; then two growths.
    mixed = draw.choice(("ooxoooxoxxooooooo", "oxooxooooxxooooooo"))
    interval = draw.choice((2, 4))
    some = draw.choice(((True, False, True, False), (False, True, False, True)))
    every = (True,) * 4
    two = (*draw.sample(["oo", "xo", "ox", "xx"], 4), *["oo"] * 4)
    topics = [
        [case("training", "oooo"), case("training", "ooooo", growth_interval=2)],
        [case("skips", "oxoxxo"), case("skips", "xooxo")],
        [
            case("scale", mixed, growth_interval=3),
            case("scale", "ooooxooooxo", growth_interval=interval),
            case("scale", "xxxxo", init_scale=4.0),
        ],
        [
            case("clipping", "oooo", clips=some),
            case("clipping", "oxoo", clips=every),
            case("clipping", "oioo", clips=every, by_value=True),
        ],
        [case("gradients", "LoLLoL", init_scale=2.0**15)],
        [case("gradients", "oxoo", "oooo"), case("gradients", "oooo", "oxoo")],
        [
            case("optimizers", two, backwards=back, clips=2 * some, growth_interval=3)
            for back in (False, True)
        ],
    ]
    return [Trial(len(cases[0].kinds), cases) for cases in topics]


_BEFORE = "training", "skips", "scale", "clipping", "gradients"

PART = Part(
    name="04/loss_scaler",
    level=2,
    title="The loss scaler",
    minutes=17,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("training", 2, "trains as without a scaler where nothing overflows"),
            rule("skips", 2, "skips the steps that overflow, no others", "training"),
            rule("scale", 2, "the scale of PyTorch's GradScaler", "training"),
            rule("clipping", 2, "gradients can be clipped", "training", "skips"),
            rule("gradients", 1, "ranks skip together, by the gradients", *_BEFORE[:3]),
            rule("optimizers", 1, "only the one that overflows skips", *_BEFORE),
        ),
    ),
    reference="dtlab.training.loss_scaling.DynamicLossScaler",
    symbol="LossScaler",
)
