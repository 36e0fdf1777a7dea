"""Optimizer state of ZeRO: saved by N ranks, loaded by M ranks.

    rank 0    exp_avg of a a a                     {0: {"step": 7, "exp_avg": a a a a}, 1: ...}
    rank 1    exp_avg of a | b b    ── gathered ──► as in one process ──► cut for any ranks

State with one number per element is gathered. Other state, such as a step count, is the same for
all parts of a parameter and is copied unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtlab.parallel.zero.buckets import ShardedBucket
from dtlab.parallel.zero.shards import Piece, in_memory_order

__all__ = ["full_state", "load_state", "shard_state"]

Buckets = Sequence[ShardedBucket]
Groups = Sequence[Mapping[str, Any]]
State = dict[int, dict[str, Any]]  # by parameter number, counted through all groups


def shard_state(buckets: Buckets, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """Return the state of this rank's part of each parameter."""
    state: State = {}
    masters: dict[int, Tensor] = {}
    for bucket in buckets:
        numbers = [bucket.numbers[piece.index] for piece in bucket.pieces]
        states = zip(numbers, bucket.states(optimizer), strict=True)
        state |= {number: values for number, values in states if values}
        if bucket.master is not bucket.shard:
            masters |= zip(numbers, bucket.parts(bucket.master), strict=True)
    return {"state": state, "param_groups": _numbered(groups), "masters": masters}


def full_state(buckets: Buckets, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """Return the state of whole parameters, on all ranks."""
    local = shard_state(buckets, optimizer, groups)
    described = _described(buckets, local["state"])
    state: State = {
        number: {k: v for k, v in values.items() if not isinstance(v, torch.dtype)}
        for number, values in sorted(described.items())
    }
    masters: dict[int, Tensor] = {}
    for bucket in buckets:
        for key, dtype in _gathered_keys(bucket, described).items():
            parts = {n: values[key] for n, values in local["state"].items() if key in values}
            for number, whole in _gather(bucket, parts, dtype).items():
                if isinstance(described.get(number, {}).get(key), torch.dtype):
                    state[number][key] = whole
        if bucket.master is not bucket.shard:
            masters |= _gather(bucket, local["masters"], bucket.master.dtype)
    return {"state": state, "param_groups": local["param_groups"], "masters": masters}


def _numbered(groups: Groups) -> list[dict[str, Any]]:
    """Return parameter groups with numbers instead of parameters."""
    packed, start = [], 0
    for group in groups:
        count = len(group["params"])
        packed.append({**group, "params": list(range(start, start + count))})
        start += count
    return packed


def _described(buckets: Buckets, local: State) -> State:
    """Return the state of all ranks' parameters, with a dtype for each tensor to be gathered.

    A rank has state only for parameters of which it has a part, so the ranks exchange these
    descriptions.
    """
    described: State = {}
    for bucket in buckets:
        for piece in bucket.pieces:
            values = local.get(bucket.numbers[piece.index], {})
            described[bucket.numbers[piece.index]] = {
                key: value.dtype if _covers(value, piece) else value
                for key, value in values.items()
            }
    group = buckets[0].transport.group
    every: list[State] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(every, described, group=group)
    merged: State = {}
    for states in every:
        for number, values in states.items():
            merged.setdefault(number, {}).update(values)
    return {number: values for number, values in merged.items() if values}


def _covers(value: Any, piece: Piece) -> bool:
    """Return whether a value has one number per element of a piece."""
    return isinstance(value, Tensor) and value.shape == (piece.stop - piece.start,)


def _gathered_keys(bucket: ShardedBucket, described: State) -> dict[str, torch.dtype]:
    """Return the keys to gather, in the same order on all ranks because gathers are collective."""
    return {
        key: value
        for number in sorted(bucket.numbers)
        for key, value in sorted(described.get(number, {}).items())
        if isinstance(value, torch.dtype)
    }


def _gather(
    bucket: ShardedBucket, parts: Mapping[int, Tensor], dtype: torch.dtype
) -> dict[int, Tensor]:
    """Gather whole tensors from the parts on each rank; return them by parameter number."""
    shard = torch.zeros(bucket.layout.shard_size, dtype=dtype, device=bucket.layout.device)
    for piece, place in zip(bucket.pieces, bucket.parts(shard), strict=True):
        part = parts.get(bucket.numbers[piece.index])
        if part is not None:
            place.copy_(part)
    whole = bucket.transport.whole(bucket.layout, shard)
    return {n: view.clone() for n, view in zip(bucket.numbers, whole, strict=True)}


# Loading -------------------------------------------------------------------------------------


def load_state(
    buckets: Buckets,
    optimizer: torch.optim.Optimizer,
    groups: Groups,
    saved: Mapping[str, Any],
    *,
    is_whole: bool,
) -> None:
    """Load this rank's optimizer state and master weights from a whole state, or from its shard.

    Raises: ValueError if the saved parameter groups have other numbers of parameters.
    """
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved["param_groups"]]
    if saved_sizes != sizes:
        raise ValueError(
            f"the saved state has groups of {saved_sizes} parameters, but this optimizer has "
            f"groups of {sizes}. Make both with the same parameters in the same order."
        )
    states: dict[Tensor, dict[str, Any]] = {}
    for bucket in buckets:
        parts = [_part(bucket, piece, saved, is_whole) for piece in bucket.pieces]
        if not _go_together(bucket, parts):
            bucket.split(optimizer)
        remaining = iter(parts)
        for run, segment in zip(bucket.runs, bucket.segments, strict=True):
            values = [next(remaining) for _ in run]
            if values[0]:
                states[segment] = _joined(run, values)
    segments = [segment for group in optimizer.param_groups for segment in group["params"]]
    numbered = {n: states[segment] for n, segment in enumerate(segments) if segment in states}
    inner = optimizer.state_dict()["param_groups"]
    merged = [
        {**new, "params": old["params"]}
        for old, new in zip(inner, saved["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": numbered, "param_groups": merged})


def _part(
    bucket: ShardedBucket, piece: Piece, saved: Mapping[str, Any], is_whole: bool
) -> dict[str, Any]:
    """Return the state of a piece, and load its master weights."""
    number, like = bucket.numbers[piece.index], bucket.parameters[piece.index]

    def cut(key: str, value: Any) -> Any:
        if is_whole and _is_by_element(key, value, like):
            return in_memory_order(value, like)[piece.start : piece.stop]
        return value

    if number in saved.get("masters", {}) and bucket.master is not bucket.shard:
        place = bucket.parts(bucket.master)[bucket.pieces.index(piece)]
        place.copy_(cut("master", saved["masters"][number]))
    return {key: cut(key, value) for key, value in saved["state"].get(number, {}).items()}


def _is_by_element(key: str, value: Any, like: Tensor) -> bool:
    """Return whether a value has one number per element; a step count does not."""
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return False
    return like.ndim > 0 or key != "step"


def _go_together(bucket: ShardedBucket, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all parts have the same keys, and equal values that are not per element."""
    rest = [
        {k: v.tolist() if isinstance(v, Tensor) else v
         for k, v in part.items() if not _covers(v, piece)}
        for piece, part in zip(bucket.pieces, parts, strict=True)
    ]  # fmt: skip
    keys = [part.keys() for part in parts]
    return all(each == rest[0] for each in rest) and all(each == keys[0] for each in keys)


def _joined(run: Sequence[Piece], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a copy of the state of pieces that are stepped as one tensor."""
    return {
        key: torch.cat([part[key] for part in parts])
        if _covers(value, run[0])
        else copy.deepcopy(value)
        for key, value in parts[0].items()
    }
