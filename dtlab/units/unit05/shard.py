"""05/shard: all parameters of a block in one flat tensor, and a rank's own piece of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule
from dtlab.grading.checking.finished import finished_calls
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
from dtlab.units.unit05.blocks import FINISHED, OnBlock, alike, draw_blocks, flat_of, off_from


class Sharding(OnBlock):
    """`fn(block)`."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch

        from dtlab.grading.checking.modules import filled

        module = filled(given["kind"], given["sizes"], given["state"])
        with finished_calls(*FINISHED, refuse=True) as finished:
            returned = fn(module)
        seen: dict[str, Any] = {
            "finished": sorted(finished),
            "after": [one.detach().clone() for one in module.parameters()],
        }
        two = isinstance(returned, tuple | list) and len(returned) == 2
        if not two or not all(isinstance(one, torch.Tensor) for one in returned):
            return {**seen, "form": type(returned).__name__}
        flat, piece = returned
        return {
            **seen,
            "flat": flat.detach().clone(),
            "piece": piece.detach().clone(),
            "trains": isinstance(piece, torch.nn.Parameter) and piece.requires_grad,
            "graph": flat.requires_grad,
            "held": piece.untyped_storage().nbytes(),
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        whole, size = flat_of(list(self.module().parameters()), 1), len(results)
        wanted = flat_of([whole], size)
        for rank, seen in enumerate(results):
            if (form := seen.get("form")) is not None:
                yield "flat", f"shard returns {form}. It returns two tensors, flat and piece."
                return
            yield from self._of_flat(seen["flat"], whole, wanted, size)
            if seen["graph"]:
                yield "flat", "flat has a graph behind it: take parameters with detach()."
            if not all(map(alike, seen["after"], self.module().parameters())):
                yield "flat", "the block's own parameters have other numbers afterwards."
            yield from self._of_piece(seen, wanted, rank, size)

    def _of_flat(self, flat: Any, whole: Any, wanted: Any, size: int) -> Iterator[Fault]:
        if flat.dim() != 1 or not alike(flat[: len(whole)], whole):
            yield "flat", f"flat {off_from(flat[: len(whole)], whole)}. {_FLAT}"
        elif len(flat) != len(wanted):
            yield (
                "padding",
                (
                    f"flat has {len(flat)} elements. Of {len(whole)}, {size} ranks have "
                    f"{len(wanted) // size} each, the last ones padded."
                ),
            )
        elif not alike(flat, wanted):
            yield "padding", "what is behind the parameters is not 0."

    def _of_piece(self, seen: Noted, wanted: Any, rank: int, size: int) -> Iterator[Fault]:
        length = len(seen["flat"]) // size
        own = seen["flat"][rank * length : (rank + 1) * length]
        if not alike(seen["piece"], own):
            yield (
                "piece",
                (
                    f"rank {rank}'s piece {off_from(seen['piece'], own)}, beside the elements "
                    f"{rank * length} to {(rank + 1) * length - 1} of flat."
                ),
            )
        elif not seen["trains"]:
            yield "piece", "piece is no nn.Parameter that needs a gradient: what would Adam step?"
        elif seen["held"] > 4 * length and size > 1:
            yield (
                "memory",
                (
                    f"piece has {4 * length} bytes, and keeps {seen['held']} in memory: it is a "
                    "view of the whole. Who holds a view holds all of it."
                ),
            )


class ResidentShard(ResidentCase):
    """A piece, once flat is gone."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("memory", "with piece alone", lambda size, n: size / n, _VIEW),)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(_keep_piece, fn)


def _keep_piece(fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    layers = layers_of(width)
    mark()
    piece = fn(layers)[1]
    mark()
    return piece


_VIEW = "A view of the whole keeps all of it."
_FLAT = (
    "Parameters lie end to end in one dim, in the order of block.parameters(), each of them once."
)


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks, a chain and tied weights."""
    draw = random.Random(seed)
    return [
        Trial(ranks, [Sharding(draw.randrange(10**6), net, "flat") for net in draw_blocks(draw)])
        for ranks in (3, 4, 2, 1)
    ] + [Trial(2, [ResidentShard()])]


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
