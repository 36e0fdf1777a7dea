"""Answers to 08/halos: how wide a halo is, and what strips and squares send."""

from math import isqrt

from dtlab.predict.context import halo_elements, halo_share, halo_width

# Right ----------------------------------------------------------------------------------------


def widths_of(given):
    one = given["dilation"] * (given["first"] - 1) // 2
    return one, one + (given["second"] - 1) // 2 + (given["third"] - 1) // 2


def by_hand(given):
    one, w = widths_of(given)
    mega, tile = 4 * given["channels"] / 1e6, given["side"] // given["root"]
    around = 4 * w * tile + 4 * w**2
    return {
        "one": one,
        "three": w,
        "strips": 2 * w * given["side"] * mega,
        "squares": around * mega,
        "growth": [1, 1 / 2],
        "share": around / tile**2,
    }


def by_the_library(given):
    layers = (given["first"], given["dilation"]), (given["second"], 1), (given["third"], 1)
    w, tile = halo_width(*layers), given["side"] // isqrt(given["ranks"])
    strip = (given["side"] // given["ranks"],)
    channels = given["channels"]
    return {
        "one": f"{halo_width(layers[0])} cells",
        "three": w,
        "strips": f"{4 * halo_elements(strip, w, channels * given['side']) / 1e6} MB",
        "squares": f"{4 * halo_elements((tile, tile), w, channels) / 1e6} MB",
        "growth": [1.0, 0.5],
        "share": f"{100 * halo_share((tile, tile), w):.2f} %",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of width, tile, values and right answer."""

    def answer(given):
        right, tile = by_hand(given), given["side"] // given["root"]
        return right | {name: wrong(right["three"], tile, given, right[name])}

    return answer


def mega(given):
    return 4 * given["channels"] / 1e6


no_dilation = instead("one", lambda w, tile, given, right: (given["first"] - 1) // 2)
both_sides = instead("one", lambda w, tile, given, right: 2 * right)
centre_counts = instead(
    "one", lambda w, tile, given, right: given["dilation"] * given["first"] // 2
)
whole_kernel = instead("one", lambda w, tile, given, right: given["dilation"] * given["first"])
one_off = instead("one", lambda w, tile, given, right: right + 30)
widest_layer = instead(
    "three", lambda w, tile, given, right: max(widths_of(given)[0], (given["second"] - 1) // 2)
)
three_on_both_sides = instead("three", lambda w, tile, given, right: 2 * right)
none_dilated = instead(
    "three",
    lambda w, tile, given, right: (given["first"] - 1) // 2 + (given["second"] - 1) // 2 + 1,
)
product = instead("three", lambda w, tile, given, right: 3 * right)
one_neighbour = instead("strips", lambda w, tile, given, right: right / 2)
first_layer_only = instead("strips", lambda w, tile, given, right: right * widths_of(given)[0] / w)
one_channel = instead("strips", lambda w, tile, given, right: right / given["channels"])
short_rows = instead("strips", lambda w, tile, given, right: right / given["ranks"])
strips_in_elements = instead("strips", lambda w, tile, given, right: right / 4)
no_corners = instead("squares", lambda w, tile, given, right: mega(given) * 4 * w * tile)
two_sides = instead("squares", lambda w, tile, given, right: mega(given) * 2 * w * tile)
one_corner = instead("squares", lambda w, tile, given, right: mega(given) * (4 * w * tile + w * w))
halo_on_one_side = instead(
    "squares", lambda w, tile, given, right: mega(given) * ((tile + w) ** 2 - tile**2)
)
squares_in_elements = instead("squares", lambda w, tile, given, right: right / 4)
as_the_cells = instead("growth", lambda w, tile, given, right: [0.25, 0.25])
squares_as_the_cells = instead("growth", lambda w, tile, given, right: [1, 0.25])
strips_as_squares = instead("growth", lambda w, tile, given, right: [0.5, 0.5])
both_double = instead("growth", lambda w, tile, given, right: [2, 2])
share_without_corners = instead("share", lambda w, tile, given, right: 4 * w / tile)
share_of_all = instead("share", lambda w, tile, given, right: right / (1 + right))
share_of_strips = instead(
    "share", lambda w, tile, given, right: 2 * w * given["ranks"] / given["side"]
)
share_halved = instead("share", lambda w, tile, given, right: right / 1.7)

RIGHT = [by_hand, by_the_library]

WRONG = {
    no_dilation: {"one": "this is without dilation"},
    both_sides: {"one": "both sides together"},
    centre_counts: {"one": "the centre of the kernel does not count"},
    whole_kernel: {"one": "how far is the last cell"},
    one_off: {"one": "is not it. How far from its centre"},
    widest_layer: {"three": "this is the widest layer"},
    three_on_both_sides: {"three": "both sides together"},
    none_dilated: {"three": "layer 1 has a dilation"},
    product: {"three": "is not it. Layer 3 needs cells"},
    one_neighbour: {"strips": "a strip has two neighbours"},
    first_layer_only: {"strips": "the halo of layer 1 alone"},
    one_channel: {"strips": "each cell has several channels"},
    short_rows: {"strips": "a row has all columns"},
    strips_in_elements: {"strips": "is not it. Two neighbours"},
    no_corners: {"squares": "this is without corners"},
    two_sides: {"squares": "four neighbours beside it"},
    one_corner: {"squares": "there are four corners"},
    halo_on_one_side: {"squares": "the halo is on both sides"},
    squares_in_elements: {"squares": "is not it. Take the tile with its halo"},
    as_the_cells: {"growth": "What about its border?"},
    squares_as_the_cells: {"growth": "half of a side is left"},
    strips_as_squares: {"growth": "as long as before"},
    both_double: {"growth": "is not it. What happens to the length"},
    share_without_corners: {"share": "this is without corners"},
    share_of_all: {"share": "over the tile with its halo"},
    share_of_strips: {"share": "this is for strips"},
    share_halved: {"share": "is not it. Surface over volume"},
}
