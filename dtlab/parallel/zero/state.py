"""Optimizer state of ZeRO: saved by N ranks, loaded by M ranks.

    rank 0    exp_avg of a a a                     {0: {"step": 7, "exp_avg": a a a a}, 1: ...}
    rank 1    exp_avg of a | b b    ── gathered ──► as one process has it ──► cut for any ranks

What has one number for each element is gathered; the rest, as a count of steps, is the same for
all parts of a parameter and goes along as it is.
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
State = dict[int, dict[str, Any]]  # by number of parameter, counted through all groups


def shard_state(buckets: Buckets, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """The state of this rank's part of each parameter."""
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
    """The state of whole parameters, on all ranks."""
    own = shard_state(buckets, optimizer, groups)
    found = _described(buckets, own["state"])
    state: State = {
        number: {k: v for k, v in values.items() if not isinstance(v, torch.dtype)}
        for number, values in sorted(found.items())
    }
    masters: dict[int, Tensor] = {}
    for bucket in buckets:
        for key, dtype in _gathered_keys(bucket, found).items():
            parts = {n: values[key] for n, values in own["state"].items() if key in values}
            for number, whole in _gather(bucket, parts, dtype).items():
                if isinstance(found.get(number, {}).get(key), torch.dtype):
                    state[number][key] = whole
        if bucket.master is not bucket.shard:
            masters |= _gather(bucket, own["masters"], bucket.master.dtype)
    return {"state": state, "param_groups": own["param_groups"], "masters": masters}


def _numbered(groups: Groups) -> list[dict[str, Any]]:
    """Parameter groups with numbers in the place of parameters."""
    packed, start = [], 0
    for group in groups:
        count = len(group["params"])
        packed.append({**group, "params": list(range(start, start + count))})
        start += count
    return packed


def _described(buckets: Buckets, own: State) -> State:
    """Of all ranks: for each parameter its state, where a dtype stands for what is to be gathered.

    A rank knows only of parameters that it has a part of.
    """
    described: State = {}
    for bucket in buckets:
        for piece in bucket.pieces:
            values = own.get(bucket.numbers[piece.index], {})
            described[bucket.numbers[piece.index]] = {
                key: value.dtype if _covers(value, piece) else value
                for key, value in values.items()
            }
    group = buckets[0].transport.group
    every: list[State] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(every, described, group=group)
    merged: State = {}
    for one in every:
        for number, values in one.items():
            merged.setdefault(number, {}).update(values)
    return {number: values for number, values in merged.items() if values}


def _covers(value: Any, piece: Piece) -> bool:
    """Whether it has a number for each element of a piece."""
    return isinstance(value, Tensor) and value.shape == (piece.stop - piece.start,)


def _gathered_keys(bucket: ShardedBucket, found: State) -> dict[str, torch.dtype]:
    """In the same order on all ranks, for all of them gather."""
    return {
        key: value
        for number in sorted(bucket.numbers)
        for key, value in sorted(found.get(number, {}).items())
        if isinstance(value, torch.dtype)
    }


def _gather(
    bucket: ShardedBucket, parts: Mapping[int, Tensor], dtype: torch.dtype
) -> dict[int, Tensor]:
    """Whole tensors by number of parameter, of the parts that each rank has."""
    shard = torch.zeros(bucket.layout.shard_size, dtype=dtype, device=bucket.layout.device)
    for piece, place in zip(bucket.pieces, bucket.parts(shard), strict=True):
        part = parts.get(bucket.numbers[piece.index])
        if part is not None:
            place.copy_(part)
    whole = bucket.transport.whole(bucket.layout, shard)
    return {n: one.clone() for n, one in zip(bucket.numbers, whole, strict=True)}


# Loading -------------------------------------------------------------------------------------


def load_state(
    buckets: Buckets,
    optimizer: torch.optim.Optimizer,
    groups: Groups,
    saved: Mapping[str, Any],
    *,
    is_whole: bool,
) -> None:
    """Load this rank's part of a state, master weights with it, from a whole one or a shard's.

    Raises: ValueError where it does not have the same parameters.
    """
    sizes = [len(group["params"]) for group in groups]
    theirs = [len(group["params"]) for group in saved["param_groups"]]
    if theirs != sizes:
        raise ValueError(
            f"the saved state has groups of {theirs} parameters, and this optimizer of {sizes}. "
            "Make both over the same parameters in the same order."
        )
    own: dict[Tensor, dict[str, Any]] = {}
    for bucket in buckets:
        parts = [_part(bucket, piece, saved, is_whole) for piece in bucket.pieces]
        if not _go_together(bucket, parts):
            bucket.split(optimizer)
        left = iter(parts)
        for run, segment in zip(bucket.runs, bucket.segments, strict=True):
            values = [next(left) for _ in run]
            if values[0]:
                own[segment] = _joined(run, values)
    segments = [one for group in optimizer.param_groups for one in group["params"]]
    numbered = {number: own[one] for number, one in enumerate(segments) if one in own}
    inner = optimizer.state_dict()["param_groups"]
    merged = [
        {**new, "params": old["params"]}
        for old, new in zip(inner, saved["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": numbered, "param_groups": merged})


def _part(
    bucket: ShardedBucket, piece: Piece, saved: Mapping[str, Any], is_whole: bool
) -> dict[str, Any]:
    """The state of a piece; its master weights are put in place."""
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
    """Whether it has a number for each element; a count of steps beside one number has not."""
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return False
    return like.ndim > 0 or key != "step"


def _go_together(bucket: ShardedBucket, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all have the same state but for their elements, as a count of steps."""
    rest = [
        {k: v.tolist() if isinstance(v, Tensor) else v
         for k, v in part.items() if not _covers(v, piece)}
        for piece, part in zip(bucket.pieces, parts, strict=True)
    ]  # fmt: skip
    keys = [part.keys() for part in parts]
    return all(one == rest[0] for one in rest) and all(one == keys[0] for one in keys)


def _joined(run: Sequence[Piece], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of pieces that are stepped as one, a copy."""
    return {
        key: torch.cat([part[key] for part in parts])
        if _covers(value, run[0])
        else copy.deepcopy(value)
        for key, value in parts[0].items()
    }
