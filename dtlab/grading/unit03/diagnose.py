"""Level III of unit 03: four training runs that fail in silence, and a target error to reach.

The scripts of the runs are in `runs`, as the notebook shows them. Each part is a `MendScript` of
`dtlab.grading.scripts`: symptom and number are measured in a run of the broken script on digits
(`runs_cases`, `runs_symptoms`), and the mended one is judged by how far each of its updates moves
the parameters (`runs_judges`), and by where it ends. The last part is in `reach`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import (
    copies_differ,
    first,
    not_shared_out,
    then,
    too_much_sent,
)
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.training import not_as_one_process, too_large_passes
from dtlab.grading.unit03.reach import REACH
from dtlab.grading.unit03.runs_cases import (
    BASE_BATCH,
    BASE_RATE,
    OnDigits,
    accumulated,
    one_recipe,
    schedule,
)
from dtlab.grading.unit03.runs_judges import (
    MOMENTUM,
    Factors,
    RatesOf,
    moved_within_an_update,
    of_gradients,
    of_rates,
    other_rates,
)
from dtlab.grading.unit03.runs_symptoms import PROOFS, SYMPTOMS

__all__ = ["PARTS"]

Trials = Callable[[random.Random, int], Sequence[Trial]]

_SCRIPTS = "dtlab.grading.unit03.runs."
_SAMPLES, _EPOCHS, _HIDDEN = 4096, 8, 128  # of the digits, as in the notebook
_BATCH, _RATE = 512, 0.8
_LIMIT = 30.0  # seconds for a broken run, which takes one


def _linear(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak grows with the batch, by the linear rule."""
    batch = ranks * case.passes * case.micro_batch
    peak = BASE_RATE * batch / BASE_BATCH
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def _given(case: Training, ranks: int) -> list[float]:
    """The rates of updates whose peak is that of the recipe."""
    batch, peak, _ = case.more
    return schedule(peak, case.steps(ranks), BASE_BATCH / batch)


def _check(
    trials: Trials, rates_of: RatesOf, name: str, right: str, factors: Factors = of_rates
) -> Check:
    """Two criteria: how far updates go, under a name of its own, and where they end."""
    rates = other_rates(rates_of, factors)
    begin = first(right, too_large_passes, moved_within_an_update, rates)
    end = then(
        "every rank has the parameters of one process that takes all their samples",
        not_shared_out,
        copies_differ,
        too_much_sent,
        not_as_one_process(lambda case, ranks: Optimizer(rates_of(case, ranks), MOMENTUM)),
    )
    rules = (Rule(name, 1, begin), Rule("training", 1, end, after=name))
    return Check(lambda seed: trials(random.Random(seed), seed), rules)


def _scene(passes: int, more: tuple[float, ...]) -> Trial:
    """The run of the notebook: an update takes 512 digits, on two ranks."""
    micro = _BATCH // (2 * passes)
    digits = OnDigits(0, _SAMPLES, _EPOCHS, _HIDDEN, more, passes, micro)
    return Trial(2, [digits], limit=_LIMIT)


def _part(
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
    name = f"run_{number}"
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
    return Part(f"03/{name}", 3, title, name, f"{name}-check", minutes, difficulty, mend)


RUN_1 = _part(
    1,
    "Slow, and nobody complains",
    10,
    1,
    _check(
        accumulated, _linear, "rate", "updates have the rates of the linear rule, on 2 and 3 ranks"
    ),
    _scene(8, (32, 8)),
    "rate too low",
    ["optimizer = SGD(replica.parameters(), lr=0.05, momentum=0.9)"],
    "Where is it settled how high the rate goes?",
)

RUN_2 = _part(
    2,
    "Over after two epochs",
    11,
    2,
    _check(
        accumulated,
        _linear,
        "schedule",
        "the schedule goes one step for each update, on 2 and 3 ranks",
    ),
    _scene(4, (64, 4)),
    "rate gone",
    ["schedule.step()"],
    "Which line moves the rate on, and how often does it run?",
)

RUN_3 = _part(
    3,
    "The right rate, and too far",
    12,
    2,
    _check(
        accumulated,
        _linear,
        "gradient",
        "updates go along the gradient of the mean loss, on 2 and 3 ranks",
        of_gradients,
    ),
    _scene(8, (32, 8)),
    "too long",
    ["loss = F.cross_entropy(outputs, labels)", "loss.backward()"],
    "`.grad` is a sum. Of what, and by what is it divided?",
)

RUN_4 = _part(
    4,
    "Eight passes, eight times the rate",
    11,
    2,
    _check(one_recipe, _given, "rate", "updates have the rates of the recipe, on 2 and 3 ranks"),
    _scene(4, (_BATCH, _RATE, 4)),
    "rate too high",
    ["optimizer = SGD(replica.parameters(), lr=size * parts * rate, momentum=0.9)"],
    "What is it that the rate should grow with, and does that grow here?",
)

PARTS: tuple[Part, ...] = (RUN_1, RUN_2, RUN_3, RUN_4, REACH)
