"""Answers to 07/zero_bubble: backward split in two, what it saves and what it costs."""

from fractions import Fraction
from math import ceil

# Right ----------------------------------------------------------------------------------------


def work(given):
    return given["forward"] + given["input"] + given["weight"]


def bubble(given, weights):
    """ms of T_F + T_I and so many T_W, for each stage but one."""
    both = given["forward"] + given["input"]
    return (given["stages"] - 1) * (both + weights * given["weight"])


def bubbles(given):
    return [bubble(given, weights) for weights in (1, -1, -2)]


def rates_over(given, *whole):
    return [100 * one / all_ for one, all_ in zip(bubbles(given), whole, strict=True)]


def by_hand(given):
    p, m = given["stages"], given["count"]
    first, second, third = bubbles(given)
    busy = m * work(given)
    return {
        "one_f_one_b": first,
        "h1": second,
        "h2": third,
        "rates": rates_over(given, *(busy + one for one in (first, second, third))),
        "as_good": ceil(m * first / third),
        "memory": [p, p, 2 * p - 1],
        "why": "messages",
    }


def by_fractions(given):
    """In tenths of ms, counted out; with units, and as text."""
    p, m = given["stages"], given["count"]
    forward, input_, weight = (round(10 * given[one]) for one in ("forward", "input", "weight"))
    each = forward + input_ + weight
    idle = [(p - 1) * one for one in (each, each - 2 * weight, each - 3 * weight)]
    shares = [Fraction(one, one + m * each) for one in idle]
    enough = (n for n in range(m, 10_000) if Fraction(idle[0], idle[0] + n * each) <= shares[2])
    return {
        "one_f_one_b": f"{idle[0] / 10_000} s",
        "h1": idle[1] / 10,
        "h2": f"{idle[2] / 10} ms",
        "rates": tuple(float(one) for one in shares),
        "as_good": next(enough),
        "memory": [p, str(p), p + p - 1],
        "why": "Messages",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def idle(name, weights, waits=-1):
    def answer(given):
        each = bubble(given, weights) / (given["stages"] - 1)
        return instead(given, **{name: (given["stages"] + waits) * each})

    return answer


without_w = idle("one_f_one_b", 0)
waits_for_itself = idle("one_f_one_b", 1, 0)
h1_for_1f1b = idle("one_f_one_b", -1)
one_stage_only = idle("one_f_one_b", 1, -3)
w_only_left_out = idle("h1", 0)
as_before = idle("h1", 1)
h2_for_h1 = idle("h1", -2)
half_a_w = idle("h1", 0.5)
h1_for_h2 = idle("h2", -1)
three_w = idle("h2", -3)
as_if_1f1b = idle("h2", 1)


def none_at_all(given):
    return instead(given, h2=0)


def over_the_ideal(given):
    busy = given["count"] * work(given)
    return instead(given, rates=rates_over(given, busy, busy, busy))


def over_one_step(given):
    step = (given["count"] + given["stages"] - 1) * work(given)
    return instead(given, rates=rates_over(given, step, step, step))


def rates_the_other_way(given):
    return instead(given, rates=by_hand(given)["rates"][::-1])


def one_rate(given):
    return instead(given, rates=by_hand(given)["rates"][0])


def one_fewer(given):
    return instead(given, as_good=by_hand(given)["as_good"] - 1)


def not_rounded(given):
    first, _, third = bubbles(given)
    return instead(given, as_good=given["count"] * first / third)


def rounded_to_two_digits(given):
    return instead(given, as_good=round(not_rounded(given)["as_good"], 2))


def as_good_as_h1(given):
    first, second, _ = bubbles(given)
    return instead(given, as_good=ceil(given["count"] * first / second))


def fewer_than_h2(given):
    first, _, third = bubbles(given)
    return instead(given, as_good=int(given["count"] * third / first))


def as_many(given):
    return instead(given, as_good=given["count"])


def kept(first, second, third):
    def answer(given):
        memory = [one(given["stages"]) for one in (first, second, third)]
        return instead(given, memory=memory)

    return answer


all_alike = kept(lambda p: p, lambda p: p, lambda p: p)
h1_as_h2 = kept(lambda p: p, lambda p: 2 * p - 1, lambda p: 2 * p - 1)
twice_as_many = kept(lambda p: p, lambda p: p, lambda p: 2 * p)
warm_up_only = kept(lambda p: p - 1, lambda p: p - 1, lambda p: 2 * p - 2)
h2_keeps_less = kept(lambda p: p, lambda p: p, lambda p: 1)


def because(name):
    return lambda given: instead(given, why=name)


filling = because("filling")
longer_backward = because("backward")
stepping = because("optimizer")
RIGHT = [by_hand, by_fractions]

WRONG = {
    without_w: {"one_f_one_b": "Both pieces count"},
    waits_for_itself: {"one_f_one_b": "does not wait for itself"},
    h1_for_1f1b: {"one_f_one_b": "this is right for H1"},
    one_stage_only: {"one_f_one_b": "is not it"},
    w_only_left_out: {"h1": "what does a stage do while it waits"},
    as_before: {"h1": "this is right for 1F1B"},
    h2_for_h1: {"h1": "this is right for H2"},
    half_a_w: {"h1": "is not it"},
    h1_for_h2: {"h2": "this is right for H1"},
    three_w: {"h2": "one W too many"},
    none_at_all: {"h2": "Is that true for yours?"},
    as_if_1f1b: {"h2": "is not it"},
    over_the_ideal: {"rates": "this is over the ideal time"},
    over_one_step: {"rates": "Each schedule has its own time"},
    rates_the_other_way: {"rates": "is not it"},
    one_rate: {"rates": "write a list of 3 numbers"},
    one_fewer: {"as_good": "a part of a microbatch"},
    not_rounded: {"as_good": "microbatches are whole"},
    rounded_to_two_digits: {"as_good": "In which direction do you round"},
    as_good_as_h1: {"as_good": "this is H1's share"},
    fewer_than_h2: {"as_good": "1F1B idles for longer"},
    as_many: {"as_good": "is not it"},
    all_alike: {"memory": "what does H2 put into the gap"},
    h1_as_h2: {"memory": "H1 warms up as 1F1B does"},
    twice_as_many: {"memory": "the last number is one too large"},
    warm_up_only: {"memory": "forwards of the warm-up"},
    h2_keeps_less: {"memory": "is not it"},
    filling: {"why": "That is not the reason"},
    longer_backward: {"why": "What is assumed to be free"},
    stepping: {"why": "up to its last gradient"},
}
