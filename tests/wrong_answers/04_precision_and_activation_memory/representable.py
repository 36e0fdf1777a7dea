"""Answers to 04/representable: which numbers a format holds, and what becomes of the others."""

from fractions import Fraction
from math import floor, log2

LETTERS, WEIGHTS = "abcdef", "pqrs"

# Right ----------------------------------------------------------------------------------------


def exactly(written):
    """`1 + 2^-9` as a fraction."""
    return sum(
        Fraction(base.strip()) ** int(power or 1)
        for base, _, power in (term.partition("^") for term in written.split("+"))
    )


def spacing_at(value, exponent_bits, mantissa_bits):
    lowest = 2 - 2 ** (exponent_bits - 1)
    return Fraction(2) ** (max(floor(log2(value)), lowest) - mantissa_bits)


def held(given, exponent_bits, mantissa_bits):
    """A number is held if it is a multiple of the spacing, and not too large."""
    values = dict(zip(LETTERS, map(exactly, given["written"]), strict=True))
    end = 2**2 ** (exponent_bits - 1)
    return {
        letter
        for letter, value in values.items()
        if value < end and value % spacing_at(value, exponent_bits, mantissa_bits) == 0
    }


def lost(given):
    pairs = zip(WEIGHTS, given["weights"], given["updates"], strict=True)
    return {name for name, weight, update in pairs if update < spacing_at(weight, 8, 7) / 2}


def short_of(given):
    """The weight with a master, and its update."""
    place = WEIGHTS.index(given["short"])
    return given["weights"][place], given["updates"][place]


def by_hand(given):
    spacing = spacing_at(given["number"], given["exponent_bits"], given["mantissa_bits"])
    weight, update = short_of(given)
    steps = 1
    while steps * update < spacing_at(weight, 8, 7) / 2:
        steps += 1
    return {
        "in_fp16": held(given, 5, 10),
        "in_bf16": held(given, 8, 7),
        "spacing": float(spacing),
        "rounded": float(round(Fraction(given["number"]) / spacing) * spacing),
        "one_plus": "tie" if given["power"] == 8 else "nearer",
        "survives": given["gradient"] - 24,
        "lost": lost(given),
        "master": steps,
    }


