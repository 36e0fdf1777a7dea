"""A model at any ZeRO stage, and the bytes that a rank holds at given moments of a step.

    model, optimizer = at_stage(2, gpt, Adam, lr=1e-3)
    watch = MemoryWatch(model, optimizer, gpt.blocks)
    watch.look("forward begins")
    loss_of(model).backward()        # records a moment for each block, in forward and in backward
    watch.moments                    # [("forward begins", {"parameters": 4096, ...}), ...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dtlab.parallel.data import NaiveDataParallel
from dtlab.parallel.zero.fully_sharded import Zero3
from dtlab.parallel.zero.optimizers import Zero1, Zero2
from dtlab.predict.communication import check_stage
from dtlab.training.live import held_bytes

__all__ = ["MemoryWatch", "at_stage"]


def at_stage(
    stage: int, module: nn.Module, optimizer_class: Callable[..., Optimizer], **options: Any
) -> tuple[nn.Module, Any]:
    """Return the module to call and the optimizer to step, for a ZeRO stage from 0 to 3.

    `options` are those of the optimizer. ZeRO stage 0 is `NaiveDataParallel`.
    Raises: ValueError for another stage.
    """
    if check_stage(stage) in (0, 3):
        model = Zero3(module) if stage == 3 else NaiveDataParallel(module)
        return model, optimizer_class(model.parameters(), **options)
    zero: Any = Zero1 if stage == 1 else Zero2
    return module, zero(module.parameters(), optimizer_class, bucket_cap_mb=0.2, **options)


class MemoryWatch:
    """The bytes of model states that this rank holds, recorded by hooks on the given layers.

    An entry of `moments` has a name, such as "forward 0", and the bytes of parameters, gradients,
    optimizer state and gathered blocks. Each storage counts once. Gradients are those in `.grad`,
    in buckets or being sent. `model` and `optimizer` are those that `at_stage` returned.
    """

    def __init__(self, model: nn.Module, optimizer: Any, layers: Iterable[nn.Module]) -> None:
        self.moments: list[tuple[str, dict[str, int]]] = []
        self._model, self._optimizer = model, optimizer
        self._parameters = list(model.parameters())  # of ZeRO stage 3: this rank's pieces
        self._before = held_bytes(vars(model), vars(optimizer))
        for number, layer in enumerate(layers):
            layer.register_forward_hook(partial(self._look, f"forward {number}"))
            layer.register_full_backward_hook(partial(self._look, f"backward {number}"))

    def look(self, moment: str) -> None:
        """Record what this rank holds now, under the name of this moment."""
        self.moments.append((moment, {
            "parameters": held_bytes([each.data for each in self._parameters]),
            "gradients": self._gradients(),
            "optimizer state": held_bytes(self._optimizer),
            "gathered block": held_bytes(getattr(self._model, "gathered", [])),
        }))  # fmt: skip

    def _look(self, moment: str, *_: Any) -> None:
        self.look(moment)

    def _gradients(self) -> int:
        if not isinstance(self._optimizer, (Zero1, Zero2)):
            own = [each.grad for each in self._parameters]
            return held_bytes(own, getattr(self._model, "unreduced", []))
        # The optimizer holds the gradients: all bytes that are new and not optimizer state.
        now = held_bytes(vars(self._model), vars(self._optimizer))
        return now - self._before - held_bytes(self._optimizer)
