"""05/reduce: average a block's gradients, give each rank its piece, and free the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import Known, difference, of_others
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule, traffic
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.resident import Mark, Moment, grown_by
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit05.blocks import (
    LARGE,
    OnBlock,
    OnLargeBlock,
    draw_blocks,
    flat_gradients,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_PLACES = {
    "mean": "Is each gradient at its parameter's place in flat, with the padding after the last?",
    "missing": "If a gradient is None, put zeros of its parameter's size in its place.",
    "adds": "Keep the old piece.grad, and add the mean of this pass.",
}
_LEFT = "Whole gradients are not needed any more: set the .grad of every parameter to None."
_SENT = traffic(
    "bytes",
    1,
    "An all-reduce sends twice as much, and so does gloo's own reduce-scatter: use "
    "dtlab.collectives.ring_reduce_scatter.",
)


@dataclass(frozen=True)
class Reducing(OnBlock):
    """A call of `fn(block, piece)` for each of the `passes`, with different gradients by rank.

    With the topic "missing", rank 0 has no gradient for the first parameter, and no rank has one
    for the second.
    """

    passes: int = 1

    def shows(self, criterion: str) -> bool:
        only = {"missing", "adds"}
        return criterion == self.topic if self.topic in only else criterion not in only

    def gradients(self, rank: int, number: int) -> list[Tensor | None]:
        """The gradients of a rank in one pass; None for a missing gradient."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + number)
        shapes = [p.shape for p in self.module().parameters()]
        drawn = [torch.randint(-99, 100, shape, generator=draw) / 8 for shape in shapes]
        lacks = [0] * (rank == 0) + [1] if self.topic == "missing" else []
        return [None if place in lacks else g for place, g in enumerate(drawn)]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        gradients = [self.gradients(rank, number) for number in range(self.passes)]
        return {**super().given(rank, world_size), "gradients": gradients}

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        import torch

        piece, means, left = torch.nn.Parameter(given["piece"]), [], 0
        for gradients in given["gradients"]:
            _set_gradients(block, gradients)
            fn(block, piece)
            left += sum(p.grad is not None for p in block.parameters())
            means.append(None if piece.grad is None else piece.grad.clone())
        held = 0 if piece.grad is None else piece.grad.untyped_storage().nbytes()
        return {"means": means, "left": left, "held": held}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        block, ranks, total = self.module(), len(results), 0 * self.flat(len(results))
        for number in range(self.passes):
            flats = []
            for rank in range(ranks):
                _set_gradients(block, self.gradients(rank, number))
                flats.append(flat_gradients(block, ranks))
            total += torch.stack(flats).mean(0)
            for rank, result in enumerate(results):
                got, wanted = result["means"][number], total.chunk(ranks)[rank]
                name = "missing" if self.topic == "missing" else ("mean", "adds")[number > 0]
                known = _known(wanted, flats, rank)
                form = "Set it to this rank's part of the mean."
                if wrong := difference(got, wanted, known, hint=_PLACES[name], form=form):
                    yield name, f"rank {rank}: piece.grad " + wrong
                    return
        for rank, result in enumerate(results):
            if result["left"]:
                yield "freed", f"rank {rank}: {result['left']} whole gradients are left. {_LEFT}"
            elif result["held"] > 4 * len(total) // ranks and ranks > 1:
                yield "freed", f"rank {rank}: piece.grad is a view of all gradients. {_LEFT}"


def _set_gradients(block: nn.Module, gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(block.parameters(), gradients, strict=True):
        parameter.grad = gradient


def _known(wanted: Tensor, flats: Sequence[Tensor], rank: int) -> Known:
    """The values of known mistakes."""
    import torch

    ranks, parts = len(flats), torch.stack(list(flats)).mean(0).chunk(len(flats))
    own = flats[rank].chunk(ranks)[rank]
    return {
        "is 0 everywhere": (0 * wanted, ""),
        "is half of the right value": (wanted / 2, "Sum the gradients of two passes."),
        "is the sum over the ranks": (parts[rank] * ranks, "Divide it by their number."),
        "is divided twice by the number of ranks": (parts[rank] / ranks, "Divide it once."),
        "is this rank's own gradient": (own, "Average over all ranks."),
        "is only this pass's gradient": (parts[rank], "Add it to that of the previous pass."),
        **of_others(dict(enumerate(parts)), "Which piece does this rank own?", "the part"),
    }


class LargeReduce(OnLargeBlock):
    """A case that measures memory after the whole gradients have been reduced to a piece."""

    moments = (Moment("freed", "once reduced", lambda size, n: size / n - size, _LEFT),)

    @property
    def ready(self) -> float:
        """Parameters, their gradients, and the piece, which is half of them on two ranks."""
        return 2.5 * super().ready

    @staticmethod
    def use(fn: Callable[..., Any], layers: Any, mark: Mark) -> None:
        import torch
        import torch.distributed as dist

        whole = sum(p.numel() for p in layers.parameters())
        piece = torch.nn.Parameter(torch.zeros(whole // dist.get_world_size()))
        for parameter in layers.parameters():
            parameter.grad = torch.ones_like(parameter)
        mark()
        fn(layers, piece)
        mark()


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks; missing gradients, two passes, a block large enough to measure."""
    draw = random.Random(seed)

    def case(net: Net, topic: str, passes: int = 1) -> Reducing:
        return Reducing(draw.randrange(10**6), net, topic, passes)

    plain, tied = draw_blocks(draw)
    return [
        Trial(3, [case(plain, "mean"), case(tied, "mean")]),
        Trial(4, [case(LARGE, "bytes")]),
        Trial(1, [case(plain, "mean")]),
        Trial(2, [case(plain, "adds", 2)]),
        Trial(2, [case(plain, "missing"), case(tied, "missing")]),
        Trial(2, [LargeReduce()]),
    ]


PART = Part(
    name="05/reduce",
    level=2,
    title="Reduce",
    minutes=12,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("mean", 3, "piece.grad is the piece's part of the mean"),
            rule("bytes", 2, "a rank sends (N-1)/N of the gradients", "mean", also=_SENT),
            rule("freed", 1, "no whole gradient is left", "mean", also=grown_by("freed")),
            rule("missing", 1, "a missing gradient counts as 0", "mean"),
            rule("adds", 1, "a second pass adds to piece.grad", "mean"),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
