"""04/nan_run: a run in fp16 with two faults, of which the first hides the second.

both faults           the clipping limit belongs to another scale: NaN in epoch 0
only the limit fixed  a new scaler in each epoch: epoch 1 skips as many steps as epoch 0
only the scaler fixed NaN in epoch 0

The script is in `nan_run_script`, as the notebook shows it. The number is measured in a run on
digits. The fixed script is judged by the gradient that each step uses, by the steps that it
skips, and by its final parameters.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dtlab.checks.comparison import same
from dtlab.checks.functions.criteria import rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.programs.cases import OnDigits, Seen, Training
from dtlab.checks.programs.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.checks.programs.reference import gradient_of, mean, steps_of
from dtlab.checks.programs.training import Scene, proof, script_part

if TYPE_CHECKING:
    import torch

__all__ = ["PART"]

_MOMENTUM = 0.9
_LIMIT = 30.0  # seconds for the broken run, which takes one second
_NEAR = 0.25  # of a gradient: fp16 rounding may switch a unit near 0 on that is off in float64
_EXACT = 0.02  # of the length of a clipped gradient


class MadeStep(NamedTuple):
    """A step that moved the parameters: its number, the gradient it used, and the true one.

    Both gradients are of the sum over a rank's samples, averaged over the ranks, as one vector.
    """

    number: int
    got: torch.Tensor
    true: torch.Tensor


def _made_steps(case: Training, results: Sequence[Seen]) -> list[MadeStep]:
    """The steps in which rank 0's parameters moved, up to the first inf or NaN.

    The gradient that SGD used is computed from the change of the parameters.
    """
    _, rate, _ = case.more
    rank_0, steps = results[0], []
    ends = [*rank_0.before[1:], rank_0.after]
    velocity = 0 * rank_0.after
    for number, (begin, end, step) in enumerate(
        zip(rank_0.before, ends, steps_of(case, results), strict=False)
    ):
        if same(end, begin):
            continue
        got = (begin - end) / rate - _MOMENTUM * velocity
        velocity = (begin - end) / rate
        weights = {sample: case.micro_batch * share for sample, share in mean(step).items()}
        true = gradient_of(case, begin, weights)
        if not bool(got.isfinite().all() and true.isfinite().all()):
            break
        steps.append(MadeStep(number, got, true))
    return steps


# The number -------------------------------------------------------------------------------------


def _measured(scene: Scene) -> dict[str, float]:
    case, rank_0 = scene.case, scene.results[0]
    _, rate, max_norm = case.more
    first = _made_steps(case, scene.results)[0]
    length = float(first.got.norm())
    return {
        "times": length / max_norm,
        "moved": rate * length,
        "length": length,
        "skipped": first.number,
        "limit": rank_0.curve[0][1] / rank_0.curve[first.number][1],
    }


# What the fixed run must do ----------------------------------------------------------------------


def _trials(seed: int) -> list[Trial]:
    """Two ranks with gradients that are all clipped, and three with gradients that never are."""
    draw = random.Random(seed)

    def trial(ranks: int, max_norm: float, number: int) -> Trial:
        micro, rate = draw.choice((10, 12, 14)), draw.choice((0.01, 0.015, 0.02))
        more = (ranks * micro, rate, max_norm)
        given = Training(seed + number, ranks * micro * 14, 2, 16, more, micro_batch=micro)
        return Trial(ranks, [given])

    clipped = trial(2, draw.choice((0.5, 0.7, 1.0)), 0)
    return [clipped, trial(3, draw.choice((11.0, 12.0, 13.0)), 1)]


def _other_steps(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message unless rank 0 makes a pass per batch, and skips some steps but not most."""
    passes, wanted = len(results[0].passes), case.updates(len(results))
    if passes != wanted:
        return f"rank 0 makes {passes} forward passes, but there are {wanted} batches for it."
    made = len(_made_steps(case, results))
    if made == passes:
        return (
            "no step is skipped, although the first ones overflow at the scale of the script. Is "
            "the loss still scaled? Keep the first scale of the script."
        )
    if 6 * made < passes:
        return (
            f"{made} of {passes} steps are made; all others are skipped. What is in their "
            "gradients, and how does the scale change?"
        )
    return ""


