"""07/unsynchronised: copies of a stage that drift apart."""

from __future__ import annotations

import random

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.objections import judge_by
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.units.unit07.replicas_cases import Replica
from dtlab.units.unit07.replicas_judges import (
    copies_differ,
    other_training,
    too_much_sent,
)
from dtlab.units.unit07.replicas_symptoms import SYMPTOMS, UNSENT

__all__ = ["PART"]

_LIMIT = 20.0  # seconds for what takes half of one


def _trials(seed: int) -> list[Trial]:
    """Two pipelines of two stages, and two of three: of other widths than the notebook's."""
    draw = random.Random(seed)
    cases = [Replica(draw.randrange(10**6), draw.randint(9, 24), stages) for stages in (2, 3)]
    return [Trial(2 * case.num_stages, [case], limit=_LIMIT) for case in cases]


PART = Part(
    name="07/unsynchronised",
    level=3,
    title="One stage goes its own way",
    minutes=15,
    difficulty=2,
    check=MendScript(
        "dtlab.units.unit07.replicas_script.train_replicas",
        Trial(4, [Replica(0, 32)], limit=_LIMIT),
        Check(
            _trials,
            (
                Rule("copies", 2, judge_by("all copies have the same hash", copies_differ)),
                Rule("training", 1, judge_by("as one process", other_training), after="copies"),
                Rule(
                    "traffic",
                    1,
                    judge_by("no more than each gradient once", too_much_sent),
                    after="copies",
                ),
            ),
            compiles=True,
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "if result.loss is not None:",
            "for parameter in stage.module.parameters():",
            "dist.all_reduce(parameter.grad, group=replicas)",
        ],
        look="Which ranks come to the all-reduce at all?",
        proof=UNSENT,
    ),
)
