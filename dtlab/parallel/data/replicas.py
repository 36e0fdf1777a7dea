"""Replicas: broadcasts the first rank's parameters, and compares those of all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtlab.errors import DtlabError

__all__ = ["assert_replicas_equal", "broadcast", "packs"]

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
    module: nn.Module, group: dist.ProcessGroup | None = None, *, buffers: bool = False
) -> None:
    """Compare the parameters of all ranks bit by bit, and with `buffers` also the buffers.

    Buffers such as BatchNorm's follow each rank's own batch until the next forward pass replaces
    them by the first rank's, so they may differ between two steps.

    Call this on all ranks of the group. Raises: DtlabError on all of them if any tensor differs;
    the error names the tensors, the ranks, and the largest difference.
    """
    tensors: dict[str, Tensor] = dict(module.named_parameters())
    tensors |= dict(module.named_buffers()) if buffers else {}
    local = {name: _digest(tensor) for name, tensor in tensors.items()}
    digests: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(digests, local, group=group)
    if all(digest == digests[0] for digest in digests):
        return
    names = dict.fromkeys(name for digest in digests for name in digest)
    different = [name for name in names if len({digest.get(name) for digest in digests}) > 1]
    lines = [_difference(name, tensors.get(name), digests, group) for name in different]
    shown = "\n  ".join(lines[:_SHOWN])
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    raise DtlabError(
        f"the replicas differ in {len(lines)} of {len(names)} tensors:\n  {shown}{more}\n"
        "They stay equal only if all ranks begin with the same parameters, step with the same "
        "gradients, and call the wrapper that averages the gradients."
    )


def _digest(tensor: Tensor) -> str:
    """Return a hash of the tensor's bits and shape."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes() + str(tensor.shape).encode()).hexdigest()


def _difference(
    name: str,
    tensor: Tensor | None,
    digests: list[dict[str, str]],
    group: dist.ProcessGroup | None,
) -> str:
    """Describe a difference: "layer.weight: ranks 2, 3 differ from rank 0, by at most 0.01"."""
    differing = [n for n, each in enumerate(digests) if each.get(name) != digests[0].get(name)]
    ranks = f"rank{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
    shapes: list[object] = [None] * len(digests)
    dist.all_gather_object(shapes, None if tensor is None else tuple(tensor.shape), group=group)
    if len(set(shapes)) > 1 or tensor is None:
        have = "have" if len(differing) > 1 else "has"
        return f"{name}: {ranks} {have} another shape than rank 0, or no such tensor"
    values = tensor.detach().double()
    first = values.clone()
    dist.broadcast(first, group=group, group_src=0)
    most = (values - first).abs().max().reshape(1)
    dist.all_reduce(most, dist.ReduceOp.MAX, group)
    verb = "differ" if len(differing) > 1 else "differs"
    return f"{name}: {ranks} {verb} from rank 0, by at most {most.item():.3g}"
