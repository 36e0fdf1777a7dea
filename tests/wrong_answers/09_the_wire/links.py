"""Answers to 09/links: seconds of an all-reduce over NVLink, over adapters, and of a small one."""

from dtlab.predict import Cluster, Link, hierarchical_all_reduce_seconds, ring_all_reduce_seconds

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    size = 2 * given["billions"]  # GB
    nvlink, adapter = given["printed"] / 2, given["gigabits"] / 8
    node, n, gpus = given["adapters"] * adapter, given["nodes"], 8 * given["nodes"]
    inside = 2 * 7 / 8 * size / nvlink
    return {
        "inside": inside,
        "node": node,
        "one_ring": 2 * (gpus - 1) / gpus * size / adapter,
        "two_levels": inside + 2 * (n - 1) / n * size / node,
        "small": 2 * (gpus - 1) * (given["latency"] + given["kilobytes"] / gpus / adapter),
        "helps": "rounds",
    }


def by_the_library(given):
    """Each GPU has its share of the node's adapters."""
    size, n, adapter = 2e9 * given["billions"], given["nodes"], given["gigabits"] / 8 * 1e9
    nvlink, node = Link(0, given["printed"] / 2 * 1e9), given["adapters"] * adapter
    cluster = Cluster(n, 8, nvlink, Link(0, node / 8))
    late = Link(given["latency"] * 1e-6, adapter)
    return {
        "inside": f"{ring_all_reduce_seconds(size, 8, nvlink)} s",
        "node": f"{node / 1e9} GB/s",
        "one_ring": ring_all_reduce_seconds(size, 8 * n, Link(0, adapter)),
        "two_levels": hierarchical_all_reduce_seconds(size, cluster),
        "small": ring_all_reduce_seconds(given["kilobytes"] * 1e3, 8 * n, late) * 1e6,
        "helps": "rounds",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def times(factor):
    return lambda given, right: factor * right


def adapter(given):
    return given["gigabits"] / 8


def gpus(given):
    return 8 * given["nodes"]


both_directions = instead("inside", times(1 / 2))
bytes_over_bandwidth = instead("inside", times(4 / 7))
as_the_text_says = instead("inside", times(2 / 7))
all_chunks = instead("inside", times(8 / 7))
three_times = instead("inside", times(3))
bits = instead("node", times(8))
one_adapter = instead("node", lambda given, right: adapter(given))
one_for_each_gpu = instead("node", lambda given, right: 8 * adapter(given))
both_ways = instead("node", times(2.2))
all_adapters = instead("one_ring", lambda given, right: right / given["adapters"])
adapter_in_bits = instead("one_ring", times(1 / 8))
on_nvlink = instead(
    "one_ring", lambda given, right: right * adapter(given) / (given["printed"] / 2)
)
without_the_ring = instead("one_ring", lambda given, right: 2 * given["billions"] / adapter(given))
ring_of_nodes = instead(
    "one_ring",
    lambda given, right: (
        4 * (given["nodes"] - 1) / given["nodes"] * given["billions"] / adapter(given)
    ),
)
a_third = instead("one_ring", times(1 / 3))
across_alone = instead("two_levels", lambda given, right: right - by_hand(given)["inside"])


def across(factor):
    """The ring inside, and `factor` times the time across."""

    def wrong(given, right):
        inside = by_hand(given)["inside"]
        return inside + factor(given) * (right - inside)

    return wrong


through_one_adapter = instead("two_levels", across(lambda given: given["adapters"]))
an_eighth_of_an_eighth = instead("two_levels", across(lambda given: 1 / 8))
inside_twice = instead("two_levels", across(lambda given: 1.5))
once_round = instead("small", times(1 / 2))
no_latency = instead(
    "small", lambda given, right: right - 2 * (gpus(given) - 1) * given["latency"]
)
one_latency = instead(
    "small", lambda given, right: right - (2 * (gpus(given) - 1) - 1) * given["latency"]
)
latency_alone = instead("small", lambda given, right: 2 * (gpus(given) - 1) * given["latency"])
latency_of_a_tree = instead("small", lambda given, right: 12 * given["latency"])
more_bandwidth = instead("helps", lambda given, right: "bandwidth")
fewer_bits = instead("helps", lambda given, right: "bits")

RIGHT = [by_hand, by_the_library]

WRONG = {
    both_directions: {"inside": "Is the printed bandwidth that of one direction?"},
    bytes_over_bandwidth: {"inside": "Which multiple of the bytes"},
    as_the_text_says: {"inside": "the printed bandwidth, which counts both directions"},
    all_chunks: {"inside": "7 of its 8 chunks"},
    three_times: {"inside": "is not it. How many bytes does each GPU send"},
    bits: {"node": "1 byte has 8 bits"},
    one_adapter: {"node": "this is one adapter"},
    one_for_each_gpu: {"node": "an adapter for each GPU"},
    both_ways: {"node": "is not it. Add up the adapters"},
    all_adapters: {"one_ring": "through all adapters"},
    adapter_in_bits: {"one_ring": "1 byte has 8 bits"},
    on_nvlink: {"one_ring": "also crosses the network"},
    without_the_ring: {"one_ring": "which multiple of the bytes"},
    ring_of_nodes: {"one_ring": "How many members has a ring over all GPUs?"},
    a_third: {"one_ring": "is not it. A ring runs at the speed"},
    across_alone: {"two_levels": "the rings inside the nodes take time too"},
    through_one_adapter: {"two_levels": "this is through one adapter"},
    an_eighth_of_an_eighth: {"two_levels": "divides by 8 twice"},
    inside_twice: {"two_levels": "is not it. Add up both levels"},
    once_round: {"small": "the ring goes round twice"},
    no_latency: {"small": "without the latency"},
    one_latency: {"small": "each message has the latency"},
    latency_alone: {"small": "the latency and the time of its bytes, both in µs"},
    latency_of_a_tree: {"small": "is not it. How many messages"},
    more_bandwidth: {"helps": "next to no time"},
    fewer_bits: {"helps": "fewer bytes help if"},
}
