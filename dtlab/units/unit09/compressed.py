"""Test cases on one gradient per rank, compressed in several steps, for Level II.

    check's process                    rank r
    gradients, error of rank r  ────>  fn(gradient, ..., error), once for each step
    the mean that its own state        what it returns, and its error and state
    before the step gives     <──────  before and after each step

Each step is judged by the state that the function itself left behind in the step before, and the
state after a step only if its mean is right. So each mistake loses one criterion.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.finished import finished_calls

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AS_IT_WAS", "CHANGE", "FINISHED", "Compressed", "States", "call_in_steps"]

FINISHED = (
    "dtlab.simple",
    "dtlab.training.compression",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
)
AS_IT_WAS = "is as it was"
CHANGE = "Change the tensor itself, as `error += gradient` or `copy_` do."

States = list[dict[str, "Tensor"]]  # of all ranks


def call_in_steps(
    call: Callable[[Tensor, dict[str, Tensor]], Any],
    gradients: Sequence[Tensor],
    state: dict[str, Tensor],
) -> dict[str, Any]:
    """Runs on every rank: `call(gradient, state)` for each gradient, noting the state."""

    def copied() -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in state.items()}

    steps = []
    with finished_calls(*FINISHED, refuse=True) as finished:
        for gradient in gradients:
            before, mean = copied(), call(gradient, state)
            steps.append({"mean": mean, "before": before, "after": copied()})
    return {"steps": steps, "finished": sorted(finished)}


@dataclass(frozen=True)
class Compressed(Faulty):
    """Calls with gradients of one shape. The topic is the criterion of what is returned.

    In the first step the error is zero, unless the topic is "fed_back".
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED
    also_shows: ClassVar = {"mean": ("kept",), "fed_back": ("kept",)}

    seed: int
    topic: str
    shape: tuple[int, ...]
    steps: int = 1

    def drawn(self, *key: int, shape: tuple[int, ...] = ()) -> Tensor:
        """Random numbers in float32, the same for the same key."""
        import torch

        number = self.seed
        for each in key:
            number = number * 1009 + each + 1
        return torch.randn(shape or self.shape, generator=torch.Generator().manual_seed(number))

    def gradient(self, rank: int, step: int) -> Tensor:
        """The gradient of a rank in a step."""
        return self.drawn(rank, step)

    def state(self, rank: int) -> dict[str, Tensor]:
        """What the function of a rank may read and change: its error, and more."""
        return {"error": self.drawn(rank, 99) * (self.topic == "fed_back")}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        for step in range(self.steps):
            gradients = [self.gradient(rank, step) for rank in range(len(results))]
            noted = [result["steps"][step] for result in results]
            before: States = [each["before"] for each in noted]
            mean, kept = self.right(gradients, before)
            for rank, each in enumerate(noted):
                where = f"step {step + 1}, rank {rank}" if self.steps > 1 else f"rank {rank}"
                known = self._known_means(mean, rank, gradients, before)
                form = "Return a tensor of the gradient's shape."
                if wrong := difference(each["mean"], mean, known, hint=self.cure, form=form):
                    yield self.topic, f"{where}: the mean that you return " + wrong
                    continue
                error = each["after"]["error"]
                if wrong := self._wrong_error(error, kept[rank], gradients[rank], before[rank]):
                    yield "kept", f"{where}: the error " + wrong
                for name, words in self.other_faults(each["after"], before[rank], mean):
                    yield name, f"{where}, {words}"

    @abstractmethod
    def right(self, gradients: list[Tensor], before: States) -> tuple[Tensor, list[Tensor]]:
        """The right mean, and the right error of each rank."""

    @abstractmethod
    def known(self, rank: int, gradients: list[Tensor], before: States) -> Known:
        """Means that known mistakes give."""

    def _known_means(
        self, mean: Tensor, rank: int, gradients: list[Tensor], before: States
    ) -> Known:
        count, total = len(gradients), sum(gradients[1:], gradients[0])
        return {
            "is the sum over the ranks": (mean * count, "Divide it by their number."),
            **self.known(rank, gradients, before),
            "is that of the whole gradients": (total / count, "Send a compressed form of them."),
        }

    def other_faults(
        self, after: dict[str, Tensor], before: dict[str, Tensor], mean: Tensor
    ) -> Iterator[Fault]:
        """Yields what is wrong with the rest of the state."""
        yield from ()

    @property
    @abstractmethod
    def cure(self) -> str:
        """A hint if no mistake is known that gives this mean."""

    def _wrong_error(self, got: Any, kept: Tensor, own: Tensor, before: dict[str, Tensor]) -> str:
        old = before["error"]
        known = {
            AS_IT_WAS: (old, CHANGE),
            "is zero": (0 * kept, "Keep what was not sent."),
            "is everything, also what was sent": (own + old, self.keep),
            "lacks what was left from the step before": (kept - old, self.keep),
            "is what was sent": (own + old - kept, "Keep what was not sent."),
        }
        largest = float((own + old).abs().max())  # what is kept may be almost nothing
        return difference(got, kept, known, hint=self.keep, scale=10 * largest)

    keep: ClassVar[str] = ""  # what the error should be
