"""04/loss_scaler: scale, unscale, skip and update in a class that trains like PyTorch's."""

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
from dtlab.units.unit04.scaled_backward import FINISHED

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PART", "Recorded", "Scaling"]

# What ranks do in 04/loss_scaler: steps of one or two optimizers with a learner's scaler ---------
#
# The model is a sum of parameters times numbers, in fp16, so these numbers are its gradients. They
# say what happens: inf or NaN overflows at every scale, `LARGE` from a scale of 2^13 on, and with
# a finite loss. The judge goes through the same steps with the library's scaler.

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
            missing = [m for m in ("scale", "unscale_", "step", "update") if not _has(scaler, m)]
            if missing:
                form = f"it has no method {', '.join(missing)}"
                seen = {"scales": [], "parameters": [], "steps": [], "form": form}
            else:
                seen = _recorded(scaler, **given) | {"form": ""}
        return seen | {"finished": sorted(finished)}

    def opened(self, result: Any) -> Recorded:
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


# The part ----------------------------------------------------------------------------------------

_NEAR = 1e-3  # of the way that parameters go: rounding in fp16 is the same in both
_GOOD, _INF, _NAN = 1.0, math.inf, math.nan

# Trials -----------------------------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """See the topics: each is what one criterion is about."""
    draw = random.Random(seed)

    def case(topic: str, *kinds: tuple[Kinds, ...], **more: object) -> Scaling:
        return Scaling(draw.randrange(10**6), kinds, topic=topic, **more)  # type: ignore[arg-type]

    def row(text: str) -> tuple[Kinds, ...]:
        """Steps of one optimizer: good ones, and some (x) that overflow."""
        return tuple((draw.choice((_INF, -_INF, _NAN)) if one == "x" else _GOOD,) for one in text)

    clips = draw.choice(((True, False, True, False), (False, True, False, True)))
    good, large, both = (_GOOD,), (LARGE,), (_GOOD, _GOOD)
    two = (*draw.sample([both, (_INF, _GOOD), (_GOOD, _NAN), (_INF, _NAN)], 4), *[both] * 4)
    alone = (good, (draw.choice((_INF, _NAN)),), good, good)
    infinite = tuple((draw.choice((_INF, -_INF)) if one == "x" else _GOOD,) for one in "oxoo")
    finite = (large, good, large, large, good, large)  # losses, whatever gradients are
    return [
        Trial(1, [case("training", row("oooo")),
                  case("training", row("ooooo"), growth_interval=2)]),
        Trial(1, [case("skips", row("oxoxxo")), case("skips", row("xooxo"))]),
        Trial(1, [case("scale", row(_mixed(draw)), growth_interval=3),
                  case("scale", row("ooooxooooxo"), growth_interval=draw.choice((2, 4))),
                  case("scale", row("xxxxo"), init_scale=4.0)]),
        Trial(1, [case("clipping", row("oooo"), clips=clips),
                  case("clipping", row("oxoo"), clips=(True,) * 4),
                  case("clipping", infinite, clips=(True,) * 4, by_value=True)]),
        Trial(1, [case("gradients", finite, init_scale=2.0**15)]),
        Trial(2, [case("gradients", alone, (good,) * 4), case("gradients", (good,) * 4, alone)]),
        Trial(1, [case("optimizers", two, backwards=back, clips=2 * clips, growth_interval=3)
                  for back in (False, True)]),
    ]  # fmt: skip


def _mixed(draw: random.Random) -> str:
    """Overflows before a growth, just after it, and two in a row; then two growths."""
    return draw.choice(("ooxoooxoxxooooooo", "oxooxooooxxooooooo"))


# Judges -----------------------------------------------------------------------------------------


def _cases(seen: Seen, topic: str) -> Iterator[tuple[str, Scaling, list[Recorded]]]:
    """The cases of a topic, in words, with what the ranks saw."""
    for one in of_topic(seen, topic):
        for number, (case, results) in enumerate(zip(one.trial.cases, one.results, strict=False)):
            if isinstance(case, Scaling):
                yield one.trial.words(number), case, results


