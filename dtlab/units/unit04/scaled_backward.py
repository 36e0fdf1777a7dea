"""04/scaled_backward: gradients that fp16 would lose, and whether any of them has overflowed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from dtlab.grading.checking.checks import Check, Rule, Verdict, blocked, lost, ok
from dtlab.grading.checking.finished import called_by
from dtlab.grading.checking.topics import Seen, of_topic
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit04.scaling import Backward, Backwards

__all__ = ["PART"]

_EXACT = 0.02  # of a factor: fp16 takes a hundredth
_NEAR = 0.1  # of a factor that is known

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
    why = next((why for k, why in known if abs(factor / k - 1) < _NEAR), "")
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
