"""04/master_step: one step of an optimizer on fp32 copies of bf16 and fp16 parameters."""

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
from dtlab.units.unit04.scaled_backward import FINISHED as SCALERS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Mastered"]

# What a rank does in 04/master_step: steps on fp32 copies of its bf16 or fp16 parameters ---------
#
# The judge works out the masters in float64.

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


# The part ----------------------------------------------------------------------------------------

_NEAR, _ROUNDING = 1e-4, 5e-7  # of the way that masters go, and of where they are: they are fp32

# Trials and judges ------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """bf16 without a scale and fp16 with one; tiny gradients; overflows; missing ones."""
    draw = random.Random(seed)

    def case(topic: str, kinds: str, dtype: str = "float16", scale: float = 2.0**12) -> Mastered:
        return Mastered(draw.randrange(10**6), kinds, dtype, scale, topic)

    plain = [case("masters", "oooooo", "bfloat16", 1.0), case("masters", "oooo", scale=2.0**8)]
    skips = [case("skips", kinds) for kinds in draw.sample(["oxoo", "xoxo", "ooxxo", "oxxoo"], 3)]
    absent = [case("absent", kinds) for kinds in ("o-oo", "-o-o")]
    return [Trial(1, cases) for cases in (plain, [case("small", "tttt")], skips, absent)]


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Mastered, Stepped]]:
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Mastered):
                yield one.trial.words(number), case, results[0]


def _trouble(seen: Seen, topic: str) -> str:
    trials = of_topic(seen, topic)
    if not trials:
        return "the rank does not come back from what is tried before it."
    return next((one.trouble for one in trials if one.error is not None), "")


def _masters(seen: Seen, topic: str) -> str:
    """The first step after which a master is wrong, and how; empty if all are right."""
    for words, case, result in _cases(seen, topic):
        before = [one.double() for one in case.start()]
        for number, (step, right) in enumerate(zip(result.steps, case.right, strict=True)):
            for place, (got, want) in enumerate(zip(step.masters, right, strict=True)):
                way, size = float((want - before[place]).norm()), float(want.norm())
                if not float((got - want).norm()) <= _NEAR * way + _ROUNDING * size:
                    how = _how_wrong(case, step, (before[place], got, want), case.kinds[number])
                    return f"{words}, step {number}: {how}"
            before = right
    return ""


def _how_wrong(case: Mastered, step: Step, three: tuple[Tensor, Tensor, Tensor], kind: str) -> str:
    before, got, want = three
    if kind == "x":
        return "a gradient is inf or NaN, and the masters have changed: skip the step."
    way, wanted = got - before, want - before
    if not float(wanted.norm()):
        return "a master has moved whose parameter has no gradient in this step."
    factor = float((way * wanted).sum() / wanted.square().sum())
    if not float(way.norm()):
        return "the masters stay where they are. Does the optimizer step, and with gradients?"
    rounded = all(m.equal(p) for m, p in zip(step.masters, step.parameters, strict=True))
    if rounded:
        return f"the masters have no more digits than {case.dtype}: they are to be fp32."
    if case.scale != 1 and abs(factor / case.scale - 1) < 0.1:
        return "the masters go as many times too far as the scale is large: divide by it."
    return f"the masters go {factor:.3g} times as far as SGD in fp32 does with these gradients."


def _judge_masters(seen: Seen) -> Verdict:
    """Whose work it is, and the masters in bf16 and fp16."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    wrong = _trouble(seen, "masters") or _masters(seen, "masters")
    return lost(wrong) if wrong else ok("the masters train in fp32")


def _waits(seen: Seen, topic: str) -> Verdict | None:
    if _judge_masters(seen).status != "ok":
        return blocked("judged once the masters are right")
    return lost(_trouble(seen, topic)) if _trouble(seen, topic) else None


def _judge_copies(seen: Seen) -> Verdict:
    """Parameters are their masters, rounded, after every step."""
    waiting = _waits(seen, "masters")
    if waiting:
        return waiting
    import torch

    for words, case, result in _cases(seen, "masters"):
        for number, step in enumerate(result.steps):
            for master, parameter in zip(step.masters, step.parameters, strict=True):
                if not master.to(getattr(torch, case.dtype)).double().equal(parameter):
                    return lost(
                        f"{words}, step {number}: a parameter is not its master, rounded to "
                        f"{case.dtype}. It is written back after every step, into the parameter "
                        "that the model has."
                    )
    return ok("the model's parameters are the masters, rounded")


def _judge_small(seen: Seen) -> Verdict:
    """Gradients are divided in fp32."""
    waiting = _waits(seen, "small")
    if waiting:
        return waiting
    wrong = _masters(seen, "small")
    if wrong:
        return lost(
            f"{wrong}\nDivided by the scale, these gradients are too small for fp16. In which "
            "format is the division?"
        )
    return ok("gradients that are too small for fp16 arrive")


def _judge_skips(seen: Seen) -> Verdict:
    """No step with inf or NaN, and it says so."""
    waiting = _waits(seen, "skips")
    if waiting:
        return waiting
    wrong = _masters(seen, "skips")
    if wrong:
        return lost(wrong)
    for topic in ("masters", "skips"):
        for words, case, result in _cases(seen, topic):
            for number, (kind, step) in enumerate(zip(case.kinds, result.steps, strict=True)):
                if step.returned != int(kind != "x"):
                    what = ["False", "True"][step.returned] if step.returned in (0, 1) else ""
                    did = "was skipped" if kind == "x" else "was made"
                    return lost(
                        f"{words}, step {number} {did}, and it returns {what or step.returned}."
                    )
    return ok("skips the steps that overflow, and says which were made")


def _judge_absent(seen: Seen) -> Verdict:
    """A parameter without a gradient in a step, and what is left in `.grad`."""
    waiting = _waits(seen, "absent")
    if waiting:
        return waiting
    wrong = _masters(seen, "absent")
    if wrong:
        return lost(f"{wrong}\nThen its master has none either: not zeros, and not the last one.")
    for topic in ("masters", "skips", "absent"):
        for words, _, result in _cases(seen, topic):
            for number, step in enumerate(result.steps):
                if any(step.held):
                    whose = "masters" if step.held[0] else "parameters"
                    return lost(
                        f"{words}, after step {number}: {whose} still have gradients. Set them to "
                        "None, made or skipped: they would take memory, and be added to."
                    )
    return ok("leaves no gradient behind, and needs none")


PART = Part(
    name="04/master_step",
    level=2,
    title="The master-weight step",
    minutes=15,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("masters", 2, _judge_masters),
            Rule("copies", 1, _judge_copies),
            Rule("small", 1, _judge_small),
            Rule("skips", 1, _judge_skips),
            Rule("gradients", 1, _judge_absent),
        ),
    ),
    reference="dtlab.training.master_weights.naive_master_step",
    stretch=True,
)
