"""Symptoms that several broken data-parallel scripts may have, and criteria for mended scripts.

The symptoms are those of unit 02. Units 03 and 04 also use some of them in their tables.
"""

from __future__ import annotations

import random

from dtlab.errors import DeadlockError
from dtlab.grading.checking.checks import Rule
from dtlab.grading.checking.criteria import Objection, criterion
from dtlab.grading.checking.trials import Trial
from dtlab.grading.scripts.cases import Training
from dtlab.grading.scripts.judges import copies_differ, not_shared_out
from dtlab.grading.scripts.reference import (
    NEAR,
    Optimizer,
    in_one_process,
    mean,
    not_as_one_process,
    off,
    steps_of,
)
from dtlab.grading.scripts.run import events_of
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptoms
from dtlab.grading.words import ranks_in_words

__all__ = [
    "ADAM",
    "COPIES",
    "SCENE",
    "SGD",
    "SYMPTOMS",
    "drift",
    "equal_copies",
    "left_out",
    "shared",
    "shared_samples",
    "too_many_bytes",
    "trained",
]  # fmt: skip

SYMPTOMS = Symptoms()

_GROWS = 2.0  # times the distance after the first step
_TWICE = 1.5  # times the bytes of one gradient in a step


# Copies -----------------------------------------------------------------------------------------


def _distances(scene: Scene) -> list[float]:
    """Returns the largest distance of a copy from rank 0's, before each pass and at the end."""
    import torch

    first, *others = [torch.cat([rank.before, rank.after[None]]) for rank in scene.results]
    if any(rows.shape != first.shape for rows in others) or not others:
        return [0.0] * len(first)
    return [float(far) for far in torch.stack([(o - first).norm(dim=1) for o in others]).amax(0)]


@SYMPTOMS.add("different start", "the copies differ before the first step already")
def _different_start(scene: Scene) -> Finding:
    far = _distances(scene)[0]
    return Finding(far > 0, f"before the first step the copies were {'not ' * (far > 0)}equal")


@SYMPTOMS.add("drift", "the copies differ, by more and more")
def drift(scene: Scene) -> Finding:
    """Measures whether the copies differ by more and more."""
    far = _distances(scene)
    if not far[-1]:
        return Finding(False, "after the last step the copies were equal")
    first = next(filter(None, far))
    how_far = f"the copies were {first:.2g} apart after one step, {far[-1]:.2g} after the last"
    grows = far[-1] > _GROWS * first
    return Finding(grows, f"{how_far}: the distance {'grows' if grows else 'does not grow'}")


@SYMPTOMS.add("one step apart", "the copies differ after every step, by about as much each time")
def _one_step_apart(scene: Scene) -> Finding:
    grows, description = drift(scene)
    return Finding(_distances(scene)[-1] > 0 and not grows, description)


# Samples ----------------------------------------------------------------------------------------


@SYMPTOMS.add("same samples", "in an epoch every rank goes through all samples")
def _same_samples(scene: Scene) -> Finding:
    taken = [{sample for batch in rank.passes for sample in batch} for rank in scene.results]
    counts = [sum(map(len, rank.passes)) / scene.case.epochs for rank in scene.results]
    description = f"in an epoch each rank took {max(counts):g} of the {scene.case.samples} samples"
    return Finding(min(counts) >= scene.case.samples and taken[0] == taken[-1], description)


@SYMPTOMS.add("same order", "every epoch goes through the same batches")
def _same_order(scene: Scene) -> Finding:
    epochs = [rank.by_epoch(scene.case.epochs) for rank in scene.results]
    same = all(first == second for first, second, *_ in epochs)
    other = "the same batches as" if same else "other batches than"
    return Finding(same, f"the second epoch had {other} the first")


def left_out(scene: Scene) -> Finding:
    """Measures whether an epoch leaves out samples."""
    case, taken = scene.case, sum(len(batch) for rank in scene.results for batch in rank.passes)
    description = f"{taken / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(taken < case.epochs * case.samples, description)


# Ranks that did not finish -----------------------------------------------------------------------


