"""Symptoms of the broken training scripts of unit 02, as the notebook lists them."""

from __future__ import annotations

from dtlab.errors import DeadlockError
from dtlab.grading.scripts.reference import NEAR, in_one_process, mean, off, steps_of
from dtlab.grading.scripts.symptoms import (
    Finding,
    Scene,
    Symptom,
    distances,
    drift,
    too_many_bytes,
)
from dtlab.grading.words import ranks_in_words

__all__ = ["SYMPTOMS"]

# Runs that do not come back ---------------------------------------------------------------------


def _hang(scene: Scene) -> Finding:
    if not isinstance(scene.one.error, DeadlockError):
        return Finding(False, "no rank waited in vain")
    stuck = ranks_in_words([waiting.rank for waiting in scene.one.error.waiting])
    return Finding(True, f"{stuck} waited for a rank that never came")


def _wrong_card(scene: Scene) -> Finding:
    said = scene.one.failure.message if scene.one.failure is not None else ""
    if "device ordinal" not in said:
        return Finding(False, "no rank asked for a card that its node does not have")
    return Finding(True, f"a rank stopped with: {said.splitlines()[0]}")


# Runs that do -----------------------------------------------------------------------------------


def _different_start(scene: Scene) -> Finding:
    far = distances(scene.results)[0]
    words = "before the first step the copies were {}equal"
    return Finding(far > 0, words.format("not " if far else ""))


def _one_step_apart(scene: Scene) -> Finding:
    found, far = drift(scene), distances(scene.results)
    return Finding(far[-1] > 0 and not found.seen, found.words)


def _same_samples(scene: Scene) -> Finding:
    fed = [{sample for batch in one.passes for sample in batch} for one in scene.results]
    per_epoch = [
        sum(len(batch) for batch in one.passes) / scene.case.epochs for one in scene.results
    ]
    count = f"in an epoch each rank took {max(per_epoch):g} of the {scene.case.samples} samples"
    return Finding(min(per_epoch) >= scene.case.samples and fed[0] == fed[-1], count)


def _same_order(scene: Scene) -> Finding:
    each = len(scene.results[0].passes) // scene.case.epochs
    same = all(one.passes[:each] == one.passes[each : 2 * each] for one in scene.results)
    other = "the same batches as" if same else "other batches than"
    return Finding(same, f"the second epoch had {other} the first")


def _piled_up(scene: Scene) -> Finding:
    return _trained_as(scene, 1.0, True, "gradients that are never set to zero")


def _sum(scene: Scene) -> Finding:
    return _trained_as(scene, len(scene.results), False, "the sum of the ranks' gradients")


def _trained_as(scene: Scene, factor: float, piled_up: bool, what: str) -> Finding:
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


SYMPTOMS: dict[str, Symptom] = {
    "different start": Symptom(
        "the copies differ before the first step already", _different_start
    ),
    "drift": Symptom("the copies differ, by more and more", drift),
    "one step apart": Symptom(
        "the copies differ after every step, by about as much each time", _one_step_apart
    ),
    "same samples": Symptom("in an epoch every rank goes through all samples", _same_samples),
    "same order": Symptom("every epoch goes through the same batches", _same_order),
    "hang": Symptom("some ranks wait for others that never come", _hang, comes_back=False),
    "wrong card": Symptom(
        "a rank asks for a card that its node does not have", _wrong_card, comes_back=False
    ),
    "too many bytes": Symptom(
        "the copies are right, but more is sent than a step needs", too_many_bytes
    ),
    "piled up": Symptom(
        "the copies are equal, but gradients of earlier steps are in every step", _piled_up
    ),
    "sum": Symptom(
        "the copies are equal, but they step with the sum of the gradients, not the mean", _sum
    ),
}
