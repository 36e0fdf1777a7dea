"""Answers to 08/hidden: tokens per rank that hide a ring's messages, and memory of scores."""

from math import ceil

from dtlab.predict.context import attention_bytes, ring_block_tokens

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    near, far = (1e3 * given["flops"] / given[link] for link in ("inside", "network"))
    whole = 2 * given["heads"] * given["tokens"] ** 2 / 1e9
    return {
        "block": [near, far],
        "causal": 2 * far,
        "most": int(given["tokens"] / (2 * far)),
        "scores": [whole, whole / given["ranks"], whole / given["ranks"] ** 2],
    }


def by_the_library(given):
    flops, network = given["flops"] * 1e12, given["network"] * 1e9
    causal = ring_block_tokens(flops, network, causal=True)
    ways = ("whole", "heads", "ring")
    scores = [
        attention_bytes(
            given["tokens"], given["heads"], ranks=given["ranks"], element_bytes=2, way=way
        )
        for way in ways
    ]
    return {
        "block": [ring_block_tokens(flops, given[link] * 1e9) for link in ("inside", "network")],
        "causal": f"{causal} tokens",
        "most": given["tokens"] // causal,
        "scores": [f"{each / 1e9} GB" for each in scores],
    }


def by_times(given):
    """The tokens for which both times are equal, for a hidden size of 1."""

    def fewest(bandwidth, operations):
        return 2 * 2 / (operations / (given["flops"] * 1e12)) / (bandwidth * 1e9)

    n, p = given["tokens"], given["ranks"]
    return {
        "block": [fewest(given["inside"], 4), fewest(given["network"], 4)],
        "causal": fewest(given["network"], 2),
        "most": n // fewest(given["network"], 2),
        "scores": [2e-9 * given["heads"] * a * b for a, b in ((n, n), (n, n / p), (n / p, n / p))],
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def times(*factors):
    return lambda given, right: [x * y for x, y in zip(right, factors, strict=True)]


with_a_mask = instead("block", times(2, 2))
one_byte = instead("block", times(0.5, 0.5))
one_byte_of_four = instead("block", times(0.25, 0.25))
network_first = instead("block", lambda given, right: right[::-1])
three_times = instead("block", times(3, 3))
without_a_mask = instead("causal", lambda given, right: right / 2)
the_wrong_way = instead("causal", lambda given, right: right / 4)
inside_a_node = instead("causal", lambda given, right: right * given["network"] / given["inside"])
four_times = instead("causal", lambda given, right: right * 2)
most_without_a_mask = instead(
    "most", lambda given, right: int(given["tokens"] / by_hand(given)["block"][1])
)
rounded_up = instead("most", lambda given, right: ceil(given["tokens"] / by_hand(given)["causal"]))
most_inside = instead(
    "most", lambda given, right: int(given["tokens"] / 2 / by_hand(given)["block"][0])
)
far_too_many = instead("most", lambda given, right: 1000)
ring_as_ulysses = instead("scores", lambda given, right: [right[0], right[1], right[1]])
ulysses_as_ring = instead("scores", lambda given, right: [right[0], right[2], right[1]])
one_head = instead("scores", lambda given, right: [each / given["heads"] for each in right])
scores_in_elements = instead("scores", times(0.5, 0.5, 0.5))
nothing_is_split = instead("scores", lambda given, right: [right[0]] * 3)

RIGHT = [by_hand, by_the_library, by_times]

WRONG = {
    with_a_mask: {"block": "this is with a causal mask"},
    one_byte: {"block": "an element has 2 bytes"},
    one_byte_of_four: {"block": "these are 4 c^2 h operations"},
    network_first: {"block": "inside a node first"},
    three_times: {"block": "is not it. A round computes"},
    without_a_mask: {"causal": "this is without a mask"},
    the_wrong_way: {"causal": "less work to hide"},
    inside_a_node: {"causal": "this is inside a node"},
    four_times: {"causal": "is not it. Which part"},
    most_without_a_mask: {"most": "this is without a mask"},
    rounded_up: {"most": "one rank fewer"},
    most_inside: {"most": "this is inside a node"},
    far_too_many: {"most": "is not it. Each rank needs"},
    ring_as_ulysses: {"scores": "both queries and keys are one block"},
    ulysses_as_ring: {"scores": "Ulysses has all tokens"},
    one_head: {"scores": "this is one head"},
    scores_in_elements: {"scores": "an element has 2 bytes"},
    nothing_is_split: {"scores": "is not it. One score"},
}
