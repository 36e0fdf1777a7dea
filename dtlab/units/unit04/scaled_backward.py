"""04/scaled_backward: gradients that fp16 would lose, and whether any of them has overflowed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by, finished_calls
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Case, Trial
from dtlab.grading.parts import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["FINISHED", "PART", "Backwards"]

# What ranks do in 04/scaled_backward: a backward pass in fp16, of a loss far too small for it ----
#
#     parameters, fp32  ──>  inputs and weights cast to fp16  ──>  outputs  ──>  loss x 5e-9
#     gradients, fp32   <──  gradients in fp16, 0 below 3e-8   <────────────────────┘
#
# The judge computes the same gradients in float64.

FINISHED = "torch.amp.grad_scaler", "dtlab.training.loss_scaling", "dtlab.training.loss_scaling"
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


# The part ----------------------------------------------------------------------------------------

_EXACT = 0.02  # of a factor: fp16 takes a hundredth
_CLOSE = 0.1  # of a factor that is known

_INF, _NAN = math.inf, math.nan


def _trials(seed: int) -> list[Trial]:
    """Three scales; several groups; inf and NaN in each gradient; large ones that are finite."""
    draw = random.Random(seed)

    def backwards(topic: str, **more: float | bool | tuple[int, ...]) -> Backwards:
        scale = draw.choice((2.0**15, 2.0**16, 2.0**17))
        return Backwards(draw.randrange(10**6), **{"scale": scale, "topic": topic, **more})  # type: ignore[arg-type]

    plain = [backwards("plain"), backwards("plain", scale=float(draw.randint(30000, 60000)))]
    grouped = backwards("groups", groups=draw.choice(((1, 3), (2, 2), (1, 2, 1))), spare=True)
    bad = [_INF, -_INF, _NAN, draw.choice((_INF, _NAN))]
    draw.shuffle(bad)
    overflow = [
        backwards("overflow", bad=number, where=where, groups=(2, 2))
        for where, number in enumerate(bad)
    ]
    finite = [backwards("finite", bad=3e38, where=where) for where in draw.sample(range(4), 2)]
    return [Trial(1, cases) for cases in (plain, [grouped], overflow, finite)]


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Backwards, Backward]]:
    """The cases of a topic, in words, with what was seen."""
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Backwards):
                yield one.trial.words(number), case, results[0]


def _trouble(seen: Seen, topic: str) -> str:
    return next((one.trouble for one in of_topic(seen, topic) if one.error is not None), "")


def _judge_survives(seen: Seen) -> Verdict:
    """Whose work it is, and gradients that are right up to a factor."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    return _judge_directions(seen, "plain", "gradients that fp16 alone would lose are there")


def _judge_directions(seen: Seen, topic: str, right: str) -> Verdict:
    if _trouble(seen, topic):
        return lost(_trouble(seen, topic))
    for words, case, result in _cases(seen, topic):
        if case.factors(result) is None:
            return lost(f"{words}: {_why_lost(result)}")
    return ok(right)


def _why_lost(seen: Backward) -> str:
    gradients = [one for one in seen.gradients[:4] if one is not None]
    if len(gradients) < 4:
        return f"{4 - len(gradients)} of 4 parameters have no gradient. Call backward once."
    if not any(bool(one.any()) for one in gradients):
        return (
            "all gradients are 0. In fp16 they were too small to be told from 0, and what is lost "
            "in backward does not come back: what has to be large when backward begins?"
        )
    if not all(bool(one.isfinite().all()) for one in gradients):
        return "gradients have inf or NaN, where nothing overflows. How large is the scaled loss?"
    return (
        "a gradient is not that of the loss, not even up to a factor. Has it lost digits in "
        "fp16, or was something else added to it?"
    )


def _judge_unscaled(seen: Seen) -> Verdict:
    """The factor is 1, and nothing but `.grad` has changed."""
    if _judge_survives(seen).status != "ok":
        return blocked("judged once the gradients are there")
    for words, case, result in _cases(seen, "plain"):
        what = _why_scaled(case, result) or _why_touched(case, result)
        if what:
            return lost(f"{words}: {what}")
    return ok("`.grad` has the gradients of the loss itself, and nothing else has changed")


