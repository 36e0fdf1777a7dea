"""Trials and criteria, shared by several parts, for data-parallel scripts that are fixed."""

from __future__ import annotations

import random

from dtlab.checks.functions.checks import Rule
from dtlab.checks.functions.criteria import Objection, rule
from dtlab.checks.functions.trials import Trial
from dtlab.checks.programs.cases import Training
from dtlab.checks.programs.judges import copies_differ, not_shared_out
from dtlab.checks.programs.reference import Optimizer, not_as_one_process

__all__ = [
    "ADAM",
    "COPIES",
    "SCENE",
    "SGD",
    "equal_copies",
    "shared",
    "shared_samples",
    "trained",
]  # fmt: skip

SGD, ADAM = Optimizer(0.1), Optimizer(2e-3, adam=True, eps=1e-3)
SCENE = Trial(2, [Training(0, 128)])
COPIES = "the copies are equal, bit by bit, on 2 and 3 ranks"
_AS_ONE = "every rank has the parameters of one process that takes all their samples"


def shared(seed: int, epochs: int = 3, more: tuple[float, ...] = ()) -> list[Trial]:
    """Returns a trial of two ranks with equal shares, and one of three ranks that need padding."""
    draw = random.Random(seed)
    uneven = 3 * draw.choice((13, 14, 15, 18, 19)) + draw.choice((1, 2))
    even = Training(seed, 2 * draw.choice((24, 32, 40)), epochs, more=more)
    return [Trial(2, [even]), Trial(3, [Training(seed + 1, uneven, more=more)])]


def trained(points: float, after: str, *objections: Objection) -> Rule:
    """Returns the criterion that ranks train as one process does."""
    return rule("training", points, _AS_ONE, by=(*objections,), after=after)


def equal_copies(optimizer: Optimizer, *more: Objection) -> tuple[Rule, Rule]:
    """Returns two criteria: the copies are equal, and they are trained as in one process."""
    copies = rule("copies", 1, COPIES, by=copies_differ)
    return copies, trained(2, "copies", not_shared_out, not_as_one_process(optimizer), *more)


def shared_samples(optimizer: Optimizer, name: str, right: str) -> tuple[Rule, Rule]:
    """Returns two criteria: samples are distributed, and copies are trained as in one process."""
    samples = rule(name, 2, right, by=not_shared_out)
    return samples, trained(1, name, copies_differ, not_as_one_process(optimizer))
