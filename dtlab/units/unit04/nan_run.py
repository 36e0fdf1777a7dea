"""Level III of unit 04: a run in fp16 whose loss becomes NaN, since scaled gradients are clipped.

The script is in `nan_run_script`, as the notebook shows it. Symptom and number are measured in a
run of it on digits; the mended one is judged by the gradient that each step
is made with, and by where it ends.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Observation, Trial
from dtlab.grading.parts import Part
from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.cases import Script, Seen, Training, trained
from dtlab.grading.scripts.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.grading.scripts.mend import MendScript, Proof
from dtlab.grading.scripts.reference import gradient_of, mean, steps_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom, drift

if TYPE_CHECKING:
    import torch

__all__ = ["PART", "PROOF", "SYMPTOMS", "OnDigits", "scene"]

# How a check runs the training run in fp16, and what of it can be worked out in one process ------

MOMENTUM = 0.9
_SAMPLES, _EPOCHS, _HIDDEN, _BATCH = 4096, 2, 128, 128  # of the digits, as in the notebook
_RATE, _MAX_NORM = 4.0, 0.1
_LIMIT = 30.0  # seconds for the broken run, which takes one


@dataclass(frozen=True)
class OnDigits(Training):
    """`script(model, data, epochs, *more)` on the first `samples` digits of a shuffled order.

    It is ours, and returns the loss and the scale of each step.
    """

    @cached_property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Images [samples, 1, 8, 8] and labels of all ranks."""
        import torch

        from dtlab.training.datasets import digits

        train = digits().train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed))
        images, labels = train[order[: self.samples]]
        return images, labels

    @staticmethod
    def on_rank(fn: Script, given: dict[str, Any]) -> dict[str, Any]:
        seen, curve = trained(fn, given, given["more"])
        return {**seen, "curve": [[float(loss), float(scale)] for loss, scale in curve]}