def _other_gradients(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message unless each step uses the mean gradient, clipped to max_norm if it is longer."""
    _, _, max_norm = case.more
    made = _made_steps(case, results)
    for step in made:
        got, true = float(step.got.norm()), float(step.true.norm())
        wanted = step.true * min(1.0, max_norm / (true + 1e-6))
        far = float((step.got - wanted).norm()) > _NEAR * float(wanted.norm())
        is_clipped = true * (1 - _NEAR) > max_norm
        if far or (is_clipped and abs(got / max_norm - 1) > _EXACT):
            why = _why(case, results, made, step)
            return (
                f"step {step.number} is made with a gradient of length {got:.3g}; that of the "
                f"loss has {true:.3g}, and max_norm is {max_norm:g}. {why}"
            ).rstrip()
    return ""


_ANOTHER_WAY = (
    "It has another direction than that of the loss: clip all gradients by one common factor. "
    "Is the optimizer still that of the script?"
)
_ONE_RANK = "It is that of this rank's samples alone. Do the ranks average their gradients (DDP)?"


def _why(case: Training, results: Sequence[Seen], made: list[MadeStep], step: MadeStep) -> str:
    """Explains the gradient of `step`, the first wrong one of the steps that were made."""
    _, _, max_norm = case.more
    got, true = float(step.got.norm()), float(step.true.norm())
    if not _along(step.got, step.true):
        of_rank_0 = mean(steps_of(case, results)[step.number][:1])
        alone = gradient_of(case, results[0].before[step.number], of_rank_0)
        return _ONE_RANK if _along(step.got, alone) else _ANOTHER_WAY
    lengths = [(float(each.got.norm()), float(each.true.norm())) for each in made]
    ranks, micro = len(results), case.micro_batch
    for parts in (ranks, micro, ranks * micro):
        divided = _common([length / min(of / parts, max_norm) for length, of in lengths])
        if abs(divided - 1) < _EXACT:
            return (
                f"It is 1/{parts} of that of the loss: is the loss divided by the ranks or the "
                "samples? Keep the loss of the script."
            )
    factor = _common([length / min(of, max_norm) for length, of in lengths])
    factor = factor or _common([length / of for length, of in lengths])
    if factor and abs(factor - 1) > _EXACT and not _is_scale(factor):
        return (
            f"In every step it is {factor:.3g} times as long as it should be: are the rate and "
            "max_norm those of the script?"
        )
    return _by_length(got, true, max_norm)


def _along(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two gradients have nearly the same direction."""
    return float(one @ other) > (1 - _NEAR**2) * float(one.norm() * other.norm())


def _common(factors: list[float]) -> float:
    """The factor that all steps have in common; 0 if they differ, or are too few to tell."""
    middle = sum(factors) / len(factors)
    same = all(abs(factor / middle - 1) < _EXACT for factor in factors)
    return middle if same and len(factors) > 2 else 0.0


def _is_scale(factor: float) -> bool:
    """Whether a factor may be a loss scale, or the inverse of one: a large power of 2."""
    power = math.log2(factor)
    return abs(power) > 7 and abs(power - round(power)) < _EXACT


def _by_length(got: float, true: float, max_norm: float) -> str:
    """Explains a gradient of this length, if the cause is known."""
    if got > (1 + _NEAR) * max(true, max_norm):
        return "It is still multiplied by a scale: where is it divided by that, and when?"
    if got > (1 + _EXACT) * max_norm:
        return (
            "It is not clipped as it should be: is it clipped at all, by its length? And when the "
            "two are compared, are the gradient and the limit both times the scale, or neither?"
        )
    if got < 0.1 * _NEAR * min(true, max_norm):
        return (
            "It is clipped far too much: by what was it multiplied when it was compared with "
            "max_norm?"
        )
    if got < (1 - _EXACT) * min(true, max_norm):
        return (
            "It is clipped too much, and not by a scale: is it clipped once, and to max_norm "
            "itself? Shorter gradients must stay as they are."
        )
    return ""


def _skips_again(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message if a later epoch skips more steps than occasional overflows explain."""
    rank_0 = results[0]
    ends = [*rank_0.before[1:], rank_0.after]
    skipped = [*map(same, rank_0.before, ends)]
    each = len(skipped) // case.epochs
    for epoch in range(1, case.epochs):
        count = sum(skipped[epoch * each : (epoch + 1) * each])
        if 4 * count > each:
            return (
                f"epoch {epoch} skips {count} of its {each} steps, although the scale fitted the "
                "gradients at the end of epoch 0."
            )
    return ""


def _ends_not_finite(case: Training, results: Sequence[Seen], run: Observation) -> str:
    """A message if the final parameters are inf or NaN."""
    for rank, result in enumerate(results):
        if not bool(result.after.isfinite().all()):
            return f"rank {rank} ends with parameters that are inf or NaN."
    return ""


PART = script_part(
    "04/nan_run",
    "Run A",
    20,
    3,
    "dtlab.units.unit04.nan_run_script.train",
    Trial(2, [OnDigits(0, 4096, 2, 128, (128, 4.0, 0.1), micro_batch=64)], limit=_LIMIT),
    _trials,
    (
        rule(
            "clipping",
            2,
            "each step is made with the true gradient, clipped to max_norm, on 2 and 3 ranks",
            by=(_other_steps, _other_gradients),
        ),
        rule("scale", 1, "steps are skipped in epoch 0 only", by=_skips_again, after="clipping"),
        rule(
            "training",
            1,
            "ranks share the samples out, agree, and send each gradient once",
            by=(not_shared_out, copies_differ, too_much_sent, _ends_not_finite),
            after="clipping",
        ),
    ),
    [
        "scaler = DynamicLossScaler(init_scale=2.0**24)",
        "limit = max_norm * scaler.get_scale()",
        "clip_grad_norm_(replica.parameters(), limit)",
    ],
    "For each line, write down the scale at that time. Does the line still mean the same later?",
    proof=proof(
        _measured,
        "times",
        "How far do the parameters move in the first step that is made? The first velocity is the "
        "gradient that the step uses.",
        {
            "1 / times": "that is the inverse.",
            "skipped": "that many steps were skipped before it.",
            "moved": "that is how far the parameters move. How long is the gradient, and how long "
            "may it be?",
            "length": "that is the length of the gradient. How many times its limit is that?",
            "limit": "so long a gradient is not clipped. How long is the one that this step used?",
            "1": "then the step would be right. Compare how far it moves with the rate.",
        },
        tolerance=0.02,
    ),
)
