"""A module cut into sharded blocks: wrapping, clipping, saving and loading."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtlab.parallel.data.replicas import broadcast
from dtlab.parallel.zero.sharded_block import ShardedBlock
from dtlab.parallel.zero.sharded_optimizer import defaults_of_elementwise
from dtlab.parallel.zero.shards import (
    Collective,
    Transport,
    clip_sharded_grad_norm_,
    in_memory_order,
)
from dtlab.parallel.zero.wrap_policy import Blocks, ownership

__all__ = [
    "ShardedModule",
    "Span",
    "State",
    "buffers_of",
    "full_state",
    "groups_of",
    "is_by_element",
    "load",
    "pieces_of",
    "sharded_state",
]

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

    def whole_tensors(
        self, take: Callable[[nn.Parameter], Tensor | None]
    ) -> dict[nn.Parameter, Tensor]:
        """Whole tensors, gathered from what `take` gives for each of this rank's pieces.

        For parameters `lambda piece: piece.detach()`, for gradients `lambda piece: piece.grad`.
        The keys are the pieces. All ranks call it.
        """
        pieces = dict(self.module.named_parameters())
        return {pieces[name]: whole for name, whole in _gathered(self, take)}

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


# The state of a sharded module: saved by N ranks, loaded by any number of ranks ------------------
#
# Each rank saves its pieces of parameters, and which elements of the whole parameter they are.
# That says nothing of blocks, padding or ranks, so whoever loads takes from each file what
# overlaps:
#
#     saved by 2 ranks      weight[0:6]            weight[6:12]
#     loaded by 3 ranks     weight[0:4]    weight[4:8]    weight[8:12]
#
#     torch.save(model.state_dict(optimizer), f"rank{rank}.pt")
#     model.load_state_dict((torch.load(one) for one in files), optimizer)
#
# Optimizer state that has a number for each element goes with the pieces; the rest, as a count of
# steps, is the same on all ranks.

State = dict[str, Any]
Span = tuple[int, int]  # elements of a parameter, in the order in which they lie in memory


def sharded_state(model: ShardedModule, optimizer: Optimizer | None = None) -> State:
    """What this rank keeps: views, so save it before the next step.

    {"parameters": {name: {"shape", "start", "values"}}, "buffers": {name: tensor}}, and with an
    optimizer "optimizer": {"groups": [...], "state": {name: {key: value}}}.
    """
    state: State = {"parameters": {}, "buffers": buffers_of(model)}
    for name, (piece, (start, _)) in pieces_of(model).items():
        shape = tuple(model.shapes[name])
        state["parameters"][name] = {"shape": shape, "start": start, "values": piece.detach()}
    if optimizer is not None:
        found = {name: optimizer.state.get(one) for name, (one, _) in pieces_of(model).items()}
        state["optimizer"] = {
            "groups": groups_of(model, optimizer),
            "state": {name: dict(values) for name, values in found.items() if values},
        }
    return state


def pieces_of(model: ShardedModule) -> dict[str, tuple[nn.Parameter, Span]]:
    """This rank's pieces that have elements, and which elements of the whole these are."""
    names = {one: name for name, one in model.module.named_parameters()}
    found = {}
    for block in model.blocks:
        for shard in block.shards:
            for piece in shard.layout.pieces(model.transport.rank):
                own = shard.parameters[piece.index]
                found[names[own]] = own, (piece.start, piece.stop)
    return found


def buffers_of(model: ShardedModule) -> dict[str, Tensor]:
    """Those that belong to the state of a module."""
    everything, names = nn.Module.state_dict(model.module), dict(model.module.named_buffers())
    return {name: everything[name] for name in names if name in everything}


def groups_of(model: ShardedModule, optimizer: Optimizer) -> list[State]:
    """Parameter groups with names in the place of parameters."""
    names = {one: name for name, one in model.module.named_parameters()}
    groups: list[State] = []
    for number, group in enumerate(optimizer.param_groups):
        strangers = [one for one in group["params"] if one not in names]
        if strangers:
            raise ValueError(
                f"group {number} of the optimizer has {len(strangers)} tensors that are no "
                "parameters of this model. Save and load it with the model that it steps."
            )
        groups.append({**group, "params": [names[one] for one in group["params"]]})
    return groups


# Whole states --------------------------------------------------------------------------------