def by_casts(given):
    """As PyTorch casts; a format's spacing where it is wide enough to be had by trying."""
    import torch

    def kept(dtype):
        cast = {
            letter: torch.tensor(float(exactly(written)), dtype=torch.float64).to(dtype).double()
            for letter, written in zip(LETTERS, given["written"], strict=True)
        }
        wanted = dict(zip(LETTERS, map(exactly, given["written"]), strict=True))
        return [name for name, value in cast.items() if value.item() == float(wanted[name])]

    small = torch.float8_e5m2 if given["mantissa_bits"] == 2 else torch.float8_e4m3fn
    number = torch.tensor(given["number"])
    around = torch.linspace(number / 2, number * 2, 10_001).to(small).float().unique()
    place = int((around > number).nonzero()[0])
    gradient = torch.tensor(2.0 ** -given["gradient"], dtype=torch.float64)
    scales = range(given["gradient"] + 1)
    weight, update = short_of(given)
    master, steps = torch.tensor(weight), 0
    while master.bfloat16() == weight:
        master, steps = master - update, steps + 1
    pairs = zip(WEIGHTS, given["weights"], given["updates"], strict=True)
    return {
        "in_fp16": kept(torch.float16),
        "in_bf16": kept(torch.bfloat16),
        "spacing": (around[place] - around[place - 1]).item(),
        "rounded": number.to(small).float().item(),
        "one_plus": ("nearer", "TIE")[given["power"] == 8],
        "survives": next(k for k in scales if (gradient * 2.0**k).half() > 0),
        "lost": {n for n, w, u in pairs if torch.tensor(w).bfloat16() - u == w},
        "master": steps,
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def letter_of(given, kind):
    return LETTERS[given["kinds"].index(kind)]


def toggled(given, name, kind):
    return instead(given, **{name: by_hand(given)[name] ^ {letter_of(given, kind)}})


def formats_swapped(given):
    return instead(given, in_fp16=held(given, 8, 7), in_bf16=held(given, 5, 10))


def fp16_as_bf16(given):
    return instead(given, in_fp16=held(given, 8, 7))


def fp16_without_end(given):
    return toggled(given, "in_fp16", "large")


def fp16_without_subnormals(given):
    return toggled(given, "in_fp16", "subnormal")


def fp16_down_to_anything(given):
    return toggled(given, "in_fp16", "tiny")


def fp16_with_fewer_bits(given):
    return toggled(given, "in_fp16", "fine")


def fp16_holds_all_whole_numbers(given):
    return toggled(given, "in_fp16", "odd")


def fp16_holds_decimals(given):
    return toggled(given, "in_fp16", "decimal")


def bf16_as_fp16(given):
    return instead(given, in_bf16=held(given, 5, 10))


def bf16_ends_early(given):
    return toggled(given, "in_bf16", "large")


def bf16_ends_at_small_numbers(given):
    return toggled(given, "in_bf16", "tiny")


def bf16_has_no_subnormals_of_fp16(given):
    return toggled(given, "in_bf16", "subnormal")


def bf16_with_more_bits(given):
    return toggled(given, "in_bf16", "fine")


def bf16_holds_all_whole_numbers(given):
    return toggled(given, "in_bf16", "odd")


def bf16_holds_decimals(given):
    return toggled(given, "in_bf16", "decimal")


def spacing_above_1(given):
    return instead(given, spacing=2.0 ** -given["mantissa_bits"])


def leading_1_is_stored(given):
    return instead(given, spacing=by_hand(given)["spacing"] / 2)


def powers_of_two_only(given):
    return instead(given, spacing=2.0 ** floor(log2(given["number"])))


def a_quarter_too_much(given):
    return instead(given, spacing=1.25 * by_hand(given)["spacing"])


def cut_off(given):
    right = by_hand(given)
    return right | {"rounded": given["number"] // right["spacing"] * right["spacing"]}


def not_rounded(given):
    return instead(given, rounded=given["number"])


def one_number_too_low(given):
    right = by_hand(given)
    return right | {"rounded": right["rounded"] - 2 * right["spacing"]}


def one_number_too_high(given):
    right = by_hand(given)
    return right | {"rounded": right["rounded"] + right["spacing"]}


def ties_and_others_mixed_up(given):
    return instead(given, one_plus="nearer" if given["power"] == 8 else "tie")


def sum_is_underflow(given):
    return instead(given, one_plus="small")


def sum_is_cut_off(given):
    return instead(given, one_plus="cut")


def up_to_a_normal_number(given):
    return instead(given, survives=given["gradient"] - 14)


def up_to_half_of_the_smallest(given):
    return instead(given, survives=given["gradient"] - 25)


def up_to_1(given):
    return instead(given, survives=given["gradient"])


def scaled_down(given):
    return instead(given, survives=24 - given["gradient"])


def smallest_updates_are_lost(given):
    by_size = sorted(zip(given["updates"], WEIGHTS, strict=True))
    return instead(given, lost={name for _, name in by_size[:2]})


def below_a_spacing(given):
    pairs = zip(WEIGHTS, given["weights"], given["updates"], strict=True)
    return instead(given, lost={n for n, w, u in pairs if u < spacing_at(w, 8, 7)})


def lost_and_kept_swapped(given):
    return instead(given, lost=set(WEIGHTS) - lost(given))


def all_are_lost(given):
    return instead(given, lost=set(WEIGHTS))


def a_whole_spacing(given):
    weight, update = short_of(given)
    return instead(given, master=floor(spacing_at(weight, 8, 7) / Fraction(update)) + 1)


def a_step_too_few(given):
    return instead(given, master=by_hand(given)["master"] - 1)


def at_once(given):
    return instead(given, master=1)


def a_step_too_many(given):
    return instead(given, master=by_hand(given)["master"] + 1)


RIGHT = [by_hand, by_casts]

WRONG = {
    formats_swapped: {
        "in_fp16": "the numbers that the other format holds",
        "in_bf16": "the numbers that the other format holds",
    },
    fp16_as_bf16: {"in_fp16": "the numbers that the other format holds"},
    fp16_without_end: {"in_fp16": "look at the largest of them"},
    fp16_without_subnormals: {"in_fp16": "below 2^-14 fp16 continues"},
    fp16_down_to_anything: {"in_fp16": "Down to where?"},
    fp16_with_fewer_bits: {"in_fp16": "look at the sum"},
    fp16_holds_all_whole_numbers: {"in_fp16": "how far apart are numbers above 2048"},
    fp16_holds_decimals: {"in_fp16": "look at the decimal fraction"},
    bf16_as_fp16: {"in_bf16": "the numbers that the other format holds"},
    bf16_ends_early: {"in_bf16": "which exponents are possible with 8 bits"},
    bf16_ends_at_small_numbers: {"in_bf16": "which exponents are possible with 8 bits"},
    bf16_has_no_subnormals_of_fp16: {"in_bf16": "which exponents are possible with 8 bits"},
    bf16_with_more_bits: {"in_bf16": "look at the sum"},
    bf16_holds_all_whole_numbers: {"in_bf16": "look at the odd number"},
    bf16_holds_decimals: {"in_bf16": "look at the decimal fraction"},
    spacing_above_1: {"spacing": "this is the spacing between 1 and 2"},
    leading_1_is_stored: {"spacing": "this counts the leading 1"},
    powers_of_two_only: {"spacing": "this is the distance to the next power of two"},
    a_quarter_too_much: {"spacing": "is not it. Which power of two is just below x"},
    cut_off: {"rounded": "this cuts off"},
    not_rounded: {"rounded": "this is x itself"},
    one_number_too_low: {"rounded": "x does not lie next to this one"},
    one_number_too_high: {"rounded": "is not it. Find the two numbers"},
    ties_and_others_mixed_up: {"one_plus": "half of the spacing above 1"},
    sum_is_underflow: {"one_plus": "bf16 holds that number alone"},
    sum_is_cut_off: {"one_plus": "would be 1 as well"},
    up_to_a_normal_number: {"survives": "then it is a normal number"},
    up_to_half_of_the_smallest: {"survives": "A tie goes to the one whose last bit is 0"},
    up_to_1: {"survives": "then it is 1"},
    scaled_down: {"survives": "is not it. What is the smallest number of fp16"},
    smallest_updates_are_lost: {"lost": "these have the smallest updates"},
    below_a_spacing: {"lost": "smaller than the spacing"},
    lost_and_kept_swapped: {"lost": "this is the opposite"},
    all_are_lost: {"lost": "is not it. For each weight"},
    a_whole_spacing: {"master": "past the next number"},
    a_step_too_few: {"master": "not yet half-way"},
    at_once: {"master": "one update changes the master weight"},
    a_step_too_many: {"master": "is not it. How far"},
}
