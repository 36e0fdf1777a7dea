"""Answers to 10/mesh_groups: mistakes people make, and right answers written differently."""

import itertools
import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def rows_of(sizes, axis):
    """The members of every group on one axis."""
    ranks = torch.arange(math.prod(sizes.values())).view(list(sizes.values()))
    number = list(sizes).index(axis)
    return ranks.movedim(number, -1).reshape(-1, sizes[axis]).tolist()


def made_groups(sizes, rows=rows_of, axes=None):
    """Makes every group once; a mistake hands over other rows, or makes some axes only."""
    groups = {}
    for axis in sizes if axes is None else axes:
        for members in rows(sizes, axis):
            group = dist.new_group(members)
            if dist.get_rank() in members:
                groups[axis] = group
    return groups


def right(sizes):
    return made_groups(sizes)


# Wrong ------------------------------------------------------------------------------------------


def untouched(sizes):
    raise NotImplementedError()


def by_pytorch(sizes):
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    return {axis: mesh.get_group(axis) for axis in sizes}


def own_groups_only(sizes):
    """A rank makes the groups that it is a member of."""
    groups = {}
    for axis in sizes:
        for members in rows_of(sizes, axis):
            if dist.get_rank() in members:
                groups[axis] = dist.new_group(members)
    return groups


def own_groups_first(sizes):
    """Every rank makes all groups, each in another order."""
    groups, rank = {}, dist.get_rank()
    for axis in sizes:
        rows = sorted(rows_of(sizes, axis), key=lambda members: rank not in members)
        for members in rows:
            group = dist.new_group(members)
            groups.setdefault(axis, group)
    return groups


def forgets_to_return(sizes):
    made_groups(sizes)


def a_list(sizes):
    return list(made_groups(sizes).values())


def members_only(sizes):
    """The ranks, and no process group."""
    rank = dist.get_rank()
    return {axis: next(row for row in rows_of(sizes, axis) if rank in row) for axis in sizes}


def first_axis_fastest(sizes):
    turned = dict(reversed(sizes.items()))
    return made_groups(sizes, lambda _, axis: rows_of(turned, axis))


def rows_for_columns(sizes):
    """Neighbours on every axis: right on the last one."""

    def rows(sizes, axis):
        return torch.arange(math.prod(sizes.values())).view(-1, sizes[axis]).tolist()

    return made_groups(sizes, rows)


def ranks_with_the_same_coordinate(sizes):
    """All ranks at one place of the axis."""

    def rows(sizes, axis):
        return [list(row) for row in zip(*rows_of(sizes, axis), strict=True)]

    return made_groups(sizes, rows)