def _why_scaled(case: Backwards, seen: Backward) -> str:
    factors = case.factors(seen) or []
    wrong = [one for one in factors if abs(one - 1) > _EXACT]
    if not wrong:
        return ""
    factor = wrong[0]
    if len(wrong) < len(factors):
        return (
            f"{len(wrong)} of {len(factors)} gradients are not divided by the scale. "
            "Go through all parameters of all groups."
        )
    known = (
        (case.scale, "That is the scale: after backward the gradients have to be divided by it."),
        (1 / case.scale, "The loss was not multiplied, or the gradients were divided twice."),
        (case.scale**2, "That is the scale squared: divide the gradients, do not multiply them."),
        (-1.0, "The sign is wrong."),
    )
    why = next((why for k, why in known if abs(factor / k - 1) < _CLOSE), "")
    return f"gradients are {factor:.3g} times those of the loss. {why}".rstrip()


def _why_touched(case: Backwards, seen: Backward) -> str:
    if seen.steps:
        return f"the optimizer stepped {seen.steps} times. Whoever calls this function does that."
    before = [one.double() for one in case.tensors[1:5]]
    if not all(one.equal(old) for one, old in zip(seen.parameters, before, strict=False)):
        return "a parameter has changed. Only its gradient is to be divided."
    return ""


def _waits(seen: Seen) -> Verdict | None:
    if _judge_unscaled(seen).status != "ok":
        return blocked("judged once the gradients are right")
    return None


def _judge_groups(seen: Seen) -> Verdict:
    """All groups, and parameters that have no gradient."""
    waiting = _waits(seen)
    if waiting:
        return waiting
    first = _judge_directions(seen, "groups", "")
    if first.status != "ok":
        return first
    for words, case, result in _cases(seen, "groups"):
        what = _why_scaled(case, result)
        if not what and any(one is not None for one in result.gradients[4:]):
            what = "a parameter without a gradient has one now: leave `.grad` at None there."
        if what:
            return lost(f"{words}: {what}")
    return ok("right for several groups, and for parameters without a gradient")


def _judge_overflow(seen: Seen) -> Verdict:
    """Every inf and NaN is told, wherever it is."""
    waiting = _waits(seen)
    if waiting or _trouble(seen, "overflow"):
        return waiting or lost(_trouble(seen, "overflow"))
    missed = []
    for words, case, result in _cases(seen, "overflow"):
        if isinstance(result.returned, str):
            return lost(f"{words}: it returns {result.returned}, and not True or False.")
        if not result.returned:
            missed.append((words, case))
    if missed:
        words, case = missed[0]
        return lost(f"{words}: it returns False. {_why_missed([c for _, c in missed])}")
    return ok("tells inf and NaN in any gradient")


def _why_missed(missed: list[Backwards]) -> str:
    kinds = {case.bad if case.bad == case.bad else "nan" for case in missed}
    if len(missed) == 4:
        return "A gradient with inf or NaN anywhere means that the step has to be skipped."
    if kinds == {"nan"}:
        return "NaN counts too: it is what inf - inf gives, and equal to nothing, not to itself."
    if "nan" not in kinds and _INF in kinds:
        return "inf counts too: it is what a number beyond 65504 becomes in fp16."
    if kinds == {-_INF}:
        return "It is negative: -inf counts too."
    return "Is every element of every gradient looked at, in every group?"


def _judge_finite(seen: Seen) -> Verdict:
    """No alarm where there is nothing but numbers."""
    waiting = _waits(seen)
    if waiting or _trouble(seen, "finite"):
        return waiting or lost(_trouble(seen, "finite"))
    for topic in ("plain", "groups", "finite"):
        for words, _, result in _cases(seen, topic):
            if isinstance(result.returned, str):
                return blocked("judged once it returns True or False")
            if result.returned:
                return lost(
                    f"{words}: it returns True, and every gradient is finite. Large numbers are "
                    "no overflow in fp32, and the sum of their squares may be inf where they are "
                    "not: look at the elements."
                )
    return ok("gives no alarm where all gradients are finite, large ones too")


PART = Part(
    name="04/scaled_backward",
    level=2,
    title="Scale the loss, unscale the gradients",
    minutes=10,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            Rule("survives", 2, _judge_survives),
            Rule("unscaled", 2, _judge_unscaled),
            Rule("groups", 1, _judge_groups),
            Rule("overflow", 2, _judge_overflow),
            Rule("finite", 1, _judge_finite),
        ),
    ),
    reference="dtlab.training.loss_scaling.StaticLossScaler",
)
