"""05/gather: gather the full parameters of a block, as views of its flat tensor, before use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule, traffic
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit05.blocks import (
    LARGE,
    OnBlock,
    alike,
    draw_blocks,
    flat_of,
    gradients_of,
    loss_of,
    off_from,
    values_of,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


class Gathering(OnBlock):
    """A call of `fn(block, flat, piece)`, and another before backward (topic "backward")."""

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        import torch
        import torch.distributed as dist

        before, piece = list(block.parameters()), torch.nn.Parameter(given["piece"])
        flat = torch.zeros(len(piece) * dist.get_world_size())
        flat.untyped_storage().resize_(0)
        fn(block, flat, piece)
        storages = [p.untyped_storage().data_ptr() for p in block.parameters()]
        result = {
            "after": values_of(block),
            "views": [address == flat.untyped_storage().data_ptr() != 0 for address in storages],
        }
        if given["topic"] == "backward":
            loss = loss_of(block, given["inputs"])
            flat.untyped_storage().resize_(0)
            fn(block, flat, piece)
            loss.backward()
        return {
            **result,
            "same": all(a is b for a, b in zip(before, block.parameters(), strict=False)),
            "gradients": [p.grad for p in block.parameters()],
        }

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        module, old = self.module(later=1), list(self.module().parameters())
        gradients = gradients_of(module, self.inputs())
        for rank, result in enumerate(results):
            if not result["same"]:
                yield "views", _SAME
            for place, (name, wanted) in enumerate(module.named_parameters()):
                got = result["after"][place]
                if not alike(got, wanted):
                    stale = alike(got, old[place])
                    how = "still has its old values" if stale else off_from(got, wanted)
                    flat = flat_of(result["after"], 1)
                    whose = _whose(flat, flat_of(module.parameters(), 1), len(results))
                    yield "values", f"rank {rank}, {name} {how}. {whose}{_ORDER}"
                elif not result["views"][place]:
                    yield "views", f"rank {rank}, {name} is not a view of flat. {_VIEW}"
            if self.topic == "backward" and not all(map(alike, result["gradients"], gradients)):
                yield "backward", f"rank {rank}: gradients are not those of the gathered block."


def _whose(got: Tensor, wanted: Tensor, ranks: int) -> str:
    """Explains what the first wrong piece of flat holds; empty if that is unknown."""
    import torch

    size = -(-len(wanted) // ranks)
    if got.shape != wanted.shape:
        return ""
    pieces = torch.split(wanted, size)
    for rank, part in enumerate(torch.split(got, size)):
        count = len(part)
        shown = f"In flat, at the place of rank {rank}'s piece,"
        if alike(part, pieces[rank]):
            continue
        if not part.any():
            return f"{shown} are zeros: it did not arrive. "
        if count == size and alike(part[: len(pieces[-1])], _sum(pieces)):
            return f"{shown} is the sum of all pieces: gather them, do not add them. "
        for other, piece in enumerate(pieces):
            least = min(count, len(piece))
            if other != rank and alike(part[:least], piece[:least]):
                return f"{shown} is that of rank {other}. "
    return ""


def _sum(pieces: Sequence[Tensor]) -> Tensor:
    """The sum of all pieces, of the length of the last one."""
    size = len(pieces[-1])
    return sum((piece[:size] for piece in pieces[1:]), pieces[0][:size])


_ORDER = "flat is the pieces of all ranks in order, and contains the parameters one after another."
_SAME = (
    "the block has other parameter objects afterwards. Keep the old objects, and set their "
    "`.data`: hooks and gradients belong to these objects."
)
_VIEW = "A copy doubles the memory: make `parameter.data` a view of its place in flat."
_SENT = traffic(
    "bytes", 1, "Each rank sends only its piece: which collective fills flat with all pieces?"
)


def _trials(seed: int) -> list[Trial]:
    """Trials on 1 to 4 ranks, with two gathers, and with a block large enough to measure bytes."""
    draw = random.Random(seed)

    def cases(topic: str, *nets: Net) -> list[Gathering]:
        return [Gathering(draw.randrange(10**6), net, topic) for net in nets]

    return [
        *(Trial(ranks, cases("values", *draw_blocks(draw))) for ranks in (3, 1)),
        Trial(2, cases("backward", *draw_blocks(draw))),
        Trial(4, cases("bytes", LARGE)),
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
            rule("values", 2, "the block has all parameter values, on 1 to 4 ranks"),
            rule("views", 2, "the parameters are views of flat", "values"),
            rule("backward", 2, "backward works after another gather", "values"),
            rule("bytes", 1, "a rank sends (N-1)/N of the block", "values", also=_SENT),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
