"""Answers to 01/choose: an algorithm for each size, on networks of two levels.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

import math

from dtlab import predict
from dtlab.predict import Cluster, Link

DOUBLING = "recursive_doubling"
HALVING = "halving_doubling"
NETWORK = Cluster(2, 4, Link(2e-6, 300e9), Link(5e-6, 25e9))  # the notebook's

# Right, written differently ---------------------------------------------------------------------


def by_the_closed_forms(nbytes, cluster):
    nodes, inside = cluster.nodes, cluster.gpus_per_node
    doubling = predict.recursive_doubling_all_reduce_seconds
    halving = predict.halving_doubling_all_reduce_seconds
    seconds = {
        DOUBLING: doubling(nbytes, inside, cluster.intra) + doubling(nbytes, nodes, cluster.inter),
        HALVING: halving(nbytes, nodes, cluster.inter)
        + halving(nbytes / nodes, inside, cluster.intra),
        "hierarchical": predict.hierarchical_all_reduce_seconds(nbytes, cluster),
    }
    return min(seconds, key=seconds.get)


def by_hand(nbytes, cluster):
    """Latency and bytes of three candidates, written out."""
    n, g, a, b = cluster.nodes, cluster.gpus_per_node, cluster.intra, cluster.inter
    rounds_inside, rounds_between = math.log2(g), math.log2(n)
    latency = rounds_inside * a.latency + rounds_between * b.latency
    whole = rounds_inside / a.bandwidth + rounds_between / b.bandwidth
    halves = 2 * (n - 1) / n / b.bandwidth + 2 * (g - 1) / g / n / a.bandwidth
    rings = 2 * (g - 1) * a.latency + 2 * (n - 1) * b.latency
    shares = 2 * (g - 1) / g / a.bandwidth + 2 * (n - 1) / n / g / b.bandwidth
    times = [
        (latency + nbytes * whole, DOUBLING),
        (2 * latency + nbytes * halves, HALVING),
        (rings + nbytes * shares, "hierarchical"),
    ]
    return min(times)[1]


def all_six_compared(nbytes, cluster):
    n, g, a, b = cluster.nodes, cluster.gpus_per_node, cluster.intra, cluster.inter
    seconds = {
        "naive": 2 * (g - 1) * a.seconds(nbytes) + 2 * g * (n - 1) * b.seconds(nbytes),
        "ring": predict.flat_ring_all_reduce_seconds(nbytes, cluster),
        "hierarchical": predict.hierarchical_all_reduce_seconds(nbytes, cluster),
        HALVING: predict.halving_doubling_all_reduce_seconds(nbytes, n, b)
        + predict.halving_doubling_all_reduce_seconds(nbytes / n, g, a),
    }
    for name in ("tree", DOUBLING):
        on_one_level = getattr(predict, f"{name}_all_reduce_seconds")
        seconds[name] = on_one_level(nbytes, g, a) + on_one_level(nbytes, n, b)
    return min(seconds, key=seconds.get)


# Wrong ------------------------------------------------------------------------------------------


def always_a_ring(nbytes, cluster):
    return "ring"


def always_a_tree(nbytes, cluster):
    return "tree"


def always_doubling(nbytes, cluster):
    return DOUBLING


def always_halving(nbytes, cluster):
    return HALVING


def always_hierarchical(nbytes, cluster):
    return "hierarchical"


def always_naive(nbytes, cluster):
    return "naive"


def a_tree_for_small_ones(nbytes, cluster):
    """A tree does twice what recursive doubling does."""
    name = by_the_closed_forms(nbytes, cluster)
    return "tree" if name == DOUBLING else name


def a_ring_for_large_ones(nbytes, cluster):
    name = by_the_closed_forms(nbytes, cluster)
    return name if name == DOUBLING else "ring"


def a_threshold_for_this_network(nbytes, cluster):
    return DOUBLING if nbytes < 500e3 else "hierarchical"


def halving_left_out(nbytes, cluster):
    """Two candidates are enough on the notebook's network, and on the wire."""
    name = by_the_closed_forms(nbytes, cluster)
    return "hierarchical" if name == HALVING else name


def halving_for_all_large_ones(nbytes, cluster):
    name = by_the_closed_forms(nbytes, cluster)
    return HALVING if name == "hierarchical" else name


def as_if_all_were_one_level(nbytes, cluster):
    """As if all links were those between nodes."""
    seconds = {
        DOUBLING: predict.recursive_doubling_all_reduce_seconds(
            nbytes, cluster.size, cluster.inter
        ),
        HALVING: predict.halving_doubling_all_reduce_seconds(nbytes, cluster.size, cluster.inter),
    }
    return min(seconds, key=seconds.get)


def the_slowest(nbytes, cluster):
    n, g = cluster.nodes, cluster.gpus_per_node
    return "naive" if n * g > 2 else "ring"


