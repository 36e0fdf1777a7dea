"""The state of a sharded module, saved by N ranks and loaded by any number of ranks.

Each rank saves its pieces, and their positions in the whole parameters. The format does not
depend on blocks, padding or ranks, so each loading rank copies from every file the elements that
its own pieces have:

    saved by 2 ranks      weight[0:6]            weight[6:12]
    loaded by 3 ranks     weight[0:4]    weight[4:8]    weight[8:12]

    torch.save(model.state_dict(optimizer), f"rank{rank}.pt")
    model.load_state_dict((torch.load(file) for file in files), optimizer)

Optimizer state with one value per element is saved with the pieces; other state, such as the
step count, is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.messages import Group
from dtlab.parallel.zero.sharded_block import ShardedBlock
from dtlab.parallel.zero.shards import Transport, in_memory_order

__all__ = ["Sharded", "full_state", "gathered", "load", "pieces_of", "sharded_state"]

State = dict[str, Any]
Span = tuple[int, int]  # start and stop of elements of a parameter, in memory order


class Sharded(Protocol):
    """What this file needs of a `ShardedModule`, which describes these attributes."""

    module: nn.Module
    group: Group
    transport: Transport
    blocks: list[ShardedBlock]
    shapes: dict[str, torch.Size]


def sharded_state(model: Sharded, optimizer: Optimizer | None = None) -> State:
    """Return this rank's state as views: save it before the next step.

    The result is {"parameters": {name: {"shape", "start", "values"}}, "buffers": {name: tensor}}.
    With an optimizer it also has "optimizer": {"groups": [...], "state": {name: {key: value}}}.
    """
    state: State = {"parameters": {}, "buffers": buffers_of(model)}
    for name, (piece, (start, _)) in pieces_of(model).items():
        shape = tuple(model.shapes[name])
        state["parameters"][name] = {"shape": shape, "start": start, "values": piece.detach()}
    if optimizer is not None:
        states = {name: optimizer.state.get(p) for name, (p, _) in pieces_of(model).items()}
        state["optimizer"] = {
            "groups": groups_of(model, optimizer),
            "state": {name: dict(values) for name, values in states.items() if values},
        }
    return state


def pieces_of(model: Sharded) -> dict[str, tuple[nn.Parameter, Span]]:
    """Return this rank's nonempty pieces, each with its range in the whole parameter."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    pieces = {}
    for block in model.blocks:
        for shard in block.shards:
            for piece in shard.layout.pieces(model.transport.rank):
                parameter = shard.parameters[piece.index]
                pieces[names[parameter]] = parameter, (piece.start, piece.stop)
    return pieces


def buffers_of(model: Sharded) -> dict[str, Tensor]:
    """Return the persistent buffers of a module."""
    state, names = nn.Module.state_dict(model.module), dict(model.module.named_buffers())
    return {name: state[name] for name in names if name in state}


