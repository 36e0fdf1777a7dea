"""Answers to 09/break_even: tokens per GPU from which the all-reduce hides."""

from math import ceil

from dtlab.predict import break_even_tokens

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    n, held = given["ranks"], given["held"] * given["length"]
    flops, link = given["peak"] * 1e12 * given["reached"] / 100, given["link"] * 1e9
    bits_32, bits_16 = (2 * (n - 1) / n * size * flops / (6 * link) for size in (4, 2))
    return {
        "tokens": bits_32,
        "changes": [1 / 2, 1 / 2, given["faster"], 1],
        "behind": bits_32 * 6 / 4,
        "sequences": ceil(bits_16 * 6 / 4 / given["length"]),
        "microbatches": ceil(bits_16 / held),
        "share": bits_16 / (bits_16 + held),
    }


def by_the_library(given):
    def tokens(size, operations=6, faster=1, links=1):
        peak, link = given["peak"] * 1e12 * faster, given["link"] * 1e9 * links
        return break_even_tokens(
            peak, link, given["ranks"], size, given["reached"] / 100, operations=operations
        )

    held = given["held"] * given["length"]
    few = tokens(2)
    batches = next(count for count in range(1, 10**6) if count * held >= few)
    sequences = next(n for n in range(1, 10**6) if n * given["length"] >= tokens(2, 4))
    changed = [tokens(2), tokens(4, links=2), tokens(4, faster=given["faster"]), tokens(4)]
    return {
        "tokens": f"{tokens(4)} tokens",
        "changes": [each / tokens(4) for each in changed],
        "behind": tokens(4, 4),
        "sequences": sequences,
        "microbatches": batches,
        "share": f"{100 * few / (few + held)} %",
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


def of_tokens(name, compute):
    """Instead of `name`, what `compute` makes of the values and of the tokens at 32 bits."""
    return instead(name, lambda given, right: compute(given, by_hand(given)["tokens"]))


def held(given):
    return given["held"] * given["length"]


at_the_peak = instead("tokens", lambda given, right: 100 * right / given["reached"])
no_ring = instead(
    "tokens", lambda given, right: right * given["ranks"] / (2 * (given["ranks"] - 1))
)
in_16_bits = instead("tokens", times(1 / 2))
forward_alone = instead("tokens", times(3))
ten_times = instead("tokens", times(10))
faster_hides = instead("changes", lambda given, right: [0.5, 0.5, 1 / given["faster"], 1])
larger_model = instead("changes", lambda given, right: [0.5, 0.5, given["faster"], 10])
upside_down = instead("changes", lambda given, right: [2, 2, 1 / given["faster"], 1])
nothing = instead("changes", lambda given, right: [1, 1, 1, 1])
both_passes = of_tokens("behind", lambda given, tokens: tokens)
behind_forward = of_tokens("behind", lambda given, tokens: 3 * tokens)
fewer = of_tokens("behind", lambda given, tokens: 2 * tokens / 3)
ten_times_behind = instead("behind", times(10))
rounded_down = instead("sequences", lambda given, right: right - 1)
sequences_in_32_bits = of_tokens(
    "sequences", lambda given, tokens: ceil(1.5 * tokens / given["length"])
)
sequences_behind_both = of_tokens(
    "sequences", lambda given, tokens: ceil(0.5 * tokens / given["length"])
)
far_too_many = instead("sequences", times(100))
batches_rounded_down = instead("microbatches", lambda given, right: right - 1)
batches_in_32_bits = of_tokens("microbatches", lambda given, tokens: ceil(tokens / held(given)))
batches_too_many = instead("microbatches", times(100))
over_computing = of_tokens("share", lambda given, tokens: tokens / 2 / held(given))
share_in_32_bits = of_tokens("share", lambda given, tokens: tokens / (tokens + held(given)))
of_computing = instead("share", lambda given, right: 1 - right)
tiny = instead("share", times(1 / 50))

RIGHT = [by_hand, by_the_library]

WRONG = {
    at_the_peak: {"tokens": "this is at the peak"},
    no_ring: {"tokens": "almost twice the bytes"},
    in_16_bits: {"tokens": "this is for 16 bits"},
    forward_alone: {"tokens": "this is forward alone"},
    ten_times: {"tokens": "is not it. Write both times"},
    faster_hides: {"changes": "behind which less hides"},
    larger_model: {"changes": "computes more and sends more"},
    upside_down: {"changes": "what fits behind the same tokens"},
    nothing: {"changes": "is not it. Which of the four"},
    both_passes: {"behind": "In forward no gradient is ready"},
    behind_forward: {"behind": "this is behind forward"},
    fewer: {"behind": "it takes more tokens"},
    ten_times_behind: {"behind": "is not it. How many of the 6"},
    rounded_down: {"sequences": "does not quite hide"},
    sequences_in_32_bits: {"sequences": "this is for 32 bits"},
    sequences_behind_both: {"sequences": "behind forward and backward"},
    far_too_many: {"sequences": "is not it. Half the bytes"},
    batches_rounded_down: {"microbatches": "a little less than"},
    batches_in_32_bits: {"microbatches": "this is for 32 bits"},
    batches_too_many: {"microbatches": "is not it. A microbatch has"},
    over_computing: {"share": "A step has both"},
    share_in_32_bits: {"share": "this is for 32 bits"},
    of_computing: {"share": "the share of computing"},
    tiny: {"share": "is not it. Compare the tokens"},
}