def full_state(model: ShardedModule, optimizer: Optimizer | None = None) -> State:
    """See `ShardedModule.full_state_dict`."""
    wholes = dict(_gathered(model, lambda own: own.detach()))
    names = {one: name for name, one in model.module.named_parameters()}
    aliases = dict(model.module.named_parameters(remove_duplicate=False))  # tied: under all names
    buffers = buffers_of(model)
    everything = {
        name: wholes[names[aliases[name]]] if name in aliases else buffers[name].clone()
        for name in nn.Module.state_dict(model.module)
    }
    if optimizer is None:
        return everything
    return {"model": everything, "optimizer": _full_optimizer(model, optimizer)}


def _gathered(
    model: ShardedModule,
    take: Callable[[nn.Parameter], Tensor | None],
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Names and whole tensors, of which every rank gives what it takes for each of its pieces."""
    names = {one: name for name, one in model.module.named_parameters()}
    for block in model.blocks:
        for shard in block.shards:
            mine = torch.zeros_like(shard.shard, dtype=dtype)
            for piece in shard.layout.pieces(model.transport.rank):
                part = take(shard.parameters[piece.index])
                if part is not None:
                    mine[piece.offset : piece.offset + piece.stop - piece.start] = part
            wholes = model.transport.whole(shard.layout, mine)
            for own, whole in zip(shard.parameters, wholes, strict=True):
                yield names[own], whole.clone()


def _full_optimizer(model: ShardedModule, optimizer: Optimizer) -> State:
    """{"groups": with names for parameters, "state": {name: {key: value}}}, on all ranks."""
    own: dict[str, State] = {}  # a dtype stands for a tensor with a number for each element
    for name, (piece, _) in pieces_of(model).items():
        values = optimizer.state.get(piece, {})
        own[name] = {
            key: value.dtype if is_by_element(value, piece) else value
            for key, value in values.items()
        }
    every: list[dict[str, State]] = [{} for _ in range(model.transport.world_size)]
    dist.all_gather_object(every, own, group=model.group)
    state: dict[str, State] = {}
    for one in every:
        for name, values in one.items():
            state.setdefault(name, {}).update(values)
    state = {name: state[name] for name in sorted(state) if state[name]}
    tensors = {k: v for one in state.values() for k, v in one.items() if type(v) is torch.dtype}
    for key in sorted(tensors):

        def take(piece: nn.Parameter, key: str = key) -> Tensor | None:
            found: Tensor | None = optimizer.state.get(piece, {}).get(key)
            return found

        for name, whole in _gathered(model, take, tensors[key]):
            if type(state.get(name, {}).get(key)) is torch.dtype:
                state[name][key] = whole
    return {"groups": groups_of(model, optimizer), "state": state}


def is_by_element(value: Any, piece: Tensor) -> bool:
    """Whether it has a number for each element; a count of steps has not."""
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == piece.shape


# Loading what `sharded_state` has saved, at any number of ranks, piece by piece ------------------


def load(
    model: ShardedModule, state: State | Iterable[State] | Any, optimizer: Optimizer | None = None
) -> None:
    """See `ShardedModule.load_state_dict`."""
    parts: Iterable[Any] = [state] if isinstance(state, Mapping) else state
    loading = _Loading(model, optimizer)
    for part in parts:
        loading.take(part if _is_shard(part) else _as_shard(model, part))
    loading.finish()


def _is_shard(state: Mapping[str, Any]) -> bool:
    return isinstance(state.get("parameters"), Mapping) and "buffers" in state


def _as_shard(model: ShardedModule, full: Mapping[str, Any]) -> State:
    """A whole state, with or without that of an optimizer, as the shard of a single rank."""
    tensors = full["model"] if isinstance(full.get("model"), Mapping) else full
    parameters, like = {}, _likes(model)
    for name in model.shapes:
        if name in tensors:
            values = in_memory_order(tensors[name], like[name])
            shape = tuple(tensors[name].shape)
            parameters[name] = {"shape": shape, "start": 0, "values": values}
    buffers = {name: tensors[name] for name in buffers_of(model) if name in tensors}
    state: State = {"parameters": parameters, "buffers": buffers}
    if isinstance(full.get("optimizer"), Mapping):
        by_name = {
            name: {k: _flat(v, like[name]) for k, v in values.items()}
            for name, values in full["optimizer"]["state"].items()
        }
        state["optimizer"] = {"groups": full["optimizer"]["groups"], "state": by_name}
    return state


def _likes(model: ShardedModule) -> dict[str, Tensor]:
    """Tensors of the shapes and the memory layout that the whole parameters have."""
    names = {one: name for name, one in model.module.named_parameters()}
    return {
        names[own]: whole
        for block in model.blocks
        for shard in block.shards
        for own, whole in zip(shard.parameters, shard.whole, strict=True)
    }


def _flat(value: Any, like: Tensor) -> Any:
    return in_memory_order(value, like) if is_by_element(value, like) else value


class _Loading:
    """This rank's pieces, filled from one shard after the other."""

    def __init__(self, model: ShardedModule, optimizer: Optimizer | None) -> None:
        self.model, self.optimizer, self.pieces = model, optimizer, pieces_of(model)
        self.missing = {name: stop - start for name, (_, (start, stop)) in self.pieces.items()}
        self.state: dict[str, State] = {}  # of the optimizer, by name
        self.groups: list[State] | None = None
        self.buffers: dict[str, Tensor] | None = None

    @torch.no_grad()
    def take(self, shard: State) -> None:
        """Copy what overlaps. Buffers are those of the first shard."""
        strangers = [name for name in shard["parameters"] if name not in self.model.shapes]
        if strangers:
            raise ValueError(f"the saved state has {strangers[0]}, which this model has not.")
        for name, saved in shard["parameters"].items():
            shape = tuple(self.model.shapes[name])
            if (other := tuple(saved["shape"])) != shape:
                raise ValueError(f"{name} is {shape} here and {other} in the saved state.")
            if name in self.pieces:
                piece, own = self.pieces[name]
                self.missing[name] -= _copy_overlap(saved["values"], saved["start"], piece, own)
        if "optimizer" in shard and self.optimizer is not None:
            self.groups = self.groups or shard["optimizer"]["groups"]
            for name, values in shard["optimizer"]["state"].items():
                self._take_state(name, values, shard["parameters"][name])
        self.buffers = self.buffers or shard["buffers"]

    def _take_state(self, name: str, values: State, saved: State) -> None:
        """Of one parameter; a rank without elements of it needs none."""
        if name not in self.pieces:
            return
        piece, own = self.pieces[name]
        mine = self.state.setdefault(name, {})
        for key, value in values.items():
            if is_by_element(value, saved["values"]):
                place = mine.setdefault(key, torch.zeros_like(piece, dtype=value.dtype))
                _copy_overlap(value, saved["start"], place, own)
            else:
                mine.setdefault(key, value)

    def finish(self) -> None:
        """See that nothing is missing, and hand the optimizer its state."""
        missing = {name: count for name, count in self.missing.items() if count}
        if missing:
            name, count = next(iter(missing.items()))
            raise ValueError(
                f"the saved state lacks {count} elements of {name} that this rank needs, and of "
                f"{len(missing) - 1} more parameters. Pass what all ranks have saved."
            )
        own = buffers_of(self.model)
        for name, buffer in own.items():
            if name not in (self.buffers or {}):
                raise ValueError(f"the saved state lacks the buffer {name}.")
            buffer.copy_((self.buffers or {})[name])
        if self.optimizer is not None:
            self._load_optimizer(self.optimizer)

    def _load_optimizer(self, optimizer: Optimizer) -> None:
        if self.groups is None:
            raise ValueError("the saved state has none of an optimizer: save it with one.")
        here = groups_of(self.model, optimizer)
        if [one["params"] for one in here] != [one["params"] for one in self.groups]:
            raise ValueError(
                "the optimizer has other groups of parameters than the saved one. Make it over "
                "the same parameters, in the same order."
            )
        order = [name for group in here for name in group["params"]]
        groups = [
            {**saved, "params": own["params"]}  # numbers, as torch has them
            for saved, own in zip(self.groups, optimizer.state_dict()["param_groups"], strict=True)
        ]
        state = {n: self.state[name] for n, name in enumerate(order) if name in self.state}
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _copy_overlap(values: Tensor, start: int, into: Tensor, span: Span) -> int:
    """Elements from `start` on go into a tensor that has those of `span`; how many did."""
    first, last = max(start, span[0]), min(start + values.numel(), span[1])
    if first >= last:
        return 0
    into.detach()[first - span[0] : last - span[0]].copy_(values[first - start : last - start])
    return last - first
