"""05/shard: all parameters of a block in one flat tensor, and a rank's own piece of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.criteria import Fault, Noted, rule
from dtlab.grading.checking.resident import Mark, Moment, grown_by
from dtlab.grading.checking.trials import Trial
from dtlab.grading.parts import Part
from dtlab.units.unit05.blocks import (
    OnBlock,
    OnLargeBlock,
    alike,
    draw_blocks,
    off_from,
    values_of,
)

if TYPE_CHECKING:
    from torch import nn

_FLAT = (
    "Parameters lie end to end in one dim, in the order of block.parameters(), each of them once."
)
_VIEW = "A view of the whole keeps all of it."


class Sharding(OnBlock):
    """`flat, piece = fn(block)`."""

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        import torch

        returned = fn(block)
        two = isinstance(returned, tuple | list) and len(returned) == 2
        if not two or not all(isinstance(one, torch.Tensor) for one in returned):
            return {"form": type(returned).__name__}
        flat, piece = returned
        return {
            "after": values_of(block),
            "flat": flat.detach().clone(),
            "graph": flat.requires_grad,
            "piece": piece.detach().clone(),
            "trains": isinstance(piece, torch.nn.Parameter) and piece.requires_grad,
            "held": piece.untyped_storage().nbytes(),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        ranks, whole, wanted = len(results), self.flat(1), self.flat(len(results))
        length = len(wanted) // ranks
        for rank, seen in enumerate(results):
            if form := seen.get("form"):
                yield "flat", f"shard returns {form}. It returns two tensors, flat and piece."
                return
            flat, front = seen["flat"], seen["flat"][: len(whole)]
            if not alike(front, whole):
                yield "flat", f"flat {off_from(front, whole)}. {_FLAT}"
            elif len(flat) != len(wanted):
                should = f"Of {len(whole)}, {ranks} ranks have {length} each, the last ones padded"
                yield "padding", f"flat has {len(flat)} elements. {should}."
            elif not alike(flat, wanted):
                yield "padding", "what is behind the parameters is not 0."
            if seen["graph"]:
                yield "flat", "flat has a graph behind it: take parameters with detach()."
            if not all(map(alike, seen["after"], self.module().parameters())):
                yield "flat", "the block's own parameters have other numbers afterwards."
            own = wanted.chunk(ranks)[rank]
            if not alike(seen["piece"], own):
                where = f"{rank * length} to {(rank + 1) * length - 1} of flat"
                off = off_from(seen["piece"], own)
                yield "piece", f"rank {rank}'s piece {off}. It is the elements {where}."
            elif not seen["trains"]:
                yield "piece", "piece is no nn.Parameter that needs a gradient, for Adam to step."
            elif seen["held"] > 4 * length and ranks > 1:
                kept = f"piece has {4 * length} bytes, and keeps {seen['held']} in memory"
                yield "memory", f"{kept}: it is a view of the whole. {_VIEW}"


class LargeShard(OnLargeBlock):
    """Memory that piece keeps after flat is deleted."""

    moments = (Moment("memory", "with piece alone", lambda size, n: size / n, _VIEW),)

    @staticmethod
    def use(fn: Callable[..., Any], layers: Any, mark: Mark) -> Any:
        mark()
        piece = fn(layers)[1]
        mark()
        return piece


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, a chain and tied weights."""
    draw = random.Random(seed)
    return [
        *(
            Trial(n, [Sharding(draw.randrange(10**6), net, "flat") for net in draw_blocks(draw)])
            for n in (3, 4, 2, 1)
        ),
        Trial(2, [LargeShard()]),
    ]


PART = Part(
    name="05/shard",
    level=2,
    title="Shard",
    minutes=9,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("flat", 2, "flat has every parameter once, in order"),
            rule("padding", 1, "as long as N pieces, with zeros", "flat"),
            rule("piece", 2, "each rank's piece is its own part", "flat", "padding"),
            rule("memory", 1, "it holds its own bytes only", "piece", also=grown_by("memory")),
        ),
    ),
    reference="dtlab.parallel.zero.shards.FlatLayout",
)
