"""Symptoms of broken training scripts, each measured in a run of the script on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dtlab.grading.checking.trials import Observation
from dtlab.grading.scripts.reference import Optimizer
from dtlab.grading.scripts.run import named

__all__ = ["Finding", "Scene", "Symptom", "Symptoms", "unmoved"]


class Finding(NamedTuple):
    """Whether a run showed a symptom, and a description of what it showed."""

    seen: bool
    words: str


@dataclass(frozen=True)
class Scene:
    """A run of a broken script, which steps with `optimizer`."""

    one: Observation
    optimizer: Optimizer

    @property
    def case(self) -> Any:
        """The case, with the inputs of the script."""
        return self.one.trial.cases[0]

    @property
    def results(self) -> list[Any]:
        """The result of each rank, if the ranks finished."""
        return self.one.results[0]


@dataclass(frozen=True)
class Symptom:
    """A symptom in words, as a notebook lists it, and the function that measures it.

    `comes_back`: whether ranks with this symptom finish.
    """

    words: str
    measure: Callable[[Scene], Finding]
    comes_back: bool = True

    def find(self, scene: Scene) -> Finding:
        """Measures the symptom in a run."""
        if self.comes_back and scene.one.hung:
            return Finding(False, "the ranks did not finish")
        if self.comes_back and scene.one.error is not None:
            return Finding(False, "a rank stopped with an exception before it trained")
        return self.measure(scene)


class Symptoms(dict[str, Symptom]):
    """The symptoms of a unit by name, in the order of its notebook."""

    def add(
        self, name: str, words: str, comes_back: bool = True
    ) -> Callable[[Callable[[Scene], Finding]], Callable[[Scene], Finding]]:
        """Returns a decorator that adds a symptom, which the decorated function measures."""

        def added(measure: Callable[[Scene], Finding]) -> Callable[[Scene], Finding]:
            self[name] = Symptom(words, measure, comes_back)
            return measure

        return added


def unmoved(scene: Scene, rank: int = 0) -> list[str]:
    """Returns the parameters whose part on the rank has only values of the initial parameter."""
    import torch

    start, after = named(scene.case.model()), scene.results[rank]["after"]
    parts = ((name, part) for name, part in after.items() if part.numel())
    return [name for name, part in parts if bool(torch.isin(part, start[name]).all())]
