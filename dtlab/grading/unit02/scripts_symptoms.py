"""Symptoms of broken training scripts, and how each of them is measured in a run on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dtlab.errors import DeadlockError
from dtlab.grading.trials import Observation
from dtlab.grading.unit02.scripts_cases import Seen, Training
from dtlab.grading.unit02.scripts_reference import Optimizer, in_one_process, mean, off, steps_of
from dtlab.grading.words import ranks_in_words

__all__ = ["SYMPTOMS", "Finding", "Scene", "distances", "find"]

NEAR = 1e-3  # of the way that the parameters go: rounding takes a hundredth of it
_GROWS = 2.0  # times the distance after the first step
_TWICE = 1.5  # times the bytes of one gradient in a step


@dataclass(frozen=True)
class Finding:
    """Whether a symptom was seen in a run, and what was seen instead or in proof."""

    seen: bool
    words: str


@dataclass(frozen=True)
class Scene:
    """A run of a broken script that came back: what its ranks did."""

    one: Observation
    case: Training
    results: list[Seen]
    optimizer: Optimizer
    passes: int  # in a step


def find(symptom: str, one: Observation, optimizer: Optimizer, passes: int = 1) -> Finding:
    """Whether a symptom, a key of `SYMPTOMS`, was seen."""
    if symptom == "hang":
        return _hang(one)
    if symptom == "wrong card":
        return _wrong_card(one)
    if one.hung:
        return Finding(False, "the ranks never came to the end")
    if one.error is not None:
        return Finding(False, "a rank stopped with an exception before it trained")
    (case,) = one.trial.cases
    assert isinstance(case, Training)
    return _MEASURED[symptom](Scene(one, case, one.results[0], optimizer, passes))


def distances(results: list[Seen]) -> list[float]:
    """How far the copies are from rank 0's, at most, before each pass and in the end."""
    import torch

    first, *others = [torch.cat([one.before, one.after[None]]) for one in results]
    if any(rows.shape != first.shape for rows in others) or not others:
        return [0.0] * len(first)
    return [float(far) for far in torch.stack([(o - first).norm(dim=1) for o in others]).amax(0)]


# Runs that do not come back ---------------------------------------------------------------------


def _hang(one: Observation) -> Finding:
    if not isinstance(one.error, DeadlockError):
        return Finding(False, "no rank waited in vain")
    stuck = ranks_in_words([waiting.rank for waiting in one.error.waiting])
    return Finding(True, f"{stuck} waited for a rank that never came")


def _wrong_card(one: Observation) -> Finding:
    said = one.failure.message if one.failure is not None else ""
    if "device ordinal" not in said:
        return Finding(False, "no rank asked for a card that its node does not have")
    return Finding(True, f"a rank stopped with: {said.splitlines()[0]}")


# Runs that do -----------------------------------------------------------------------------------


def _different_start(scene: Scene) -> Finding:
    far = distances(scene.results)[0]
    words = "before the first step the copies were {}equal"
    return Finding(far > 0, words.format("not " if far else ""))


def _drift(scene: Scene) -> Finding:
    far = distances(scene.results)
    if not far[-1]:
        return Finding(False, "after the last step the copies were equal")
    grows = far[-1] > _GROWS * far[1]
    return Finding(grows, f"{_how_far(far)}: the distance {'grows' if grows else 'does not grow'}")


def _one_step_apart(scene: Scene) -> Finding:
    found, far = _drift(scene), distances(scene.results)
    return Finding(far[-1] > 0 and not found.seen, found.words)


def _how_far(far: list[float]) -> str:
    return f"the copies were {far[1]:.2g} apart after one step, {far[-1]:.2g} after the last"


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


def _too_many_bytes(scene: Scene) -> Finding:
    assert scene.one.trace is not None
    events = scene.one.trace.events
    reduced = sum(one.bytes for one in events if one.rank == 0 and one.name == "all_reduce")
    steps = len(scene.results[0].passes) / scene.passes
    gradients = reduced / (steps * 4 * len(scene.results[0].after))
    words = f"a step of rank 0 all-reduced {gradients:.2g} times the bytes of a gradient"
    return Finding(gradients > _TWICE, words)


def _piled_up(scene: Scene) -> Finding:
    return _trained_as(scene, 1.0, True, "gradients that are never set to zero")


def _sum(scene: Scene) -> Finding:
    return _trained_as(scene, len(scene.results), False, "the sum of the ranks' gradients")


def _trained_as(scene: Scene, factor: float, piled_up: bool, what: str) -> Finding:
    """Whether the copies are those of one process that steps in another way."""
    case, results = scene.case, scene.results
    steps = [
        {sample: factor * share for sample, share in mean(step).items()}
        for step in steps_of(case, results, scene.passes)
    ]
    wanted = in_one_process(case, steps, scene.optimizer, piled_up=piled_up)
    same = all(off(one.after, wanted, case.start(0)) < NEAR for one in results)
    ends = "ends" if same else "does not end"
    return Finding(same, f"one process that steps with {what} {ends} there")


_MEASURED: dict[str, Callable[[Scene], Finding]] = {
    "different start": _different_start,
    "drift": _drift,
    "one step apart": _one_step_apart,
    "same samples": _same_samples,
    "same order": _same_order,
    "too many bytes": _too_many_bytes,
    "piled up": _piled_up,
    "sum": _sum,
}

SYMPTOMS: dict[str, str] = {
    "different start": "the copies differ before the first step already",
    "drift": "the copies differ, by more and more",
    "one step apart": "the copies differ after every step, by about as much each time",
    "same samples": "in an epoch every rank goes through all samples",
    "same order": "every epoch goes through the same batches",
    "hang": "some ranks wait for others that never come",
    "wrong card": "a rank asks for a card that its node does not have",
    "too many bytes": "the copies are right, but more is sent than a step needs",
    "piled up": "the copies are equal, but gradients of earlier steps are in every step",
    "sum": "the copies are equal, but they step with the sum of the gradients, not the mean",
}
