"""Level III of unit 05: three sharded trainings that are broken, and mended.

The programs are in `runs_scripts`, as the notebook shows them. Symptoms and numbers are measured
in a run of them (`runs_symptoms`); the mended ones are judged by what is whole, held and sent,
and by the losses of one process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import judge
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.grading.scripts.mend import MendScript
from dtlab.grading.unit05.runs_cases import ShardedRun
from dtlab.grading.unit05.runs_judges import (
    also,
    another_mean,
    grows,
    narrow_gradients,
    not_in_16_bits,
    other_losses,
    too_much_whole,
)
from dtlab.grading.unit05.runs_symptoms import GIANT, GROWS, ROUNDED, SYMPTOMS

__all__ = ["PARTS"]

_SCRIPTS = "dtlab.grading.unit05.runs_scripts."
_WIDTH, _DEPTH = 32, 6  # of the model in the notebook
_EXACT, _IN_16_BITS = 1e-3, 0.2  # of a loss
_LIMIT = 30.0  # seconds: the first program with PyTorch's FSDP imports it


def _trials(
    ranks: int, *, half: tuple[int, int] = (9, 12), **more: Any
) -> Callable[[int], list[Trial]]:
    """A model of another size; `half` of its width is drawn between these."""

    def trials(seed: int) -> list[Trial]:
        draw = random.Random(seed)
        sizes = 2 * draw.randint(*half), draw.randint(4, 6)
        return [_trial(ranks, ShardedRun(draw.randrange(10**6), *sizes, **more))]

    return trials


def _deep_and_wide(seed: int) -> list[Trial]:
    """Many narrow layers, a small part of the model each; and a few that are twice as wide.

    So neither a number of elements nor a part of the model says which modules are layers.
    """
    draw = random.Random(seed)
    width, depth = 2 * draw.randint(6, 9), draw.randint(22, 26)
    deep = ShardedRun(draw.randrange(10**6), width, depth, steps=2, topic="peak")
    return [_trial(3, deep), _trial(3, ShardedRun(deep.seed + 1, 2 * _WIDTH, 4, topic="peak"))]


def _trial(ranks: int, case: ShardedRun) -> Trial:
    return Trial(ranks, [case], limit=_LIMIT)


def _part(name: str, title: str, difficulty: int, check: MendScript) -> Part:
    return Part(f"05/{name}", 3, title, name, f"{name}-check", 13, difficulty, check)


def _scene(ranks: int = 2, **more: Any) -> Trial:
    return _trial(ranks, ShardedRun(0, _WIDTH, _DEPTH, **more))


GIANT_GATHER = _part(
    "giant_gather",
    "One giant gather",
    1,
    MendScript(
        _SCRIPTS + "train_gather",
        _scene(),
        Check(
            _deep_and_wide,
            (
                Rule("peak", 2, judge("peak", "a layer at a time", also=also(too_much_whole))),
                Rule(
                    "training",
                    1,
                    judge("training", "as one process", also=also(other_losses(_EXACT))),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "return sum(one.numel() for one in module.parameters()) >= 5000",
            "sharded = Zero3(model, blocks=is_block)",
        ],
        look="Who decides what is gathered together?",
        proof=GIANT,
    ),
)

POLICIES = _part(
    "policies",
    "Two precision policies",
    2,
    MendScript(
        _SCRIPTS + "train_policies",
        _scene(watched=False),
        Check(
            _trials(3, watched=False, topic="gradients"),
            (
                Rule(
                    "gradients",
                    2,
                    judge("gradients", "added up in float32", also=also(narrow_gradients)),
                ),
                Rule(
                    "training",
                    1,
                    judge(
                        "training",
                        "computed and gathered in bfloat16",
                        also=also(not_in_16_bits, other_losses(_IN_16_BITS)),
                    ),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=[
            "in_layers = MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
            "fully_shard(layer, mesh=mesh, mp_policy=in_layers)",
        ],
        look="Which call says in what format the gradients of a layer travel?",
        proof=ROUNDED,
    ),
)

LEAK = _part(
    "leak",
    "More with every step",
    2,
    MendScript(
        _SCRIPTS + "train_leak",
        _scene(steps=5),
        Check(
            _trials(3, half=(12, 15), steps=4, topic="memory"),
            (
                Rule("memory", 2, judge("memory", "held is what a share takes", also=also(grows))),
                Rule(
                    "training",
                    1,
                    judge(
                        "training",
                        "it ends with the mean over the steps",
                        also=also(other_losses(_EXACT), another_mean),
                    ),
                ),
            ),
        ),
        diagnosis_points=3,
        symptoms=SYMPTOMS,
        lines=["after.append(sharded.full_state_dict())"],
        look="Which line makes something whole, and who still has it in the next step?",
        proof=GROWS,
    ),
)

PARTS: tuple[Part, ...] = (GIANT_GATHER, POLICIES, LEAK)
