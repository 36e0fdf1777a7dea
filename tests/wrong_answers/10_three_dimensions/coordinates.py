"""Answers to 10/coordinates: ranks, groups and nodes of a mesh with named axes."""

from itertools import product
from math import prod

import numpy as np

from dtlab.parallel.mesh import coordinates_of, group_of, is_within_node, rank_at

AXES = ["data", "pipeline", "tensor"]

# Right ----------------------------------------------------------------------------------------


def sizes_of(given, order=AXES):
    return {axis: given[axis] for axis in order}


def nodes_of(given, axis, order):
    """The number of nodes that the group of rank 0 touches."""
    return len({rank // given["node"] for rank in group_of(0, axis, sizes_of(given, order))})


def by_the_library(given):
    sizes = sizes_of(given)
    return {
        "coordinates": list(coordinates_of(given["rank"], sizes).values()),
        "rank_there": rank_at(dict(zip(AXES, given["place"], strict=True)), sizes),
        "group": group_of(given["rank"], "pipeline", sizes),
        "groups": [given["world"] // size for size in sizes.values()],
        "inside": {axis for axis in AXES if is_within_node(axis, sizes, given["node"])},
        "turned": [nodes_of(given, axis, AXES[::-1]) for axis in AXES],
    }


def by_strides(given):
    """Remainders and distances, as on paper; texts and tuples for lists and sets."""
    data, pipeline, tensor = (given[axis] for axis in AXES)
    rank, node = given["rank"], given["node"]
    strides = [pipeline * tensor, tensor, 1]
    at = [rank // strides[0], rank // tensor % pipeline, rank % tensor]
    first = rank - at[1] * tensor
    spans = [size * stride for size, stride in zip((data, pipeline, tensor), strides, strict=True)]
    turned = [(data, 1), (pipeline, data), (tensor, data * pipeline)]
    return {
        "coordinates": tuple(at),
        "rank_there": sum(map(prod, zip(given["place"], strides, strict=True))),
        "group": [first + stage * tensor for stage in range(pipeline)],
        "groups": [pipeline * tensor, data * tensor, data * pipeline],
        "inside": [axis for axis, span in zip(AXES, spans, strict=True) if node % span == 0],
        "turned": [
            len({place * stride // node for place in range(size)}) for size, stride in turned
        ],
    }


def by_a_table(given):
    """Every rank written down with its coordinates."""
    shape = [given[axis] for axis in AXES]
    places = list(product(*map(range, shape)))
    data, _, tensor = places[given["rank"]]
    nodes = np.arange(given["world"]).reshape(shape) // given["node"]
    rows = zip(AXES, (nodes[:, 0, 0], nodes[0, :, 0], nodes[0, 0, :]), strict=True)
    turned = np.arange(given["world"]).reshape(shape[::-1]) // given["node"]
    return {
        "coordinates": np.array(places[given["rank"]]),
        "rank_there": places.index(tuple(given["place"])),
        "group": [rank for rank, at in enumerate(places) if (at[0], at[2]) == (data, tensor)],
        "groups": np.array([nodes.size // size for size in shape]),
        "inside": ", ".join(axis for axis, row in rows if len(set(row)) == 1),
        "turned": [len(set(row)) for row in (turned[0, 0, :], turned[0, :, 0], turned[:, 0, 0])],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_the_library(given) | answers


def first_axis_fastest(given):
    rank, data, pipeline = given["rank"], given["data"], given["pipeline"]
    return instead(
        given, coordinates=[rank % data, rank // data % pipeline, rank // data // pipeline]
    )


def coordinates_from_1(given):
    return instead(given, coordinates=[at + 1 for at in by_the_library(given)["coordinates"]])


def coordinates_reversed(given):
    return instead(given, coordinates=by_the_library(given)["coordinates"][::-1])


def no_remainder(given):
    rank, tensor = given["rank"], given["tensor"]
    wrong = [rank // (given["pipeline"] * tensor), rank // tensor, rank % tensor]
    return instead(given, coordinates=wrong)


def one_coordinate(given):
    return instead(given, coordinates=given["rank"])


def node_and_slot(given):
    return instead(given, coordinates=[0, *divmod(given["rank"], given["node"])])


def rank_with_first_axis_fastest(given):
    d, p, t = given["place"]
    return instead(given, rank_there=d + given["data"] * (p + given["pipeline"] * t))


def own_sizes_for_strides(given):
    d, p, t = given["place"]
    wrong = d * given["data"] + p * given["pipeline"] + t * given["tensor"]
    return instead(given, rank_there=wrong)


def ranks_from_1(given):
    return instead(given, rank_there=by_the_library(given)["rank_there"] + 1)


def product_of_coordinates(given):
    return instead(given, rank_there=-prod(given["place"]))


def ranks_in_a_row(given):
    size = given["pipeline"]
    first = given["rank"] // size * size
    return instead(given, group=list(range(first, first + size)))


def group_on(axis):
    def answer(given):
        return instead(given, group=group_of(given["rank"], axis, sizes_of(given)))

    return answer


data_group, tensor_group = group_on("data"), group_on("tensor")


def group_from_the_rank_on(given):
    step = given["tensor"]
    return instead(given, group=[given["rank"] + at * step for at in range(given["pipeline"])])


def whole_stage(given):
    sizes = sizes_of(given)
    own = coordinates_of(given["rank"], sizes)["pipeline"]
    ranks = range(given["world"])
    stage = [rank for rank in ranks if coordinates_of(rank, sizes)["pipeline"] == own]
    return instead(given, group=stage)


def descending_group(given):
    return instead(given, group=by_the_library(given)["group"][::-1])


def group_is_a_number(given):
    return instead(given, group=given["pipeline"])


def sizes_for_groups(given):
    return instead(given, groups=[given[axis] for axis in AXES])


def one_group_per_axis(given):
    return instead(given, groups=[1, 1, 1])


def strides_for_groups(given):
    return instead(given, groups=[given["pipeline"] * given["tensor"], given["tensor"], 1])


def pairs_for_groups(given):
    return instead(given, groups=[given["world"] * (given[axis] - 1) for axis in AXES])


def all_that_are_small(given):
    return instead(given, inside={axis for axis in AXES if given[axis] <= given["node"]})


def inside_but_for(axis):
    def answer(given):
        return instead(given, inside=by_the_library(given)["inside"] ^ {axis})

    return answer


wrong_about_pipeline, wrong_about_tensor = map(inside_but_for, AXES[1:])


def data_and_tensor(given):
    return instead(given, inside={"data", "tensor"})


def an_axis_that_is_none(given):
    return instead(given, inside={"context"})


def not_turned(given):
    return instead(given, turned=[nodes_of(given, axis, AXES) for axis in AXES])


def list_turned(given):
    return instead(given, turned=[nodes_of(given, axis, AXES) for axis in AXES[::-1]])


def tensor_first(given):
    return instead(given, turned=by_the_library(given)["turned"][::-1])


def a_node_for_each_rank(given):
    return instead(given, turned=[given[axis] for axis in AXES])


def fewest_nodes(given):
    return instead(given, turned=[-(-given[axis] // given["node"]) for axis in AXES])


def all_nodes(given):
    return instead(given, turned=[given["world"] // given["node"]] * 3)


RIGHT = [by_the_library, by_strides, by_a_table]

WRONG = {
    first_axis_fastest: {"coordinates": "here the first axis runs fastest"},
    coordinates_from_1: {"coordinates": "coordinates count from 0"},
    coordinates_reversed: {"coordinates": "Write the outermost axis first"},
    no_remainder: {"coordinates": "Which remainder is missing"},
    one_coordinate: {"coordinates": "write a list of 3 numbers"},
    node_and_slot: {"coordinates": "is not it. Divide the rank"},
    rank_with_first_axis_fastest: {"rank_there": "here the first axis runs fastest"},
    own_sizes_for_strides: {"rank_there": "the size of the same axis"},
    ranks_from_1: {"rank_there": "ranks count from 0"},
    product_of_coordinates: {"rank_there": "is not it. How many ranks"},
    ranks_in_a_row: {"group": "a group of the last axis only"},
    data_group: {"group": "differ in their data coordinate"},
    tensor_group: {"group": "differ in their tensor coordinate"},
    group_from_the_rank_on: {"group": "the distance is right"},
    whole_stage: {"group": "these ranks are one pipeline stage"},
    descending_group: {"group": "is not it. Keep two coordinates"},
    group_is_a_number: {"group": "write a list of"},
    sizes_for_groups: {"groups": "the number of ranks in one group"},
    one_group_per_axis: {"groups": "mix up the other two axes"},
    strides_for_groups: {"groups": "one step along each axis skips"},
    pairs_for_groups: {"groups": "is not it. Each rank is in one group"},
    all_that_are_small: {"inside": "But how far apart are those ranks"},
    data_and_tensor: {"inside": "look at the data axis again"},
    wrong_about_pipeline: {"inside": "look at the pipeline axis again"},
    wrong_about_tensor: {"inside": "look at the tensor axis again"},
    an_axis_that_is_none: {"inside": "is none of the options"},
    not_turned: {"turned": "this is the order as given"},
    list_turned: {"turned": "this reverses the list"},
    tensor_first: {"turned": "Write data first"},
    a_node_for_each_rank: {"turned": "in a different node"},
    fewest_nodes: {"turned": "the fewest nodes that could hold"},
    all_nodes: {"turned": "is not it. Now the ranks of a data group"},
}
