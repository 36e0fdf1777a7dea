"""05/shard: concatenate a block's parameters in one flat tensor, and give each rank its piece."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import difference, of_others
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.resident import Mark, Moment, grown_by
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.predict.units import counted
from dtlab.units.unit05.blocks import (
    OnBlock,
    OnLargeBlock,
    draw_blocks,
    values_of,
)

if TYPE_CHECKING:
    from torch import nn

_FLAT = (
    "Concatenate all parameters in one dim, in the order of block.parameters(), each of them once."
)
_VIEW = "A view keeps the memory of the whole tensor: make a copy."


class Sharding(OnBlock):
    """A call of `flat, piece = fn(block)`."""

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        import torch

        returned = fn(block)
        two = isinstance(returned, tuple | list) and len(returned) == 2
        if not two or not all(isinstance(tensor, torch.Tensor) for tensor in returned):
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
        block, length = self.module(), len(wanted) // ranks
        parts = [(name, parameter.numel()) for name, parameter in block.named_parameters()]
        for rank, result in enumerate(results):
            if form := result.get("form"):
                yield "flat", f"shard returns {form}. Return two tensors: flat, piece."
                return
            flat, front = result["flat"], result["flat"][: len(whole)]
            if wrong := difference(front, whole, hint=_FLAT, parts=parts):
                yield "flat", "flat " + wrong
            elif len(flat) != len(wanted):
                pad = f"Pad {counted(len(whole), 'element')} so that each rank has {length}"
                yield "padding", f"flat has {counted(len(flat), 'element')}. {pad}."
            elif difference(flat, wanted):
                yield "padding", "the padding after the parameters is not 0."
            if result["graph"]:
                yield "flat", "flat has an autograd graph: detach() the parameters first."
            if any(map(difference, result["after"], block.parameters())):
                yield "flat", "shard has changed the values of the block's parameters."
            pieces = wanted.chunk(ranks)
            where = f"elements {rank * length} to {(rank + 1) * length - 1} of flat"
            hint = f"It must be the {where}."
            known = of_others(dict(enumerate(pieces)), hint, "that")
            if wrong := difference(result["piece"], pieces[rank], known, hint=hint):
                yield "piece", f"rank {rank}'s piece " + wrong
            elif not result["trains"]:
                yield "piece", "piece must be an nn.Parameter with requires_grad, for Adam."
            elif result["held"] > 4 * length and ranks > 1:
                kept = f"piece has {4 * length} bytes, and keeps {result['held']} in memory"
                yield "memory", f"{kept}: it is a view of flat. {_VIEW}"


class LargeShard(OnLargeBlock):
    """A case that measures the memory that `piece` keeps after `flat` is deleted."""

    moments = (Moment("memory", "with only piece left", lambda size, n: size / n, _VIEW),)

    @staticmethod
    def use(fn: Callable[..., Any], layers: Any, mark: Mark) -> Any:
        mark()
        piece = fn(layers)[1]
        mark()
        return piece


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, with a chain of layers and tied weights; then one of memory."""
    draw = random.Random(seed)
    frozen = Net("frozen", tuple(draw.sample(range(3, 12), 4)), "a block with a frozen layer")
    return [
        *(
            Trial(n, [Sharding(draw.randrange(10**6), net, "flat") for net in draw_blocks(draw)])
            for n in (3, 4, 2, 1)
        ),
        Trial(2, [Sharding(draw.randrange(10**6), frozen, "flat")]),
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
            rule("padding", 1, "flat is zero-padded to N equal pieces", "flat"),
            rule("piece", 2, "each rank's piece is its part of flat", "flat", "padding"),
            rule("memory", 1, "piece keeps only its own bytes", "piece", also=grown_by("memory")),
        ),
    ),
    reference="dtlab.parallel.zero.shards.FlatLayout",
)
