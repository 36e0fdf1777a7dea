"""What each rank holds of a state: parts of tensors with their places, and values alike or not.

    name         rank 0           rank 1           together
    weight       [0:2, :]         [2:4, :]         parts of one tensor, which they fill
    bias         5 6 7 8          5 6 7 8          one value, held twice
    statistics   0.1              0.3              different values: neither stands for both

torch.distributed.checkpoint writes and reads the parts: `Held` describes a tensor to it, `Saving`
and `Loading` are its planners.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.tensor import DTensor

__all__ = [
    "Held",
    "Loading",
    "Saving",
    "Share",
    "copy_on_host",
    "described",
    "digest",
    "empty_like_saved",
    "go_together",
]


@dataclass(frozen=True)
class Share:
    """Which part of a parameter a rank has: these ranges of the whole tensor's `dim`, joined.

    `size` is that of the whole dim. A module with divided parameters has a method
    `parameter_shares` that returns {name: Share}; `Checkpoints` needs nothing else from it. An
    optimizer that divides its state has one that returns {parameter: Share}.
    """

    dim: int
    size: int
    ranges: tuple[tuple[int, int], ...]  # start and stop of each

    @property
    def length(self) -> int:
        """The size of the part along the dim."""
        return sum(stop - start for start, stop in self.ranges)


class Held:
    """What this rank holds of a tensor: `chunks`, by their offset in the whole.

    torch.distributed.checkpoint calls the two methods with underscores, as it does for DTensors.
    """

    def __init__(self, tensor: Tensor, share: Share | None = None) -> None:
        self.tensor, self.whole, self.dtype = tensor, tensor.shape, tensor.dtype
        self.local = tensor.detach()
        nowhere = [0] * tensor.dim()
        self.chunks = {torch.Size(nowhere): self.local}
        if isinstance(tensor, DTensor):
            self.local, self.chunks = tensor.to_local().detach(), {}
            if tensor.device_mesh.get_coordinate() is not None and self.local.numel():
                places: Any = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
                self.chunks = {place.offsets: self.local for place in places}
        elif share is not None:
            shape, dim = list(tensor.shape), share.dim
            self.whole = torch.Size([*shape[:dim], share.size, *shape[dim + 1 :]])
            self.chunks, place = {}, 0
            for start, stop in share.ranges:
                offset = torch.Size([*nowhere[:dim], start, *nowhere[dim + 1 :]])
                self.chunks[offset] = self.local.narrow(dim, place, stop - start)
                place += stop - start

    def alone(self) -> Held:
        """Return what this rank holds, as a separate tensor."""
        held = Held(self.local)
        held.tensor = self.tensor
        return held

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(at, chunk.shape) for at, chunk in self.chunks.items()]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, place.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    place, TensorProperties.create_from_tensor(self.local), self.whole
                ),
            )
            for place in self.__create_chunk_list__()
        ]


# So that `torch.load(file, weights_only=True)` reads a state of ZeRO: it has no code to run.
torch.serialization.add_safe_globals([Held])


class Saving(DefaultSavePlanner):
    def __init__(self, run: dict[str, Any]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._run = run

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, replace(metadata, planner_data=self._run)

    def lookup_object(self, index: MetadataIndex) -> Any:
        return _looked_up(self.state_dict, index)


class Loading(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(self, state_dict: Any, metadata: Any = None, *_: Any, **__: Any) -> None:
        self.state_dict, self.metadata = state_dict, metadata

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        tensor: Tensor = _looked_up(self.state_dict, index)
        return tensor


def _looked_up(state: Mapping[str, Any], index: MetadataIndex) -> Any:
    value, offset = state[index.fqn], index.offset or torch.Size()  # no offset: a scalar
    return value.chunks[offset] if isinstance(value, Held) else value


def copy_on_host(value: Any) -> Any:
    """Return a copy that later steps do not change."""
    if not isinstance(value, Held):
        return copy.deepcopy(value)
    held = copy.copy(value)
    held.chunks = {at: chunk.to("cpu", copy=True) for at, chunk in value.chunks.items()}
    return held


def empty_like_saved(saved: Any, parameter: Tensor, share: Share | None, alone: bool) -> Any:
    """Return a new tensor for a saved optimizer state: divided as its parameter, or whole."""
    if not isinstance(saved, TensorStorageMetadata):
        return None
    dtype = saved.properties.dtype
    held = Held(torch.zeros_like(parameter, dtype=dtype, requires_grad=False), share)
    if alone:
        held = held.alone()
    if saved.size != held.whole:
        held = Held(torch.zeros(saved.size, dtype=dtype))
    return held


def described(value: Any) -> Any:
    """Return hashes of a value that tell whether ranks hold the same."""
    if not isinstance(value, Held):
        return digest(value)
    chunks = {at: (chunk.shape, digest(chunk)) for at, chunk in value.chunks.items()}
    return value.whole, value.dtype, chunks


def go_together(described: list[Any]) -> bool:
    """Return whether values of several ranks are equal, or parts of one tensor that fill it."""
    if any(isinstance(each, bytes) for each in described):
        return described.count(described[0]) == len(described)
    whole: dict[torch.Size, tuple[torch.Size, bytes]] = {}
    for size, dtype, chunks in described:
        if (size, dtype) != described[0][:2]:
            return False
        if any(whole.setdefault(at, chunk) != chunk for at, chunk in chunks.items()):
            return False
    return bool(sum(shape.numel() for shape, _ in whole.values()) == described[0][0].numel())


def digest(value: Any) -> bytes:
    """Return a hash of a tensor, or of a nested state; equal values have equal hashes."""
    content = hashlib.blake2b(digest_size=16)
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        content.update(repr((value.dtype, tuple(value.shape))).encode())
        content.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            content.update(digest(key) + digest(each))
    elif isinstance(value, list | tuple):
        for each in value:
            content.update(digest(each))
    elif isinstance(value, int | float | str | None):
        content.update(repr(value).encode())
    else:
        content.update(pickle.dumps(value))
    return content.digest()