def _trouble(seen: Seen, topic: str) -> str:
    """Why nothing can be said of a topic."""
    trials = of_topic(seen, topic)
    if not trials:
        return "the ranks do not come back from what is tried before it."
    return next((one.trouble for one in trials if one.error is not None), "")


def _parameters(seen: Seen, topic: str) -> str:
    """The first step after which parameters are wrong, and how; empty if all are right."""
    for words, case, results in _cases(seen, topic):
        for rank, result in enumerate(results):
            place = _first_wrong(case, result)
            if place is not None:
                who = f", rank {rank}" if len(results) > 1 else ""
                return f"{words}{who}, step {place}: {_how_wrong(case, result, place)}"
    return ""


def _first_wrong(case: Scaling, seen: Recorded) -> int | None:
    way = float((case.right.parameters[-1] - 0.25).norm())
    for place, (got, want) in enumerate(zip(seen.parameters, case.right.parameters, strict=True)):
        if not float((got - want).norm()) <= _NEAR * way:  # nor if it is NaN
            return place
    return None


def _how_wrong(case: Scaling, seen: Recorded, place: int) -> str:
    before = [0] * len(seen.steps[0])
    made, wanted = (
        [now - old for now, old in zip(r.steps[place], [before, *r.steps][place], strict=True)]
        for r in (seen, case.right)
    )
    for which, (own, want) in enumerate(zip(made, wanted, strict=True)):
        name = "the optimizer" if len(made) == 1 else f"optimizer {which + 1}"
        if own and not want:
            return f"{name} steps, and a gradient of it is inf or NaN."
        if want and not own:
            return f"{name} does not step, and all of its gradients are finite."
        if own != want:
            return f"{name} steps {own} times."
    return _how_far(case, seen, place)


def _how_far(case: Scaling, seen: Recorded, place: int) -> str:
    import torch

    def way(one: Recorded) -> torch.Tensor:
        start = one.parameters[place - 1] if place else torch.full_like(one.parameters[0], 0.25)
        return one.parameters[place] - start

    got, want = way(seen), way(case.right)
    factor = float((got * want).sum() / want.square().sum())
    if not math.isfinite(factor):
        return "parameters are inf or NaN."
    if abs(factor) < 1e-3:
        return "parameters hardly move. Is the loss multiplied, and is each gradient divided once?"
    if float((got - factor * want).norm()) > 0.01 * abs(factor) * float(want.norm()):
        return (
            "the parameters do not go where they should. Is every gradient divided once, by the "
            "scale that this step's loss was multiplied with?"
        )
    scale = case.right.scales[place]
    why = "That is the scale: whoever has not called unscale_ leaves that to step."
    why = why if abs(factor / scale - 1) < 0.1 else ""
    return f"the parameters go {factor:.3g} times as far as they should. {why}".rstrip()


def _judge_training(seen: Seen) -> Verdict:
    """Whose work it is, the methods, and steps in which nothing overflows."""
    name = next(filter(None, (called_by(r for rs in one.results for r in rs) for one in seen)), "")
    if name:
        return lost(f"{name} does the work for you, and finished code does not count.")
    if trouble := _trouble(seen, "training"):
        why = "\nA parameter that the loss does not depend on has None in .grad: leave it out."
        return lost(trouble + why * ("NoneType" in trouble))
    for words, _, results in _cases(seen, "training"):
        if results[0].form:
            return lost(f"{words}: {results[0].form}.")
    wrong = _parameters(seen, "training")
    if wrong and ", step 0:" not in wrong:
        wrong += "\nThe steps before it are right. What does one step leave behind for the next?"
    return lost(wrong) if wrong else ok("trains as without a scaler where nothing overflows")


def _waits(seen: Seen, topic: str, *before: str) -> Verdict | None:
    """Why a criterion cannot be judged yet, or has been lost by an error; None where it can."""
    if _judge_training(seen).status != "ok":
        return blocked("judged once it trains where nothing overflows")
    for name in before:
        if _JUDGES[name](seen).status != "ok":
            return blocked(f"judged once the criterion {name} is met")
    return lost(_trouble(seen, topic)) if _trouble(seen, topic) else None


