"""05/free: the memory of a block's whole parameters is given back, and can be filled again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from dtlab.grading.checking.checks import Check, Rule
from dtlab.grading.checking.faults import Fault, Noted, judge, rule
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
from dtlab.units.unit05.blocks import FINISHED, OnBlock, alike, draw_blocks
from dtlab.units.unit05.gather import expected_gradients


class Freeing(OnBlock):
    """`fn(block, flat)` after a forward pass; with the topic "own" before the first gather.

    Then the parameters have memory of their own, as `shard` leaves them.
    """

    finished: ClassVar[tuple[str, ...]] = FINISHED

    def given(self, rank: int, world_size: int) -> dict[str, Any]:
        given = super().given(rank, world_size)
        return {**given, "inputs": self.inputs(), "own": self.topic == "own"}

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
        from dtlab.grading.checking.modules import filled
        from dtlab.units.unit05.alive import Alive
        from dtlab.units.unit05.blocks import fill, flat_of, lay

        with Alive() as alive, finished_calls(*FINISHED, refuse=True) as finished:
            module = filled(given["kind"], given["sizes"], given["state"])
            parameters = list(module.parameters())
            flat, shapes = flat_of(parameters, 2), [one.shape for one in parameters]
            numbers = flat.clone()
            if not given["own"]:
                lay(module, flat)
            loss = None if given["own"] else module(given["inputs"]).square().sum()
            others = alive.bytes - flat.nbytes * (1 + given["own"])
            fn(module, flat)
            seen = {
                "left": alive.bytes - others,
                "flat": flat.untyped_storage().nbytes(),
                "same": all(a is b for a, b in zip(parameters, module.parameters(), strict=False)),
                "shapes": [list(one.shape) for one in parameters],
                "nan": [_is_nan(one) for one in parameters],
                "placeholders": sum(
                    {s.data_ptr(): s.nbytes() for s in map(_storage, parameters)}.values()
                ),
                "finished": sorted(finished),
            }
            if loss is not None and seen["same"] and flat.shape == numbers.shape:
                for parameter, shape in zip(parameters, shapes, strict=True):
                    parameter.data = parameter.data.new_empty(shape)
                fill(flat, numbers)
                lay(module, flat)
                seen |= _went_back(loss, parameters)
        return seen

    def faults(self, results: Sequence[Noted]) -> Iterator[Fault]:
        (seen,) = results
        module = self.module()
        wanted = list(module.parameters())
        size = 4 * self.elements
        own = seen["left"] - seen["flat"]
        if own > size // 4 and all(seen["nan"]) and seen["placeholders"] > size // 4:
            name = "own" if self.topic == "own" else "storage"
            yield name, f"placeholders take {seen['placeholders']} of {size} bytes. {_ONE}"
        elif self.topic == "own" and seen["same"] and own > size // 4:
            yield (
                "own",
                (
                    f"{own} of {size} bytes are left. Before its first gather a block has memory "
                    "of its own beside flat: who holds it afterwards?"
                ),
            )
        elif self.topic != "own":
            if seen["flat"]:
                yield "storage", f"the storage of flat still has {seen['flat']} bytes. {_BACK}"
            elif own > size // 4:
                yield "storage", f"{own} bytes of the block are left somewhere. {_BACK}"
        if not seen["same"] or seen["shapes"] != [list(one.shape) for one in wanted]:
            yield "shapes", "parameters have lost their shapes, or are others. " + _SHAPES
        elif not all(seen["nan"]):
            yield "nan", "a freed parameter does not read as NaN. " + _NAN
        if seen.get("raised"):
            yield "backward", f"after the next gather, backward raises: {seen['raised']}. {_READ}"
        elif seen.get("gradients") is not None and not all(
            map(alike, seen["gradients"], expected_gradients(module, self.inputs()))
        ):
            yield "backward", f"after the next gather, backward has wrong gradients. {_READ}"


class ResidentFree(ResidentCase):
    """After a forward pass, with parameters that are views of flat."""

    finished: ClassVar[tuple[str, ...]] = FINISHED

    @property
    def moments(self) -> Sequence[Moment]:
        return (Moment("storage", "after free", lambda size, n: -size, _BACK),)

    @staticmethod
    def on_rank(fn: Callable[..., Any], given: Any) -> dict[str, Any]:
        return use_twice(_free_after_forward, fn)


def _free_after_forward(fn: Callable[..., Any], width: int, mark: Mark) -> Any:
    import torch

    from dtlab.units.unit05.blocks import flat_of, lay

    layers = layers_of(width)
    flat = flat_of(list(layers.parameters()), 1)
    lay(layers, flat)
    loss = layers(torch.ones(2, width)).sum()
    mark()
    fn(layers, flat)
    mark()
    return loss


def _storage(parameter: Any) -> Any:
    return parameter.untyped_storage()


def _went_back(loss: Any, parameters: Sequence[Any]) -> dict[str, Any]:
    """What came of backward."""
    try:
        loss.backward()
    except RuntimeError as error:
        return {"raised": str(error).partition(":")[0][:120]}
    return {"gradients": [one.grad for one in parameters]}


def _is_nan(parameter: Any) -> bool:
    """Whether all of it is, read without touching memory that is not there."""
    storage = parameter.untyped_storage().nbytes()
    last = 1 + sum(
        (size - 1) * stride
        for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
    )
    if storage < 4 * (parameter.storage_offset() + last):
        return False
    return bool(parameter.detach().isnan().all())


_BACK = (
    "Autograd has saved views of it for backward, and they keep the storage alive: change its "
    "size, not who refers to it."
)
_ONE = "One NaN is enough, of 4 bytes: `expand` gives it a shape, and no memory."
_READ = "What autograd has saved is not to be changed: nobody writes into a parameter or flat."
_SHAPES = "`gather` cuts flat by them: let each parameter keep its shape, and its object."
_NAN = "Else whoever forgets to gather computes with numbers that are not there, or crashes."


def _trials(seed: int) -> list[Trial]:
    """After forward, and before the first gather."""
    draw = random.Random(seed)

    def cases(topic: str) -> list[Freeing]:
        return [Freeing(draw.randrange(10**6), net, topic) for net in draw_blocks(draw)]

    return [Trial(1, cases("storage")), Trial(1, cases("own")), Trial(1, [ResidentFree()])]


PART = Part(
    name="05/free",
    level=2,
    title="Free",
    minutes=8,
    difficulty=1,
    check=Check(
        trials=_trials,
        rules=(
            rule(
                "storage", 2, "the storage is given back after forward", also=grown_by("storage")
            ),
            # Without freeing anything, a learner would earn all that follows.
            Rule("own", 1, judge("own", "and so is the block's own memory at first"), "storage"),
            Rule("shapes", 1, judge("shapes", "parameters keep objects and shapes"), "storage"),
            Rule("nan", 1, judge("nan", "what is freed reads as NaN", "shapes"), "storage"),
            Rule("backward", 1, judge("backward", "the next gather serves backward"), "storage"),
        ),
    ),
    reference="dtlab.parallel.zero.sharded_block.FlatShard",
)