def groups_of(model: Sharded, optimizer: Optimizer) -> list[State]:
    """Return the optimizer's parameter groups, with names instead of parameters."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    groups: list[State] = []
    for number, group in enumerate(optimizer.param_groups):
        strangers = [parameter for parameter in group["params"] if parameter not in names]
        if strangers:
            raise ValueError(
                f"parameter group {number} of the optimizer has {len(strangers)} tensors that are "
                "not parameters of this model. Save and load the optimizer with the model whose "
                "parameters it updates."
            )
        groups.append({**group, "params": [names[parameter] for parameter in group["params"]]})
    return groups


# Whole states --------------------------------------------------------------------------------


def full_state(model: Sharded, optimizer: Optimizer | None = None) -> State:
    """Return the whole state of a module and optionally its optimizer, on every rank."""
    wholes = dict(gathered(model, lambda piece: piece.detach()))
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    aliases = dict(model.module.named_parameters(remove_duplicate=False))  # with tied names
    buffers = buffers_of(model)
    full = {
        name: wholes[names[aliases[name]]] if name in aliases else buffers[name].clone()
        for name in nn.Module.state_dict(model.module)
    }
    if optimizer is None:
        return full
    return {"model": full, "optimizer": _full_optimizer(model, optimizer)}


def gathered(
    model: Sharded,
    take: Callable[[nn.Parameter], Tensor | None],
    dtype: torch.dtype | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and whole tensors; `take` returns this rank's part of each, or None."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    for block in model.blocks:
        for shard in block.shards:
            local = torch.zeros_like(shard.shard, dtype=dtype)
            for piece in shard.layout.pieces(model.transport.rank):
                part = take(shard.parameters[piece.index])
                if part is not None:
                    local[piece.offset : piece.offset + piece.stop - piece.start] = part
            wholes = model.transport.whole(shard.layout, local)
            for parameter, whole in zip(shard.parameters, wholes, strict=True):
                yield names[parameter], whole.clone()


def _full_optimizer(model: Sharded, optimizer: Optimizer) -> State:
    """Return {"groups": with parameter names, "state": {name: {key: value}}}, on all ranks."""
    local: dict[str, State] = {}  # a dtype stands for a tensor with one value per element
    for name, (piece, _) in pieces_of(model).items():
        values = optimizer.state.get(piece, {})
        local[name] = {
            key: value.dtype if is_by_element(value, piece) else value
            for key, value in values.items()
        }
    every: list[dict[str, State]] = [{} for _ in range(model.transport.world_size)]
    dist.all_gather_object(every, local, group=model.group)
    state: dict[str, State] = {}
    for states in every:
        for name, values in states.items():
            state.setdefault(name, {}).update(values)
    state = {name: state[name] for name in sorted(state) if state[name]}
    tensors = {k: v for each in state.values() for k, v in each.items() if type(v) is torch.dtype}
    for key in sorted(tensors):

        def take(piece: nn.Parameter, key: str = key) -> Tensor | None:
            value: Tensor | None = optimizer.state.get(piece, {}).get(key)
            return value

        for name, whole in gathered(model, take, tensors[key]):
            if type(state.get(name, {}).get(key)) is torch.dtype:
                state[name][key] = whole
    return {"groups": groups_of(model, optimizer), "state": state}


def is_by_element(value: Any, piece: Tensor) -> bool:
    """Return whether a state value has one number per element; a step count does not."""
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == piece.shape


# Loading the result of `sharded_state` on any number of ranks, piece by piece --------------------


def load(
    model: Sharded, state: State | Iterable[State] | Any, optimizer: Optimizer | None = None
) -> None:
    """Load this rank's part of a whole state, or of the states of all saving ranks."""
    parts: Iterable[Any] = [state] if isinstance(state, Mapping) else state
    loading = _Loading(model, optimizer)
    for part in parts:
        loading.take(part if _is_shard(part) else _as_shard(model, part))
    loading.finish()


def _is_shard(state: Mapping[str, Any]) -> bool:
    return isinstance(state.get("parameters"), Mapping) and "buffers" in state


def _as_shard(model: Sharded, full: Mapping[str, Any]) -> State:
    """Convert a whole state, with or without optimizer state, to the shard of a single rank."""
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


def _likes(model: Sharded) -> dict[str, Tensor]:
    """Return tensors with the shapes and memory layouts of the whole parameters."""
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    return {
        names[parameter]: whole
        for block in model.blocks
        for shard in block.shards
        for parameter, whole in zip(shard.parameters, shard.whole, strict=True)
    }


def _flat(value: Any, like: Tensor) -> Any:
    return in_memory_order(value, like) if is_by_element(value, like) else value