def strides_of_the_next_axis_only(sizes):
    """Right on two axes: the stride of the first of three is the product of both others."""

    def rows(sizes, axis):
        names = [*sizes, None]
        stride = sizes.get(names[names.index(axis) + 1], 1)
        ranks = range(math.prod(sizes.values()))
        found = {}
        for rank in ranks:
            found.setdefault((rank // (stride * sizes[axis]), rank % stride), []).append(rank)
        return list(found.values())

    return made_groups(sizes, rows)


def last_group_of_each_axis(sizes):
    """Does not look who is in it."""
    return {
        axis: [dist.new_group(members) for members in rows_of(sizes, axis)][-1] for axis in sizes
    }


def one_for_each_rank_keeps_its_own(sizes):
    """A group for each rank and axis; a rank keeps the one made in its own turn."""
    groups = {}
    for rank in range(dist.get_world_size()):
        for axis in sizes:
            group = dist.new_group(next(row for row in rows_of(sizes, axis) if rank in row))
            if rank == dist.get_rank():
                groups[axis] = group
    return groups


def one_for_each_rank_keeps_the_last(sizes):
    groups = {}
    for rank in range(dist.get_world_size()):
        for axis in sizes:
            members = next(row for row in rows_of(sizes, axis) if rank in row)
            group = dist.new_group(members)
            if dist.get_rank() in members:
                groups[axis] = group
    return groups


def every_combination(sizes):
    """A group for all pairs of axes too, of which nothing is kept."""
    for _ in range(math.prod(sizes.values()) + 1):
        dist.new_group()
    return made_groups(sizes)


def none_on_axes_of_one_rank(sizes):
    groups = made_groups(sizes)
    return {axis: group if sizes[axis] > 1 else None for axis, group in groups.items()}


def leaves_axes_of_one_rank_out(sizes):
    return made_groups(sizes, axes=[axis for axis in sizes if sizes[axis] > 1])


def all_ranks_on_axes_of_one_rank(sizes):
    groups = made_groups(sizes)
    return {axis: group if sizes[axis] > 1 else dist.group.WORLD for axis, group in groups.items()}


# Right ------------------------------------------------------------------------------------------


def by_strides(sizes):
    world, stride, groups = dist.get_world_size(), dist.get_world_size(), {}
    for axis, size in sizes.items():
        stride //= size
        for first in range(world):
            if first // stride % size == 0:
                members = list(range(first, first + stride * size, stride))
                group = dist.new_group(members)
                if dist.get_rank() in members:
                    groups[axis] = group
    return groups


def by_coordinates(sizes):
    """Ranks in the order of itertools.product; groups by what they have in common."""
    places = list(itertools.product(*map(range, sizes.values())))
    groups = {}
    for number, axis in enumerate(sizes):
        alike = {}
        for rank, place in enumerate(places):
            alike.setdefault(place[:number] + place[number + 1 :], []).append(rank)
        for members in alike.values():
            group = dist.new_group(ranks=members)
            if dist.get_rank() in members:
                groups[axis] = group
    return groups


def by_enumeration(sizes):
    return {axis: dist.new_subgroups_by_enumeration(rows_of(sizes, axis))[0] for axis in sizes}


def by_members_alone(sizes):
    """PyTorch can make a group with a call of its members only, if it is told so."""
    groups = {}
    for axis in sizes:
        for members in rows_of(sizes, axis):
            if dist.get_rank() in members:
                groups[axis] = dist.new_group(members, use_local_synchronization=True)
    return groups


RIGHT = [right, by_strides, by_coordinates, by_enumeration, by_members_alone]

WRONG = {
    untouched: {"returns": "is not written yet"},
    by_pytorch: {"returns": "does the work for you"},
    own_groups_only: {"returns": "Every rank must call new_group for every group"},
    own_groups_first: {"returns": "in the same order"},
    forgets_to_return: {"members": "returns NoneType"},
    a_list: {"members": "returns list"},
    members_only: {"members": "has list for the axis"},
    first_axis_fastest: {"members": "The last axis runs fastest"},
    rows_for_columns: {"members": "The last axis runs fastest"},
    ranks_with_the_same_coordinate: {"members": "The last axis runs fastest"},
    strides_of_the_next_axis_only: {"members": "8 ranks"},
    last_group_of_each_axis: {"members": "that it is not a member of"},
    one_for_each_rank_keeps_its_own: {"same": "hold two different process groups"},
    one_for_each_rank_keeps_the_last: {"once": "calls new_group 8 times, but this mesh has 4"},
    every_combination: {"once": "Create each group once"},
    none_on_axes_of_one_rank: {"edges": "has NoneType for the axis"},
    leaves_axes_of_one_rank_out: {"edges": "returns groups of the axes"},
    all_ranks_on_axes_of_one_rank: {"edges": "have its coordinates on all other"},
}

ALSO = "the same numbers under the same name"
ORDER = "the order of groups, and of members in a call, is the same on all ranks"
EQUIVALENT = {
    "stride //= size -> stride = stride // size": ALSO,
    "for first in range(world): -> for first in reversed(range(world)):": ORDER,
    "members = [first + stride * place for place in range(size)] -> members = [first + "
    "stride * place for place in reversed(range(size))]": ORDER,
}
