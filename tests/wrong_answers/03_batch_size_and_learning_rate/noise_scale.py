"""Answers to 03/noise_scale: signal, noise, and what a larger batch buys."""

from math import sqrt

BATCHES = (8, 32, 128, 512, 2048)

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    (small, big), (of_small, of_big) = given["batches"], given["norms"]
    variance = (of_small - of_big) * small * big / (big - small)
    signal = of_big - variance / big
    scale = variance / signal
    before, after = 1 + scale / given["above"], 1 + scale / (2 * given["above"])
    return {
        "variance": variance,
        "signal": signal,
        "noise_scale": scale,
        "well_below": {str(batch) for batch in BATCHES if variance / batch >= 4 * signal},
        "fewest": given["steps"] / (1 + scale / small),
        "saved": 100 * (before - after) / before,
        "samples": 2 * after / before,
    }


def by_the_library(given):
    """As the library has it; batches as numbers, and a share for per cent."""
    from dtlab.training.learning_rate import noise_scale_from_norms

    measured = noise_scale_from_norms(*given["norms"], *given["batches"])
    right = by_hand(given)
    return right | {
        "variance": measured.variance,
        "signal": measured.gradient_squared,
        "noise_scale": f"{measured.batch} samples",
        "well_below": sorted(map(int, right["well_below"])),
        "fewest": f"{right['fewest']} steps",
        "saved": right["saved"] / 100,
        "samples": f"{right['samples']:.4f}",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def difference_of(given):
    return given["norms"][0] - given["norms"][1]


def difference_for_the_variance(given):
    return instead(given, variance=difference_of(given))


def large_batch_without_noise(given):
    return instead(given, variance=difference_of(given) * given["batches"][0])


def all_is_noise(given):
    return instead(given, variance=given["norms"][0] * given["batches"][0])


def noise_of_the_small_batch(given):
    return instead(given, variance=by_hand(given)["variance"] / given["batches"][0])


def norms_added_up(given):
    return instead(given, variance=sum(given["norms"]) * given["batches"][0])


def norm_of_the_large_batch(given):
    return instead(given, signal=given["norms"][1])


def difference_for_the_signal(given):
    return instead(given, signal=difference_of(given))


def norm_not_squared(given):
    return instead(given, signal=sqrt(by_hand(given)["signal"]))


def norm_of_the_small_batch(given):
    return instead(given, signal=given["norms"][0])


def signal_over_noise(given):
    return instead(given, noise_scale=1 / by_hand(given)["noise_scale"])


def noise_over_the_norm(given):
    right = by_hand(given)
    return instead(given, noise_scale=right["variance"] / sqrt(right["signal"]))


def noise_over_all(given):
    return instead(given, noise_scale=by_hand(given)["variance"] / given["norms"][1])


def difference_over_signal(given):
    return instead(given, noise_scale=difference_of(given) / by_hand(given)["signal"])


def below(given):
    return {str(batch) for batch in BATCHES if batch < by_hand(given)["noise_scale"]}


def everything():
    return {str(batch) for batch in BATCHES}


def just_below(given):
    return instead(given, well_below=below(given))


def above(given):
    return instead(given, well_below=everything() - below(given))


def upside_down(given):
    return instead(given, well_below=everything() - by_hand(given)["well_below"])


def smallest_left_out(given):
    return instead(given, well_below=by_hand(given)["well_below"] - {"8"})


def all_batches(given):
    return instead(given, well_below=everything())


def in_proportion_up_to_the_scale(given):
    scale = by_hand(given)["noise_scale"]
    return instead(given, fewest=given["steps"] * given["batches"][0] / scale)


def half_of_the_steps(given):
    return instead(given, fewest=given["steps"] / 2)


def no_steps(given):
    return instead(given, fewest=0)


def all_steps(given):
    return instead(given, fewest=given["steps"])


def steps_halved(given):
    return instead(given, saved=50)


def part_of_the_fewest(given):
    return instead(given, saved=50 * by_hand(given)["noise_scale"] / given["above"])


def part_that_is_left(given):
    return instead(given, saved=100 - by_hand(given)["saved"])


def nothing_saved(given):
    return instead(given, saved=0)


def saved_twice(given):
    return instead(given, saved=2 * by_hand(given)["saved"])


def twice_the_samples(given):
    return instead(given, samples=2)


def as_many_samples(given):
    return instead(given, samples=1)


def steps_for_samples(given):
    return instead(given, samples=by_hand(given)["samples"] / 2)


def samples_of_four_batches(given):
    return instead(given, samples=4)


RIGHT = [by_hand, by_the_library]

WRONG = {
    difference_for_the_variance: {"variance": "how much less noise the larger batch has"},
    large_batch_without_noise: {"variance": "batch has no noise"},
    all_is_noise: {"variance": "this assumes that all of the gradient is noise"},
    noise_of_the_small_batch: {"variance": "the noise in a mean over the small batch"},
    norms_added_up: {"variance": "is not it. Write one equation for each batch"},
    norm_of_the_large_batch: {"signal": "this still contains noise"},
    difference_for_the_signal: {"signal": "it cancels in their difference"},
    norm_not_squared: {"signal": "this is the norm"},
    norm_of_the_small_batch: {
        "signal": "is not it. Subtract the noise from one of the squared norms"
    },
    signal_over_noise: {"noise_scale": "this is the inverse"},
    noise_over_the_norm: {"noise_scale": "Both must be squares"},
    noise_over_all: {"noise_scale": "this divides by signal and noise together"},
    difference_over_signal: {"noise_scale": "is not it. At which batch"},
    just_below: {"well_below": "these are all that have more noise than signal"},
    above: {"well_below": "these are above B_noise"},
    upside_down: {"well_below": "this is the opposite"},
    smallest_left_out: {"well_below": "which batch has the most noise?"},
    all_batches: {"well_below": "is not it. For each of them"},
    in_proportion_up_to_the_scale: {"fewest": "in proportion up to B_noise"},
    half_of_the_steps: {"fewest": "if the small batch were as large as B_noise"},
    no_steps: {"fewest": "even without noise, training takes steps"},
    all_steps: {"fewest": "is not it. What is 1 + B_noise / B"},
    steps_halved: {"saved": "only if the batch is far below B_noise"},
    part_of_the_fewest: {"saved": "this is a part of the fewest steps"},
    part_that_is_left: {"saved": "the part of the steps that is left"},
    nothing_saved: {"saved": "a little noise is left"},
    saved_twice: {"saved": "is not it. Compute"},
    twice_the_samples: {"samples": "if no step were saved"},
    as_many_samples: {"samples": "this is right far below B_noise"},
    steps_for_samples: {"samples": "this is the ratio of steps"},
    samples_of_four_batches: {"samples": "is not it. Samples are steps times batch"},
}
