"""04/nan_run: a run in fp16 whose loss becomes NaN, since scaled gradients are clipped.

The script is in `nan_run_script`, as the notebook shows it. Symptom and number are measured in a
run of it on digits; the mended one is judged by the gradient that each step is made with, and by
where it ends.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dtlab.grading.checking.criteria import criterion
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.scripts.cases import OnDigits, Seen, Training
from dtlab.grading.scripts.data_parallel import drift, left_out
from dtlab.grading.scripts.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.grading.scripts.mend import proof, script_part
from dtlab.grading.scripts.reference import gradient_of, mean, steps_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptoms

if TYPE_CHECKING:
    import torch

__all__ = ["PART", "SYMPTOMS"]

_MOMENTUM = 0.9
_LIMIT = 30.0  # seconds for the broken run, which takes one
_FAR = 1.5  # times max_norm: what rounding does not explain
_NEAR = 0.25  # of a gradient: in fp16 a unit near 0 may be on where it is off in float64
_EXACT = 0.02  # of its length, where it is clipped


class Made(NamedTuple):
    """A step that moved the parameters: its number, its gradient, and the true one.

    Both are of the sum over a rank's samples, averaged over the ranks, as one row.
    """

    number: int
    got: torch.Tensor
    true: torch.Tensor


def _made_steps(case: Training, results: Sequence[Seen]) -> list[Made]:
    """The steps in which rank 0's parameters moved, where they and the gradient are finite.

    The gradient that SGD got follows from where the parameters went.
    """
    _, rate, _ = case.more
    seen, found = results[0], []
    ends = [*seen.before[1:], seen.after]
    velocity = 0 * seen.after
    for number, (begin, end, step) in enumerate(
        zip(seen.before, ends, steps_of(case, results), strict=False)
    ):
        if end.equal(begin):
            continue
        got = (begin - end) / rate - _MOMENTUM * velocity
        velocity = (begin - end) / rate
        weights = {sample: case.micro_batch * share for sample, share in mean(step).items()}
        true = gradient_of(case, begin, weights)
        if not bool(got.isfinite().all() and true.isfinite().all()):
            break
        found.append(Made(number, got, true))
    return found


# Symptoms, as the notebook lists them, and the number -------------------------------------------

SYMPTOMS = Symptoms()


def _lengths(scene: Scene) -> list[float]:
    """Of the gradients that steps were made with, as parts of max_norm."""
    _, _, max_norm = scene.case.more
    return [float(step.got.norm()) / max_norm for step in _made_steps(scene.case, scene.results)]


def _skipped(scene: Scene) -> list[bool]:
    """Of each step, whether the parameters stayed where they were."""
    seen = scene.results[0]
    ends = [*seen.before[1:], seen.after]
    return [end.equal(begin) for begin, end in zip(seen.before, ends, strict=True)]


@SYMPTOMS.add("too long", "steps are made with gradients longer than max_norm")
def _too_long(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(longest > _FAR, f"the longest gradient had {longest:.3g} times max_norm")


@SYMPTOMS.add("too short", "no step is made with a gradient near max_norm")
def _too_short(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(_FAR * longest < 1, f"the longest gradient had {longest:.3g} times max_norm")


@SYMPTOMS.add("bad parameters", "a step was made with inf or NaN: parameters are")
def _bad_parameters(scene: Scene) -> Finding:
    bad = not all(bool(one.after.isfinite().all()) for one in scene.results)
    return Finding(bad, f"the parameters were {'not ' if bad else ''}finite in the end")


@SYMPTOMS.add("none skipped", "no step is skipped, whatever its gradients are")
def _none_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "some" if any(skipped) else "none"
    return Finding(not any(skipped), f"{many} of {len(skipped)} steps were skipped")


@SYMPTOMS.add("all skipped", "every step is skipped, from the first one on")
def _all_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "all" if all(skipped) else "not all"
    return Finding(all(skipped), f"{many} of {len(skipped)} steps were skipped")


SYMPTOMS.add("drift", "the copies of the model differ, by more and more")(drift)
SYMPTOMS.add("samples left out", "an epoch does not take all samples")(left_out)


def _measured(scene: Scene) -> dict[str, float]:
    scales = [scale for _, scale in scene.results[0].curve]
    first = _skipped(scene).index(False)
    times = {"times": scales[0] / scales[first], "scale": scales[first]}
    return {**times, "skipped": first, "length": _lengths(scene)[0]}


# What the mended run has to do ------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Two ranks where every gradient is clipped, and three where none is."""
    draw = random.Random(seed)

    def trial(ranks: int, max_norm: float, number: int) -> Trial:
        micro, rate = draw.choice((10, 12, 14)), draw.choice((0.01, 0.015, 0.02))
        more = (ranks * micro, rate, max_norm)
        given = Training(seed + number, ranks * micro * 14, 2, 16, more, micro_batch=micro)
        return Trial(ranks, [given])

    clipped = trial(2, draw.choice((0.5, 0.7, 1.0)), 0)
    return [clipped, trial(3, draw.choice((11.0, 12.0, 13.0)), 1)]