@SYMPTOMS.add("hang", "some ranks wait for others that never come", comes_back=False)
def _hang(scene: Scene) -> Finding:
    if not isinstance(scene.one.error, DeadlockError):
        return Finding(False, "no rank waited in vain")
    stuck = ranks_in_words([waiting.rank for waiting in scene.one.error.waiting])
    return Finding(True, f"{stuck} waited for a rank that never came")


@SYMPTOMS.add("wrong card", "a rank asks for a card that its node does not have", comes_back=False)
def _wrong_card(scene: Scene) -> Finding:
    message = scene.one.failure.message if scene.one.failure is not None else ""
    if "device ordinal" not in message:
        return Finding(False, "no rank asked for a card that its node does not have")
    return Finding(True, f"a rank stopped with: {message.splitlines()[0]}")


# Gradients --------------------------------------------------------------------------------------


@SYMPTOMS.add("too many bytes", "the copies are right, but more is sent than a step needs")
def too_many_bytes(scene: Scene) -> Finding:
    """Measures whether more is sent than a step needs."""
    first, case = scene.results[0], scene.case
    reduced = sum(event.bytes for event in events_of(scene.one, "all_reduce"))
    gradients = reduced / (len(first.passes) / case.passes * 4 * len(first.after))
    description = f"a step of rank 0 all-reduced {gradients:.2g} times the bytes of a gradient"
    return Finding(gradients > _TWICE, description)


def _trained_as(scene: Scene, what: str, factor: float = 1, piled_up: bool = False) -> Finding:
    """Compares the copies with one process that steps with the gradients described by `what`."""
    case, results = scene.case, scene.results
    steps = [
        {sample: factor * share for sample, share in mean(step).items()}
        for step in steps_of(case, results)
    ]
    wanted = in_one_process(case, steps, scene.optimizer, piled_up=piled_up)
    same = all(off(rank.after, wanted, case.start(0)) < NEAR for rank in results)
    ends = "ends" if same else "does not end"
    return Finding(same, f"one process that steps with {what} {ends} with these parameters")


@SYMPTOMS.add("piled up", "the copies are equal, but gradients of earlier steps are in every step")
def _piled_up(scene: Scene) -> Finding:
    return _trained_as(scene, "gradients that are never set to zero", piled_up=True)


@SYMPTOMS.add(
    "sum", "the copies are equal, but they step with the sum of the gradients, not the mean"
)
def _sum(scene: Scene) -> Finding:
    return _trained_as(scene, "the sum of the ranks' gradients", len(scene.results))


# Checks of mended scripts -----------------------------------------------------------------------

SGD, ADAM = Optimizer(0.1), Optimizer(2e-3, adam=True, eps=1e-3)
SCENE = Trial(2, [Training(0, 128)])
COPIES = "the copies are equal, bit by bit, on 2 and 3 ranks"
_AS_ONE = "every rank has the parameters of one process that takes all their samples"


def shared(seed: int, epochs: int = 3) -> list[Trial]:
    """Returns a trial of two ranks with equal shares, and one of three ranks that need padding."""
    draw = random.Random(seed)
    uneven = 3 * draw.choice((13, 14, 15, 18, 19)) + draw.choice((1, 2))
    even = Training(seed, 2 * draw.choice((24, 32, 40)), epochs=epochs)
    return [Trial(2, [even]), Trial(3, [Training(seed + 1, uneven)])]


def trained(points: float, after: str, *objections: Objection) -> Rule:
    """Returns the criterion that ranks train as one process does."""
    return criterion("training", points, _AS_ONE, *objections, after=after)


def equal_copies(optimizer: Optimizer, *more: Objection) -> tuple[Rule, Rule]:
    """Returns two criteria: the copies are equal, and they are trained as in one process."""
    copies = criterion("copies", 1, COPIES, copies_differ)
    return copies, trained(2, "copies", not_shared_out, not_as_one_process(optimizer), *more)


def shared_samples(optimizer: Optimizer, name: str, right: str) -> tuple[Rule, Rule]:
    """Returns two criteria: samples are distributed, and copies are trained as in one process."""
    samples = criterion(name, 2, right, not_shared_out)
    return samples, trained(1, name, copies_differ, not_as_one_process(optimizer))
