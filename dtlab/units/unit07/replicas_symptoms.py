"""Symptoms of replicated pipelines, as the notebook lists them, and the number that proves one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dtlab.grading.questions.kinds import Mistake, Number
from dtlab.grading.scripts.mend import Proof
from dtlab.grading.scripts.symptoms import Finding, Scene, Symptom
from dtlab.units.unit07.replicas_cases import Replica, Trained, hash_of, reduced

__all__ = ["SYMPTOMS", "UNSENT"]


def _case(scene: Scene) -> Replica:
    (case,) = scene.one.trial.cases
    assert isinstance(case, Replica)
    return case


def _by_stage(scene: Scene) -> list[list[Trained]]:
    """What the replicas of each stage were left with."""
    results: list[Any] = scene.one.results[0]
    count = _case(scene).num_stages
    return [results[stage::count] for stage in range(count)]


def _apart(scene: Scene) -> list[bool]:
    """Of each stage, whether the hashes of its copies differ."""
    return [len({hash_of(one.own) for one in copies}) > 1 for copies in _by_stage(scene)]


def _copies(wanted: Callable[[list[bool]], bool]) -> Callable[[Scene], Finding]:
    def measure(scene: Scene) -> Finding:
        apart = _apart(scene)
        said = (f"of stage {n} they {'differ' if one else 'agree'}" for n, one in enumerate(apart))
        return Finding(wanted(apart), f"hashes of the copies: {', '.join(said)}")

    return measure


def _mixed(scene: Scene) -> Finding:
    assert scene.one.trace is not None
    count = _case(scene).num_stages
    mixed = [
        event
        for event in scene.one.trace.events
        if event.name == "all_reduce" and any((peer - event.rank) % count for peer in event.peers)
    ]
    return Finding(bool(mixed), f"{len(mixed)} all-reduces had ranks of other stages in them")


def _often(scene: Scene) -> Finding:
    case, ranks = _case(scene), range(len(scene.one.results[0]))
    times = [
        reduced(scene.one, rank) / (case.steps * case.bytes_of(rank % case.num_stages))
        for rank in ranks
    ]
    words = f"a rank all-reduced its stage's gradient at most {max(times):.2g} times in a step"
    return Finding(max(times) > 1.5, words)


def _stands(scene: Scene) -> Finding:
    import torch

    case = _case(scene)
    starts = [torch.cat([one.flatten() for one in stage]) for stage in case.start()]
    still = [
        stage
        for stage, copies in enumerate(_by_stage(scene))
        if any(bool(one.own.equal(starts[stage])) for one in copies)
    ]
    return Finding(bool(still), f"{len(still)} stages stayed where they began")


SYMPTOMS: dict[str, Symptom] = {
    "first apart": Symptom(
        "copies of the first stage end with different hashes, those of the last with the same",
        _copies(lambda apart: apart[0] and not apart[-1]),
    ),
    "last apart": Symptom(
        "copies of the last stage end with different hashes, those of the first with the same",
        _copies(lambda apart: apart[-1] and not apart[0]),
    ),
    "all apart": Symptom("copies of every stage end with different hashes", _copies(all)),
    "mixed": Symptom("an all-reduce has ranks of different stages in it", _mixed),
    "too often": Symptom("a gradient is all-reduced more than once in a step", _often),
    "stands": Symptom("a stage does not move", _stands),
}


# The number -------------------------------------------------------------------------------------


def _of_gradients(scene: Scene) -> Mapping[str, Any]:
    case = _case(scene)
    sent = reduced(scene.one, 0) / case.steps
    return {
        "bytes": case.bytes_of(0) - sent,
        "other": reduced(scene.one, 1) / case.steps,
        "steps": case.steps,
    }


UNSENT = Proof(
    _of_gradients,
    Number(
        lambda g: float(g["bytes"]),
        (
            Mistake(lambda g: g["bytes"] / 4, "those are elements: a gradient has 4 bytes each."),
            Mistake(lambda g: g["bytes"] * g["steps"], "that is the whole run. Divide by steps."),
            Mistake(lambda g: g["other"], "those are what another stage has, and they are sent."),
            Mistake(lambda g: g["bytes"] + g["other"], "some of these are sent."),
            Mistake(lambda g: g["bytes"] / 2, "a rank hands its whole gradient in, not a half."),
            Mistake(0, "that is what it sends. What should it be?"),
        ),
        "Which ranks have events called all_reduce, and which have none? Of a rank that has none: "
        "how many bytes have the gradients of its stage?",
        unit="B",
        tolerance=0,
    ),
)
