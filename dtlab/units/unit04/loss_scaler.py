"""04/loss_scaler: a class that scales, unscales, skips and updates like PyTorch's GradScaler.

The model is a sum of parameters times numbers, in fp16, so these numbers are its gradients. One
number decides what happens: inf or NaN overflows at every scale, and `LARGE` at scales of 2^13
or more, although the loss is finite. The judge runs the same steps with the library's scaler.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit04.scaled_backward import FINISHED

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Scaling", "train"]

LARGE = 2.0**14
SHAPES = (3, 2), (4,)  # of an optimizer's parameters, each in its own group
START, RATE, MAX_NORM = 0.25, 0.25, 0.5
_FACTOR = 2.0**-11  # of the loss: with it, ordinary gradients fit fp16 at a scale of 2^24
_NEAR = 1e-3  # of the distance that parameters move: both runs round to fp16 in the same way


@dataclass(frozen=True)
class Scaling(Faulty):
    """Calls `fn(init_scale, growth_interval)`, and trains for some steps with the scaler.

    `kinds` describes the steps of each rank, with one letter per step and optimizer: its gradients
    are ordinary (o), have inf or NaN (x), -inf (i) or a large number (L). `clips` says for each
    step whether it calls `unscale_` and clips before the optimizer steps. With `by_value`, each
    number is clipped, so that none stays inf. With `backwards`, the second optimizer steps first.
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
        words = [counted(len(self.kinds[0]), "step"), f"a scale of {self.init_scale:g} at first"]
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
        """The factors of a rank's parameters, by step, optimizer and parameter."""
        import torch

        draw = torch.Generator().manual_seed(self.seed * 101 + rank)

        def drawn(kind: str, step: int) -> list[Tensor]:
            factors = [(1 + torch.rand(shape, generator=draw)) * 0.5 for shape in SHAPES]
            bad = {"x": (math.nan, math.inf, -math.inf)[step % 3], "i": -math.inf, "L": LARGE}
            factors[-1][1] = bad.get(kind, factors[-1][1])
            return factors

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
            missing = [name for name in methods if not callable(getattr(scaler, name, None))]
            hidden = [name for name in missing if getattr(scaler, name, None) is not None]
            record = (
                {"missing": missing, "hidden": hidden} if missing else train(scaler, given)
            )
        return record | {"finished": sorted(finished)}

    def trained(self, scaler: Any) -> dict[str, Any]:
        """Runs the steps with any scaler in one process, with the numbers of all ranks."""
        every = [self.numbers(rank) for rank in range(len(self.kinds))]
        return train(scaler, self.given(0, 1) | {"numbers": every})

    @cached_property
    def right(self) -> dict[str, Any]:
        """The results of the steps with the library's scaler."""
        from dtlab.training.loss_scaling import DynamicLossScaler

        scaler = DynamicLossScaler(self.init_scale, growth_interval=self.growth_interval)
        return self.trained(scaler)

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for rank, record in enumerate(results):
            if record.get("hidden"):
                name = record["hidden"][0]
                yield (
                    "training",
                    f"self.{name} is a value and hides the method {name}: give the value another "
                    "name.",
                )
                return
            if record.get("missing"):
                yield "training", f"your class has no method {', '.join(record['missing'])}."
                return
            where = f"rank {rank}, " if len(results) > 1 else ""
            scales = zip(record["scales"], self.right["scales"], strict=True)
            other = next((step for step, (got, want) in enumerate(scales) if got != want), None)
            if self.topic == "scale" and other is not None:
                before = ["good" if kind == "o" else "overflow" for kind in self.kinds[0]]
                yield (
                    "scale",
                    f"step {other}: the scale is {record['scales'][other]:g}, and should be "
                    f"{self.right['scales'][other]:g}. The steps before it: "
                    f"{', '.join(before[:other]) or 'none'}. {_ADVICE['scale']}",
                )
            step = None if self.topic == "scale" else self._first_wrong(record["parameters"])
            if step is not None:
                how = self._how_wrong(record, step)
                between = _BETWEEN if step and _STAYED not in how else ""
                advice = _ADVICE.get(self.topic, between)
                yield self.topic, f"{where}step {step}: {how}\n{advice}".rstrip()
            elif self.topic == "optimizers" and other is not None:
                wrong = "the scale is not halved once if one of them overflows."
                yield "optimizers", f"{wrong}\n{_ADVICE['optimizers']}"

    def _first_wrong(self, parameters: Sequence[Tensor]) -> int | None:
        """The first step after which the parameters are wrong; None if they are right."""
        right = self.right["parameters"]
        most = _NEAR * float((right[-1] - START).norm())
        off = (float((got - want).norm()) for got, want in zip(parameters, right, strict=True))
        return next((step for step, error in enumerate(off) if not error <= most), None)  # or NaN

    def _how_wrong(self, record: Noted, step: int) -> str:
        """What a step did wrong to parameters that were right before it."""
        counts, wanted = (
            [now - old for old, now in zip(steps[step], steps[step + 1], strict=True)]
            for steps in (record["steps"], self.right["steps"])
        )
        for number, (got, want) in enumerate(zip(counts, wanted, strict=True)):
            name = "the optimizer" if len(counts) == 1 else f"optimizer {number + 1}"
            if got and not want:
                return f"{name} steps, although one of its gradients is inf or NaN."
            if want and not got:
                return f"{name} does not step, although all of its gradients are finite."
            if got != want:
                return f"{name} steps {counted(got, 'time')}."
        start = self.right["parameters"][step - 1] if step else START
        way, right = record["parameters"][step] - start, self.right["parameters"][step] - start
        factor = float((way * right).sum() / right.square().sum())
        if not math.isfinite(factor):
            return "parameters are inf or NaN."
        if step > 0 and self._is_undivided(way, right, step):
            return _STAYED
        if abs(factor) < 1e-3:
            return f"parameters hardly move. Is the loss multiplied? {_DIVIDED}"
        if float((way - factor * right).norm()) > 0.01 * abs(factor) * float(right.norm()):
            return f"the parameters move in a wrong direction. {_DIVIDED}"
        is_scale = abs(factor / self.right["scales"][step] - 1) < 0.1
        why = _NOT_UNSCALED if is_scale else _DIVIDED
        return f"the parameters move {factor:.3g} times as far as they should. {why}"

    def _is_undivided(self, way: Tensor, right: Tensor, step: int) -> bool:
        """Whether SGD with momentum stepped with this step's gradients times the scale."""
        before = self.right["parameters"][step - 2] if step > 1 else START
        gradient = right - 0.9 * (self.right["parameters"][step - 1] - before)
        scaled = (self.right["scales"][step] - 1) * gradient
        return float((way - right - scaled).norm()) < 0.01 * float(scaled.norm())


