"""05/clip, extra: clipping by the norm of all gradients, of which each rank has a piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Faulty, Noted, rule
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit05.blocks import FINISHED, alike, off_from

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Clipping(Faulty):
    """`fn(pieces, max_norm)` on ranks whose gradients are of different lengths.

    `part` is max_norm as a part of the true norm. With the topic "missing", rank 0 has a piece
    without a gradient, and the last rank has none at all.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    sizes: tuple[int, ...]
    part: float
    topic: str = "norm"

    def __str__(self) -> str:
        return f"{len(self.sizes)} pieces, max_norm {'below' if self.part < 1 else 'above'} theirs"

    def shows(self, criterion: str) -> bool:
        return (criterion == "missing") == (self.topic == "missing")

    def gradients(self, rank: int, ranks: int) -> list[Tensor | None]:
        """Of each piece of a rank."""
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        found = [(rank + 1) * torch.randn(size, generator=draw) for size in self.sizes]
        lacks = {0: [0], ranks - 1: [*range(len(found))]} if self.topic == "missing" else {}
        return [None if place in lacks.get(rank, ()) else one for place, one in enumerate(found)]

    def norms(self, ranks: int) -> list[list[float]]:
        """Of each piece of each rank; 0 where there is no gradient."""
        every = [self.gradients(rank, ranks) for rank in range(ranks)]
        return [[0.0 if g is None else float(g.double().norm()) for g in one] for one in every]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        norm = hypot(*(one for own in self.norms(world_size) for one in own))
        gradients = self.gradients(rank, world_size)
        return {"sizes": self.sizes, "gradients": gradients, "max_norm": self.part * norm}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        pieces = [torch.nn.Parameter(torch.ones(size)) for size in given["sizes"]]
        for piece, gradient in zip(pieces, given["gradients"], strict=True):
            piece.grad = gradient
        with finished_calls(*FINISHED, refuse=True) as finished:
            norm = fn(pieces, given["max_norm"])
        number = isinstance(norm, int | float) or (
            isinstance(norm, torch.Tensor) and norm.numel() == 1
        )
        return {
            "norm": float(norm) if number else type(norm).__name__,
            "after": [one.grad for one in pieces],
            "finished": sorted(finished),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks, factor = len(results), min(1.0, self.part)
        norms = self.norms(ranks)
        true = hypot(*(one for own in norms for one in own))
        for rank, seen in enumerate(results):
            got = seen["norm"]
            if isinstance(got, str):
                yield self.topic, f"rank {rank}: it returns {got}."
            elif abs(got - true) > 1e-3 * true:
                what = f"the norm returned is {got:.4g}; all ranks' gradients have {true:.4g}"
                why = _known(got, norms, rank, factor)
                yield self.topic, f"rank {rank}: {what}. {why}"
            for gradient, after in zip(self.gradients(rank, ranks), seen["after"], strict=True):
                if (gradient is None) != (after is None):
                    yield "missing", f"rank {rank}: a piece without a gradient has one now."
                elif gradient is not None and not alike(after, gradient * factor):
                    cut = "scaled" if self.part < 1 else "kept"
                    off = off_from(after, gradient * factor)
                    what = f"All of them are to be {factor:.3g} times what they were"
                    yield (
                        cut if self.topic == "norm" else "missing",
                        f"rank {rank}: a gradient {off}. {what}.",
                    )


def _known(got: float, norms: Sequence[Sequence[float]], rank: int, factor: float) -> str:
    """The known mistake that gives this norm; empty if there is none."""
    own, sums = [hypot(*each) for each in norms], [sum(each) for each in norms]
    pieces = "That adds up the norms of pieces. What adds up are their squares."
    known = [
        (own[rank], "That is this rank's own: a rank sees its pieces alone."),
        (sum(own), "That is the sum of the ranks' norms. What adds up are their squares."),
        (
            sum(own) / len(own),
            "That is the mean of the ranks' norms. What adds up are their squares.",
        ),
        (hypot(*own) ** 2, "That is its square."),
        (max(own), "That is the largest rank's."),
        (sum(sums), pieces),
        (sums[rank], pieces),
        (hypot(*sums), pieces),
        (hypot(*(each[0] for each in norms)), "That is the first piece of each rank alone."),
        (factor * hypot(*own), "That is the norm afterwards: return what it was before."),
    ]
    return next((why for norm, why in known if abs(got - norm) <= 1e-3 * norm), "")


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, with max_norm below and above; and gradients that are not there."""
    draw = random.Random(seed)

    def case(low: float, high: float, topic: str = "norm") -> Clipping:
        sizes = tuple(draw.randint(2, 9) for _ in range(3))
        return Clipping(draw.randrange(10**6), sizes, draw.uniform(low, high), topic)

    return [
        *(Trial(ranks, [case(0.2, 0.8), case(1.05, 1.2)]) for ranks in (3, 4, 1)),
        Trial(2, [case(0.2, 0.8, "missing")]),
    ]


PART = Part(
    name="05/clip",
    level=2,
    title="Clip by the true norm",
    minutes=10,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("norm", 2, "the norm of all ranks' gradients"),
            rule("scaled", 1, "all are cut by one factor", "norm"),
            rule("kept", 1, "shorter ones are left alone", "norm"),
            rule("missing", 1, "and so are those that are not there", "norm", "scaled"),
        ),
    ),
    reference="dtlab.parallel.zero.shards.clip_sharded_grad_norm_",
    stretch=True,
)
