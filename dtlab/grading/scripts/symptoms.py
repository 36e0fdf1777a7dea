"""Symptoms of broken training scripts: each is measured in a run of the script on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.cases import Seen
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.run import named

__all__ = [
    "Finding", "Scene", "Symptom", "Symptoms", "distances", "drift", "gradients_sent",
    "too_many_bytes", "unmoved",
]  # fmt: skip

_GROWS = 2.0  # times the distance after the first step
_TWICE = 1.5  # times the bytes of one gradient in a step


class Finding(NamedTuple):
    """Whether a symptom was seen in a run, and what was seen instead or in proof."""

    seen: bool
    words: str


@dataclass(frozen=True)
class Scene:
    """A run of a broken script, which steps with `optimizer`."""

    one: Observation
    optimizer: Optimizer

    @property
    def case(self) -> Any:
        """What the script was given."""
        return self.one.trial.cases[0]

    @property
    def results(self) -> list[Any]:
        """What each rank did, where the ranks came back."""
        return self.one.results[0]


@dataclass(frozen=True)
class Symptom:
    """A symptom in words, as a notebook lists it, and how it is measured.

    `comes_back`: whether ranks that show it come to the end.
    """

    words: str
    measure: Callable[[Scene], Finding]
    comes_back: bool = True

    def find(self, scene: Scene) -> Finding:
        """Whether it was seen in a run."""
        if self.comes_back and scene.one.hung:
            return Finding(False, "the ranks never came to the end")
        if self.comes_back and scene.one.error is not None:
            return Finding(False, "a rank stopped with an exception before it trained")
        return self.measure(scene)


class Symptoms(dict[str, Symptom]):
    """The symptoms of a unit by name, in the order of its notebook."""

    def add(
        self, name: str, words: str, comes_back: bool = True
    ) -> Callable[[Callable[[Scene], Finding]], Callable[[Scene], Finding]]:
        """Takes up a symptom, which the function below measures."""

        def added(measure: Callable[[Scene], Finding]) -> Callable[[Scene], Finding]:
            self[name] = Symptom(words, measure, comes_back)
            return measure

        return added


def unmoved(scene: Scene, rank: int = 0) -> list[str]:
    """The parameters of which a rank's part has only numbers that were there at the start."""
    import torch

    start, after = named(scene.case.model()), scene.results[rank]["after"]
    parts = ((name, own) for name, own in after.items() if own.numel())
    return [name for name, own in parts if bool(torch.isin(own, start[name]).all())]


# Copies -----------------------------------------------------------------------------------------


def distances(results: list[Seen]) -> list[float]:
    """How far the copies are from rank 0's, at most, before each pass and in the end."""
    import torch

    first, *others = [torch.cat([one.before, one.after[None]]) for one in results]
    if any(rows.shape != first.shape for rows in others) or not others:
        return [0.0] * len(first)
    return [float(far) for far in torch.stack([(o - first).norm(dim=1) for o in others]).amax(0)]


def drift(scene: Scene) -> Finding:
    """The copies differ, by more and more."""
    far = distances(scene.results)
    if not far[-1]:
        return Finding(False, "after the last step the copies were equal")
    first = next(filter(None, far))
    how_far = f"the copies were {first:.2g} apart after one step, {far[-1]:.2g} after the last"
    grows = far[-1] > _GROWS * first
    return Finding(grows, f"{how_far}: the distance {'grows' if grows else 'does not grow'}")


# What is sent -----------------------------------------------------------------------------------


def gradients_sent(scene: Scene) -> float:
    """How many gradients rank 0 all-reduces in a step, by their bytes."""
    assert scene.one.trace is not None
    events = scene.one.trace.events
    reduced = sum(one.bytes for one in events if one.rank == 0 and one.name == "all_reduce")
    steps = len(scene.results[0].passes) / scene.case.passes
    return float(reduced / (steps * 4 * len(scene.results[0].after)))


def too_many_bytes(scene: Scene) -> Finding:
    """More is sent than a step needs."""
    gradients = gradients_sent(scene)
    words = f"a step of rank 0 all-reduced {gradients:.2g} times the bytes of a gradient"
    return Finding(gradients > _TWICE, words)
