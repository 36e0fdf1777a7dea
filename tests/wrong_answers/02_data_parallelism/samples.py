"""Answers to 02/samples: how a DistributedSampler deals samples out."""

from math import ceil, floor

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    n, ranks, batch = given["samples"], given["ranks"], given["batch"]
    each = ceil(n / ranks)
    return {
        "per_rank": each,
        "repeated": each * ranks - n,
        "first_three": [given["rank"], given["rank"] + ranks, given["rank"] + 2 * ranks],
        "steps": ceil(each / batch),
        "dropped": n % ranks,
        "forgotten": "the same",
    }


def dealt_out(given):
    """By dealing; the last answer in words."""
    n, ranks = given["samples"], given["ranks"]
    cards = [sample % n for sample in range(n + -n % ranks)]
    own = cards[given["rank"] :: ranks]
    return by_hand(given) | {
        "per_rank": f"{len(own)}",
        "repeated": len(cards) - n,
        "first_three": tuple(own[:3]),
        "forgotten": "what it saw in epoch 1, in the same order",
    }


# Wrong ----------------------------------------------------------------------------------------


def rounded_down(given):
    return by_hand(given) | {"per_rank": given["samples"] // given["ranks"]}


def all_on_every_rank(given):
    return by_hand(given) | {"per_rank": given["samples"]}


def rest_is_repeated(given):
    return by_hand(given) | {"repeated": given["samples"] % given["ranks"]}


def none_repeated(given):
    return by_hand(given) | {"repeated": 0}


def in_blocks(given):
    first = given["rank"] * ceil(given["samples"] / given["ranks"])
    return by_hand(given) | {"first_three": [first, first + 1, first + 2]}


def one_after_another(given):
    return by_hand(given) | {"first_three": [given["rank"] + turn for turn in range(3)]}


def counted_from_one(given):
    return by_hand(given) | {"first_three": [one + 1 for one in by_hand(given)["first_three"]]}


def last_batch_dropped(given):
    each = ceil(given["samples"] / given["ranks"])
    return by_hand(given) | {"steps": floor(each / given["batch"])}


def steps_of_one_process(given):
    return by_hand(given) | {"steps": ceil(given["samples"] / given["batch"])}


def repeated_for_dropped(given):
    return by_hand(given) | {"dropped": by_hand(given)["repeated"]}


def nothing_dropped(given):
    return by_hand(given) | {"dropped": 0}


def reordered(given):
    return by_hand(given) | {"forgotten": "reordered"}


def others(given):
    return by_hand(given) | {"forgotten": "others"}


def not_shuffled(given):
    return by_hand(given) | {"forgotten": "sorted"}


RIGHT = [by_hand, dealt_out]

WRONG = {
    rounded_down: {"per_rank": "this leaves samples over"},
    all_on_every_rank: {"per_rank": "this is all of them, on every rank"},
    rest_is_repeated: {"repeated": "this is the remainder of the division"},
    none_repeated: {"repeated": "does not divide by the number of ranks"},
    in_blocks: {"first_three": "these are neighbours"},
    one_after_another: {"first_three": "belongs to the next rank"},
    counted_from_one: {"first_three": "count from 0"},
    last_batch_dropped: {"steps": "this drops the last batch"},
    steps_of_one_process: {"steps": "this is right for one process"},
    repeated_for_dropped: {"dropped": "this many would be repeated"},
    nothing_dropped: {"dropped": "With drop_last no rank gets it"},
    reordered: {"forgotten": "what would the new order be drawn from?"},
    others: {"forgotten": "this would need set_epoch"},
    not_shuffled: {"forgotten": "it does shuffle"},
}
