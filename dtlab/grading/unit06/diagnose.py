"""Level III of unit 06: three shared trainings that are broken, and mended; plans within budgets.

The programs are in `runs_scripts`, as the notebook shows them. Symptoms and numbers are measured
in a run of them (`runs_symptoms`); the mended ones are judged by what ranks call, by what they
have in the end, and by the losses of one process. The plans are in `plans`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.unit06 import plans
from dtlab.grading.unit06.runs_cases import SharedRun
from dtlab.grading.unit06.runs_judges import (
    copies_differ,
    first,
    not_shared,
    other_bytes,
    other_start,
    other_training,
    then,
)
from dtlab.grading.unit06.runs_symptoms import COUNTED, GATHERED, SYMPTOMS, TIMES

__all__ = ["PARTS"]

_SCRIPTS = "dtlab.grading.unit06.runs_scripts."
_WIDTH, _INNER, _DEPTH = 32, 160, 3  # of the model in the notebook
_LIMIT = 15.0  # seconds: the first optimizer of a machine imports PyTorch's compiler


def _scene(ranks: int) -> Trial:
    return Trial(ranks, [SharedRun(0, _WIDTH, _INNER, _DEPTH)], limit=_LIMIT)


def _trials(left: int) -> Callable[[int], list[Trial]]:
    """A model of another size; of its features so many are left when three ranks share them."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(6, 12), 3 * draw.randint(16, 32) + left, draw.randint(2, 4)
        return [Trial(3, [SharedRun(draw.randrange(1, 10**6), *sizes)], limit=_LIMIT)]

    return trials


def _part(name: str, title: str, difficulty: int, check: MendScript) -> Part:
    return Part(f"06/{name}", 3, title, name, f"{name}-check", 13, difficulty, check)


GATHER = _part(
    "gather_between",
    "Right, and too many bytes",
    1,
    MendScript(
        _SCRIPTS + "train_gather",
        _scene(2),
        Check(
            _trials(0),
            (
                Rule("bytes", 2, first("two all-reduces a layer", not_shared, other_bytes)),
                Rule("training", 1, then("as one process", other_training), after="bytes"),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "inner = F.gelu(gather_from_region(inner))",
            "part = F.linear(scatter_to_region(inner), layer.narrow.weight)",
        ],
        look="Which features does each product need, and who has them by then?",
        proof=GATHERED,
    ),
)

BIAS = _part(
    "many_biases",
    "Another loss on more ranks",
    2,
    MendScript(
        _SCRIPTS + "train_bias",
        _scene(4),
        Check(
            _trials(1),
            (
                Rule("outputs", 2, first("the first loss is that of one process", other_start)),
                Rule(
                    "training",
                    1,
                    then("as one process", not_shared, other_training, other_bytes),
                    after="outputs",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["part = F.linear(F.gelu(inner), layer.narrow.weight, layer.narrow.bias)"],
        look="What is added up over the ranks, and what of it is there once?",
        proof=TIMES,
    ),
)

DRIFT = _part(
    "drift",
    "A gradient in parts",
    3,
    MendScript(
        _SCRIPTS + "train_drift",
        _scene(2),
        Check(
            _trials(1),
            (
                Rule("copies", 2, first("all ranks end with the same copies", copies_differ)),
                Rule(
                    "training",
                    1,
                    then("as one process", not_shared, other_training, other_bytes),
                    after="copies",
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["inner = F.linear(layer.norm(x), layer.wide.weight, layer.wide.bias)"],
        look="Where does every rank begin to find only a part of a gradient?",
        proof=COUNTED,
    ),
)

PARTS: tuple[Part, ...] = (GATHER, BIAS, DRIFT, plans.SHARD_PLAN)
