"""Replicas: broadcasts the first rank's parameters, and compares those of all ranks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import DtlabError
from dtlab.torch_internals import is_batch_norm
from dtlab.trace import Records, Trace
from dtlab.trace.lines import hint_of_lines
from dtlab.trace.spans import span_sink

__all__ = ["assert_replicas_equal", "broadcast", "packs"]

_Digests = dict[str, tuple[str, str]]  # shard and digest of each tensor, by name
_SHOWN = 5  # maximum number of tensors that an error lists


def broadcast(
    tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None, source: int = 0
) -> None:
    """Copy the tensors of the group's rank `source` to all its ranks."""
    for pack in packs(tensors):
        dist.broadcast(pack, group=group, group_src=source)


def packs(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors concatenated into one flat tensor for each dtype and device.

    After the caller has used a pack, the generator copies its values back into the tensors.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for same in kinds.values():
        pack = torch.cat([tensor.reshape(-1) for tensor in same])
        yield pack
        parts = torch.split(pack, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def assert_replicas_equal(
    module: nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool | None = None
) -> None:
    """Compare the parameters and buffers of all ranks bit by bit.

    The running statistics of a BatchNorm in training are left out: they follow each rank's own
    batch until the next forward pass replaces them by the first rank's, so they may differ between
    two steps. `buffers=True` compares them too, and `buffers=False` compares no buffers.

    A DTensor, as in a module under `fully_shard`, is compared shard by shard: only ranks that hold
    the same shard, along the Replicate dimensions of its mesh, must have equal values.

    Call this on all ranks of the group. Raises: DtlabError on all of them if any tensor differs;
    the error names the tensors, the ranks, and the largest difference. In a traced launch it also
    lists collectives that ranks called in different lines.
    """
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    own = set() if buffers else _batch_statistics(module)
    if buffers is not False:
        tensors |= {name: each for name, each in module.named_buffers() if name not in own}
    local = {name: (_shard(tensor), _digest(_local(tensor))) for name, tensor in tensors.items()}
    digests: list[_Digests] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(digests, local, group=group)
    names = dict.fromkeys(name for digest in digests for name in digest)
    different = [name for name in names if _differing(name, digests)]
    if not different:
        return
    lines = [_difference(name, tensors.get(name), digests, group) for name in different]
    shown = "\n  ".join(lines[:_SHOWN])
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    raise DtlabError(
        f"the replicas differ in {len(lines)} of {len(names)} tensors:\n  {shown}{more}\n"
        "They stay equal only if all ranks begin with the same parameters, step with the same "
        "gradients, and call the wrapper that averages the gradients." + _hint(group)
    )


def _hint(group: dist.ProcessGroup | None) -> str:
    """What the ranks' recorders know of collectives from different lines; collective itself."""
    sink = span_sink()
    own = None
    if sink is not None:
        own = sink.records(dist.get_rank())
        own = replace(own, blocked=own.blocked[:0], spans=own.spans[:0], span_extras=())
    everyone: list[Records | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    known = [each for each in everyone if each is not None]
    if len(known) < len(everyone):
        return ""
    hint = hint_of_lines(Trace.from_records(known).differing_lines())
    return f"\n{hint}" if hint else ""


def _batch_statistics(module: nn.Module) -> set[str]:
    """The names of buffers that follow each rank's own batch."""
    return {
        f"{name}.{buffer}".lstrip(".")
        for name, each in module.named_modules()
        if is_batch_norm(each)
        and each.training
        and not isinstance(each, nn.SyncBatchNorm)
        for buffer in ("running_mean", "running_var")
    }


def _local(tensor: Tensor) -> Tensor:
    """The values that this rank holds: of a DTensor its shard."""
    return tensor.to_local() if isinstance(tensor, _dtensor()) else tensor  # type: ignore[attr-defined]


def _shard(tensor: Tensor) -> str:
    """Which shard of a DTensor this rank holds; the same for ranks that must hold equal values."""
    if not isinstance(tensor, _dtensor()):
        return ""
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    place = mesh.get_coordinate() or []
    split = [at for at, each in zip(place, placements, strict=False) if not each.is_replicate()]
    return f"{split} of {placements} on {mesh.mesh.flatten().tolist()}"


def _dtensor() -> tuple[type, ...]:
    """The class of DTensors; none if nothing has imported it, which takes long."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return (loaded.DTensor,) if loaded is not None else ()


def _differing(name: str, digests: Sequence[_Digests]) -> dict[int, int]:
    """The ranks whose tensor differs, each with the first rank that has the same shard."""
    firsts: dict[str, int] = {}
    found = {}
    for rank, each in enumerate(digests):
        shard, digest = each.get(name, ("", ""))
        first = firsts.setdefault(shard, rank)
        if digests[first].get(name, ("", ""))[1] != digest:
            found[rank] = first
    return found


def _digest(tensor: Tensor) -> str:
    """Return a hash of the tensor's bits and shape."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes() + str(tensor.shape).encode()).hexdigest()


def _difference(
    name: str, tensor: Tensor | None, digests: list[_Digests], group: dist.ProcessGroup | None
) -> str:
    """Describe a difference: "layer.weight: ranks 2, 3 differ from rank 0, by at most 0.01"."""
    found = _differing(name, digests)
    ranks = f"rank{'s' * (len(found) > 1)} {', '.join(map(str, found))}"
    firsts = list(dict.fromkeys(found.values()))
    first = f"rank{'s' * (len(firsts) > 1)} {', '.join(map(str, firsts))}"
    own = None if tensor is None else _local(tensor.detach())
    shapes: list[object] = [None] * len(digests)
    dist.all_gather_object(shapes, None if own is None else tuple(own.shape), group=group)
    apart = any(shapes[rank] != shapes[other] for rank, other in found.items())
    if own is None or None in shapes or apart:
        have = "have" if len(found) > 1 else "has"
        return f"{name}: {ranks} {have} another shape than {first}, or no such tensor"
    values = own.double().contiguous()
    most = torch.zeros(1, dtype=torch.float64, device=values.device)
    rank = dist.get_rank(group)
    for other in firsts:
        theirs = values
        if rank != other:
            shape: Any = shapes[other]
            theirs = torch.empty(shape, dtype=torch.float64, device=values.device)
        dist.broadcast(theirs, group=group, group_src=other)
        if found.get(rank) == other and values.numel():
            most = (values - theirs).abs().max().reshape(1)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    verb = "differ" if len(found) > 1 else "differs"
    return f"{name}: {ranks} {verb} from {first}, by at most {most.item():.3g}"
