"""05/gather: gather the full parameters of a block, as views of its flat tensor, before use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import difference, pieces_of
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule, traffic
from dtlab.checks.functions.nets import Net
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit05.blocks import (
    LARGE,
    OnBlock,
    draw_blocks,
    flat_of,
    gradients_of,
    loss_of,
    values_of,
)

if TYPE_CHECKING:
    from torch import nn


class Gathering(OnBlock):
    """A call of `fn(block, flat, piece)`, and another with other pieces, or before backward."""

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
        if given["topic"] == "values":
            piece.data += 1  # as after a step; the memory of flat is not freed here
            fn(block, flat, piece)
            result["again"] = values_of(block)
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
        block, ranks = self.module(later=1), len(results)
        wanted = flat_of(block.parameters(), 1)
        gradients = gradients_of(block, self.inputs())
        sources = {
            "its old values": self.flat(1),
            **pieces_of(self.flat(ranks, later=1).chunk(ranks)),
        }
        parts = [(name, parameter.numel()) for name, parameter in block.named_parameters()]
        for rank, result in enumerate(results):
            if not result["same"]:
                yield "views", _SAME
            got = flat_of(result["after"], 1)
            if wrong := difference(got, wanted, {}, sources, hint=_ORDER, parts=parts):
                yield "values", f"rank {rank}: the block, as one flat tensor, " + wrong
            elif not all(result["views"]):
                name, _ = parts[result["views"].index(False)]
                yield "views", f"rank {rank}, {name} is not a view of flat. {_VIEW}"
            elif self.topic == "values":
                again = flat_of(result["again"], 1)
                known = {"holds the pieces of the first call": wanted}
                if wrong := difference(again, wanted + 1, known, hint=_AGAIN):
                    where = f"rank {rank}: after a second call with other pieces, the block "
                    yield "values", where + wrong
            if self.topic == "backward" and any(map(difference, result["gradients"], gradients)):
                yield "backward", f"rank {rank}: gradients are not those of the gathered block."


_ORDER = "flat is the pieces of all ranks in order, and contains the parameters one after another."
_AGAIN = "Each call must gather the pieces again, whatever flat holds."
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
