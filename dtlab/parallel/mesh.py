"""Device meshes: PyTorch's `DeviceMesh` with named axes, and the arithmetic of rank positions.

    make_mesh(data=2, tensor=4)        with four ranks per node

               tensor 0  1  2  3
    data 0            0  1  2  3       node 0
    data 1            4  5  6  7       node 1

The last axis varies fastest: its groups are consecutive ranks, which share a node. So put the
axis that communicates most last. Tensor parallelism, whose all-reduces block computation, stays
inside a node; data parallelism, with one all-reduce per step that overlaps backward, spans nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["coordinates_of", "group_of", "is_within_node", "make_mesh", "rank_at"]

Sizes = Mapping[str, int]


def make_mesh(**sizes: int) -> DeviceMesh:
    """Return a mesh of all ranks with these axes, outermost first: `make_mesh(data=2, tensor=4)`.

    `mesh.get_group("tensor")` is this rank's process group on the tensor axis; pass the group to
    layers. `mesh.get_local_rank("tensor")` is the rank's index in that group. All ranks must call
    this. Raises: ValueError for a size below 1, or if the product of the sizes is not the world
    size.
    """
    import torch.distributed as dist  # late: the arithmetic below needs no torch
    from torch.distributed.device_mesh import init_device_mesh

    from dtlab.training.metrics import device_of

    _check(sizes)
    ranks, world = math.prod(sizes.values()), dist.get_world_size()
    if ranks != world:
        axes = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(
            f"a mesh of {axes} has {ranks} ranks, but the world size is {world}. Choose sizes "
            "whose product is the world size."
        )
    return init_device_mesh(device_of().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def coordinates_of(rank: int, sizes: Sizes) -> dict[str, int]:
    """Return a rank's coordinates: {"data": 1, "tensor": 2} for rank 6 of the mesh above.

    Raises: ValueError for a rank that is not in the mesh, or a size below 1.
    """
    _check(sizes)
    if not 0 <= rank < math.prod(sizes.values()):
        raise ValueError(f"rank {rank} is not in a mesh of {math.prod(sizes.values())} ranks.")
    coordinates: dict[str, int] = {}
    for name, size in reversed(list(sizes.items())):
        rank, coordinates[name] = divmod(rank, size)
    return {name: coordinates[name] for name in sizes}


def rank_at(coordinates: Sizes, sizes: Sizes) -> int:
    """Return the rank at these coordinates; the inverse of `coordinates_of`.

    Raises: ValueError for coordinates outside the mesh or with other axes, or a size below 1.
    """
    _check(sizes)
    inside = all(0 <= at < sizes.get(name, 0) for name, at in coordinates.items())
    if coordinates.keys() != sizes.keys() or not inside:
        raise ValueError(f"{dict(coordinates)} are not coordinates of a mesh of {dict(sizes)}.")
    rank = 0
    for name, size in sizes.items():
        rank = rank * size + coordinates[name]
    return rank


def group_of(rank: int, axis: str, sizes: Sizes) -> list[int]:
    """Return the ranks that differ from this rank on one axis only, including the rank itself."""
    coordinates = coordinates_of(rank, sizes)
    return [rank_at({**coordinates, axis: at}, sizes) for at in range(sizes[axis])]


def is_within_node(axis: str, sizes: Sizes, ranks_per_node: int) -> bool:
    """Return whether every group of an axis lies on one node; a node has consecutive ranks."""
    nodes = (
        {member // ranks_per_node for member in group_of(rank, axis, sizes)}
        for rank in range(math.prod(sizes.values()))
    )
    return all(len(each) == 1 for each in nodes)


def _check(sizes: Sizes) -> None:
    if not sizes or min(sizes.values()) < 1:
        raise ValueError(f"a mesh needs axes of at least one rank each, not {dict(sizes)}.")
