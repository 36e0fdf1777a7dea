"""Broken data-parallel scripts: symptoms that several of them may have, and two checks.

The symptoms are those of unit 02. Units 03 and 04 use some of them in their tables, too.
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
    """How far the copies are from rank 0's, at most, before each pass and in the end."""
    import torch

    first, *others = [torch.cat([one.before, one.after[None]]) for one in scene.results]
    if any(rows.shape != first.shape for rows in others) or not others:
        return [0.0] * len(first)
    return [float(far) for far in torch.stack([(o - first).norm(dim=1) for o in others]).amax(0)]


@SYMPTOMS.add("different start", "the copies differ before the first step already")
def _different_start(scene: Scene) -> Finding:
    far = _distances(scene)[0]
    return Finding(far > 0, f"before the first step the copies were {'not ' * (far > 0)}equal")


@SYMPTOMS.add("drift", "the copies differ, by more and more")
def drift(scene: Scene) -> Finding:
    """The copies differ, by more and more."""
    far = _distances(scene)
    if not far[-1]:
        return Finding(False, "after the last step the copies were equal")
    first = next(filter(None, far))
    how_far = f"the copies were {first:.2g} apart after one step, {far[-1]:.2g} after the last"
    grows = far[-1] > _GROWS * first
    return Finding(grows, f"{how_far}: the distance {'grows' if grows else 'does not grow'}")


@SYMPTOMS.add("one step apart", "the copies differ after every step, by about as much each time")
def _one_step_apart(scene: Scene) -> Finding:
    grows, words = drift(scene)
    return Finding(_distances(scene)[-1] > 0 and not grows, words)


# Samples ----------------------------------------------------------------------------------------


@SYMPTOMS.add("same samples", "in an epoch every rank goes through all samples")
def _same_samples(scene: Scene) -> Finding:
    fed = [{sample for batch in one.passes for sample in batch} for one in scene.results]
    counts = [sum(map(len, one.passes)) / scene.case.epochs for one in scene.results]
    words = f"in an epoch each rank took {max(counts):g} of the {scene.case.samples} samples"
    return Finding(min(counts) >= scene.case.samples and fed[0] == fed[-1], words)


@SYMPTOMS.add("same order", "every epoch goes through the same batches")
def _same_order(scene: Scene) -> Finding:
    epochs = [one.by_epoch(scene.case.epochs) for one in scene.results]
    same = all(first == second for first, second, *_ in epochs)
    other = "the same batches as" if same else "other batches than"
    return Finding(same, f"the second epoch had {other} the first")


def left_out(scene: Scene) -> Finding:
    """An epoch does not take all samples."""
    case, fed = scene.case, sum(len(batch) for own in scene.results for batch in own.passes)
    words = f"{fed / case.epochs:g} of {case.samples} samples were taken in an epoch"
    return Finding(fed < case.epochs * case.samples, words)


# Ranks that do not finish -----------------------------------------------------------------------


@SYMPTOMS.add("hang", "some ranks wait for others that never come", comes_back=False)
def _hang(scene: Scene) -> Finding:
    if not isinstance(scene.one.error, DeadlockError):
        return Finding(False, "no rank waited in vain")
    stuck = ranks_in_words([waiting.rank for waiting in scene.one.error.waiting])
    return Finding(True, f"{stuck} waited for a rank that never came")


@SYMPTOMS.add("wrong card", "a rank asks for a card that its node does not have", comes_back=False)
def _wrong_card(scene: Scene) -> Finding:
    said = scene.one.failure.message if scene.one.failure is not None else ""
    if "device ordinal" not in said:
        return Finding(False, "no rank asked for a card that its node does not have")
    return Finding(True, f"a rank stopped with: {said.splitlines()[0]}")


# Gradients --------------------------------------------------------------------------------------


@SYMPTOMS.add("too many bytes", "the copies are right, but more is sent than a step needs")
def too_many_bytes(scene: Scene) -> Finding:
    """More is sent than a step needs."""
    first, case = scene.results[0], scene.case
    reduced = sum(event.bytes for event in events_of(scene.one, "all_reduce"))
    gradients = reduced / (len(first.passes) / case.passes * 4 * len(first.after))
    words = f"a step of rank 0 all-reduced {gradients:.2g} times the bytes of a gradient"
    return Finding(gradients > _TWICE, words)


def _trained_as(scene: Scene, what: str, factor: float = 1, piled_up: bool = False) -> Finding:
    """Whether the copies are those of one process that steps in another way."""
    case, results = scene.case, scene.results
    steps = [
        {sample: factor * share for sample, share in mean(step).items()}
        for step in steps_of(case, results)
    ]
    wanted = in_one_process(case, steps, scene.optimizer, piled_up=piled_up)
    same = all(off(one.after, wanted, case.start(0)) < NEAR for one in results)
    ends = "ends" if same else "does not end"
    return Finding(same, f"one process that steps with {what} {ends} there")


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
    """Two ranks, whose shares are equal, and three ranks, whose shares must be padded."""
    draw = random.Random(seed)
    uneven = 3 * draw.choice((13, 14, 15, 18, 19)) + draw.choice((1, 2))
    even = Training(seed, 2 * draw.choice((24, 32, 40)), epochs=epochs)
    return [Trial(2, [even]), Trial(3, [Training(seed + 1, uneven)])]


def trained(points: float, after: str, *objections: Objection) -> Rule:
    """The criterion that ranks have trained as one process does."""
    return criterion("training", points, _AS_ONE, *objections, after=after)


def equal_copies(optimizer: Optimizer, *more: Objection) -> tuple[Rule, Rule]:
    """The copies are equal, and trained as one process is."""
    copies = criterion("copies", 1, COPIES, copies_differ)
    return copies, trained(2, "copies", not_shared_out, not_as_one_process(optimizer), *more)


def shared_samples(optimizer: Optimizer, name: str, right: str) -> tuple[Rule, Rule]:
    """Samples are shared out, and the copies trained as one process is."""
    samples = criterion(name, 2, right, not_shared_out)
    return samples, trained(1, name, copies_differ, not_as_one_process(optimizer))
