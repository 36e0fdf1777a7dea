"""05/reduce: the gradients of a block go to their owners, as means, and the rest is freed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule, traffic
from dtlab.grading.checking.finished import finished_calls
from dtlab.grading.checking.nets import Net
from dtlab.grading.checking.resident import (
    Mark,
    Moment,
    ResidentCase,
    grown_by,
    layers_of,
    use_twice,
)
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit05.blocks import (
    FINISHED,
    LARGE,
    OnBlock,
    alike,
    draw_blocks,
    flat_of,
    off_from,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reducing(OnBlock):
    """`fn(block, piece)` for each of so many `passes`, with gradients of each rank's own.

    With the topic "missing", rank 0 has none for the first parameter, and nobody for the second.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    passes: int = 1

    def shows(self, criterion: str) -> bool:
        only = self.topic if self.topic in ("missing", "adds") else ""
        return criterion == only if only else criterion not in ("missing", "adds")

    def gradients(self, rank: int, number: int) -> list[Tensor | None]:
        """Of a rank in one pass."""
        import torch

        draw = torch.Generator().manual_seed((1009 * self.seed + rank) * 97 + number)
        shapes = [one.shape for one in self.module().parameters()]
        found = [torch.randint(-99, 100, shape, generator=draw) / 8 for shape in shapes]
        lacks = [0] * (rank == 0) + [1] if self.topic == "missing" else []
        return [None if place in lacks else one for place, one in enumerate(found)]

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        flat = flat_of(list(self.module().parameters()), world_size)
        return {
            **super().given(rank, world_size),
            "piece": flat.chunk(world_size)[rank].clone(),
            "gradients": [self.gradients(rank, number) for number in range(self.passes)],
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.grading.checking.modules import filled

        module, piece = (
            filled(given["kind"], given["sizes"], given["state"]),
            torch.nn.Parameter(given["piece"]),
        )
        seen, left = [], 0
        with finished_calls(*FINISHED, refuse=True) as finished:
            for gradients in given["gradients"]:
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                fn(module, piece)
                left += sum(one.grad is not None for one in module.parameters())
                seen.append(None if piece.grad is None else piece.grad.clone())
        held = 0 if piece.grad is None else piece.grad.untyped_storage().nbytes()
        return {"seen": seen, "left": left, "held": held, "finished": sorted(finished)}

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        import torch

        size, shapes = len(results), [one.shape for one in self.module().parameters()]
        total: Any = 0
        for number in range(self.passes):
            own = [
                flat_of(
                    [
                        torch.zeros(shape) if one is None else one
                        for one, shape in zip(self.gradients(r, number), shapes, strict=True)
                    ],
                    size,
                )
                for r in range(size)
            ]
            mean = torch.stack(own).mean(0)
            total = total + mean
            for rank, seen in enumerate(results):
                got, wanted = seen["seen"][number], total.chunk(size)[rank]
                if not alike(got, wanted):
                    name = "missing" if self.topic == "missing" else ("mean", "adds")[number > 0]
                    how = _how(got, wanted, own, mean, rank)
                    yield name, f"rank {rank}: {how} {_PLACES[name] if 'off by' in how else ''}"
                    return
        for rank, seen in enumerate(results):
            if seen["left"]:
                yield "freed", f"rank {rank}: {seen['left']} whole gradients are left. {_LEFT}"
            elif seen["held"] > 4 * len(total.chunk(size)[rank]) and size > 1:
                yield "freed", f"rank {rank}: piece.grad is a view of all gradients. {_LEFT}"


class ResidentReduce(ResidentCase):
    """Whole gradients before, a piece of them afterwards."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("freed", "once reduced", lambda size, n: size / n - size, _LEFT),)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(_reduce_once, fn)


def _reduce_once(fn: Callable[..., Any], width: int, mark: Mark) -> None:
    import torch
    import torch.distributed as dist

    layers = layers_of(width)
    whole = sum(one.numel() for one in layers.parameters())
    piece = torch.nn.Parameter(torch.zeros(whole // dist.get_world_size()))
    for parameter in layers.parameters():
        parameter.grad = torch.ones_like(parameter)
    mark()
    fn(layers, piece)
    mark()


def _how(got: Any, wanted: Tensor, own: Sequence[Tensor], mean: Tensor, rank: int) -> str:
    """In what piece.grad is wrong, where it is something that people do."""
    size = len(own)
    parts, total = mean.chunk(size), wanted
    known = {
        "is 0 everywhere": 0 * wanted,
        **{
            f"is the part of rank {other}: which piece has this rank?": part
            for other, part in enumerate(parts)
            if other != rank
        },
        "is half of it: gradients of two passes add up, and are not averaged": total / 2,
        "is the sum over the ranks, not the mean": mean.chunk(size)[rank] * size,
        "is divided twice by the number of ranks": mean.chunk(size)[rank] / size,
        "is the rank's own gradient: what do the others have?": own[rank].chunk(size)[rank],
        "is this pass's alone, and there was one before: gradients add up": mean.chunk(size)[rank],
    }
    for words, tensor in known.items():
        if alike(got, tensor):
            return f"piece.grad {words}."
    return f"piece.grad {off_from(got, wanted)}, beside this rank's part of the mean gradient."


_PLACES = {
    "mean": "Is each gradient at the place that its parameter has in flat, and the padding behind "
    "the last one?",
    "missing": "A gradient that is None is zeros, as many as its parameter has, at its own place.",
    "adds": "What was in piece.grad stays, and this pass's mean comes on top.",
}
_LEFT = "What is reduced is not needed any more: no parameter of the block keeps a gradient."
_BYTES = (
    "An all-reduce sends twice as much, and so does gloo's own reduce-scatter: "
    "dtlab.collectives.ring_reduce_scatter does not."
)


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; gradients that are not there; two passes; and what is seen on the wire."""
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
        Trial(2, [ResidentReduce()]),
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
            rule(
                "bytes",
                2,
                "a rank sends (N-1)/N of the gradients",
                "mean",
                also=traffic("bytes", 1, _BYTES),
            ),
            rule("freed", 1, "no whole gradient is left", "mean", also=grown_by("freed")),
            rule("missing", 1, "a missing gradient counts as 0", "mean"),
            rule("adds", 1, "a second pass adds up", "mean"),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