def scene() -> Trial:
    """The run of the notebook, on two ranks."""
    more = (_BATCH, _RATE, _MAX_NORM)
    digits = OnDigits(0, _SAMPLES, _EPOCHS, _HIDDEN, more, micro_batch=_BATCH // 2)
    return Trial(2, [digits], limit=_LIMIT)


def trials(seed: int) -> list[Trial]:
    """Two ranks where every gradient is clipped, and three where none is."""
    draw = random.Random(seed)

    def case(ranks: int, max_norm: float, number: int) -> Trial:
        micro, rate = draw.choice((10, 12, 14)), draw.choice((0.01, 0.015, 0.02))
        more = (ranks * micro, rate, max_norm)
        samples = ranks * micro * 14
        given = Training(seed + number, samples, 2, 16, more, micro_batch=micro)
        return Trial(ranks, [given])

    return [case(2, draw.choice((0.5, 0.7, 1.0)), 0), case(3, draw.choice((11.0, 12.0, 13.0)), 1)]


# What happened ----------------------------------------------------------------------------------


class Made(NamedTuple):
    """A step that moved the parameters: its number, its gradient, and the true one.

    Both are of the sum over a rank's samples, averaged over the ranks, as one row.
    """

    number: int
    got: torch.Tensor
    true: torch.Tensor


def made_steps(case: Training, results: Sequence[Seen]) -> list[Made]:
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
        got = (begin - end) / rate - MOMENTUM * velocity
        velocity = (begin - end) / rate
        weights = {sample: case.micro_batch * share for sample, share in mean(step).items()}
        true = gradient_of(case, begin, weights)
        if not bool(got.isfinite().all() and true.isfinite().all()):
            break
        found.append(Made(number, got, true))
    return found


# Symptoms of the run in fp16, as the notebook lists them, and the number that proves it ----------

_FAR = 1.5  # times max_norm: what rounding does not explain

# What is measured -------------------------------------------------------------------------------


def _lengths(scene: Scene) -> list[float]:
    """Of the gradients that steps were made with, as parts of max_norm."""
    _, _, max_norm = scene.case.more
    return [float(step.got.norm()) / max_norm for step in made_steps(scene.case, scene.results)]


def _skipped(scene: Scene) -> list[bool]:
    """Of each step, whether the parameters stayed where they were."""
    seen = scene.results[0]
    ends = [*seen.before[1:], seen.after]
    return [end.equal(begin) for begin, end in zip(seen.before, ends, strict=True)]


# Symptoms ---------------------------------------------------------------------------------------


def _too_long(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(longest > _FAR, f"the longest gradient had {longest:.3g} times max_norm")


def _too_short(scene: Scene) -> Finding:
    longest = max(_lengths(scene), default=0.0)
    return Finding(_FAR * longest < 1, f"the longest gradient had {longest:.3g} times max_norm")


def _bad_parameters(scene: Scene) -> Finding:
    bad = not all(bool(one.after.isfinite().all()) for one in scene.results)
    return Finding(bad, f"the parameters were {'not ' if bad else ''}finite in the end")


def _none_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "none" if not any(skipped) else "some"
    return Finding(not any(skipped), f"{many} of {len(skipped)} steps were skipped")


def _all_skipped(scene: Scene) -> Finding:
    skipped = _skipped(scene)
    many = "all" if all(skipped) else "not all"
    return Finding(all(skipped), f"{many} of {len(skipped)} steps were skipped")


def _left_out(scene: Scene) -> Finding:
    case = scene.case
    fed = sum(len(batch) for own in scene.results for batch in own.passes)
    words = f"{fed / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(fed < case.epochs * case.samples, words)


SYMPTOMS: dict[str, Symptom] = {
    "too long": Symptom("steps are made with gradients longer than max_norm", _too_long),
    "too short": Symptom("no step is made with a gradient near max_norm", _too_short),
    "bad parameters": Symptom("a step was made with inf or NaN: parameters are", _bad_parameters),
    "none skipped": Symptom("no step is skipped, whatever its gradients are", _none_skipped),
    "all skipped": Symptom("every step is skipped, from the first one on", _all_skipped),
    "drift": Symptom("the copies of the model differ, by more and more", drift),
    "samples left out": Symptom("an epoch does not take all samples", _left_out),
}


# The number -------------------------------------------------------------------------------------


def _measured(scene: Scene) -> Mapping[str, Any]:
    scales = [scale for _, scale in scene.results[0].curve]
    first = _skipped(scene).index(False)
    return {
        "times": scales[0] / scales[first],
        "scale": scales[first],
        "skipped": first,
        "length": _lengths(scene)[0],
        "max_norm": scene.case.more[2],
    }


PROOF = Proof(
    _measured,
    Number(
        lambda given: given["times"],
        (
            Mistake(lambda g: 1 / g["times"], "that is the other way round."),
            Mistake(lambda g: g["skipped"], "that many steps were skipped before it."),
            Mistake(lambda g: g["scale"], "that is the scale of that step."),
            Mistake(lambda g: g["times"] * g["max_norm"], "that is the limit itself."),
            Mistake(
                lambda g: g["length"], "that is how long the gradient was, and not the limit."
            ),
            Mistake(1, "then it would be what it should be."),
        ),
        "Gradients are compared with the limit while they are times the scale. Divide both by "
        "the scale of the first step that was made.",
        tolerance=0.001,
    ),
)


# The part ----------------------------------------------------------------------------------------

_NEAR = 0.25  # of a gradient: in fp16 a unit near 0 may be on where it is off in float64
_EXACT = 0.02  # of its length, where it is clipped

# Judges of the mended run -----------------------------------------------------------------------


def _other_steps(case: Training, results: Sequence[Seen], one: Observation) -> str:
    """As many as there are batches, some of them skipped, and most of them made."""
    passes, wanted = len(results[0].passes), case.steps(len(results))
    if passes != wanted:
        return f"rank 0 makes {passes} forward passes, and there are {wanted} batches for it."
    made = len(made_steps(case, results))
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
    for step in made_steps(case, results):
        got, true = float(step.got.norm()), float(step.true.norm())
        wanted = step.true * min(1.0, max_norm / (true + 1e-6))
        far = float((step.got - wanted).norm()) > _NEAR * float(wanted.norm())
        is_clipped = true * (1 - _NEAR) > max_norm
        if far or (is_clipped and abs(got / max_norm - 1) > _EXACT):
            return f"{_told(step, max_norm)} {_why(step, max_norm)}".rstrip()
    return ""


def _told(step: Made, max_norm: float) -> str:
    return (
        f"step {step.number} is made with a gradient of length {float(step.got.norm()):.3g}; "
        f"that of the loss has {float(step.true.norm()):.3g}, and max_norm is {max_norm:g}."
    )


def _why(step: Made, max_norm: float) -> str:
    got, true = float(step.got.norm()), float(step.true.norm())
    along = float(step.got @ step.true) > (1 - _NEAR**2) * got * true
    if not along:
        return (
            "It does not point where that of the loss does: all gradients are cut by one factor."
        )
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


_CLIPPING = judge_by(
    "each step is made with the true gradient, cut to max_norm, on 2 and 3 ranks",
    _other_steps,
    _other_gradients,
)

PART = Part(
    name="04/nan_run",
    level=3,
    title="NaN after twenty steps",
    minutes=20,
    difficulty=2,
    check=MendScript(
        "dtlab.units.unit04.nan_run_script.train",
        scene(),
        Check(
            trials,
            (
                Rule("clipping", 2, _CLIPPING),
                Rule(
                    "training",
                    1,
                    judge_by(
                        "ranks share the samples out, agree, and send each gradient once",
                        not_shared_out,
                        copies_differ,
                        too_much_sent,
                        _ends_elsewhere,
                    ),
                    after="clipping",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "limit = max_norm * scaler.get_scale()",
            "clip_grad_norm_(replica.parameters(), limit)",
        ],
        look="Which line is there so that no gradient is longer than max_norm, and what does it "
        "compare with what?",
        proof=PROOF,
    ),
)
