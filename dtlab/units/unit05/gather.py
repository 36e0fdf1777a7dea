"""05/gather: the full parameters of a block, as views of its flat tensor, just before use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dtlab.grading.checking.checks import Check
from dtlab.grading.checking.faults import Fault, Noted, rule, traffic
from dtlab.grading.checking.finished import finished_calls
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
    from torch import Tensor, nn

__all__ = ["PART", "expected_gradients"]


class Gathering(OnBlock):
    """`fn(block, flat, piece)`; with the topic "backward" again, between forward and backward."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @cached_property
    def numbers(self) -> nn.Module:
        """The block with the numbers that are in the pieces: those in `given` are older."""
        return self.net.module(self.seed + 1)

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        flat = flat_of(list(self.numbers.parameters()), world_size)
        return {
            **super().given(rank, world_size),
            "piece": flat.chunk(world_size)[rank].clone(),
            "inputs": self.inputs() if self.topic == "backward" else None,
        }

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        from dtlab.grading.checking.modules import filled

        module, piece = (
            filled(given["kind"], given["sizes"], given["state"]),
            torch.nn.Parameter(given["piece"]),
        )
        flat = torch.zeros(len(piece) * dist.get_world_size())
        flat.untyped_storage().resize_(0)
        before = list(module.parameters())
        with finished_calls(*FINISHED, refuse=True) as finished:
            fn(module, flat, piece)
            seen = _seen(module, flat)
            if given["inputs"] is not None:
                loss = module(given["inputs"]).square().sum()
                flat.untyped_storage().resize_(0)
                fn(module, flat, piece)
                loss.backward()
        return {
            **seen,
            "finished": sorted(finished),
            "same": all(a is b for a, b in zip(before, module.parameters(), strict=False)),
            "piece": piece.detach().clone(),
            "gradients": [one.grad for one in module.parameters()],
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        names = [name for name, _ in self.numbers.named_parameters()]
        wanted, old = list(self.numbers.parameters()), list(self.module().parameters())
        gradients = expected_gradients(self.numbers, self.inputs())
        for rank, seen in enumerate(results):
            for place, name in enumerate(names):
                got = seen["after"][place]
                if alike(got, wanted[place].detach()):
                    continue
                why = "still has its old numbers" if alike(got, old[place].detach()) else ""
                why = why or off_from(got, wanted[place].detach())
                yield "values", f"rank {rank}, {name} {why}. {_ORDER}"
                return
            if not seen["same"]:
                yield "views", _SAME
            elif not all(seen["in_flat"]):
                name = names[seen["in_flat"].index(False)]
                yield "views", f"rank {rank}, {name} has memory of its own. {_VIEW}"
            if self.topic == "backward" and not all(map(alike, seen["gradients"], gradients)):
                yield "backward", f"rank {rank}: gradients are not those of the gathered block."


def _seen(module: nn.Module, flat: Tensor) -> dict[str, Any]:
    """What the parameters are after a gather."""
    address = flat.untyped_storage().data_ptr()
    return {
        "after": [one.detach().clone() for one in module.parameters()],
        "in_flat": [
            one.untyped_storage().data_ptr() == address and bool(address)
            for one in module.parameters()
        ],
    }


def expected_gradients(module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Of the sum of the squared outputs."""
    import torch

    loss = module(inputs).square().sum()
    return list(torch.autograd.grad(loss, list(module.parameters())))


_ORDER = "The pieces of all ranks, one after the other, are flat; parameters lie in it end to end."
_SAME = (
    "the block has other parameter objects afterwards. Keep those that it has, and set their "
    "`.data`: hooks and gradients hang on them."
)
_VIEW = "With flat that is twice the bytes: let `parameter.data` be a view of its place in flat."
_BYTES = "Each rank has its piece to send, and no more: which collective fills flat with pieces?"


def _trials(seed: int) -> list[Trial]:
    """1 to 4 ranks; again for backward; and a block that is seen on the wire."""
    draw = random.Random(seed)

    def cases(topic: str) -> list[Gathering]:
        return [Gathering(draw.randrange(10**6), net, topic) for net in draw_blocks(draw)]

    return [
        *(Trial(ranks, cases("values")) for ranks in (3, 1)),
        Trial(2, cases("backward")),
        Trial(4, [Gathering(draw.randrange(10**6), LARGE, "bytes")]),
    ]


PART = Part(
    name="05/gather",
    level=2,
    title="Gather",
    minutes=10,
    difficulty=2,
    check=Check(
        trials=_trials,
        rules=(
            rule("values", 2, "the block has all numbers, on 1 to 4 ranks"),
            rule("views", 2, "they are views of flat", "values"),
            rule("backward", 2, "backward finds them again", "values"),
            rule(
                "bytes",
                1,
                "a rank sends (N-1)/N of the block",
                "values",
                also=traffic("bytes", 1, _BYTES),
            ),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
