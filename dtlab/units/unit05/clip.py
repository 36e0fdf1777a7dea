"""05/clip (extra): clip gradients by their global norm if each rank has only a piece of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.checks.comparison import Known, difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Faulty, Noted, rule
from dtlab.checks.functions.finished import finished_calls
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit05.blocks import FINISHED

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Clipping(Faulty):
    """A call of `fn(pieces, max_norm)` on ranks whose gradients have different norms.

    `part` is max_norm divided by the true norm. With the topic "missing", rank 0 has a piece
    without a gradient, and the last rank has no gradients at all.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    seed: int
    sizes: tuple[int, ...]
    part: float
    topic: str = "norm"

    def __str__(self) -> str:
        side = "below" if self.part < 1 else "above"
        return f"{len(self.sizes)} pieces, max_norm {side} the norm"

    def shows(self, criterion: str) -> bool:
        return (criterion == "missing") == (self.topic == "missing")

    def gradients(self, rank: int, ranks: int) -> list[Tensor | None]:
        """The gradient of each piece of a rank; None if the piece has none."""
        import torch

        draw = torch.Generator().manual_seed(1009 * self.seed + rank)
        drawn = [(rank + 1) * torch.randn(size, generator=draw) for size in self.sizes]
        lacks = {0: [0], ranks - 1: [*range(len(drawn))]} if self.topic == "missing" else {}
        return [None if place in lacks.get(rank, ()) else g for place, g in enumerate(drawn)]

    def norms(self, ranks: int) -> list[list[float]]:
        """The norm of each piece's gradient on each rank; 0 if there is no gradient."""
        every = [self.gradients(rank, ranks) for rank in range(ranks)]
        return [[0.0 if g is None else float(g.double().norm()) for g in gs] for gs in every]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        norm = hypot(*(norm for norms in self.norms(world_size) for norm in norms))
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
            "after": [piece.grad for piece in pieces],
            "finished": sorted(finished),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks, factor = len(results), min(1.0, self.part)
        norms = self.norms(ranks)
        true = hypot(*(norm for rank_norms in norms for norm in rank_norms))
        for rank, result in enumerate(results):
            got = result["norm"]
            if isinstance(got, str):
                yield self.topic, f"rank {rank}: it returns {got}."
            elif wrong := difference(got, true, _known(norms, rank, factor), hint=_OVER_ALL):
                yield self.topic, f"rank {rank}: the norm that you return " + wrong
            for gradient, after in zip(self.gradients(rank, ranks), result["after"], strict=True):
                if (gradient is None) != (after is None):
                    yield "missing", f"rank {rank}: a piece without a gradient has one now."
                elif gradient is not None:
                    hint = f"Multiply every gradient by {factor:.3g}." if factor < 1 else _BELOW
                    known = {"is as it was": (gradient, hint)}
                    if wrong := difference(after, gradient * factor, known, hint=hint):
                        cut = "scaled" if self.part < 1 else "kept"
                        name = cut if self.topic == "norm" else "missing"
                        yield name, f"rank {rank}: a gradient " + wrong


_OVER_ALL = "It should be the root of the sum of the squares of all gradients on all ranks."
_SQUARES = "Add their squares."
_BELOW = "The norm is below max_norm, so leave every gradient as it is."


def _known(norms: Sequence[Sequence[float]], rank: int, factor: float) -> Known:
    """The norms that known mistakes give."""
    of_ranks, sums = [hypot(*each) for each in norms], [sum(each) for each in norms]
    return {
        "is the norm of this rank's pieces only": of_ranks[rank],
        "is the sum of the ranks' norms": (sum(of_ranks), _SQUARES),
        "is the mean of the ranks' norms": (sum(of_ranks) / len(of_ranks), _SQUARES),
        "is the square of the norm": hypot(*of_ranks) ** 2,
        "is the largest norm of a rank": max(of_ranks),
        "is a sum of the norms of pieces": ([sum(sums), sums[rank], hypot(*sums)], _SQUARES),
        "is the norm of the first piece of each rank only": hypot(*(each[0] for each in norms)),
        "is the norm after clipping": (
            factor * hypot(*of_ranks),
            "Return the norm from before clipping.",
        ),
    }


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, with max_norm below and above the norm; then missing gradients."""
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
            rule("scaled", 1, "all gradients are scaled by one factor", "norm"),
            rule("kept", 1, "gradients below max_norm are unchanged", "norm"),
            rule("missing", 1, "pieces without a gradient keep none", "norm", "scaled"),
        ),
    ),
    reference="dtlab.parallel.zero.shards.clip_sharded_grad_norm_",
    stretch=True,
)
