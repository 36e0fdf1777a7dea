"""Answers to 08/head_limit: how many ranks Ulysses can use, and what to do with more."""

COUNTS = (2, 3, 4, 6, 8, 12, 16)

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    heads, kv_heads, times = given["heads"], given["kv_heads"], given["times"]
    return {
        "most": kv_heads,
        "allowed": {str(count) for count in COUNTS if kv_heads % count == 0},
        "copies": times,
        "two_levels": [kv_heads, times],
        "tensor": kv_heads // 2,
        "smaller": 2 * heads / (heads + kv_heads),
    }


def by_trying(given):
    """Deals whole heads to the ranks."""
    heads, kv_heads, ranks = given["heads"], given["kv_heads"], given["kv_heads"] * given["times"]

    def deals(count, kv_heads):
        return kv_heads % count == 0 and heads % count == 0

    most = max(count for count in range(1, heads + 1) if deals(count, kv_heads))
    return {
        "most": f"{most} ranks",
        "allowed": [str(count) for count in COUNTS if deals(count, kv_heads)],
        "copies": ranks / kv_heads,
        "two_levels": (most, ranks // most),
        "tensor": max(count for count in range(1, heads + 1) if deals(count, kv_heads // 2)),
        "smaller": 4 * heads / (2 * heads + 2 * kv_heads),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


by_query_heads = instead("most", lambda given, right: given["heads"])
by_the_group = instead("most", lambda given, right: given["heads"] // given["kv_heads"])
by_the_product = instead("most", lambda given, right: given["heads"] * given["kv_heads"])
one_more = instead("most", lambda given, right: right + 1)
sixteen_too = instead("allowed", lambda given, right: right | {"16"})
two_left_out = instead("allowed", lambda given, right: right - {"2"})
as_the_query_heads = instead("copies", lambda given, right: given["heads"] // given["kv_heads"])
no_copies = instead("copies", lambda given, right: 1)
on_all_ranks = instead("copies", lambda given, right: right * given["kv_heads"])
on_five_more = instead("copies", lambda given, right: right + 50)
groups_first = instead("two_levels", lambda given, right: right[::-1])
ulysses_alone = instead("two_levels", lambda given, right: [right[0] * right[1], 1])
ring_alone = instead("two_levels", lambda given, right: [1, right[0] * right[1]])
groups_miscounted = instead("two_levels", lambda given, right: [right[0], 99])
tensor_left_out = instead("tensor", lambda given, right: right * 2)
tensor_by_query_heads = instead("tensor", lambda given, right: given["heads"] // 2)
tensor_adds_heads = instead("tensor", lambda given, right: given["kv_heads"] * 2)
tensor_is_one = instead("tensor", lambda given, right: 1)
keys_and_values_alone = instead("smaller", lambda given, right: given["heads"] / given["kv_heads"])
upside_down = instead("smaller", lambda given, right: 1 / right)
no_way_back = instead(
    "smaller", lambda given, right: 3 * given["heads"] / (given["heads"] + 2 * given["kv_heads"])
)
seven_times = instead("smaller", lambda given, right: 7)

RIGHT = [by_hand, by_trying]

WRONG = {
    by_query_heads: {"most": "Which of them has keys for it?"},
    by_the_group: {"most": "query heads for each KV head"},
    by_the_product: {"most": "a head is not divided"},
    one_more: {"most": "is not it. After the all-to-all"},
    sixteen_too: {"allowed": "look at 16 again"},
    two_left_out: {"allowed": "look at 2 again"},
    as_the_query_heads: {"copies": "so many query heads share a KV head"},
    no_copies: {"copies": "query heads and no keys"},
    on_all_ranks: {"copies": "the keys of its heads only"},
    on_five_more: {"copies": "is not it. Every rank needs"},
    groups_first: {"two_levels": "write the ranks of a group first"},
    ulysses_alone: {"two_levels": "beyond the limit of Ulysses"},
    ring_alone: {"two_levels": "this is a ring alone"},
    groups_miscounted: {"two_levels": "is not it. Ulysses first"},
    tensor_left_out: {"tensor": "divided these heads already"},
    tensor_by_query_heads: {"tensor": "A rank needs a KV head too"},
    tensor_adds_heads: {"tensor": "fewer heads, not more"},
    tensor_is_one: {"tensor": "is not it. How many KV heads"},
    keys_and_values_alone: {"smaller": "Queries and output travel too"},
    upside_down: {"smaller": "the other way round"},
    no_way_back: {"smaller": "the output is sent back too"},
    seven_times: {"smaller": "is not it. Queries and output have h"},
}