def _other_steps(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """As many as there are batches, some of them skipped, and most of them made."""
    passes, wanted = len(results[0].passes), case.updates(len(results))
    if passes != wanted:
        return f"rank 0 makes {passes} forward passes, and there are {wanted} batches for it."
    made = len(_made_steps(case, results))
    if made == passes:
        return (
            "no step is skipped, and at the scale of the script the first ones overflow. Is the "
            "loss still scaled? What has to change is the clipping alone."
        )
    if 3 * made < passes:
        return (
            f"{made} of {passes} steps are made; all others are skipped. What do they find in the "
            "gradients, and how does the scale go?"
        )
    return ""


def _other_gradients(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """A step is not made with the mean gradient, cut to max_norm where it is longer."""
    _, _, max_norm = case.more
    for step in _made_steps(case, results):
        got, true = float(step.got.norm()), float(step.true.norm())
        wanted = step.true * min(1.0, max_norm / (true + 1e-6))
        far = float((step.got - wanted).norm()) > _NEAR * float(wanted.norm())
        is_clipped = true * (1 - _NEAR) > max_norm
        if far or (is_clipped and abs(got / max_norm - 1) > _EXACT):
            along = float(step.got @ step.true) > (1 - _NEAR**2) * got * true
            why = _why(got, true, max_norm) if along else _ANOTHER_WAY
            return (
                f"step {step.number} is made with a gradient of length {got:.3g}; that of the "
                f"loss has {true:.3g}, and max_norm is {max_norm:g}. {why}"
            ).rstrip()
    return ""


_ANOTHER_WAY = (
    "It does not point where that of the loss does: all gradients are cut by one factor."
)


def _why(got: float, true: float, max_norm: float) -> str:
    """What a gradient of this length may come from."""
    if got > (1 + _NEAR) * max(true, max_norm):
        return "It is still times a scale: who divides by that, and when?"
    if got > (1 + _EXACT) * max_norm:
        return (
            "It is not cut as it should be: is it clipped at all, by its length? And when they "
            "are compared, are the gradient and the limit both times the scale, or neither?"
        )
    if got < 0.1 * _NEAR * min(true, max_norm):
        return (
            "It is cut far too much: times which number was it when it was compared with max_norm?"
        )
    if got < (1 - _EXACT) * min(true, max_norm):
        return (
            "It is cut too far, and not by a scale: is it cut once, and to max_norm itself? What "
            "is shorter stays as it is."
        )
    return ""


def _ends_elsewhere(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """The parameters are no numbers in the end."""
    for rank, seen in enumerate(results):
        if not bool(seen.after.isfinite().all()):
            return f"rank {rank} ends with parameters that are inf or NaN."
    return ""


PART = script_part(
    "04/nan_run",
    "NaN after twenty steps",
    20,
    2,
    "dtlab.units.unit04.nan_run_script.train",
    Trial(2, [OnDigits(0, 4096, 2, 128, (128, 4.0, 0.1), micro_batch=64)], limit=_LIMIT),
    _trials,
    (
        criterion(
            "clipping",
            2,
            "each step is made with the true gradient, cut to max_norm, on 2 and 3 ranks",
            _other_steps,
            _other_gradients,
        ),
        criterion(
            "training",
            1,
            "ranks share the samples out, agree, and send each gradient once",
            not_shared_out,
            copies_differ,
            too_much_sent,
            _ends_elsewhere,
            after="clipping",
        ),
    ),
    SYMPTOMS,
    ["limit = max_norm * scaler.get_scale()", "clip_grad_norm_(replica.parameters(), limit)"],
    "Which line is there so that no gradient is longer than max_norm, and what does it compare "
    "with what?",
    proof=proof(
        _measured,
        "times",
        "Gradients are compared with the limit while they are times the scale. Divide both by the "
        "scale of the first step that was made.",
        {
            "1 / times": "that is the other way round.",
            "skipped": "that many steps were skipped before it.",
            "scale": "that is the scale of that step.",
            "times * case.more[2]": "that is the limit itself.",
            "length": "that is how long the gradient was, and not the limit.",
            "1": "then it would be what it should be.",
        },
        tolerance=0.001,
    ),
)