def _judge_skips(seen: Seen) -> Verdict:
    waiting = _waits(seen, "skips")
    if waiting:
        return waiting
    wrong = _parameters(seen, "skips")
    if wrong:
        wrong += (
            "\nWhether to step is asked anew in each step: is every element of every gradient a "
            "number? inf and NaN are none, and stay what they are when they are divided."
        )
    return lost(wrong) if wrong else ok("skips the steps that overflow, and no others")


def _judge_scale(seen: Seen) -> Verdict:
    """The scale of every step; what the optimizer does is judged elsewhere."""
    waiting = _waits(seen, "scale")
    if waiting:
        return waiting
    for words, case, results in _cases(seen, "scale"):
        for place, (got, want) in enumerate(
            zip(results[0].scales, case.right.scales, strict=True)
        ):
            if got != want:
                return lost(
                    f"{words}, step {place}: the scale is {got:g}, and should be {want:g}. "
                    f"{_history(case, place)}"
                )
    return ok("has the scale of PyTorch's GradScaler in every step")


def _history(case: Scaling, place: int) -> str:
    """What the steps before were."""
    told = ["good" if kinds == (_GOOD,) else "overflow" for kinds in case.kinds[0][:place]]
    if not told:
        return "That is the first step: it has init_scale."
    return f"The steps before it: {', '.join(told)}. {_rule(case, place)}"


def _rule(case: Scaling, place: int) -> str:
    """Why the scale is what it should be."""
    before, now = case.right.scales[place - 1 : place + 1]
    if now < before:
        return "The last of them overflowed, and that halves the scale, to any number."
    if now > before:
        return (
            f"growth_interval={case.growth_interval} good steps in a row are complete: they "
            "double the scale."
        )
    return (
        f"The last one was good, and no growth_interval={case.growth_interval} of them in a row "
        "are complete, counted anew after each overflow and each growth: the scale stays."
    )


def _judge_clipping(seen: Seen) -> Verdict:
    waiting = _waits(seen, "clipping", "skips")
    if waiting:
        return waiting
    wrong = _parameters(seen, "clipping")
    if wrong:
        return lost(
            f"{wrong}\nBetween unscale_ and step the gradients are those of the loss, to be "
            "clipped; step divides only what unscale_ has not, and skips all the same."
        )
    return ok("gradients can be clipped after unscale_, in some steps or in all")


def _judge_gradients(seen: Seen) -> Verdict:
    waiting = _waits(seen, "gradients", "skips", "scale")
    if waiting:
        return waiting
    wrong = _parameters(seen, "gradients")
    if wrong:
        return lost(
            f"{wrong}\nThe loss does not tell: it can be finite where a gradient overflows, and "
            "another rank's gradients come in with the averaging. What has to be finite is what "
            "the optimizer would step with."
        )
    return ok("looks at the gradients, after averaging: all ranks skip together")


def _judge_optimizers(seen: Seen) -> Verdict:
    waiting = _waits(seen, "optimizers", "skips", "scale", "clipping", "gradients")
    if waiting:
        return waiting
    wrong = _parameters(seen, "optimizers")
    for words, case, results in _cases(seen, "optimizers"):
        if not wrong and results[0].scales != case.right.scales:
            wrong = f"{words}: the scale is not halved once where one of them overflows."
    if wrong:
        return lost(
            f"{wrong}\nWhat was found, and whether it was unscaled, is kept for each optimizer; "
            "one overflow anywhere halves the scale, for both."
        )
    return ok("with two optimizers only the one that overflows skips, and the scale is halved")


_JUDGES = {
    "skips": _judge_skips,
    "scale": _judge_scale,
    "clipping": _judge_clipping,
    "gradients": _judge_gradients,
}

PART = Part(
    name="04/loss_scaler",
    level=2,
    title="The loss scaler",
    minutes=17,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            Rule("training", 2, _judge_training),
            Rule("skips", 2, _judge_skips),
            Rule("scale", 2, _judge_scale),
            Rule("clipping", 2, _judge_clipping),
            Rule("gradients", 1, _judge_gradients),
            Rule("optimizers", 1, _judge_optimizers),
        ),
    ),
    reference="dtlab.training.loss_scaling.DynamicLossScaler",
    symbol="LossScaler",
)
