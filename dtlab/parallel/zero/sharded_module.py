"""A module cut into sharded blocks (`ShardedModule.__init__`), and clipping.

`module_state.py` saves and loads it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtlab.parallel.data.replicas import broadcast
from dtlab.parallel.zero.module_state import full_state, gathered, load, sharded_state, spans_of
from dtlab.parallel.zero.sharded_block import ShardedBlock
from dtlab.parallel.zero.sharded_optimizer import defaults_of_elementwise
from dtlab.parallel.zero.shards import Collective, Transport, clip_sharded_grad_norm_
from dtlab.parallel.zero.wrap_policy import Blocks, ownership
from dtlab.training.held import Share

__all__ = ["ShardedModule"]

_OF_A_GROUP = {"params", "param_names", "initial_lr"}  # keys of a group that are not options


class ShardedModule(nn.Module):
    """Keeps a shard of each block's parameters on each rank; subclasses decide when to gather.

    Attributes:
        module: the wrapped module. Outside its forward pass its parameters are this rank's pieces.
        blocks: the root first, then in the order of registration. Blocks without parameters are
            omitted, except the root.
        shapes: of the whole parameters, by their names in `module`.
    """

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None = None,
        blocks: Blocks = None,
        dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        all_gather: Collective | None = None,
        reduce_scatter: Collective | None = None,
    ) -> None:
        super().__init__()
        _check(module, group)
        self.module, self.group = module, group
        self.transport = Transport(group, all_gather, reduce_scatter)
        self.shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        broadcast(module.buffers(), group)
        owned = ownership(module, blocks)
        self.blocks = [
            ShardedBlock(index, block, owned[block], self.transport, dtype, reduce_dtype)
            for index, block in enumerate(owned)
            if owned[block] or block is module
        ]
        self.root, modules = self.blocks[0], {block.module for block in self.blocks}
        for block in self.blocks:
            inside = set(block.module.modules()) & modules
            block.is_leaf = block is not self.root and inside == {block.module}
        self._accepted: WeakSet[Optimizer] = WeakSet()
        _Watcher(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped module."""
        return self.module(*args, **kwargs)

    def _apply(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "a sharded module cannot be moved or converted: its pieces share memory. Convert the "
            "module before you wrap it; use dtype= to compute in another dtype."
        )

    # ------------------------------------------------------------------ memory

    @property
    def gathered(self) -> list[Tensor]:
        """The blocks' flat tensors that are gathered now, or are being gathered."""
        return [shard.flat for block in self.blocks for shard in block.shards if shard.is_gathered]

    @property
    def unreduced(self) -> list[Tensor]:
        """Whole gradients that have not been reduced yet, or are being reduced."""
        return [g for block in self.blocks for shard in block.shards for g in shard.unreduced]

    # ------------------------------------------------------------------ optimizers

    def accept(self, optimizer: Optimizer) -> None:
        """Check that an optimizer that steps pieces of this module works element by element.

        Called automatically before the optimizer's first step. Raises: TypeError if the optimizer
        needs whole parameters.
        """
        if optimizer in self._accepted:
            return
        if getattr(optimizer, "optimizers", None):
            return  # its step calls those of other optimizers, and each of them is checked
        pieces = set(self.parameters())
        groups = [each for each in optimizer.param_groups if not pieces.isdisjoint(each["params"])]
        if not groups:
            return
        options = [{k: v for k, v in each.items() if k not in _OF_A_GROUP} for each in groups]
        taken = inspect.signature(type(optimizer)).parameters
        arguments = {k: v for k, v in optimizer.defaults.items() if k in taken}
        device = next(self.parameters()).device
        defaults_of_elementwise(type(optimizer), options, arguments, device)
        self._accepted.add(optimizer)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks, is at most `max_norm`.

        Call this on every rank, after backward. Returns the norm before scaling, as
        `torch.nn.utils.clip_grad_norm_` does in one process.
        """
        gradients = [piece.grad for piece in self.parameters() if piece.grad is not None]
        return clip_sharded_grad_norm_(gradients, max_norm, norm_type, self.group)

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self, optimizer: Optimizer | None = None) -> dict[str, Any]:  # type: ignore[override]
        """Return this rank's pieces, buffers and optional optimizer state; see `sharded_state`."""
        return sharded_state(self, optimizer)

    def parameter_shares(self) -> dict[str, Share]:
        """Return which elements of each flattened parameter this rank has, for `Checkpoints`."""
        mine = {name: (span,) for name, span in spans_of(self).items()}
        return {
            f"module.{name}": Share(0, shape.numel(), mine.get(name, ()))
            for name, shape in self.shapes.items()
        }

    def full_state_dict(self, optimizer: Optimizer | None = None) -> dict[str, Any]:
        """Return the whole state of the unwrapped module, on every rank. Call this on all ranks.

        With an optimizer the result is {"model": this state, "optimizer": the optimizer's state by
        names of parameters}.
        """
        return full_state(self, optimizer)

    def whole_tensors(
        self, take: Callable[[nn.Parameter], Tensor | None]
    ) -> dict[nn.Parameter, Tensor]:
        """Gather whole tensors from the tensors that `take` returns for this rank's pieces.

        `take` is `lambda piece: piece.detach()` for parameters, `lambda piece: piece.grad` for
        gradients. Returns the whole tensors by piece. Call this on all ranks.
        """
        pieces = dict(self.module.named_parameters())
        return {pieces[name]: whole for name, whole in gathered(self, take).items()}

    def load_state_dict(  # type: ignore[override]
        self,
        state: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        optimizer: Optimizer | None = None,
    ) -> None:
        """Load this rank's part of a state, which any number of ranks may have saved.

        `state` is a list or generator of what `state_dict` returned on all ranks, in any order: a
        generator may read one file at a time. `state` may also be what `full_state_dict` returned,
        or the `state_dict` of the unwrapped module. Raises: ValueError if the state lacks
        elements, or belongs to another model or to an optimizer with other parameter groups.
        """
        load(self, state, optimizer)


class _Watcher:
    """Calls `accept` of a module before every optimizer step, as long as the module exists."""

    def __init__(self, model: ShardedModule) -> None:
        self.model = weakref.ref(model)
        handle = register_optimizer_step_pre_hook(self)
        hooks = handle.hooks_dict_ref() or {}
        # Remove the hooks of freed modules here: a module may be freed in the middle of a step.
        for key, hook in list(hooks.items()):
            if isinstance(hook, _Watcher) and hook.model() is None:
                del hooks[key]

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        model = self.model()
        if model is not None:
            model.accept(optimizer)


def _check(module: nn.Module, group: ProcessGroup | None) -> None:
    if dist.get_rank(group) < 0:
        raise ValueError(
            "this rank is not in the group. Wrap the module only on the group's ranks."
        )
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError(
            "no parameter of this module needs a gradient, so there is nothing to train."
        )
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device and has no values. Make the module on a device, or "
                "call module.to_empty(device=...) and initialize its parameters first."
            )
