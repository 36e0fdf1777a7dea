"""What the four training runs of Level III have in common: 03/run_1 to 03/run_4.

The scripts are in `runs`, as the notebook shows them. Symptom and number are measured in a run of
the broken script on digits (`runs_cases`, `runs_symptoms`). The mended one is judged by how far
each of its updates moves the parameters (`runs_judges`), and by where it ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import copies_differ, not_shared_out, too_much_sent
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.training import not_as_one_process, too_large_passes
from dtlab.units.unit03.runs_cases import (
    BASE_BATCH,
    BASE_RATE,
    OnDigits,
    schedule,
)
from dtlab.units.unit03.runs_judges import (
    MOMENTUM,
    Factors,
    RatesOf,
    moved_within_an_update,
    of_rates,
    other_rates,
)
from dtlab.units.unit03.runs_symptoms import PROOFS, SYMPTOMS

__all__ = ["BATCH", "RATE", "linear", "of_recipe", "run_check", "run_part", "scene"]

Trials = Callable[[random.Random, int], Sequence[Trial]]

_SCRIPTS = "dtlab.units.unit03.runs."
_SAMPLES, _EPOCHS, _HIDDEN = 4096, 8, 128  # of the digits, as in the notebook
BATCH, RATE = 512, 0.8
_LIMIT = 30.0  # seconds for a broken run, which takes one


def linear(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak grows with the batch, by the linear rule."""
    batch = ranks * case.passes * case.micro_batch
    peak = BASE_RATE * batch / BASE_BATCH
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def of_recipe(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak is that of the recipe."""
    batch, peak, _ = case.more
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def run_check(
    trials: Trials, rates_of: RatesOf, name: str, right: str, factors: Factors = of_rates
) -> Check:
    """Two criteria: how far updates go, under a name of its own, and where they end."""
    rates = other_rates(rates_of, factors)
    begin = judge_by(right, too_large_passes, moved_within_an_update, rates)
    end = judge_by(
        "every rank has the parameters of one process that takes all their samples",
        not_shared_out,
        copies_differ,
        too_much_sent,
        not_as_one_process(lambda case, ranks: Optimizer(rates_of(case, ranks), MOMENTUM)),
    )
    rules = (Rule(name, 1, begin), Rule("training", 1, end, after=name))
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def scene(passes: int, more: tuple[float, ...]) -> Trial:
    """The run of the notebook: an update takes 512 digits, on two ranks."""
    micro = BATCH // (2 * passes)
    digits = OnDigits(0, _SAMPLES, _EPOCHS, _HIDDEN, more, passes, micro)
    return Trial(2, [digits], limit=_LIMIT)


def run_part(
    number: int,
    title: str,
    minutes: int,
    difficulty: int,
    check: Check,
    scene: Trial,
    symptom: str,
    lines: Sequence[str],
    look: str,
) -> Part:
    mend = MendScript(
        f"{_SCRIPTS}train_{number}",
        scene,
        check,
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=lines,
        look=look,
        proof=PROOFS[symptom],
    )
    return Part(f"03/run_{number}", 3, title, minutes, difficulty, mend)
