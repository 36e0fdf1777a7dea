"""A module cut into sharded blocks, whatever gathers them: wrapping, clipping, saving."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtlab.parallel.elementwise import defaults_of_elementwise
from dtlab.parallel.replicas import broadcast
from dtlab.parallel.sharded_block import ShardedBlock
from dtlab.parallel.sharded_loading import load
from dtlab.parallel.sharded_state import full_state, sharded_state
from dtlab.parallel.shards import Collective, Transport, clip_sharded_grad_norm_
from dtlab.parallel.wrap_policy import Blocks, ownership

__all__ = ["ShardedModule"]

_OF_A_GROUP = {"params", "param_names", "initial_lr"}  # keys of a group that are no options


class ShardedModule(nn.Module):
    """Keeps a shard of each block's parameters on each rank; when to gather is left to others.

    Attributes:
        module: the one that was wrapped. Outside its forward pass its parameters are this rank's
            pieces.
        blocks: the root first, then in the order of registration. Blocks without parameters of
            their own are left out.
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
        self.shapes = {name: one.shape for name, one in module.named_parameters()}
        broadcast(module.buffers(), group)
        found = ownership(module, blocks)
        self.blocks = [
            ShardedBlock(index, one, found[one], self.transport, dtype, reduce_dtype)
            for index, one in enumerate(found)
            if found[one] or one is module
        ]
        self.root, modules = self.blocks[0], {one.module for one in self.blocks}
        for block in self.blocks:
            inside = set(block.module.modules()) & modules
            block.is_leaf = block is not self.root and inside == {block.module}
        self._accepted: WeakSet[Optimizer] = WeakSet()
        _Watcher(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module(*args, **kwargs)

    def _apply(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "a sharded module cannot be moved or converted: its pieces share memory. Do that to "
            "the module before it is wrapped; dtype= is for computing in another dtype."
        )

    # ------------------------------------------------------------------ what is held

    @property
    def gathered(self) -> list[Tensor]:
        """Flat tensors of the blocks that are whole right now, or are being gathered."""
        return [one.flat for block in self.blocks for one in block.shards if one.is_gathered]

    @property
    def unreduced(self) -> list[Tensor]:
        """Whole gradients that have not been reduced yet, or are on their way."""
        return [one for block in self.blocks for shard in block.shards for one in shard.unreduced]

    # ------------------------------------------------------------------ optimizers

    def accept(self, optimizer: Optimizer) -> None:
        """See that an optimizer that steps pieces of this module works element by element.

        Asked by itself before the optimizer's first step. Raises TypeError where it does not.
        """
        if optimizer in self._accepted:
            return
        pieces = set(self.parameters())
        groups = [one for one in optimizer.param_groups if not pieces.isdisjoint(one["params"])]
        if not groups:
            return
        options = [{k: v for k, v in one.items() if k not in _OF_A_GROUP} for one in groups]
        taken = inspect.signature(type(optimizer)).parameters
        arguments = {k: v for k, v in optimizer.defaults.items() if k in taken}
        device = next(self.parameters()).device
        defaults_of_elementwise(type(optimizer), options, arguments, device)
        self._accepted.add(optimizer)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm, over all ranks, is at most `max_norm`.

        Every rank calls it, after backward. Returns the norm before, as
        `torch.nn.utils.clip_grad_norm_` does in one process.
        """
        pieces = [one.grad for one in self.parameters() if one.grad is not None]
        return clip_sharded_grad_norm_(pieces, max_norm, norm_type, self.group)

    # ------------------------------------------------------------------ saving and loading

    def state_dict(self, optimizer: Optimizer | None = None) -> dict[str, Any]:  # type: ignore[override]
        """This rank's pieces, buffers and, if asked, optimizer state; see `sharded_state`."""
        return sharded_state(self, optimizer)

    def full_state_dict(self, optimizer: Optimizer | None = None) -> dict[str, Any]:
        """The state of the unwrapped module, whole on every rank: all of them call it.

        With an optimizer: {"model": that, "optimizer": its state, by names of parameters}.
        """
        return full_state(self, optimizer)

    def load_state_dict(  # type: ignore[override]
        self,
        state: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        optimizer: Optimizer | None = None,
    ) -> None:
        """Take this rank's part of a state that was saved at this or another number of ranks.

        `state` is what `state_dict` returned on all ranks, in any order, as a list or a generator
        that reads one file after the other; or what `full_state_dict` returned, or the
        `state_dict` of the unwrapped module. Raises ValueError where something is missing.
        """
        load(self, state, optimizer)


class _Watcher:
    """Asks a module about every optimizer that is about to step, as long as the module lives."""

    def __init__(self, model: ShardedModule) -> None:
        self.model = weakref.ref(model)
        handle = register_optimizer_step_pre_hook(self)
        hooks = handle.hooks_dict_ref() or {}
        # Those of modules that are gone go now: their end may fall into the middle of a step.
        for key, one in list(hooks.items()):
            if isinstance(one, _Watcher) and one.model() is None:
                del hooks[key]

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        found = self.model()
        if found is not None:
            found.accept(optimizer)


def _check(module: nn.Module, group: ProcessGroup | None) -> None:
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in the group. Wrap the module on its ranks only.")
    parameters = dict(module.named_parameters())
    if not any(one.requires_grad for one in parameters.values()):
        raise ValueError("no parameter of this module needs a gradient: nothing to train.")
    for name, one in parameters.items():
        if one.is_meta:
            raise ValueError(
                f"{name} is on the meta device and has no numbers to share out. Make the module "
                "on a device, or call module.to_empty(device=...) and draw its parameters first."
            )
