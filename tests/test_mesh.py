"""Axes of ranks: the drawing, the arithmetic, and PyTorch's mesh."""

from __future__ import annotations

import itertools

import pytest
import torch.distributed as dist

import dtlab
from dtlab.parallel import mesh
from dtlab.parallel.mesh import coordinates_of, group_of, is_within_node, make_mesh, rank_at

SIZES = {"data": 2, "tensor": 4}


def test_the_drawing_is_literal() -> None:
    assert mesh.__doc__
    rows = [line.split() for line in mesh.__doc__.splitlines() if line.startswith("    data")]
    for at, (_, label, *ranks, _, node) in enumerate(rows):
        assert int(label) == at == int(node)
        assert [int(rank) for rank in ranks] == [
            rank_at({"data": at, "tensor": place}, SIZES) for place in range(4)
        ]
    assert len(rows) == 2
    assert is_within_node("tensor", SIZES, ranks_per_node=4)
    assert not is_within_node("data", SIZES, ranks_per_node=4)
    assert is_within_node("data", SIZES, ranks_per_node=8)
    assert not is_within_node("tensor", {"tensor": 4, "data": 2}, ranks_per_node=4)


@pytest.mark.parametrize("sizes", [{"a": 1}, {"a": 3, "b": 2}, {"a": 2, "b": 1, "c": 3, "d": 2}])
def test_places_and_ranks_are_each_others_reverse(sizes: dict[str, int]) -> None:
    places = itertools.product(*map(range, sizes.values()))
    for rank, place in enumerate(places):
        coordinates = dict(zip(sizes, place, strict=True))
        assert coordinates_of(rank, sizes) == coordinates
        assert rank_at(coordinates, sizes) == rank
        for axis in sizes:
            group = group_of(rank, axis, sizes)
            assert rank in group
            assert len(group) == sizes[axis]


def groups() -> dict[str, tuple[list[int], int]]:
    made = make_mesh(data=2, tensor=2)
    return {
        axis: (dist.get_process_group_ranks(made.get_group(axis)), made.get_local_rank(axis))
        for axis in ("data", "tensor")
    }


def test_pytorchs_mesh_has_the_same_groups() -> None:
    sizes = {"data": 2, "tensor": 2}
    for rank, found in enumerate(dtlab.launch(groups, world_size=4).values):
        for axis, (members, place) in found.items():
            assert members == group_of(rank, axis, sizes)
            assert place == coordinates_of(rank, sizes)[axis]


def wrong_size() -> str:
    with pytest.raises(ValueError, match="whose product is the world size") as caught:
        make_mesh(data=2, tensor=2)
    return str(caught.value)


def test_a_wrong_mesh_is_refused() -> None:
    said = dtlab.launch(wrong_size, world_size=1).values[0]
    assert "a mesh of data=2 x tensor=2 has 4 ranks, but the world size is 1" in said
    for call in (
        lambda: coordinates_of(8, SIZES),
        lambda: rank_at({"data": 2, "tensor": 0}, SIZES),
        lambda: rank_at({"data": 1}, SIZES),
        lambda: coordinates_of(0, {}),
        lambda: coordinates_of(0, {"data": 0}),
    ):
        with pytest.raises(ValueError, match="mesh"):
            call()
