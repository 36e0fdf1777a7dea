"""Answers to 03/micro_gradients: what microbatches add up to, equal ones and others."""

from itertools import chain

# Right ----------------------------------------------------------------------------------------


def tokens_of(given):
    return list(chain(*given["tokens"]))


def slopes_of(given):
    return list(chain(*given["token_gradients"]))


def total_of(given):
    return sum(a * b for a, b in zip(tokens_of(given), slopes_of(given), strict=True))


def by_hand(given):
    four = given["gradients"]
    return {
        "mean": sum(four) / 4,
        "undivided": sum(four),
        "rate": 4 * given["rate"],
        "adam": 1,
        "mean_of_means": sum(slopes_of(given)) / 4,
        "true": total_of(given) / sum(tokens_of(given)),
        "factor": 2 / sum(tokens_of(given)),
    }


def as_fractions(given):
    """Text, and a mean by shares."""
    tokens = tokens_of(given)
    shares = [count / sum(tokens) for count in tokens]
    return by_hand(given) | {
        "mean": f"{sum(given['gradients'])}/4",
        "rate": f"{400 * given['rate']:g}e-2",
        "adam": "1.0",
        "true": sum(a * b for a, b in zip(shares, slopes_of(given), strict=True)),
        "factor": f"2/{sum(tokens)}",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(given, **answers):
    return by_hand(given) | answers


def mean_of_ranks(given):
    """The ranks' own means over their tokens, averaged."""
    own = [
        sum(a * b for a, b in zip(tokens, slopes, strict=True)) / sum(tokens)
        for tokens, slopes in zip(given["tokens"], given["token_gradients"], strict=True)
    ]
    return sum(own) / 2


def sum_for_the_mean(given):
    return instead(given, mean=sum(given["gradients"]))


def last_one_for_the_mean(given):
    return instead(given, mean=given["gradients"][-1])


def mean_divided_twice(given):
    return instead(given, mean=sum(given["gradients"]) / 16)


def backward_divides(given):
    return instead(given, undivided=by_hand(given)["mean"])


def backward_overwrites(given):
    return instead(given, undivided=given["gradients"][-1])


def backward_leaves_nothing(given):
    return instead(given, undivided=0)


def rate_that_makes_up_for_it(given):
    return instead(given, rate=given["rate"] / 4)


def rate_as_it_was(given):
    return instead(given, rate=given["rate"])


def step_for_the_rate(given):
    return instead(given, rate=given["rate"] * sum(given["gradients"]))


def rate_of_half_of_them(given):
    return instead(given, rate=2 * given["rate"])


def adam_as_sgd(given):
    return instead(given, adam=4)


def adam_with_a_root(given):
    return instead(given, adam=2)


def adam_without_a_root(given):
    return instead(given, adam=1 / 4)


def ddp_weighs_tokens(given):
    return instead(given, mean_of_means=by_hand(given)["true"])


def ranks_weigh_tokens(given):
    return instead(given, mean_of_means=mean_of_ranks(given))


def means_added_up(given):
    return instead(given, mean_of_means=sum(slopes_of(given)))


def means_divided_once(given):
    return instead(given, mean_of_means=sum(slopes_of(given)) / 2)


def tokens_do_not_count(given):
    return instead(given, true=by_hand(given)["mean_of_means"])


def tokens_count_on_a_rank_only(given):
    return instead(given, true=mean_of_ranks(given))


def divided_by_micro_batches(given):
    return instead(given, true=total_of(given) / 4)


def one_over_all_tokens(given):
    return instead(given, factor=1 / sum(tokens_of(given)))


def divided_by_the_ranks_twice(given):
    return instead(given, factor=1 / (2 * sum(tokens_of(given))))


def one_over_tokens_of_the_rank(given):
    return instead(given, factor=1 / sum(given["tokens"][0]))


def micro_batches_over_all_tokens(given):
    return instead(given, factor=4 / sum(tokens_of(given)))


def factor_of_one(given):
    return instead(given, factor=1)


def factor_upside_down(given):
    return instead(given, factor=sum(tokens_of(given)) / 2)


RIGHT = [by_hand, as_fractions]

WRONG = {
    sum_for_the_mean: {"mean": "this is the sum"},
    last_one_for_the_mean: {"mean": "this is only the last gradient"},
    mean_divided_twice: {"mean": "this divides by four twice"},
    backward_divides: {"undivided": "nothing divides"},
    backward_overwrites: {"undivided": "if each pass overwrote `.grad`"},
    backward_leaves_nothing: {"undivided": "this is right after `zero_grad`"},
    rate_that_makes_up_for_it: {"rate": "this is the inverse"},
    rate_as_it_was: {"rate": "if both gradients were equal"},
    step_for_the_rate: {"rate": "this is the step itself"},
    rate_of_half_of_them: {"rate": "is not it. A step is rate times gradient"},
    adam_as_sgd: {"adam": "this is right for SGD"},
    adam_with_a_root: {"adam": "the root is taken of one"},
    adam_without_a_root: {"adam": "Is a root taken of it?"},
    ddp_weighs_tokens: {"mean_of_means": "Neither the script nor DDP does"},
    ranks_weigh_tokens: {"mean_of_means": "The script halves every mean loss"},
    means_added_up: {"mean_of_means": "this is the sum of four means"},
    means_divided_once: {"mean_of_means": "this divides once"},
    tokens_do_not_count: {"true": "this is the mean of four means"},
    tokens_count_on_a_rank_only: {"true": "this is right on each rank"},
    divided_by_micro_batches: {"true": "by the number of microbatches"},
    one_over_all_tokens: {"factor": "but DDP still divides it"},
    divided_by_the_ranks_twice: {"factor": "although DDP does so as well"},
    one_over_tokens_of_the_rank: {"factor": "this is the mean over the tokens of rank 0"},
    micro_batches_over_all_tokens: {"factor": "Nothing divides by the number of microbatches"},
    factor_of_one: {"factor": "this factor changes nothing"},
    factor_upside_down: {"factor": "is not it. DDP sums over"},
}
