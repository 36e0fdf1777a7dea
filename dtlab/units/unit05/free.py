"""05/free: free the memory of a block's full parameters so that a later gather can refill it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dtlab.checks.comparison import difference
from dtlab.checks.functions.checks import Check
from dtlab.checks.functions.criteria import Fault, Noted, rule
from dtlab.checks.functions.resident import Mark, Moment, grown_by
from dtlab.checks.functions.trials import Trial
from dtlab.checks.parts import Part
from dtlab.units.unit05.blocks import (
    OnBlock,
    OnLargeBlock,
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
    "Autograd has saved views of it for backward, and these keep the storage alive: resize the "
    "storage, since dropping references does not free it."
)
_OWN = (
    "Before the first gather, parameters have memory separate from flat. Which tensors hold it?"
)
_ONE = "One NaN of 4 bytes is enough: `expand` gives it a shape without more memory."
_SHAPES = "`gather` splits flat by these shapes: keep each parameter's shape and object."
_NAN = "With NaN, a block that is not gathered gives NaN outputs rather than wrong numbers."
_READ = "Do not write into a parameter or flat: autograd needs the tensors that it has saved."


class Freeing(OnBlock):
    """A call of `fn(block, flat)` after a forward pass, or before the first gather (topic "own").

    Before the first gather the parameters have memory separate from flat, as after `shard`.
    """

    @staticmethod
    def use(fn: Callable[..., Any], block: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.units.unit05.runs_scripts import Alive

        parameters, separate = list(block.parameters()), given["topic"] == "own"
        with Alive(*parameters) as alive:
            flat, shapes = flat_of(parameters, 2), [p.shape for p in parameters]
            numbers = flat.clone()
            if not separate:
                lay(block, flat)
            loss = None if separate else loss_of(block, given["inputs"])
            others = alive.bytes - flat.nbytes * (1 + separate)
            fn(block, flat)
            storages = {p.untyped_storage().data_ptr(): p for p in parameters}
            result = {
                "flat": flat.untyped_storage().nbytes(),
                "left": alive.bytes - others - flat.untyped_storage().nbytes(),
                "placeholders": sum(p.untyped_storage().nbytes() for p in storages.values()),
                "same": all(a is b for a, b in zip(parameters, block.parameters(), strict=False)),
                "shapes": [p.shape for p in parameters] == shapes,
                "nan": all(map(_is_nan, parameters)),
            }
            if loss is not None and result["same"] and flat.shape == numbers.shape:
                for parameter, shape in zip(parameters, shapes, strict=True):
                    parameter.data = parameter.data.new_empty(shape)
                fill(flat, numbers)
                lay(block, flat)
                try:
                    loss.backward()
                    result["gradients"] = [p.grad for p in parameters]
                except RuntimeError as error:
                    result["raised"] = str(error).partition(":")[0][:120]
        return result

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (result,) = results
        size = 4 * self.elements
        left, too_much = f"{result['left']} of {size} bytes", result["left"] > size // 4
        if too_much and result["nan"] and result["placeholders"] > size // 4:
            yield self.topic, f"placeholders take {result['placeholders']} of {size} bytes. {_ONE}"
        elif self.topic == "own" and result["same"] and too_much:
            yield "own", f"{left} are still allocated. {_OWN}"
        elif self.topic == "storage" and result["flat"]:
            yield "storage", f"the storage of flat still has {result['flat']} bytes. {_BACK}"
        elif self.topic == "storage" and too_much:
            yield "storage", f"{left} of the block are still allocated. {_BACK}"
        if not result["same"] or not result["shapes"]:
            yield "shapes", f"parameters have other shapes, or are other objects. {_SHAPES}"
        elif not result["nan"]:
            yield "nan", f"a freed parameter does not read as NaN. {_NAN}"
        wanted, got = gradients_of(self.module(), self.inputs()), result.get("gradients")
        if raised := result.get("raised"):
            yield "backward", f"after the next gather, backward raises: {raised}. {_READ}"
        elif got is not None and any(map(difference, got, wanted)):
            yield "backward", f"after the next gather, backward has wrong gradients. {_READ}"


def _is_nan(parameter: Any) -> bool:
    """Whether every element is NaN; False, without reading, if the memory is freed."""
    sizes = zip(parameter.shape, parameter.stride(), strict=True)
    end = parameter.storage_offset() + 1 + sum((size - 1) * stride for size, stride in sizes)
    is_allocated = parameter.untyped_storage().nbytes() >= 4 * end
    return is_allocated and bool(parameter.detach().isnan().all())


class LargeFree(OnLargeBlock):
    """A call after a forward pass, with parameters that are views of flat."""

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
    """Trials with calls after a forward pass, and before the first gather."""
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
            rule("storage", 2, "storage is freed after forward", also=grown_by("storage")),
            rule("own", 1, "the parameters' first memory is freed, too", after=_AFTER),
            rule("shapes", 1, "parameters keep objects and shapes", after=_AFTER),
            rule("nan", 1, "freed parameters read as NaN", "shapes", after=_AFTER),
            rule("backward", 1, "backward works after the next gather", after=_AFTER),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
