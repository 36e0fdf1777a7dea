"""09/power_sgd: the mean of a matrix over ranks as P Q^T, with two small all-reduces.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD", algorithms 1 and 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, close, same
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, rule
from dtlab.checks.functions.trials import Observation, Trial
from dtlab.checks.functions.unseen import confirmed
from dtlab.checks.parts import Part
from dtlab.checks.words import amount
from dtlab.predict.units import counted
from dtlab.units.unit09.compressed import AS_IT_WAS, CHANGE, Compressed, States, call_in_steps

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PowerSGD(Compressed):
    """Calls of `fn(matrix, q, error)`. With the topic "dependent", columns of P are dependent."""

    also_shows: ClassVar = {"mean": ("kept", "warm"), "fed_back": ("kept", "warm")}
    keep = "It should be matrix + error - mean, with this rank's matrix."

    columns: int = 2

    @property
    def cure(self) -> str:
        if self.topic == "dependent":
            return (
                "Here one column of P is a multiple of the other, so at right angles to the first "
                "nothing is left of the second. Do not divide by its length: torch.linalg.qr "
                "returns orthonormal columns for every matrix."
            )
        return "Are both factors sums over the ranks, and has P orthonormal columns?"

    def __str__(self) -> str:
        return f"[{self.shape[0]}, {self.shape[1]}] with {counted(self.columns, 'column')}"

    def gradient(self, rank: int, step: int) -> Tensor:
        if self.topic != "dependent":
            return super().gradient(rank, step)
        column = self.drawn(1, step, shape=(self.shape[0], 1))  # all ranks have multiples of it
        return column @ self.drawn(rank, step, shape=(1, self.shape[1]))

    def state(self, rank: int) -> dict[str, Tensor]:
        return {**super().state(rank), "q": self.drawn(7, shape=(self.shape[1], self.columns))}

    def given(self, rank: int, world_size: int) -> tuple[Any, ...]:
        return [self.gradient(rank, step) for step in range(self.steps)], self.state(rank)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
        return call_in_steps(lambda matrix, s: fn(matrix, s["q"], s["error"]), *given)

    def right(self, gradients: list[Tensor], before: States) -> tuple[Tensor, list[Tensor]]:
        whole = [own + old["error"] for own, old in zip(gradients, before, strict=True)]
        products = [each @ old["q"] for each, old in zip(whole, before, strict=True)]
        mean = _onto(sum(products[1:], products[0]), sum(whole[1:], whole[0])) / len(whole)
        return mean, [each - mean for each in whole]

    def known(self, rank: int, gradients: list[Tensor], before: States) -> Known:
        whole = [own + old["error"] for own, old in zip(gradients, before, strict=True)]
        total, total_alone = sum(whole[1:], whole[0]), sum(gradients[1:], gradients[0])
        q, count = before[rank]["q"], len(whole)
        own, product = whole[rank], total @ q
        return {
            "leaves out the kept error": (
                _onto(total_alone @ q, total_alone) / count, "Add it to the matrix first."
            ),
            "comes from a P whose columns are not orthonormal": (
                product @ (total.T @ product).T / count, ""
            ),
            "comes from a P whose columns have length 1, but are not at right angles": (
                _unit(product) @ (total.T @ _unit(product)).T / count, ""
            ),
            "is the approximation of this rank's matrix alone": (_onto(own @ q, own), ""),
            "is made with this rank's own P": (
                _basis(own @ q) @ sum(_basis(w @ q).T @ w for w in whole) / count,
                "Sum P over the ranks before you make its columns orthonormal.",
            ),
            "is made with this rank's own Q": (
                _onto(product, own), "Sum Q over the ranks too."
            ),
            "is made with this rank's own Q, and divided by the number of ranks": (
                _onto(product, own) / count, "Sum Q over the ranks too, and then divide."
            ),
            "is P times the old Q": (
                _basis(product) @ q.T, "Compute the new Q from the matrix and P."
            ),
        }  # fmt: skip

    def other_faults(
        self, after: dict[str, Tensor], before: dict[str, Tensor], mean: Tensor
    ) -> Iterator[Fault]:
        """Judges q by the space of its columns, which must be that of the rows of the mean."""
        q, needed = after["q"], "The columns of the new Q are the start of the next step."
        if self.topic == "dependent" or not mean.isfinite().all():
            return
        if same(q, before["q"]):
            yield "warm", f"q {AS_IT_WAS}. {CHANGE}"
        elif q.shape != before["q"].shape or not q.isfinite().all():
            yield "warm", f"q has shape {list(q.shape)}, or NaN. {needed}"
        elif not close(_onto(q, mean.T).T, mean):
            yield "warm", f"q is not that of this step. {needed}"

    def by_trace(self, observation: Observation) -> Iterator[Fault]:
        if self.topic == "bytes":
            yield from confirmed("all_reduces", observation, self._other_calls(observation))

    def _other_calls(self, observation: Observation) -> Iterator[Fault]:
        trace, where = observation.trace, observation.trial.words(0)
        if trace is None:
            return
        ops, due = trace.ops(0), 4 * self.columns * sum(self.shape)
        if set(ops) != {"all_reduce"} or ops["all_reduce"] != 2 * self.steps:
            calls = " and ".join(f"{count} x {name}" for name, count in sorted(ops.items()))
            yield (
                "all_reduces",
                f"{where}: rank 0 calls {calls or 'nothing'}. Two all-reduces are enough, one of "
                "P and one of Q.",
            )
        ranks = observation.trial.world_size
        ring = 2 * (ranks - 1) / ranks * due * self.steps
        if (sent := observation.sent_beyond(0, ring)) is not None:
            yield (
                "all_reduces",
                f"{where}: {amount(sent)} left rank 0. P and Q together have {amount(due)}, of "
                f"which {amount(ring)} leave a rank in a ring.",
            )


def _basis(columns: Tensor) -> Tensor:
    import torch

    basis: Tensor = torch.linalg.qr(columns.double()).Q
    return basis.to(columns.dtype)


def _unit(columns: Tensor) -> Tensor:
    unit: Tensor = columns / columns.norm(dim=0)
    return unit


def _onto(columns: Tensor, matrix: Tensor) -> Tensor:
    """The matrix, projected onto the space of these columns."""
    basis = _basis(columns)
    return basis @ (basis.T @ matrix)


def _trials(seed: int) -> list[Trial]:
    """Errors and steps; then matrices on 1 to 4 ranks, dependent columns, and a large one."""
    draw = random.Random(seed)

    def case(topic: str, n: int = 0, m: int = 0, steps: int = 1, columns: int = 2) -> PowerSGD:
        shape = n or draw.randint(8, 12), m or draw.randint(5, 7)
        return PowerSGD(draw.randrange(10**6), topic, shape, steps, columns)

    return [
        Trial(3, [case("fed_back"), case("fed_back", steps=4)]),
        Trial(3, [case("mean"), case("mean", columns=1)]),
        *(Trial(ranks, [case("mean", columns=3)]) for ranks in (1, 2, 4)),
        Trial(2, [case("dependent")]),
        Trial(4, [case("bytes", 1200, 800, columns=4)]),
    ]


PART = Part(
    "09/power_sgd", 2, "PowerSGD", 45, 3,
    Check(
        trials=_trials,
        rules=(
            rule("mean", 4, "the approximation by P and Q, on 1 to 4 ranks"),
            rule("kept", 3, "error is what the approximation left out", "mean"),
            rule("fed_back", 2, "what was left out takes part in the next step", "mean"),
            rule("warm", 2, "q is the start of the next step", "mean"),
            rule("dependent", 1, "right if columns of P are dependent", "mean"),
            rule("all_reduces", 2, "two all-reduces, of P and of Q", "mean"),
        ),
    ),
    reference="dtlab.simple.power_sgd_mean",
    stretch=True,
)  # fmt: skip