_DIVIDED = "Is every gradient divided once, by the scale of this step's loss?"
_NOT_UNSCALED = "That is the scale: if unscale_ has not been called, step must divide by it."
_STAYED = (
    "its gradients were not divided by the scale; those of the steps before were. What does "
    "`step` remember from those steps, and which of it must `update` clear?"
)
_BETWEEN = (
    "The steps before it are right. Which state must one step keep for the next, and which must "
    "`update` clear?"
)
_ADVICE = {
    "scale": (
        "An overflow halves the scale, which has no minimum. growth_interval good steps in a row "
        "double it; the count restarts after each overflow and each growth."
    ),
    "skips": (
        "Decide in each step again whether to step: is every element of every gradient finite? "
        "Division does not remove inf and NaN."
    ),
    "clipping": (
        "Between unscale_ and step the gradients must be those of the loss, so that they can be "
        "clipped. step divides only if unscale_ has not, and skips in both cases."
    ),
    "gradients": (
        "Do not judge by the loss: it can be finite if a gradient overflows, and averaging adds "
        "another rank's gradients. Look at the gradients with which the optimizer would step."
    ),
    "optimizers": (
        "Remember for each optimizer whether it overflowed and whether it was unscaled; one "
        "overflow anywhere halves the scale, for both."
    ),
}


def train(scaler: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Runs steps; returns the scale before each, the parameters and optimizer steps after it.

    The numbers are those of one rank, or of several ranks that this process simulates.
    """
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grad_value_

    from dtlab.units.unit04.stepping import Stepping

    clip: Any = clip_grad_value_ if given["by_value"] else clip_grad_norm_
    numbers = given["numbers"]
    models = [_model(given["ranks"]) for _ in numbers[0][0]]
    optimizers = [Stepping([[each] for each in model.parameters()], RATE) for model in models]
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
        every = [each.detach().reshape(-1) for model in models for each in model.parameters()]
        parameters.append(torch.cat(every).double())
        steps.append([optimizer.steps for optimizer in optimizers])
    return {"scales": scales, "parameters": parameters, "steps": steps}


def _model(ranks: int) -> Any:
    """A model that sums parameters times numbers; on several ranks in dtlab's DataParallel."""
    import torch
    from torch import nn

    from dtlab.parallel.data import DataParallel

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.ParameterList([torch.full(shape, START) for shape in SHAPES])
            self.unused = nn.Parameter(torch.full((2,), START))  # has no gradient

        def forward(self, numbers: Sequence[Tensor]) -> Any:
            products = (
                (parameter.half() * times.half()).float().sum()
                for parameter, times in zip(self.used, numbers, strict=True)
            )
            return sum(products) * _FACTOR

    return DataParallel(Model()) if ranks > 1 else Model()


def _trials(seed: int) -> list[Trial]:
    """Trials for each criterion; the topic of a case names it."""
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
            rule("skips", 2, "skips only the steps that overflow", "training"),
            rule("scale", 2, "the scale of PyTorch's GradScaler", "training"),
            rule("clipping", 2, "gradients can be clipped", "training", "skips"),
            rule("gradients", 1, "all ranks skip if a gradient overflows", *_BEFORE[:3]),
            rule("optimizers", 1, "only the optimizer that overflows skips", *_BEFORE),
        ),
    ),
    reference="dtlab.training.loss_scaling.DynamicLossScaler",
    symbol="LossScaler",
)
