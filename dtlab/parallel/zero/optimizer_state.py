"""The state of ZeRO stages 1 and 2, in the format of `state.py`, or as one process has it.

    rank 0    exp_avg of a a a                     {0: {"step": 7, "exp_avg": a a a a}, 1: ...}
    rank 1    exp_avg of a | b b    ── gathered ──► as in one process ──► cut for any ranks

Parameters are numbered through all groups, as in the state of `torch.optim.Optimizer`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dtlab.parallel.zero.buckets import ShardedBucket
from dtlab.parallel.zero.shards import Piece
from dtlab.parallel.zero.state import Division, Filling, States
from dtlab.training.held import Share

__all__ = ["MASTER", "full_state", "load_state", "sharded_state", "shares"]

Buckets = Sequence[ShardedBucket]
Groups = Sequence[Mapping[str, Any]]
MASTER = "master weights"  # their key in the state of a part: no optimizer uses it


def sharded_state(buckets: Buckets, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """Return the state of this rank's part of each parameter, master weights included.

    The result is {"state": {number: {key: held}}, "param_groups", "shapes": {number: shape},
    "spans": {number: (start, stop)}}: a parameter without state has a span too.
    """
    division = _division(buckets)
    return {
        "state": division.held_states(_states(buckets, optimizer)),
        "param_groups": _numbered(groups),
        "shapes": division.shapes,
        "spans": division.spans,
    }


def full_state(buckets: Buckets, optimizer: torch.optim.Optimizer, groups: Groups) -> Any:
    """Return the state of whole parameters, on all ranks."""
    wholes = _division(buckets).whole_states(_states(buckets, optimizer))
    masters = {key: values.pop(MASTER) for key, values in wholes.items() if MASTER in values}
    state = {number: values for number, values in wholes.items() if values}
    return {"state": state, "param_groups": _numbered(groups), "masters": masters}


def shares(buckets: Buckets) -> dict[Tensor, Share]:
    """Return which elements of each parameter this rank steps."""
    division = _division(buckets)
    return {
        parameter: Share(0, parameter.numel(), tuple(filter(None, [division.spans.get(number)])))
        for bucket in buckets
        for number, parameter in zip(bucket.numbers, bucket.parameters, strict=True)
    }


def _division(buckets: Buckets) -> Division:
    return Division(buckets[0].transport, [(each.layout, each.numbers) for each in buckets])


def _states(buckets: Buckets, optimizer: torch.optim.Optimizer) -> States:
    """Return the state of this rank's pieces by number, with their master weights."""
    states: States = {}
    for bucket in buckets:
        numbers = [bucket.numbers[piece.index] for piece in bucket.pieces]
        states |= zip(numbers, bucket.states(optimizer), strict=True)
        if bucket.master is not bucket.shard:
            for number, part in zip(numbers, bucket.parts(bucket.master), strict=True):
                states[number] = {**states[number], MASTER: part}
    return states


def _numbered(groups: Groups) -> list[dict[str, Any]]:
    """Return parameter groups with numbers instead of parameters, as torch's `state_dict` does."""
    packed, start = [], 0
    for group in groups:
        count = len(group["params"])
        packed.append({**group, "params": list(range(start, start + count))})
        start += count
    return packed


# Loading -------------------------------------------------------------------------------------


def load_state(
    buckets: Buckets,
    optimizer: torch.optim.Optimizer,
    groups: Groups,
    saved: Mapping[str, Any] | Iterable[Mapping[str, Any]],
) -> None:
    """Load this rank's part of a whole state, or of the parts that any number of ranks saved.

    Raises: ValueError if parameters or groups differ, or elements that this rank needs are in no
    part.
    """
    division = _division(buckets)
    if isinstance(saved, Mapping) and "spans" not in saved:
        options = _checked(saved, groups)
        wholes: States = {number: dict(values) for number, values in saved["state"].items()}
        for number, master in saved.get("masters", {}).items():
            wholes.setdefault(number, {})[MASTER] = master
        _set(buckets, optimizer, division.cut_states(wholes), options)
        return
    filling, options = Filling(division), []
    for part in [saved] if isinstance(saved, Mapping) else saved:
        options = options or _checked(part, groups)
        filling.check(part["shapes"])
        filling.take(part["spans"], part["state"])
    if not options:
        raise ValueError("there is no saved state. Pass what state_dict returned on all ranks.")
    filling.refuse_gaps()
    _set(buckets, optimizer, filling.states, options)


def _checked(saved: Mapping[str, Any], groups: Groups) -> list[dict[str, Any]]:
    """Return the saved parameter groups, or raise ValueError if they have other sizes."""
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved["param_groups"]]
    if saved_sizes != sizes:
        raise ValueError(
            f"the saved state has groups of {saved_sizes} parameters, but this optimizer has "
            f"groups of {sizes}. Make both with the same parameters in the same order."
        )
    options: list[dict[str, Any]] = saved["param_groups"]
    return options


def _set(
    buckets: Buckets,
    optimizer: torch.optim.Optimizer,
    loaded: States,
    options: Sequence[Mapping[str, Any]],
) -> None:
    """Give the optimizer the states of this rank's pieces, and the options of its groups."""
    states: dict[Tensor, dict[str, Any]] = {}
    for bucket in buckets:
        parts = [dict(loaded.get(bucket.numbers[piece.index], {})) for piece in bucket.pieces]
        for part, master in zip(parts, bucket.parts(bucket.master), strict=True):
            value = part.pop(MASTER, None)
            if value is not None and bucket.master is not bucket.shard:
                master.copy_(value)
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
    merged = [{**new, "params": old["params"]} for old, new in zip(inner, options, strict=True)]
    optimizer.load_state_dict({"state": numbered, "param_groups": merged})


def _covers(value: Any, piece: Piece) -> bool:
    """Return whether a value has one number per element of a piece."""
    return isinstance(value, Tensor) and value.shape == (piece.stop - piece.start,)


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
