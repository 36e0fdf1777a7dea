"""04/loss_scaler: scale, unscale, skip and update in a class that trains like PyTorch's."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit04.steps import LARGE, Kinds, Recorded, Scaling

__all__ = ["PART"]

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
