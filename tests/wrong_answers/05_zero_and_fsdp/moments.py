"""Answers to 05/moments: what a rank holds, and when, in a step of stage 3."""

# Right ----------------------------------------------------------------------------------------


def order_of(given, *places):
    return [given["names"][place] for place in places]


def held(given, *blocks):
    """MB of 16-bit weights: the shard, and so many whole blocks."""
    own = 2 * given["block"] * given["layers"] / given["ranks"]
    return [own + 2 * given["block"] * number for number in blocks]


def by_hand(given):
    layers, k = given["layers"], given["count"]
    return {
        "order": order_of(given, 0, 1, 2, 3, 4, 5, 6),
        "calls": [2 * k * layers, k * layers],
        "weights": held(given, 0, 1, 2, 0),
        "one_block": 2 * given["block"] * layers,
        "claims": {"again", "whole", "own"},
    }


def by_a_walk(given):
    """A step gone through block by block; with units, in bytes, and as text."""
    layers, block = given["layers"], given["block"] * 10**6
    gathers = reductions = 0
    for _ in range(given["count"]):
        for _ in range(layers):  # forward
            gathers += 1
        for _ in range(layers):  # backward
            gathers, reductions = gathers + 1, reductions + 1
    shard = 2 * block * layers // given["ranks"]
    whole = [0, 2 * block, 2 * 2 * block, 0]
    return {
        "order": given["names"],
        "calls": (gathers, reductions),
        "weights": [shard + one for one in whole],
        "one_block": f"{2 * block * layers / 1e9} GB",
        "claims": "whole, own, again",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def gathered_while_there(given):
    return instead(given, order=order_of(given, 0, 1, 3, 2, 4, 5, 6))


def step_before_the_mean(given):
    return instead(given, order=order_of(given, 0, 1, 2, 3, 4, 6, 5))


def backward_without_weights(given):
    return instead(given, order=order_of(given, 0, 1, 2, 4, 3, 5, 6))


def as_they_are_listed(given):
    return instead(given, order=order_of(given, 6, 5, 4, 3, 2, 1, 0))


def one_left_out(given):
    return instead(given, order=by_hand(given)["order"][:-1])


def calls_of(gathers, reductions):
    def answer(given):
        k = given["count"]
        calls = [given["layers"] * each for each in (gathers(k), reductions(k))]
        return instead(given, calls=calls)

    return answer


forward_only = calls_of(lambda k: k, lambda k: k)
one_micro_batch = calls_of(lambda k: 2, lambda k: 1)
gradients_once = calls_of(lambda k: 2 * k, lambda k: 1)
one_too_many = calls_of(lambda k: 2 * k + 1, lambda k: k)


def without_the_shard(given):
    return instead(given, weights=[2 * given["block"] * number for number in (0, 1, 2, 0)])


def prefetch_is_free(given):
    return instead(given, weights=held(given, 0, 1, 1, 0))


def all_blocks_at_once(given):
    return instead(given, weights=held(given, 0, *[given["layers"]] * 3))


def the_last_one_stays(given):
    return instead(given, weights=held(given, 0, 1, 2, 1))


def weights_in_fp32(given):
    return instead(given, weights=[2 * one for one in held(given, 0, 1, 2, 0)])


def a_block_of_a_policy(given):
    return instead(given, one_block=2 * given["block"])


def two_of_them(given):
    return instead(given, one_block=4 * given["block"])


def a_shard(given):
    return instead(given, one_block=held(given, 0)[0])


def parameters_for_bytes(given):
    return instead(given, one_block=given["block"] * given["layers"] * 1.1)


def claims_with(name):
    def answer(given):
        return instead(given, claims=by_hand(given)["claims"] ^ {name})

    return answer


shards_everything = claims_with("everything")
gathers_in_forward = claims_with("forward")
a_part_of_every_layer = claims_with("samples")
not_again = claims_with("again")
not_whole = claims_with("whole")
not_its_own = claims_with("own")


RIGHT = [by_hand, by_a_walk]

WRONG = {
    gathered_while_there: {"order": "gathered while they are still whole"},
    step_before_the_mean: {"order": "averaged over all ranks"},
    backward_without_weights: {"order": "backward computes the gradient"},
    as_they_are_listed: {"order": "is not it. A block needs its weights"},
    one_left_out: {"order": "write a list of 7 numbers"},
    forward_only: {"calls": "backward needs the weights too"},
    one_micro_batch: {"calls": "this is one microbatch"},
    gradients_once: {"calls": "would keep the whole gradients"},
    one_too_many: {"calls": "is not it. How many of each"},
    without_the_shard: {"weights": "leave out the rank's own shard"},
    prefetch_is_free: {"weights": "the prefetched block takes memory"},
    all_blocks_at_once: {"weights": "never has all blocks at once"},
    the_last_one_stays: {"weights": "has been freed as well"},
    weights_in_fp32: {"weights": "is not it. A rank always holds"},
    a_block_of_a_policy: {"one_block": "this is one of the blocks"},
    two_of_them: {"one_block": "this is two of the blocks"},
    a_shard: {"one_block": "this is a rank's own shard"},
    parameters_for_bytes: {"one_block": "is not it. Which weights must be gathered"},
    shards_everything: {"claims": "look at `everything` again"},
    gathers_in_forward: {"claims": "look at `forward` again"},
    a_part_of_every_layer: {"claims": "look at `samples` again"},
    not_again: {"claims": "look at `again` again"},
    not_whole: {"claims": "look at `whole` again"},
    not_its_own: {"claims": "look at `own` again"},
}
