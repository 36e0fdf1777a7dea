"""Symptoms of broken training scripts: each is measured in a run of the script on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.run import named

__all__ = ["Finding", "Scene", "Symptom", "Symptoms", "unmoved"]


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
