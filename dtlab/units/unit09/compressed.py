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

from dtlab.checks.functions.criteria import Fault, Faulty, Noted
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.values import close

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINISHED", "UNCHANGED", "Compressed", "States", "call_in_steps"]

FINISHED = (
    "dtlab.simple",
    "dtlab.training.compression",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
)
UNCHANGED = "it is as it was. Change the tensor itself, as `error += gradient` or `copy_` do."

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
                if words := self._wrong_mean(each["mean"], mean, rank, gradients, before):
                    yield self.topic, f"{where}: {words}"
                    continue
                error = each["after"]["error"]
                if words := self._wrong_error(error, kept[rank], rank, gradients, before):
                    yield "kept", f"{where}, error: {words}"
                for name, words in self.other_faults(each["after"], before[rank], mean):
                    yield name, f"{where}, {words}"

    @abstractmethod
    def right(self, gradients: list[Tensor], before: States) -> tuple[Tensor, list[Tensor]]:
        """The right mean, and the right error of each rank."""

    @abstractmethod
    def known(self, rank: int, gradients: list[Tensor], before: States) -> dict[str, Tensor]:
        """Means that known mistakes give, by message; the last one says what is off."""

    def other_faults(
        self, after: dict[str, Tensor], before: dict[str, Tensor], mean: Tensor
    ) -> Iterator[Fault]:
        """Yields what is wrong with the rest of the state."""
        yield from ()

    def _wrong_mean(
        self, got: Any, mean: Tensor, rank: int, gradients: list[Tensor], before: States
    ) -> str:
        if got is None or got.shape != mean.shape:
            what = "None" if got is None else f"a tensor of shape {list(got.shape)}"
            return f"returned is {what}, not one of shape {list(mean.shape)}."
        if not got.isfinite().all():
            return f"the mean has NaN or inf. {self.cure}"
        if close(got, mean):
            return ""
        known = {
            "this is the sum over the ranks. Divide it by their number.": mean * len(gradients),
            **self.known(rank, gradients, before),
            "this is the mean of the whole gradients. Send a compressed form of them.":
                sum(gradients[1:], gradients[0]) / len(gradients),
        }  # fmt: skip
        worst = float((got - mean).abs().max())
        else_ = f"it is off by up to {worst:.2g}. {self.cure}"
        return next((words for words, one in known.items() if close(got, one)), else_)

    @property
    @abstractmethod
    def cure(self) -> str:
        """A hint if no mistake is known that gives this mean."""

    def _wrong_error(
        self, got: Tensor, kept: Tensor, rank: int, gradients: list[Tensor], before: States
    ) -> str:
        own, old = gradients[rank], before[rank]["error"]
        if got.shape != kept.shape:
            return f"it has shape {list(got.shape)}, not {list(kept.shape)}."
        known = {
            "": kept,
            UNCHANGED: old,
            "it is zero. Keep what was not sent.": 0 * kept,
            "this is everything, also what was sent.": own + old,
            "what was left from the step before is lost.": kept - old,
            "this is what was sent. Keep what was not.": own + old - kept,
        }
        rounding = 1e-4 * float((own + old).abs().max())  # what is kept may be almost nothing
        worst = float((got - kept).abs().max())
        message = f"{self.keep} It is off by up to {worst:.2g}."
        near = (words for words, one in known.items() if (got - one).abs().max() <= rounding)
        return next(near, message)

    keep: ClassVar[str] = ""  # what the error should be
