"""05/clip, extra: clipping by the norm of all gradients, of which each rank has a piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Faulty, Noted, rule
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
        found: list[Tensor | None] = [
            (rank + 1) * torch.randn(size, generator=draw) for size in self.sizes
        ]
        if self.topic == "missing":
            found = [None] * len(found) if rank == ranks - 1 else found
            found[0] = found[0] if rank else None
        return found

    def norm(self, ranks: int) -> float:
        """Of all gradients together."""
        every = [one for rank in range(ranks) for one in self.gradients(rank, ranks)]
        return float(
            sum(float(one.double().square().sum()) for one in every if one is not None) ** 0.5
        )

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        gradients = self.gradients(rank, world_size)
        return {
            "sizes": self.sizes,
            "gradients": gradients,
            "max_norm": self.part * self.norm(world_size),
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        pieces = [torch.nn.Parameter(torch.ones(size)) for size in given["sizes"]]
        for piece, gradient in zip(pieces, given["gradients"], strict=True):
            piece.grad = gradient
        with finished_calls(*FINISHED, refuse=True) as finished:
            returned = fn(pieces, given["max_norm"])
        number = isinstance(returned, int | float) or (
            isinstance(returned, torch.Tensor) and returned.numel() == 1
        )
        return {
            "norm": float(returned) if number else type(returned).__name__,
            "after": [one.grad for one in pieces],
            "pieces": [one.detach().clone() for one in pieces],
            "finished": sorted(finished),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks, true = len(results), self.norm(len(results))
        own = [self._own(rank, ranks) for rank in range(ranks)]
        factor = min(1.0, self.part)
        missing = self.topic == "missing"
        for rank, seen in enumerate(results):
            got = seen["norm"]
            if isinstance(got, str):
                yield "missing" if missing else "norm", f"rank {rank}: it returns {got}."
                return
            if abs(got - true) > 1e-3 * true:
                why = _known(got, own, rank) or self._of_pieces(got, rank, ranks)
                yield (
                    "missing" if missing else "norm",
                    (
                        f"rank {rank}: the norm returned is {got:.4g}; all ranks' gradients have "
                        f"{true:.4g}. {why}"
                    ),
                )
                return
        for rank, seen in enumerate(results):
            for gradient, after in zip(self.gradients(rank, ranks), seen["after"], strict=True):
                if (gradient is None) != (after is None):
                    yield "missing", f"rank {rank}: a piece without a gradient has one now."
                    return
                if gradient is not None and not alike(after, gradient * factor):
                    name = "missing" if missing else "scaled" if self.part < 1 else "kept"
                    yield (
                        name,
                        (
                            f"rank {rank}: a gradient {off_from(after, gradient * factor)}. All "
                            f"of them are to be {factor:.3g} times what they were."
                        ),
                    )
                    return

    def _of_pieces(self, got: float, rank: int, ranks: int) -> str:
        """What it is instead, where norms of single pieces are taken."""
        norms = [
            [
                0.0 if one is None else float(one.double().norm())
                for one in self.gradients(r, ranks)
            ]
            for r in range(ranks)
        ]
        sums = [sum(each) for each in norms]
        most = min(1.0, self.part) * self.norm(ranks)
        known = {
            sum(sums): _SQUARES,
            sums[rank]: _SQUARES,
            sum(one**2 for one in sums) ** 0.5: _SQUARES,
            sum(each[0] ** 2 for each in norms) ** 0.5: "That is the first piece of each rank "
            "alone.",
            most: "That is the norm afterwards: return what it was before.",
        }
        return next((why for norm, why in known.items() if abs(got - norm) <= 1e-3 * norm), "")

    def _own(self, rank: int, ranks: int) -> float:
        found = [one for one in self.gradients(rank, ranks) if one is not None]
        return float(sum(float(one.double().square().sum()) for one in found) ** 0.5)


_SQUARES = "That adds up the norms of pieces. What adds up are their squares."


def _known(got: float, own: Sequence[float], rank: int) -> str:
    """What it is instead."""
    known = {
        "That is this rank's own: a rank sees its pieces alone.": own[rank],
        "That is the sum of the ranks' norms. What adds up are their squares.": sum(own),
        "That is the mean of the ranks' norms. What adds up are their squares.": sum(own)
        / len(own),
        "That is its square.": sum(one**2 for one in own),
        "That is the largest rank's.": max(own),
    }
    return next((w for w, norm in known.items() if abs(got - norm) < 1e-3 * norm), "")


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, with max_norm below and above; and gradients that are not there."""
    draw = random.Random(seed)

    def case(part: float, topic: str = "norm") -> Clipping:
        sizes = tuple(draw.randint(2, 9) for _ in range(3))
        return Clipping(draw.randrange(10**6), sizes, part, topic)

    return [
        *(
            Trial(n, [case(draw.uniform(0.2, 0.8)), case(draw.uniform(1.05, 1.2))])
            for n in (3, 4, 1)
        ),
        Trial(2, [case(draw.uniform(0.2, 0.8), "missing")]),
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
