"""Answers to 04/checkpoint_spacing: what is kept, and what is computed again."""

from math import sqrt

# Right ----------------------------------------------------------------------------------------


def peak_of(given, spacing):
    return given["layers"] / spacing * given["input"] + spacing * given["kept"]


def by_hand(given):
    return {
        "peak": peak_of(given, given["spacing"]),
        "best": sqrt(given["layers"] * given["input"] / given["kept"]),
        "again": given["layers"],
        "flops": 100 * (4 - 3) / 3,
        "throughput": 100 * (1 - given["before"] / given["after"]),
    }


def by_trying(given):
    """The best of all spacings that divide; in other units, layers counted one by one."""
    layers = given["layers"]
    spacings = [k for k in range(1, layers + 1) if layers % k == 0]
    best = min(spacings, key=lambda k: peak_of(given, k))
    return {
        "peak": f"{peak_of(given, given['spacing']) / 1e3} GB",
        "best": best,
        "again": sum(len(range(start, start + best)) for start in range(0, layers, best)),
        "flops": "33 %",
        "throughput": f"{100 - 100 * given['before'] / given['after']:.1f} %",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def segments_and_layers_swapped(given):
    return instead(given, peak=peak_of(given, given["layers"] / given["spacing"]))


def checkpoints_alone(given):
    return instead(given, peak=given["layers"] / given["spacing"] * given["input"])


def one_layer_of_the_segment(given):
    checkpoints = given["layers"] / given["spacing"] * given["input"]
    return instead(given, peak=checkpoints + given["kept"])


def one_input_counted_once(given):
    return instead(given, peak=by_hand(given)["peak"] - given["input"])


def without_checkpoints(given):
    return instead(given, peak=given["layers"] * given["kept"])


def twice_the_peak(given):
    return instead(given, peak=2 * by_hand(given)["peak"])


def root_of_the_layers(given):
    return instead(given, best=sqrt(given["layers"]))


def number_of_segments(given):
    return instead(given, best=given["layers"] / by_hand(given)["best"])


def every_layer(given):
    return instead(given, best=1)


def without_the_root(given):
    return instead(given, best=by_hand(given)["best"] ** 2)


def one_layer_more(given):
    return instead(given, best=by_hand(given)["best"] + 0.5)


def one_of_each_segment(given):
    return instead(given, again=given["layers"] / by_hand(given)["best"])


def last_segment_spared(given):
    return instead(given, again=given["layers"] - by_hand(given)["best"])


def first_layers_spared(given):
    return instead(given, again=given["layers"] * (1 - 1 / by_hand(given)["best"]))


def each_layer_many_times(given):
    return instead(given, again=given["layers"] * by_hand(given)["best"])


def no_layer(given):
    return instead(given, again=0)


def part_of_the_longer_step(given):
    return instead(given, flops=25)


def beside_the_backward_pass(given):
    return instead(given, flops=50)


def all_of_it_twice(given):
    return instead(given, flops=100)


def two_thirds(given):
    return instead(given, flops=66.7)


def longer_for_slower(given):
    return instead(given, throughput=100 * (given["after"] / given["before"] - 1))


def from_flops(given):
    """Claim 25."""
    return instead(given, throughput=25)


def throughput_that_is_left(given):
    return instead(given, throughput=100 * given["before"] / given["after"])


def half_of_the_throughput(given):
    return instead(given, throughput=50)


RIGHT = [by_hand, by_trying]

WRONG = {
    segments_and_layers_swapped: {"peak": "this confuses k with the number of segments"},
    checkpoints_alone: {"peak": "these are the checkpoints"},
    one_layer_of_the_segment: {"peak": "a segment is recomputed as a whole"},
    one_input_counted_once: {"peak": "The text above counts it twice"},
    without_checkpoints: {"peak": "this is right without checkpoints"},
    twice_the_peak: {"peak": "is not it. How many inputs are kept"},
    root_of_the_layers: {"best": "a layer keeps no more than its input"},
    number_of_segments: {"best": "the number of segments at the lowest peak"},
    every_layer: {"best": "this keeps every input"},
    without_the_root: {"best": "is a square root missing?"},
    one_layer_more: {"best": "is not it. Write the peak"},
    one_of_each_segment: {"again": "this is the number of segments"},
    last_segment_spared: {"again": "this omits the last segment"},
    first_layers_spared: {"again": "this omits the first layer"},
    each_layer_many_times: {"again": "each segment runs again once"},
    no_layer: {"again": "is not it. Which layers"},
    part_of_the_longer_step: {"flops": "this is the share of the longer step"},
    beside_the_backward_pass: {"flops": "this compares with the backward pass alone"},
    all_of_it_twice: {"flops": "the forward pass runs twice"},
    two_thirds: {"flops": "is not it. Count in forward passes"},
    longer_for_slower: {"throughput": "a step takes this much longer"},
    from_flops: {"throughput": "this follows from FLOPs"},
    throughput_that_is_left: {"throughput": "this is the share that is left"},
    half_of_the_throughput: {"throughput": "is not it. The same samples"},
}
