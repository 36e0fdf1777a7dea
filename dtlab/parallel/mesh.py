"""Device meshes: PyTorch's `DeviceMesh` with named axes, and the arithmetic of rank positions.

    make_mesh(data=2, tensor=4)        four ranks a node

               tensor 0  1  2  3
    data 0            0  1  2  3       node 0
    data 1            4  5  6  7       node 1

The last axis runs fastest: its groups are ranks in a row, which share a node. So the axis that
sends most comes last: tensor parallelism, whose all-reduces compute waits for, inside the node;
data parallelism, with one all-reduce a step and under backward, across nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtlab.training.metrics import device_of

__all__ = ["coordinates_of", "group_of", "is_within_node", "make_mesh", "rank_at"]

Sizes = Mapping[str, int]


def make_mesh(**sizes: int) -> DeviceMesh:
    """A mesh of all ranks with these axes, outermost first: `make_mesh(data=2, tensor=4)`.

    `mesh.get_group("tensor")` is the group of this rank on that axis, for layers to take, and
    `mesh.get_local_rank("tensor")` its place there. All ranks call it.
    Raises: ValueError where the sizes do not make up the world.
    """
    _check(sizes)
    ranks, world = math.prod(sizes.values()), dist.get_world_size()
    if ranks != world:
        axes = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(
            f"a mesh of {axes} has {ranks} ranks; there are {world}. Make them equal."
        )
    return init_device_mesh(device_of().type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def coordinates_of(rank: int, sizes: Sizes) -> dict[str, int]:
    """Where a rank stands: {"data": 1, "tensor": 2} for rank 6 of the mesh above.

    Raises: ValueError for a rank that is not in the mesh.
    """
    _check(sizes)
    if not 0 <= rank < math.prod(sizes.values()):
        raise ValueError(f"rank {rank} is not in a mesh of {math.prod(sizes.values())} ranks.")
    found: dict[str, int] = {}
    for name, size in reversed(list(sizes.items())):
        rank, found[name] = divmod(rank, size)
    return {name: found[name] for name in sizes}


def rank_at(coordinates: Sizes, sizes: Sizes) -> int:
    """The rank that stands there; the reverse of `coordinates_of`.

    Raises: ValueError for coordinates outside of the mesh, or of other axes.
    """
    _check(sizes)
    inside = all(0 <= at < sizes.get(name, 0) for name, at in coordinates.items())
    if coordinates.keys() != sizes.keys() or not inside:
        raise ValueError(f"{dict(coordinates)} is no place in a mesh of {dict(sizes)}.")
    rank = 0
    for name, size in sizes.items():
        rank = rank * size + coordinates[name]
    return rank


def group_of(rank: int, axis: str, sizes: Sizes) -> list[int]:
    """The ranks that differ from this one on one axis only, itself among them."""
    own = coordinates_of(rank, sizes)
    return [rank_at({**own, axis: at}, sizes) for at in range(sizes[axis])]


def is_within_node(axis: str, sizes: Sizes, ranks_per_node: int) -> bool:
    """Whether every group of an axis lies on one node, of ranks 0 to n-1, n to 2n-1, and so on."""
    nodes = (
        {member // ranks_per_node for member in group_of(rank, axis, sizes)}
        for rank in range(math.prod(sizes.values()))
    )
    return all(len(each) == 1 for each in nodes)


def _check(sizes: Sizes) -> None:
    if not sizes or min(sizes.values()) < 1:
        raise ValueError(f"a mesh has axes of at least one rank each, not {dict(sizes)}.")
