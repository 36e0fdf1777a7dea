"""The state of a sharded module: saved by N ranks, loaded by any number of ranks.

Each rank saves its pieces of parameters, and which elements of the whole parameter they are. That
says nothing of blocks, padding or ranks, so whoever loads takes from each file what overlaps:

    saved by 2 ranks      weight[0:6]            weight[6:12]
    loaded by 3 ranks     weight[0:4]    weight[4:8]    weight[8:12]

    torch.save(model.state_dict(optimizer), f"rank{rank}.pt")
    model.load_state_dict((torch.load(one) for one in files), optimizer)      # sharded_loading.py

Optimizer state that has a number for each element goes with the pieces; the rest, as a count of
steps, is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from dtlab.parallel.sharded_module import ShardedModule

__all__ = [
    "Span",
    "State",
    "buffers_of",
    "full_state",
    "groups_of",
    "is_by_element",
    "pieces_of",
    "sharded_state",
]

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
