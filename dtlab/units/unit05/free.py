"""05/free: the memory of a block's whole parameters is given back, and can be filled again."""

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
    fill,
    flat_of,
    gradients_of,
    lay,
    loss_of,
)

if TYPE_CHECKING:
    from torch import nn

_BACK = (
    "Autograd has saved views of it for backward, and they keep the storage alive: change its "
    "size, not who refers to it."
)
_OWN = (
    "Before its first gather a block has memory of its own beside flat: who holds it afterwards?"
)
_ONE = "One NaN is enough, of 4 bytes: `expand` gives it a shape, and no memory."
_SHAPES = "`gather` cuts flat by them: let each parameter keep its shape, and its object."
_NAN = "Else whoever forgets to gather computes with numbers that are not there, or crashes."
_READ = "What autograd has saved is not to be changed: nobody writes into a parameter or flat."


class Freeing(OnBlock):
    """`fn(block, flat)` after a forward pass; with the topic "own" before the first gather.

    Then the parameters have memory of their own, as `shard` leaves them.
    """

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit05.runs_scripts import Alive

        parameters, own = list(block.parameters()), given["topic"] == "own"
        with Alive(*parameters) as alive:
            flat, shapes = flat_of(parameters, 2), [one.shape for one in parameters]
            numbers = flat.clone()
            if not own:
                lay(block, flat)
            loss = None if own else loss_of(block, given["inputs"])
            others = alive.bytes - flat.nbytes * (1 + own)
            fn(block, flat)
            storages = {one.untyped_storage().data_ptr(): one for one in parameters}
            seen = {
                "flat": flat.untyped_storage().nbytes(),
                "left": alive.bytes - others - flat.untyped_storage().nbytes(),
                "placeholders": sum(one.untyped_storage().nbytes() for one in storages.values()),
                "same": all(a is b for a, b in zip(parameters, block.parameters(), strict=False)),
                "shapes": [one.shape for one in parameters] == shapes,
                "nan": all(map(_is_nan, parameters)),
            }
            if loss is not None and seen["same"] and flat.shape == numbers.shape:
                for parameter, shape in zip(parameters, shapes, strict=True):
                    parameter.data = parameter.data.new_empty(shape)
                fill(flat, numbers)
                lay(block, flat)
                try:
                    loss.backward()
                    seen["gradients"] = [one.grad for one in parameters]
                except RuntimeError as error:
                    seen["raised"] = str(error).partition(":")[0][:120]
        return seen

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (seen,) = results
        size = 4 * self.elements
        left, too_much = f"{seen['left']} of {size} bytes", seen["left"] > size // 4
        if too_much and seen["nan"] and seen["placeholders"] > size // 4:
            yield self.topic, f"placeholders take {seen['placeholders']} of {size} bytes. {_ONE}"
        elif self.topic == "own" and seen["same"] and too_much:
            yield "own", f"{left} are left. {_OWN}"
        elif self.topic == "storage" and seen["flat"]:
            yield "storage", f"the storage of flat still has {seen['flat']} bytes. {_BACK}"
        elif self.topic == "storage" and too_much:
            yield "storage", f"{left} of the block are left somewhere. {_BACK}"
        if not seen["same"] or not seen["shapes"]:
            yield "shapes", f"parameters have lost their shapes, or are others. {_SHAPES}"
        elif not seen["nan"]:
            yield "nan", f"a freed parameter does not read as NaN. {_NAN}"
        wanted, got = gradients_of(self.module(), self.inputs()), seen.get("gradients")
        if raised := seen.get("raised"):
            yield "backward", f"after the next gather, backward raises: {raised}. {_READ}"
        elif got is not None and not all(map(alike, got, wanted)):
            yield "backward", f"after the next gather, backward has wrong gradients. {_READ}"


def _is_nan(parameter: Any) -> bool:
    """Whether every element is NaN; memory that was freed is not read."""
    sizes = zip(parameter.shape, parameter.stride(), strict=True)
    end = parameter.storage_offset() + 1 + sum((size - 1) * stride for size, stride in sizes)
    there = parameter.untyped_storage().nbytes() >= 4 * end
    return there and bool(parameter.detach().isnan().all())


class LargeFree(OnLargeBlock):
    """After a forward pass, with parameters that are views of flat."""

    moments = (Moment("storage", "after free", lambda size, n: -size, _BACK),)

    @staticmethod
    def use(fn: Callable[..., Any], layers: Any, mark: Mark) -> Any:
        import torch

        flat = flat_of(layers.parameters(), 1)
        lay(layers, flat)
        loss = layers(torch.ones(2, layers[0].in_features)).sum()
        mark()
        fn(layers, flat)
        mark()
        return loss


def _trials(seed: int) -> list[Trial]:
    """After forward, and before the first gather."""
    draw = random.Random(seed)

    def cases(topic: str) -> list[Freeing]:
        return [Freeing(draw.randrange(10**6), net, topic) for net in draw_blocks(draw)]

    return [Trial(1, cases("storage")), Trial(1, cases("own")), Trial(1, [LargeFree()])]


_AFTER = "storage"  # without it, an answer that frees nothing would earn the other criteria

PART = Part(
    name="05/free",
    level=2,
    title="Free",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule("storage", 2, "storage is given back after forward", also=grown_by("storage")),
            rule("own", 1, "and so is the block's own memory at first", after=_AFTER),
            rule("shapes", 1, "parameters keep objects and shapes", after=_AFTER),
            rule("nan", 1, "what is freed reads as NaN", "shapes", after=_AFTER),
            rule("backward", 1, "the next gather serves backward", after=_AFTER),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
