"""Answers to 06/volume: what a rank sends for a layer, and the seconds that everyone waits."""

from math import gcd

from dtlab.predict import Link, all_gather_seconds, ring_all_reduce_seconds

# Right ----------------------------------------------------------------------------------------


def elements(given):
    return given["micro_batch"] * given["sequence"] * given["hidden"]


def passes(given, number):
    """Millions of elements that a rank sends, if bsh goes round the ring so many times."""
    t = given["ranks"]
    return number * elements(given) * (t - 1) / t / 1e6


def bandwidths(given):
    return given["nvlink"] / 2 * 1e9, given["adapter"] / 8 * 1e9


def seconds(given, size=2):
    """Of one layer, over NVLink and over InfiniBand."""
    nbytes = size * 1e6 * passes(given, 8)
    return [nbytes / bandwidth for bandwidth in bandwidths(given)]


def compute(given, ranks=None, share=1.0):
    b, s, h = given["micro_batch"], given["sequence"], given["hidden"]
    operations = share * 72 * b * s * h**2 * (1 + s / (6 * h))
    return operations / (ranks or given["ranks"]) / (given["reached"] * 1e12)


def shares(given, busy):
    return [100 * one / (one + busy) for one in seconds(given)]


def by_hand(given):
    t = given["ranks"]
    return {
        "layer": passes(given, 8),
        "sequence": [passes(given, 8), passes(given, 10)],
        "recomputed": passes(given, 12),
        "milliseconds": [1e3 * given["layers"] * one for one in seconds(given)],
        "share": shares(given, compute(given)),
        "twice": [1 / 2, (2 * t - 1) / (2 * t) / ((t - 1) / t)],
        "largest": gcd(given["kv_heads"], given["node"]),
    }


