"""10/coordinates: find the coordinates of ranks in a mesh, its groups, and the groups' nodes.

    data=2, tensor=4, four GPUs per node

               tensor 0  1  2  3
    data 0            0  1  2  3       node 0
    data 1            4  5  6  7       node 1

The last axis runs fastest, as in PyTorch's `init_device_mesh`.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any, Final

import numpy as np

from dtlab.checks.parts import Part
from dtlab.checks.questions.answers import Values
from dtlab.checks.questions.declared import asked, choices, formula, number
from dtlab.parallel.mesh import coordinates_of, group_of

_AXES: Final = ("data", "pipeline", "tensor")


def _draw(draw: Random) -> Values:
    inside = draw.choice((1, 1, 2))  # axes whose groups lie inside a node
    while True:
        sizes = [draw.choice((2, 3, 4, 6, 8)) for _ in _AXES]
        given: dict[str, Any] = {**dict(zip(_AXES, sizes, strict=True)), "world": prod(sizes)}
        given["node"] = draw.choice((4, 8))
        whole_nodes = given["world"] % given["node"] == 0
        if not (24 <= given["world"] <= 192 and whole_nodes and len(set(sizes)) == 3):
            continue
        given["rank"] = draw.randrange(given["world"] // 2, given["world"])
        given["place"] = [draw.randrange(1, size) for size in sizes]
        counts = [set(each) for turned in (0, 1) for each in _nodes(given, turned)]
        even = all(len(each) == 1 for each in counts)
        own = list(coordinates_of(given["rank"], _sizes(given)).values())
        # at the learner's own coordinates, the second question would repeat the first
        elsewhere = given["place"] != own
        if even and counts[:3].count({1}) == inside and 0 not in own and elsewhere:
            return given


def _sizes(given: Values) -> dict[str, int]:
    return {axis: given[axis] for axis in _AXES}


def _group(given: Values, axis: str) -> list[int]:
    return group_of(given["rank"], axis, _sizes(given))


def _nodes(given: Values, turned: int) -> list[list[int]]:
    """Returns, for each axis, the number of nodes that each of its groups touches.

    `turned` is 1 for the mesh whose outermost axis is the tensor axis.
    """
    order = _AXES[::-1] if turned else _AXES
    nodes = np.arange(given["world"]).reshape([given[axis] for axis in order]) // given["node"]
    counts = []
    for axis in _AXES:
        groups = np.moveaxis(nodes, order.index(axis), -1).reshape(-1, given[axis])
        counts.append([len(set(group)) for group in groups.tolist()])
    return counts


_QUESTIONS = asked(
    _draw,
    [
        ("your mesh", "data={data}, pipeline={pipeline}, tensor={tensor}, outermost first"),
        ("ranks", "{world}, counted from 0"),
        ("GPUs in a node", "{node}; the ranks fill one node after the other"),
        ("your rank", "{rank}"),
        ("your place", "[data, pipeline, tensor] = {place}"),
    ],
    number(
        "coordinates",
        "the coordinates of your rank as a list, [data, pipeline, tensor]",
        "[rank // (pipeline * tensor), rank // tensor % pipeline, rank % tensor]",
        "Divide the rank by the size of the fastest axis: the remainder is one coordinate.",
        {
            "[rank % data, rank // data % pipeline, rank // (data * pipeline)]": "here the first "
            "axis runs fastest. On which axis are ranks 0 and 1 neighbours?",
            "[at + 1 for at in answer]": "coordinates count from 0, as ranks do.",
            "answer[::-1]": "the numbers are right. Write the outermost axis first.",
            "[rank // (pipeline * tensor), rank // tensor, rank % tensor]": "the pipeline "
            "coordinate is larger than its axis allows. Which remainder is missing?",
        },
        exact=True,
    ),
    number(
        "rank_there",
        "the rank at your place",
        "(place[0] * pipeline + place[1]) * tensor + place[2]",
        "How many ranks does one step along each axis skip?",
        {
            "place[0] + data * (place[1] + pipeline * place[2])": "here the first axis runs "
            "fastest. On which axis are ranks 0 and 1 neighbours?",
            "place[0] * data + place[1] * pipeline + place[2] * tensor": "this multiplies each "
            "coordinate by the size of the same axis. How many ranks does one step along the data "
            "axis skip?",
            "answer + 1": "ranks count from 0.",
        },
        exact=True,
    ),
    number(
        "group",
        "the ranks of your rank's group on the pipeline axis, as a list in ascending order",
        "group(given, 'pipeline')",
        "Keep two coordinates of your rank, and let the third take every value.",
        {
            "[rank // pipeline * pipeline + at for at in range(pipeline)]": "consecutive ranks "
            "are a group of the last axis only.",
            "group(given, 'data')": "these ranks differ in their data coordinate.",
            "group(given, 'tensor')": "these ranks differ in their tensor coordinate.",
            "[rank + at * tensor for at in range(pipeline)]": "the distance is right. Which "
            "pipeline coordinate does the first rank of a group have?",
            "[each for each in range(world) if each // tensor % pipeline == "
            "rank // tensor % pipeline]": "these ranks are one pipeline stage: they have the same "
            "pipeline coordinate. In a group on that axis it differs.",
        },
        exact=True,
    ),
    number(
        "groups",
        "how many groups of ranks each axis has in the whole mesh, [data, pipeline, tensor]",
        "[world // size for size in sizes]",
        "Each rank is in one group of each axis. How many ranks does such a group have?",
        {
            "sizes": "this is the number of ranks in one group.",
            "[1, 1, 1]": "one group with all ranks would mix up the other two axes.",
            "[sizes[1] * sizes[2], sizes[2], 1]": "this is how many ranks one step along each "
            "axis skips.",
        },
        exact=True,
    ),
    choices(
        "inside",
        "the axes whose groups each lie inside one node",
        _AXES,
        formula("frozenset(axis for axis, count in zip(axes, nodes(given, 0)) if count == 1)"),
        "Write down one group of each axis, and divide its ranks by the GPUs in a node.",
        {
            formula("frozenset(axis for axis in axes if given[axis] <= node)"): "these groups "
            "have no more ranks than a node. But how far apart are those ranks?",
            "data": "look at the data axis again: in which nodes are the ranks of one group?",
            "pipeline": "look at the pipeline axis again: in which nodes is one group?",
            "tensor": "look at the tensor axis again: how many GPUs does a node have?",
        },
    ),
    number(
        "turned",
        "the number of nodes that one group of each axis touches if you reverse the order of axes "
        "(tensor outermost, data innermost), still as [data, pipeline, tensor]",
        "nodes(given, 1)",
        "Now the ranks of a data group are consecutive. How far apart are those of other groups?",
        {
            "nodes(given, 0)": "this is the order as given.",
            "nodes(given, 0)[::-1]": "this reverses the list. Reverse the order of the axes, "
            "and count again: the sizes differ.",
            "answer[::-1]": "the numbers are right. Write data first.",
            "sizes": "here each rank of a group is in a different node. Do some of them share "
            "a node?",
            "[-(-size // node) for size in sizes]": "this is the fewest nodes that could hold "
            "that many ranks. Which ranks are they?",
        },
        exact=True,
        points=2,
    ),
    where={
        "axes": _AXES,
        "group": _group,
        "nodes": lambda given, turned: [counts[0] for counts in _nodes(given, turned)],
        "sizes": "[data, pipeline, tensor]",
    },
)

PART = Part("10/coordinates", 1, "Ranks and coordinates", 7, 2, _QUESTIONS)
