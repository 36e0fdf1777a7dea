"""Halo exchange: each rank has a tile of a field, and gets a border from its neighbours' tiles.

    make_mesh(y=2, x=2)                 rank 0's tile with a halo of width 1

    ┌────────┬────────┐                 . . . . .        . at the edge of the field: zeros, or
    │ rank 0 │ rank 1 │                 . 0 0 0 1          with boundary="periodic" the opposite
    ├────────┼────────┤                 . 0 0 0 1          edge
    │ rank 2 │ rank 3 │                 . 0 0 0 1        3 a corner: it comes from rank 3
    └────────┴────────┘                 . 2 2 2 3

A stencil or a convolution that reaches w cells needs a halo of width w. The axes are exchanged
one after the other, in the order of the mesh: here first rows, then columns with the rows' halos.
So the corners arrive in two steps, without a message between diagonal neighbours. A tile of H x W
cells with C channels sends 2 w W C elements for the rows and 2 w (H + 2 w) C for the columns; it
computes H W C. So large tiles are cheap: the border grows more slowly than the area.

In backward each rank sends its halo's gradient to the neighbours, which add it to their cells'.

`dtlab/simple.py` has the exchange of one row in one dimension. The functions here add several
axes, any width, periodic boundaries, and the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from dtlab.messages import Group

__all__ = [
    "DIMS",
    "halo_exchange",
    "join_tiles",
    "own_tile",
    "split_dims",
]

DIMS = {"z": -3, "y": -2, "x": -1}  # the dim of a field that each axis of a mesh splits
Widths = int | Mapping[str, tuple[int, int]]


def halo_exchange(
    tensor: Tensor, mesh: DeviceMesh, width: Widths, boundary: str = "zero"
) -> Tensor:
    """Return this rank's tile with a halo in each dimension that the mesh splits.

    Args:
        tensor: [..., H, W], or [..., D, H, W]: this rank's tile, as `own_tile` cuts it.
        mesh: its axes are named after what they split: "x" the last dim, "y" the one before, "z"
            the third from the end. An axis of one rank gets a halo too, without communication.
        width: cells on both sides, or {"y": (before, after), ...}; axes left out get none.
        boundary: at the edge of the field, "zero" or "periodic".

    The result is larger than the tensor by the widths. Gradients flow through it to all tiles.
    Raises: ValueError for other names of axes, an unknown boundary, or a halo that is wider than
    a tile: it would need cells from behind the neighbour.
    """
    if boundary not in ("zero", "periodic"):
        raise ValueError(f'halo_exchange: boundary is "zero" or "periodic", not {boundary!r}.')
    for axis, dim in split_dims(mesh).items():
        before, after = (width, width) if isinstance(width, int) else width.get(axis, (0, 0))
        if min(before, after) < 0 or max(before, after) > tensor.shape[dim]:
            raise ValueError(
                f"halo_exchange: a halo of {before} and {after} cells on axis {axis} does not fit "
                f"a tile of {tensor.shape[dim]} cells. Use fewer ranks on this axis."
            )
        if before or after:
            group, wrap = mesh.get_group(axis), boundary == "periodic"
            tensor = _Halo.apply(tensor, dim, group, before, after, wrap)  # type: ignore[no-untyped-call]
    return tensor


def split_dims(mesh: DeviceMesh) -> dict[str, int]:
    """Return which dim of a field each axis of a mesh splits: {"y": -2, "x": -1}."""
    names = mesh.mesh_dim_names or ()
    if not names or not set(names) <= set(DIMS):
        raise ValueError(
            f"the axes of a mesh that splits a field are named x, y or z, not {names}. Make it "
            'with make_mesh(y=2, x=2), or pass a part of a larger mesh: mesh["y", "x"].'
        )
    return {name: DIMS[name] for name in names}


def own_tile(field: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this rank's tile, as a copy, of a field that is the same on all ranks.

    If the ranks do not divide a dim, the first tiles have one cell more.
    """
    for axis, dim in split_dims(mesh).items():
        group = mesh.get_group(axis)
        field = field.tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)]
    return field.clone()


def join_tiles(tile: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the whole field on every rank: the inverse of `own_tile`, without gradient."""
    field = tile.detach()
    for axis, dim in reversed(split_dims(mesh).items()):
        group = mesh.get_group(axis)
        sizes: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(sizes, field.shape[dim], group=group)
        longest = field.movedim(dim, 0).new_zeros(max(sizes), *field.movedim(dim, 0).shape[1:])
        longest[: field.shape[dim]] = field.movedim(dim, 0)
        parts = [torch.empty_like(longest) for _ in sizes]
        dist.all_gather(parts, longest, group=group)
        field = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        field = field.movedim(0, dim).contiguous()
    return field


class _Halo(torch.autograd.Function):
    """The halo on one axis: `before` cells from the previous rank, `after` cells from the next."""

    @staticmethod
    def forward(
        ctx: Any, tile: Tensor, dim: int, group: Group, before: int, after: int, wrap: bool
    ) -> Tensor:
        ctx.args, size = (dim, group, before, after, wrap), tile.shape[dim]
        first, last = tile.narrow(dim, 0, after), tile.narrow(dim, size - before, before)
        from_previous, from_next = _exchange(first, last, group, wrap)  # `first`: to the previous
        return torch.cat([from_previous, tile, from_next], dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        dim, group, before, after, wrap = ctx.args
        size = gradient.shape[dim] - before - after
        d_previous, d_tile, d_next = torch.split(gradient, [before, size, after], dim)
        d_first, d_last = _exchange(d_previous, d_next, group, wrap)
        d_tile = d_tile.clone()
        d_tile.narrow(dim, 0, after).add_(d_first)
        d_tile.narrow(dim, size - before, before).add_(d_last)
        return d_tile, None, None, None, None, None


def _exchange(
    to_previous: Tensor, to_next: Tensor, group: Group, wrap: bool
) -> tuple[Tensor, Tensor]:
    """Send to both neighbours; return what comes from the previous and from the next rank.

    What a rank sends to the next one has the shape of what arrives from the previous one. Without
    a neighbour the result is zeros.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    from_previous, from_next = (to_next.new_zeros(x.shape) for x in (to_next, to_previous))
    if ranks == 1:
        return (to_next, to_previous) if wrap else (from_previous, from_next)
    has_previous, has_next = wrap or rank > 0, wrap or rank < ranks - 1
    previous_rank, next_rank = (rank - 1) % ranks, (rank + 1) % ranks
    # With two periodic ranks both neighbours are one rank, so the order of the messages matters.
    to_previous, to_next = to_previous.contiguous(), to_next.contiguous()
    messages = [
        (dist.isend, to_next, next_rank, has_next),
        (dist.isend, to_previous, previous_rank, has_previous),
        (dist.irecv, from_previous, previous_rank, has_previous),
        (dist.irecv, from_next, next_rank, has_next),
    ]
    operations = [
        dist.P2POp(function, tensor, None, group, group_peer=peer)
        for function, tensor, peer, exists in messages
        if exists and tensor.numel()
    ]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return from_previous, from_next
