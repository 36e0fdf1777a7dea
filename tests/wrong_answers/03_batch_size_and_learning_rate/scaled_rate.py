"""Answers to 03/scaled_rate: the rate for k times the batch, and the way up to it."""

from math import sqrt

# Right ----------------------------------------------------------------------------------------


def times_of(given):
    return given["batch"] // given["base_batch"]


def by_hand(given):
    k, small = times_of(given), given["sgd_rate"]
    warmup = given["epochs"] * given["images"] // given["batch"]
    return {
        "sgd": k * small,
        "adam": sqrt(k) * given["adam_rate"],
        "linear_because": "steps",
        "sqrt_because": "noise",
        "warmup_steps": warmup,
        "rate_at": small + (k * small - small) * given["step"] / warmup,
    }


def by_the_library(given):
    """As the library has it, choices in words, and steps counted out."""
    from torch import nn
    from torch.optim import SGD

    from dtlab.training.learning_rate import WarmupThenDecay, linear_scaled_lr, sqrt_scaled_lr

    batches = given["base_batch"], given["batch"]
    sgd = linear_scaled_lr(given["sgd_rate"], *batches)
    warmup = len(range(0, given["images"], given["batch"])) * given["epochs"]
    schedule = WarmupThenDecay(
        SGD(nn.Linear(1, 1).parameters(), lr=sgd),
        warmup,
        2 * warmup,
        start_factor=given["base_batch"] / given["batch"],
    )
    return {
        "sgd": sgd,
        "adam": f"{sqrt_scaled_lr(given['adam_rate'], *batches):.3e}",
        "linear_because": "k small steps on about the same slope go as far as a large one",
        "sqrt_because": "Noise",
        "warmup_steps": f"{warmup} steps",
        "rate_at": sgd * schedule.factor(given["step"]),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def root_for_sgd(given):
    return instead(given, sgd=sqrt(times_of(given)) * given["sgd_rate"])


def rate_of_sgd_kept(given):
    return instead(given, sgd=given["sgd_rate"])


def rate_divided(given):
    return instead(given, sgd=given["sgd_rate"] / times_of(given))


def rate_times_five(given):
    return instead(given, sgd=5 * given["sgd_rate"])


def linear_for_adam(given):
    return instead(given, adam=times_of(given) * given["adam_rate"])


def rate_of_adam_kept(given):
    return instead(given, adam=given["adam_rate"])


def rate_of_sgd_for_adam(given):
    return instead(given, adam=sqrt(times_of(given)) * given["sgd_rate"])


def rules_crossed(given):
    return instead(
        given,
        sgd=sqrt(times_of(given)) * given["sgd_rate"],
        adam=times_of(given) * given["adam_rate"],
    )


def linear_for_the_noise(given):
    return instead(given, linear_because="noise")


def linear_for_the_variance(given):
    """Claim 15."""
    return instead(given, linear_because="variance")


def linear_for_shorter_gradients(given):
    return instead(given, linear_because="slope")


def root_for_the_steps(given):
    return instead(given, sqrt_because="steps")


def root_for_the_variance(given):
    return instead(given, sqrt_because="variance")


def root_for_shorter_gradients(given):
    return instead(given, sqrt_because="slope")


def arguments_crossed(given):
    return instead(given, linear_because="noise", sqrt_because="steps")


def steps_of_the_small_batch(given):
    return instead(given, warmup_steps=given["epochs"] * given["images"] // given["base_batch"])


def one_epoch_of_warmup(given):
    return instead(given, warmup_steps=given["images"] // given["batch"])


def images_for_steps(given):
    return instead(given, warmup_steps=given["images"] * given["epochs"])


def one_step_less(given):
    return instead(given, warmup_steps=by_hand(given)["warmup_steps"] - 1)


def way_of(given):
    return given["step"] / by_hand(given)["warmup_steps"]


def line_from_nothing(given):
    return instead(given, rate_at=by_hand(given)["sgd"] * way_of(given))


def line_that_overshoots(given):
    full = by_hand(given)["sgd"]
    return instead(given, rate_at=full * (1 / times_of(given) + way_of(given)))


def line_to_twice_the_small_rate(given):
    return instead(given, rate_at=given["sgd_rate"] * (1 + way_of(given)))


def line_downwards(given):
    right = by_hand(given)
    return instead(given, rate_at=given["sgd_rate"] + right["sgd"] - right["rate_at"])


def rate_of_step_0(given):
    return instead(given, rate_at=given["sgd_rate"])


def rate_after_the_warmup(given):
    return instead(given, rate_at=by_hand(given)["sgd"])


RIGHT = [by_hand, by_the_library]

WRONG = {
    root_for_sgd: {"sgd": "this is the other rule"},
    rate_of_sgd_kept: {"sgd": "the weights move only 1/k as far"},
    rate_divided: {"sgd": "this makes them shorter"},
    rate_times_five: {"sgd": "is not it. How many steps with the small batch"},
    linear_for_adam: {"adam": "this is the rule for SGD"},
    rate_of_adam_kept: {"adam": "makes up for only a part of k"},
    rate_of_sgd_for_adam: {"adam": "this starts from the rate of SGD"},
    rules_crossed: {"sgd": "this is the other rule", "adam": "this is the rule for SGD"},
    linear_for_the_noise: {"linear_because": "how does the noise of an update change with k"},
    linear_for_the_variance: {"linear_because": "texts often say so"},
    linear_for_shorter_gradients: {"linear_because": "the rest of it keeps its length"},
    root_for_the_steps: {"sqrt_because": "that needs k times the rate"},
    root_for_the_variance: {"sqrt_because": "Where would a root come from?"},
    root_for_shorter_gradients: {"sqrt_because": "the rest of it keeps its length"},
    arguments_crossed: {
        "linear_because": "how does the noise of an update change with k",
        "sqrt_because": "that needs k times the rate",
    },
    steps_of_the_small_batch: {"warmup_steps": "this is right for the small batch"},
    one_epoch_of_warmup: {"warmup_steps": "this is one epoch"},
    images_for_steps: {"warmup_steps": "these are images"},
    one_step_less: {"warmup_steps": "is not it. Each image is seen once"},
    line_from_nothing: {"rate_at": "this line begins at 0"},
    line_that_overshoots: {"rate_at": "and ends above it"},
    line_to_twice_the_small_rate: {"rate_at": "twice the rate of the small batch"},
    line_downwards: {"rate_at": "this line goes down"},
    rate_of_step_0: {"rate_at": "this is step 0"},
    rate_after_the_warmup: {"rate_at": "this is the rate after the warm-up"},
}