def by_the_library(given):
    """Collective by collective, with units, and as text; the largest t by trying them all."""
    t, size = given["ranks"], 2 * elements(given)
    links = [Link(0, bandwidth) for bandwidth in bandwidths(given)]
    one_way = all_gather_seconds(size, t, Link(0, 1)) / 2  # elements of one pass
    waits = [given["layers"] * 4 * ring_all_reduce_seconds(size, t, link) for link in links]
    busy = given["layers"] * compute(given)
    fitting = (n for n in range(1, 33) if given["node"] % n == given["kv_heads"] % n == 0)
    return {
        "layer": 4 * 2 * one_way / 1e6,
        "sequence": [(4 + 4) * one_way / 1e6, (4 + 4 + 2) * one_way / 1e6],
        "recomputed": (2 + 2 + 2) * 2 * one_way / 1e6,
        "milliseconds": [f"{wait} s" for wait in waits],
        "share": [wait / (wait + busy) * 100 for wait in waits],
        "twice": ["1/2", (2 * t - 1) / (2 * t - 2)],
        "largest": f"{max(fitting)} ranks",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def sent(name, *numbers):
    """An answer in which so many passes are counted."""

    def answer(given):
        found = [passes(given, number) for number in numbers]
        return instead(given, **{name: found if len(found) > 1 else found[0]})

    return answer


forward_only = sent("layer", 4)
one_all_reduce = sent("layer", 2)
five_all_reduces = sent("layer", 10)


def without_the_ring(given):
    return instead(given, layer=8 * elements(given) / 1e6)


def what_goes_in(given):
    return instead(given, layer=4 * elements(given) / 1e6)


def in_elements(name):
    """The right numbers, before they are divided by a million."""

    def answer(given):
        right = by_hand(given)[name]
        found = [1e6 * one for one in right] if isinstance(right, list) else 1e6 * right
        return instead(given, **{name: found})

    return answer


layer_in_elements = in_elements("layer")
sequence_in_elements = in_elements("sequence")

nothing_gathered_again = sent("sequence", 8, 8)
halves_for_wholes = sent("sequence", 16, 20)
one_kind_of_calls = sent("sequence", 4, 5)
four_gathered_again = sent("sequence", 8, 12)
less_with_sequence_parallelism = sent("sequence", 7, 9)


def recomputed_without_the_ring(given):
    return instead(given, recomputed=12 * elements(given) / 1e6)


recomputed_for_nothing = sent("recomputed", 8)
recomputed_in_elements = in_elements("recomputed")
all_run_twice = sent("recomputed", 16)
half_a_forward_pass = sent("recomputed", 10)
forward_pass_thrice = sent("recomputed", 14)


def on_links(nvlink, adapter, of=1.0):
    """ms on links that are so many times as fast."""

    def answer(given):
        inside, between = by_hand(given)["milliseconds"]
        return instead(given, milliseconds=[of * inside / nvlink, of * between / adapter])

    return answer


both_directions = on_links(2, 1)
bits_for_bytes = on_links(1, 8)
both_units_misread = on_links(2, 8)
a_byte_each = on_links(1, 1, 1 / 2)
in_fp32 = on_links(1, 1, 2)


def one_layer(given):
    return instead(given, milliseconds=[1e3 * one for one in seconds(given)])


def beside_compute(given):
    return instead(given, share=[100 * one / compute(given) for one in seconds(given)])


def every_rank_computes_all(given):
    return instead(given, share=shares(given, compute(given, ranks=1)))


def forward_operations(given):
    return instead(given, share=shares(given, compute(given, share=1 / 3)))


def part_of_compute(given):
    return instead(given, share=[100 - one for one in shares(given, compute(given))])


def at_half_the_rate(given):
    return instead(given, share=shares(given, 2 * compute(given)))


def halves(given):
    return instead(given, twice=[1 / 2, 1 / 2])


def doubles(given):
    return instead(given, twice=[1 / 2, 2])


def stays(given):
    return instead(given, twice=[1 / 2, 1])


def compute_stays(given):
    return instead(given, twice=[1, by_hand(given)["twice"][1]])


def the_other_way_round(given):
    return instead(given, twice=by_hand(given)["twice"][::-1])


def the_node(given):
    return instead(given, largest=given["node"])


def heads_alone(given):
    heads = given["kv_heads"]
    fitting = [n for n in range(1, given["node"] + 1) if heads % n == 0]
    return instead(given, largest=max(fitting))


def a_head_each(given):
    return instead(given, largest=given["kv_heads"])


def alone(given):
    return instead(given, largest=1)


def a_thousand(given):
    return instead(given, largest=1000)


RIGHT = [by_hand, by_the_library]

WRONG = {
    forward_only: {"layer": "one of the two passes"},
    one_all_reduce: {"layer": "this is a single all-reduce"},
    without_the_ring: {"layer": "each rank sends (t-1)/t of it"},
    what_goes_in: {"layer": "these are the elements of the calls"},
    five_all_reduces: {"layer": "is not it"},
    layer_in_elements: {"layer": "Convert them to millions"},
    sequence_in_elements: {"sequence": "Convert them to millions"},
    recomputed_in_elements: {"recomputed": "Convert them to millions"},
    recomputed_without_the_ring: {"recomputed": "each rank sends (t-1)/t of it"},
    nothing_gathered_again: {"sequence": "is sent again"},
    halves_for_wholes: {"sequence": "counts a reduce-scatter as much"},
    one_kind_of_calls: {"sequence": "one of the two kinds of calls"},
    four_gathered_again: {"sequence": "how many column parallel inputs"},
    less_with_sequence_parallelism: {"sequence": "is not it"},
    recomputed_for_nothing: {"recomputed": "makes its calls again"},
    all_run_twice: {"recomputed": "counts the backward pass again"},
    half_a_forward_pass: {"recomputed": "how many all-reduces does a forward pass have"},
    forward_pass_thrice: {"recomputed": "is not it"},
    both_directions: {"milliseconds": "a rank sends in one direction"},
    bits_for_bytes: {"milliseconds": "speed is in bits per second"},
    both_units_misread: {"milliseconds": "read the units of both links again"},
    a_byte_each: {"milliseconds": "an element has 16 bits"},
    one_layer: {"milliseconds": "this is one layer"},
    in_fp32: {"milliseconds": "is not it"},
    beside_compute: {"share": "this is relative to compute"},
    every_rank_computes_all: {"share": "share the operations of a layer"},
    forward_operations: {"share": "only the forward compute"},
    part_of_compute: {"share": "the share of compute"},
    at_half_the_rate: {"share": "is not it"},
    halves: {"twice": "send half as much"},
    doubles: {"twice": "send twice"},
    stays: {"twice": "for very many ranks"},
    compute_stays: {"twice": "the ranks share the operations"},
    the_other_way_round: {"twice": "is not it"},
    the_node: {"largest": "how many heads does each rank have then"},
    heads_alone: {"largest": "must also divide the GPUs of a node"},
    a_head_each: {"largest": "a group does not fit into a node"},
    alone: {"largest": "Is there a larger one"},
    a_thousand: {"largest": "is not it"},
}