class _Loading:
    """Fills this rank's pieces from the saved shards, one shard at a time."""

    def __init__(self, model: Sharded, optimizer: Optimizer | None) -> None:
        self.model, self.optimizer, self.pieces = model, optimizer, pieces_of(model)
        self.missing = {name: stop - start for name, (_, (start, stop)) in self.pieces.items()}
        self.state: dict[str, State] = {}  # of the optimizer, by name
        self.groups: list[State] | None = None
        self.buffers: dict[str, Tensor] | None = None

    @torch.no_grad()
    def take(self, shard: State) -> None:
        """Copy the elements that this rank needs. Buffers are taken from the first shard."""
        strangers = [name for name in shard["parameters"] if name not in self.model.shapes]
        if strangers:
            raise ValueError(f"the saved state has {strangers[0]}, which is not in this model.")
        for name, saved in shard["parameters"].items():
            shape = tuple(self.model.shapes[name])
            if (saved_shape := tuple(saved["shape"])) != shape:
                raise ValueError(
                    f"{name} has the shape {shape} in this model, but {saved_shape} in the saved "
                    "state."
                )
            if name in self.pieces:
                piece, span = self.pieces[name]
                self.missing[name] -= _copy_overlap(saved["values"], saved["start"], piece, span)
        if "optimizer" in shard and self.optimizer is not None:
            self.groups = self.groups or shard["optimizer"]["groups"]
            for name, values in shard["optimizer"]["state"].items():
                self._take_state(name, values, shard["parameters"][name])
        self.buffers = self.buffers or shard["buffers"]

    def _take_state(self, name: str, values: State, saved: State) -> None:
        """Load the optimizer state of one parameter, unless this rank has no elements of it."""
        if name not in self.pieces:
            return
        piece, span = self.pieces[name]
        state = self.state.setdefault(name, {})
        for key, value in values.items():
            if is_by_element(value, saved["values"]):
                place = state.setdefault(key, torch.zeros_like(piece, dtype=value.dtype))
                _copy_overlap(value, saved["start"], place, span)
            else:
                state.setdefault(key, value)

    def finish(self) -> None:
        """Check that nothing is missing, and load the buffers and the optimizer's state."""
        missing = {name: count for name, count in self.missing.items() if count}
        if missing:
            name, count = next(iter(missing.items()))
            others = len(missing) - 1
            more = f", and elements of other parameters ({others})" if others else ""
            raise ValueError(
                f"the saved state lacks {count} elements of {name} that this rank needs{more}. "
                "Pass the states of all ranks."
            )
        buffers = buffers_of(self.model)
        for name, buffer in buffers.items():
            if name not in (self.buffers or {}):
                raise ValueError(f"the saved state lacks the buffer {name}.")
            buffer.copy_((self.buffers or {})[name])
        if self.optimizer is not None:
            self._load_optimizer(self.optimizer)

    def _load_optimizer(self, optimizer: Optimizer) -> None:
        if self.groups is None:
            raise ValueError(
                "the saved state has no optimizer state. Pass the optimizer to state_dict when "
                "you save."
            )
        here = groups_of(self.model, optimizer)
        if [each["params"] for each in here] != [each["params"] for each in self.groups]:
            raise ValueError(
                "the optimizer's parameter groups differ from the saved ones. Make the optimizer "
                "with the same parameters, in the same order."
            )
        order = [name for group in here for name in group["params"]]
        groups = [
            {**saved, "params": current["params"]}  # numbers, as in torch's format
            for saved, current in zip(
                self.groups, optimizer.state_dict()["param_groups"], strict=True
            )
        ]
        state = {n: self.state[name] for n, name in enumerate(order) if name in self.state}
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _copy_overlap(values: Tensor, start: int, into: Tensor, span: Span) -> int:
    """Copy the elements that `values` and `into` have in common; return their number.

    `values` has the elements from `start` on, and `into` has those of `span`.
    """
    first, last = max(start, span[0]), min(start + values.numel(), span[1])
    if first >= last:
        return 0
    into.detach()[first - span[0] : last - span[0]].copy_(values[first - start : last - start])
    return last - first