def a_table_for_the_step(nbytes, cluster):
    """Right for the sizes of the notebook, and for no others."""
    small = {1e3: DOUBLING, 64e3: DOUBLING, 1e6: "hierarchical", 16e6: "hierarchical"}
    return small.get(nbytes, "hierarchical")


def the_other_way_round(nbytes, cluster):
    return "hierarchical" if by_the_closed_forms(nbytes, cluster) == DOUBLING else DOUBLING


def few_ranks_need_no_algorithm(nbytes, cluster):
    """Right everywhere but on the four ranks of the wire."""
    return "naive" if cluster.nodes == cluster.gpus_per_node == 2 else by_hand(nbytes, cluster)


def slow_links_taken_for_fast(nbytes, cluster):
    """Takes whatever is slower than 2 GB/s for a mistake in the numbers."""
    if cluster.inter.bandwidth < 2e9:
        return DOUBLING
    return by_hand(nbytes, cluster)


def latency_left_out_on_two_nodes_of_four(nbytes, cluster):
    """Right elsewhere, with a rule of its own for the notebook's network."""
    return "hierarchical" if cluster == NETWORK else by_hand(nbytes, cluster)


def megabytes_taken_for_bytes(nbytes, cluster):
    return by_hand(nbytes * 1e6, cluster)


def function_for_a_name(nbytes, cluster):
    return by_hand


def a_name_with_its_ending(nbytes, cluster):
    return by_hand(nbytes, cluster) + "_all_reduce"


def seconds_for_a_name(nbytes, cluster):
    return predict.hierarchical_all_reduce_seconds(nbytes, cluster)


def nothing_for_large_ones(nbytes, cluster):
    if nbytes < 1e6:
        return DOUBLING
    return None


def divides_by_the_number_of_other_nodes(nbytes, cluster):
    return DOUBLING if nbytes / (cluster.nodes - 1) < 1e6 else "hierarchical"


def not_written(nbytes, cluster):
    raise NotImplementedError()


RIGHT = [by_the_closed_forms, by_hand, all_six_compared]

ON_THE_WIRE = "on the emulated wire; the best takes"
ON_TWO_NODES = "kB on two nodes of two ranks (300 GB/s and 2 µs inside a node, 12.5"
ELSEWHERE = "times as long as the best, on average"
UNKNOWN = "Return one of: naive, ring, tree"
WRONG = {
    always_a_ring: {"budget": "155.7 ms", "elsewhere": ELSEWHERE, "wire": "ring took"},
    always_a_tree: {"budget": "93.0 ms", "elsewhere": ELSEWHERE, "wire": ON_TWO_NODES},
    always_doubling: {"budget": "46.5 ms", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE},
    always_halving: {"budget": "57.2 ms", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE},
    always_hierarchical: {"budget": "1 kB: 1000 x", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE},
    always_naive: {"budget": "318.0 ms", "elsewhere": ELSEWHERE, "wire": ""},
    a_tree_for_small_ones: {
        "budget": "1000 x tree take 18.1 ms", "elsewhere": ELSEWHERE, "wire": "tree took"
    },
    a_ring_for_large_ones: {"budget": "x ring", "elsewhere": ELSEWHERE, "wire": "ring took"},
    a_threshold_for_this_network: {"elsewhere": "on eight nodes of eight ranks (450 GB"},
    halving_left_out: {"elsewhere": "where you choose hierarchical"},
    halving_for_all_large_ones: {
        "budget": "halving_doubling", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE
    },
    as_if_all_were_one_level: {
        "budget": "halving_doubling", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE
    },
    the_slowest: {"budget": "naive", "elsewhere": ELSEWHERE, "wire": ""},
    a_table_for_the_step: {"elsewhere": "where you choose hierarchical", "wire": ON_THE_WIRE},
    the_other_way_round: {
        "budget": "x hierarchical take 22.0 ms", "elsewhere": ELSEWHERE, "wire": ON_THE_WIRE
    },
    few_ranks_need_no_algorithm: {"wire": ""},
    slow_links_taken_for_fast: {"wire": "recursive_doubling took"},
    latency_left_out_on_two_nodes_of_four: {"budget": "the step takes 44.0 ms"},
    megabytes_taken_for_bytes: {"budget": "x hierarchical", "elsewhere": "", "wire": ON_THE_WIRE},
    function_for_a_name: {"budget": UNKNOWN},
    a_name_with_its_ending: {"budget": ", choose returns 'recursive_doubling_all_reduce' for"},
    seconds_for_a_name: {"budget": UNKNOWN},
    nothing_for_large_ones: {"budget": "two nodes of four ranks, choose returns None for 1.0 MB"},
    divides_by_the_number_of_other_nodes: {
        "budget": "on one node of eight ranks: ZeroDivisionError"
    },
    not_written: {"budget": "choose is not written yet"},
}  # fmt: skip
