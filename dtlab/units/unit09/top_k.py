"""09/top_k: the mean of each rank's k largest elements, and what is kept for the next step.

Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with memory".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import Known
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.units.unit09.compressed import Compressed, States, call_in_steps

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TopK(Compressed):
    """Calls of `fn(gradient, error, k)`. With the topic "shapes", gradients are transposed."""

    keep = "It should be gradient + error, with zeros where elements were sent."

    k: int = 0

    @property
    def cure(self) -> str:
        return "Which k elements has each rank, and where do they belong?"

    def __str__(self) -> str:
        return f"{self.k} of {prod(self.shape)} elements"

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        gradients = [self.gradient(rank, step) for step in range(self.steps)]
        if flat := self.topic == "shapes":
            gradients = [gradient.transpose(0, -1).contiguous() for gradient in gradients]
        return gradients, self.state(rank), self.k, flat

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        gradients, state, k, transposed = given

        def call(gradient: Tensor, state: dict[str, Tensor]) -> Any:
            return fn(gradient.transpose(0, -1) if transposed else gradient, state["error"], k)

        return call_in_steps(call, gradients, state)

    def right(self, gradients: list[Tensor], before: States) -> tuple[Tensor, list[Tensor]]:
        whole = [own + old["error"] for own, old in zip(gradients, before, strict=True)]
        sent = [self._largest(each) for each in whole]
        kept = [each - part for each, part in zip(whole, sent, strict=True)]
        return sum(sent[1:], sent[0]) / len(sent), kept

    def _largest(self, tensor: Tensor, of: Tensor | None = None) -> Tensor:
        """The tensor with zeros where `of`, or else its absolute value, is not among the k."""
        import torch

        of = tensor.abs() if of is None else of
        places = of.flatten().topk(self.k).indices
        mask = torch.zeros(tensor.numel()).index_fill_(0, places, 1.0)
        return tensor * mask.view_as(tensor)

    def known(self, rank: int, gradients: list[Tensor], before: States) -> Known:
        import torch

        whole = [own + old["error"] for own, old in zip(gradients, before, strict=True)]
        sent = [self._largest(each) for each in whole]
        last = torch.zeros_like(sent[0])
        for each in sent:
            last = torch.where(each != 0, each, last)
        count = torch.stack([each != 0 for each in sent]).sum(0)

        def mean(parts: list[Tensor]) -> Tensor:
            return sum(parts[1:], parts[0]) / len(parts)

        return {
            "leaves out the kept error": (
                mean([self._largest(own) for own in gradients]),
                "Add it to the gradient before you choose the largest elements.",
            ),
            "contains the kept error, added only after the elements were chosen": (
                mean([self._largest(w, own.abs())
                      for w, own in zip(whole, gradients, strict=True)]),
                "Add it before you choose them.",
            ),
            "has the right places, but the gradient's values": (
                mean([o * (part != 0) for o, part in zip(gradients, sent, strict=True)]),
                "Send the values of gradient + error.",
            ),
            "contains this rank's elements alone": (sent[rank], ""),
            "contains this rank's elements alone, divided by the number of ranks": (
                sent[rank] / len(sent), ""
            ),
            "is that of the largest elements, not of the largest absolute values": (
                mean([self._largest(each, each) for each in whole]), "Compare absolute values."
            ),
            "is that of the absolute values": (
                mean([each.abs() for each in sent]), "Send the elements with their signs."
            ),
            "counts only one rank where several send the same place": (
                last / len(sent), "Add up their values."
            ),
            "is divided, at each place, by the number of ranks that sent it": (
                mean(sent) * len(sent) / torch.clamp(count, min=1),
                "The other ranks have 0 there: divide by the number of all ranks.",
            ),
        }  # fmt: skip

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        if self.topic != "bytes":
            return
        ranks = observation.trial.world_size
        due = 8 * self.k * (ranks - 1)
        for rank in range(ranks):
            if (sent := observation.sent_beyond(rank, due)) is not None:
                yield (
                    "bytes",
                    f"{observation.trial.words(0)}: {amount(sent)} left rank {rank}. {self.k} "
                    f"places and {self.k} values of 4 bytes each, to {ranks - 1} other ranks, are "
                    f"{amount(due)}. {self._advice(sent / due, observation)}",
                )

    @staticmethod
    def _advice(times: float, observation: Observation) -> str:
        if abs(times - 1.5) < 0.05:
            return "Send int32 and float32: the places that topk returns are int64."
        if observation.trace is not None and "all_reduce" in observation.trace.ops():
            return "all_reduce takes whole tensors. Gather places and values with all_gather."
        return "What else do you send?"


def _trials(seed: int) -> list[Trial]:
    """Errors and several steps; then vectors on 1 to 4 ranks, shapes, and many elements."""
    draw = random.Random(seed)

    def case(topic: str, *shape: int, steps: int = 1, k: int = 0) -> TopK:
        shape = shape or (draw.randint(12, 20),)
        k = k or prod(shape) // 2 - draw.randint(0, 2)
        return TopK(draw.randrange(10**6), topic, shape, steps, k)

    return [
        Trial(3, [case("fed_back"), case("fed_back", steps=4)]),
        Trial(3, [case("mean"), case("mean", k=1)]),
        *(Trial(ranks, [case("mean")]) for ranks in (1, 2, 4)),
        Trial(2, [case("shapes", 5, 7), case("shapes", 3, 2, 2, 4)]),
        Trial(4, [case("bytes", 40_000, k=draw.randint(2000, 2700))]),
    ]


PART = Part(
    "09/top_k", 2, "Top-k with error feedback", 45, 3,
    Check(
        trials=_trials,
        rules=(
            rule("mean", 4, "the mean of each rank's k largest elements, on 1 to 4 ranks"),
            rule("kept", 3, "error is what was not sent", "mean"),
            rule("fed_back", 3, "what was kept takes part in the next step", "mean"),
            rule("shapes", 1, "gradients of every shape", "mean"),
            rule("bytes", 3, "k places and k values of 4 bytes each", "mean"),
        ),
    ),
    reference="dtlab.simple.top_k_mean",
)  # fmt: skip
