"""Loading what `sharded_state` has saved, at any number of ranks, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dtlab.parallel.sharded_state import (
    Span,
    State,
    buffers_of,
    groups_of,
    is_by_element,
    pieces_of,
)
from dtlab.parallel.shards import in_memory_order

if TYPE_CHECKING:
    from dtlab.parallel.sharded_module import ShardedModule

__all__ = ["load"]


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
            for saved, own in zip(
                self.groups, optimizer.state_dict()["param_groups"], strict=True
            )
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
