"""The state of ZeRO stage 3, in the format of `state.py`, or as the unwrapped module has it.

    torch.save(model.state_dict(optimizer), f"rank{rank}.pt")
    model.load_state_dict((torch.load(file) for file in files), optimizer)

Each rank saves its pieces; any number of ranks load the files one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dtlab.messages import Group
from dtlab.parallel.zero.sharded_block import ShardedBlock
from dtlab.parallel.zero.shards import Transport
from dtlab.parallel.zero.state import Division, Filling, Span, States, span_of

__all__ = ["Sharded", "full_state", "gathered", "load", "sharded_state", "spans_of"]

State = dict[str, Any]


class Sharded(Protocol):
    """What this file needs of a `ShardedModule`, which describes these attributes."""

    module: nn.Module
    group: Group
    transport: Transport
    blocks: list[ShardedBlock]


def sharded_state(model: Sharded, optimizer: Optimizer | None = None) -> State:
    """Return this rank's state as views: save it before the next step.

    The result is {"parameters": {name: held}, "shapes": {name: shape}, "buffers": {name: tensor}}.
    With an optimizer it also has "optimizer": {"state": {name: {key: held}}, "param_groups"}.
    """
    division, pieces = _division(model), dict(model.module.named_parameters())
    state: State = {
        "parameters": {n: division.held(n, pieces[str(n)].detach()) for n in division.spans},
        "shapes": division.shapes,
        "buffers": _buffers_of(model),
    }
    if optimizer is not None:
        states = _states(division, pieces, optimizer)
        state["optimizer"] = {
            "state": division.held_states(states),
            "param_groups": _groups_of(model, optimizer),
        }
    return state


def spans_of(model: Sharded) -> dict[str, Span]:
    """Return which elements this rank has of each parameter of which it has any."""
    return {str(name): span for name, span in _division(model).spans.items()}


def _division(model: Sharded) -> Division:
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    return Division(model.transport, [
        (shard.layout, [names[parameter] for parameter in shard.parameters])
        for block in model.blocks
        for shard in block.shards
    ])  # fmt: skip


def _states(
    division: Division, pieces: Mapping[str, nn.Parameter], optimizer: Optimizer
) -> States:
    """Return the optimizer's state of this rank's pieces, by name."""
    return {name: dict(optimizer.state.get(pieces[str(name)], {})) for name in division.spans}


def _buffers_of(model: Sharded) -> dict[str, Tensor]:
    """Return the persistent buffers of a module."""
    state, names = nn.Module.state_dict(model.module), dict(model.module.named_buffers())
    return {name: state[name] for name in names if name in state}


def _groups_of(model: Sharded, optimizer: Optimizer) -> list[State]:
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
    wholes = gathered(model, lambda piece: piece.detach())
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    aliases = dict(model.module.named_parameters(remove_duplicate=False))  # with tied names
    buffers = _buffers_of(model)
    full = {
        name: wholes[names[aliases[name]]] if name in aliases else buffers[name].clone()
        for name in nn.Module.state_dict(model.module)
    }
    if optimizer is None:
        return full
    division, pieces = _division(model), dict(model.module.named_parameters())
    states = division.whole_states(_states(division, pieces, optimizer))
    return {
        "model": full,
        "optimizer": {"state": states, "param_groups": _groups_of(model, optimizer)},
    }


def gathered(model: Sharded, take: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    """Gather whole tensors, by name; `take` returns this rank's part of each, or None."""
    division, pieces = _division(model), dict(model.module.named_parameters())
    taken = {name: take(pieces[str(name)]) for name in division.spans}
    parts = {name: part for name, part in taken.items() if part is not None}
    return {
        str(name): whole
        for layout, names in division.layouts
        for name, whole in division.gathered(layout, names, parts)
    }


# Loading -------------------------------------------------------------------------------------


_VALUE = "value of the parameter"  # its key, while it is loaded with the optimizer's state


@torch.no_grad()
def load(
    model: Sharded, state: State | Iterable[State] | Any, optimizer: Optimizer | None = None
) -> None:
    """Load this rank's part of a whole state, or of the states of all saving ranks."""
    division, pieces = _division(model), dict(model.module.named_parameters())
    filling = Filling(division, {n: {_VALUE: pieces[str(n)].detach()} for n in division.spans})
    groups: list[State] | None = None
    buffers: Mapping[str, Tensor] = {}
    for part in [state] if isinstance(state, Mapping) else state:
        shard = part if _is_shard(part) else _as_shard(filling, part)
        held, shapes = shard["parameters"], shard["shapes"]
        filling.check({name: shapes.get(name, ()) for name in held})
        values = {name: {_VALUE: value} for name, value in held.items()}
        if optimizer is not None and "optimizer" in shard:
            groups = groups or shard["optimizer"]["param_groups"]
            for name, more in shard["optimizer"]["state"].items():
                values[name] = values.get(name, {}) | more
        filling.take({name: span_of(value) for name, value in held.items()}, values)
        buffers = buffers or shard["buffers"]
    filling.refuse_gaps()
    for name, buffer in _buffers_of(model).items():
        if name not in buffers:
            raise ValueError(f"the saved state lacks the buffer {name}.")
        buffer.copy_(buffers[name])
    if optimizer is not None:
        for values in filling.states.values():
            del values[_VALUE]
        _load_optimizer(model, optimizer, filling.states, groups)


def _is_shard(state: Mapping[str, Any]) -> bool:
    return isinstance(state.get("parameters"), Mapping) and "buffers" in state


def _as_shard(filling: Filling, full: Mapping[str, Any]) -> State:
    """Return this rank's part of a whole state, which may have optimizer state."""
    tensors = full["model"] if isinstance(full.get("model"), Mapping) else full
    division = filling.division
    found = {name: tensors[str(name)] for name in division.likes if name in tensors}
    shapes = {name: tuple(whole.shape) for name, whole in found.items()}
    filling.check(shapes)
    parts = division.held_states(division.cut_states({n: {_VALUE: v} for n, v in found.items()}))
    state: State = {
        "parameters": {name: values[_VALUE] for name, values in parts.items()},
        "shapes": shapes,
        "buffers": tensors,
    }
    if isinstance(full.get("optimizer"), Mapping):
        state["optimizer"] = {
            "state": division.held_states(division.cut_states(full["optimizer"]["state"])),
            "param_groups": full["optimizer"]["param_groups"],
        }
    return state


def _load_optimizer(
    model: Sharded, optimizer: Optimizer, states: States, groups: list[State] | None
) -> None:
    if groups is None:
        raise ValueError(
            "the saved state has no optimizer state. Pass the optimizer to state_dict when "
            "you save."
        )
    here = _groups_of(model, optimizer)
    if [each["params"] for each in here] != [each["params"] for each in groups]:
        raise ValueError(
            "the optimizer's parameter groups differ from the saved ones. Make the optimizer "
            "with the same parameters, in the same order."
        )
    order = [name for group in here for name in group["params"]]
    merged = [
        {**saved, "params": current["params"]}  # numbers, as in torch's format
        for saved, current in zip(groups, optimizer.state_dict()["param_groups"], strict=True)
    ]
    numbered = {n: states[name] for n, name in enumerate(order) if states.get(name)}
    optimizer.load_state_dict({"state": numbered, "param_groups": merged})
