"""Answers to 07/bubble: idle shares in two denominators, uneven stages, what is sent."""

from fractions import Fraction

# Right ----------------------------------------------------------------------------------------


def fewest(given, enough):
    return next(m for m in range(1, 10_000) if enough(given["stages"] - 1, m))


def through(given, inputs):
    """ms for so many microbatches through the uneven stages."""
    return sum(given["times"]) + (inputs - 1) * max(given["times"])


def by_hand(given):
    p, m, v = given["stages"], given["count"], given["chunks"]
    x = given["percent"] / 100
    elements = given["size"] * given["tokens"] * given["width"]
    return {
        "ideal": f"{(p - 1) / m * 100} %",
        "total": f"{(p - 1) / (m + p - 1) * 100} %",
        "used": [100 / p, 100 * p / (2 * p - 1)],
        "interleaved": 100 * (p - 1) / (v * m),
        "microbatches": fewest(given, lambda wait, m: wait <= (m + wait) * x + 1e-9),
        "makespan": through(given, given["inputs"]),
        "limit": sum(given["times"]) / max(given["times"]),
        "boundary": 2 * 2 * elements * m / 1e9,
    }


def by_a_walk(given):
    """Microbatches followed through the stages one by one; shares, seconds and bytes."""
    p, m, v = given["stages"], given["count"], given["chunks"]
    free = [0] * 4
    for _ in range(given["inputs"]):
        now = 0
        for stage, time in enumerate(given["times"]):
            now = free[stage] = max(now, free[stage]) + time
    idle = fewest(given, lambda wait, m: Fraction(100 * wait, m + wait) <= given["percent"])
    there = given["size"] * given["tokens"] * given["width"] * 2
    return {
        "ideal": (p - 1) / m,
        "total": f"{p - 1}/{m + p - 1}",
        "used": (1 / p, p / (p + p - 1)),
        "interleaved": f"{p - 1}/{v * m}",
        "microbatches": f"{idle} microbatches",
        "makespan": f"{now / 1000} s",
        "limit": str(sum(given["times"]) / max(given["times"])),
        "boundary": (there + there) * m,
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def share(name, top, bottom):
    """An answer of `name` in percent, from p, m and v."""

    def answer(given):
        sizes = given["stages"], given["count"], given["chunks"]
        return instead(given, **{name: 100 * top(*sizes) / bottom(*sizes)})

    return answer


over_all = share("ideal", lambda p, m, v: p - 1, lambda p, m, v: m + p - 1)
a_stage_too_many = share("ideal", lambda p, m, v: p, lambda p, m, v: m)
over_stages_too = share("ideal", lambda p, m, v: p - 1, lambda p, m, v: m * p)
twice_the_ideal = share("ideal", lambda p, m, v: 2 * (p - 1), lambda p, m, v: m)
over_ideal = share("total", lambda p, m, v: p - 1, lambda p, m, v: m)
computing = share("total", lambda p, m, v: m, lambda p, m, v: m + p - 1)
a_stage_too_many_of_all = share("total", lambda p, m, v: p, lambda p, m, v: m + p)
half_the_total = share("total", lambda p, m, v: p - 1, lambda p, m, v: 2 * (m + p - 1))
no_chunks = share("interleaved", lambda p, m, v: p - 1, lambda p, m, v: m)
longer_with_chunks = share("interleaved", lambda p, m, v: v * (p - 1), lambda p, m, v: m)
chunks_over_all = share("interleaved", lambda p, m, v: p - 1, lambda p, m, v: v * m + p - 1)
all_stages_in_a_row = share("interleaved", lambda p, m, v: v * p - 1, lambda p, m, v: v * m)


def idle_for_used(given):
    return instead(given, used=[100 - one for one in by_hand(given)["used"]])


def half_used(given):
    """Claim 13."""
    return instead(given, used=["50 %", "50 %"])


def full_with_p(given):
    return instead(given, used=[100 / given["stages"], 100])


def one_share_for_two(given):
    return instead(given, used=100 / given["stages"])


def used_the_other_way(given):
    return instead(given, used=by_hand(given)["used"][::-1])


def fewest_over_ideal(given):
    x = given["percent"] / 100
    return instead(given, microbatches=fewest(given, lambda wait, m: wait <= m * x + 1e-9))


def one_fewer(given):
    return instead(given, microbatches=by_hand(given)["microbatches"] - 1)


def p_for_p_minus_one(given):
    p, x = given["stages"], Fraction(given["percent"], 100)
    count = next(m for m in range(1, 10_000) if m * x > p * (1 - x))
    return instead(given, microbatches=count)


def a_thousand(given):
    return instead(given, microbatches=1000)


def one_after_the_other(given):
    return instead(given, makespan=given["inputs"] * sum(given["times"]))


def all_as_slow(given):
    return instead(given, makespan=(given["inputs"] + 3) * max(given["times"]))


def as_if_equal(given):
    return instead(given, makespan=(given["inputs"] + 3) * sum(given["times"]) / 4)


def slowest_alone(given):
    return instead(given, makespan=given["inputs"] * max(given["times"]))


def one_microbatch_less(given):
    return instead(given, makespan=through(given, given["inputs"] - 1))


def four_times(given):
    return instead(given, limit=4)


def with_these_few(given):
    few = given["inputs"] * sum(given["times"]) / through(given, given["inputs"])
    return instead(given, limit=few)


def slowest_over_fastest(given):
    return instead(given, limit=max(given["times"]) / min(given["times"]))


def no_gain(given):
    return instead(given, limit=1)


def boundary_times(factor):
    def answer(given):
        return instead(given, boundary=by_hand(given)["boundary"] * factor(given))

    return answer


one_way = boundary_times(lambda given: 1 / 2)
one_microbatch = boundary_times(lambda given: 1 / given["count"])
all_boundaries = boundary_times(lambda given: given["stages"] - 1)
in_gib = boundary_times(lambda given: 1e9 / 2**30)
in_fp32 = boundary_times(lambda given: 2)


RIGHT = [by_hand, by_a_walk]

WRONG = {
    over_all: {"ideal": "over the time that the step really takes"},
    a_stage_too_many: {"ideal": "one too many: how many stages"},
    over_stages_too: {"ideal": "each stage waits for the whole bubble"},
    twice_the_ideal: {"ideal": "is not it. How many microbatches does a stage compute"},
    over_ideal: {"total": "this is over the ideal time"},
    computing: {"total": "this is the share of computing"},
    a_stage_too_many_of_all: {"total": "one too many: how many stages"},
    half_the_total: {"total": "is not it. The step takes"},
    idle_for_used: {"used": "the share of idle time"},
    half_used: {"used": "how many cells are filled"},
    full_with_p: {"used": "What about before and after it?"},
    one_share_for_two: {"used": "write a list of 2 numbers"},
    used_the_other_way: {"used": "is not it. With one microbatch"},
    no_chunks: {"interleaved": "this is with one chunk"},
    longer_with_chunks: {"interleaved": "but each is shorter"},
    chunks_over_all: {"interleaved": "not over the ideal time"},
    all_stages_in_a_row: {"interleaved": "is not it. A chunk takes"},
    fewest_over_ideal: {"microbatches": "Which denominator does the question ask for"},
    one_fewer: {"microbatches": "still slightly too large"},
    p_for_p_minus_one: {"microbatches": "counts a stage too many"},
    a_thousand: {"microbatches": "is not it. Solve"},
    one_after_the_other: {"makespan": "left the last stage"},
    all_as_slow: {"makespan": "as slow as the slowest one"},
    as_if_equal: {"makespan": "the same work in equal stages"},
    slowest_alone: {"makespan": "the slowest stage alone"},
    one_microbatch_less: {"makespan": "is not it. Follow the first"},
    four_times: {"limit": "if the four took the same time"},
    with_these_few: {"limit": "What is it with more and more"},
    slowest_over_fastest: {"limit": "this compares two stages"},
    no_gain: {"limit": "is not it. In the long run"},
    one_way: {"boundary": "one direction, or one byte"},
    one_microbatch: {"boundary": "this is one microbatch"},
    all_boundaries: {"boundary": "all boundaries together"},
    in_gib: {"boundary": "right in GiB"},
    in_fp32: {"boundary": "is not it. b x s x h"},
}
