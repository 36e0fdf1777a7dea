"""Answers to 02/uneven: means over batches of different sizes."""

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    sizes, gradients = given["sizes"], given["gradients"]
    total = sum(size * one for size, one in zip(sizes, gradients, strict=True))
    return {
        "ddp": sum(gradients) / 3,
        "true": total / sum(sizes),
        "factor": 3 * sizes[2] / sum(sizes),
        "weight": sizes[0] / sizes[2],
        "accuracy": 100 * sum(given["right"]) / sum(sizes),
    }


def as_fractions(given):
    """Text, and a mean by shares."""
    sizes = given["sizes"]
    shares = [size / sum(sizes) for size in sizes]
    return by_hand(given) | {
        "ddp": f"{sum(given['gradients'])}/3",
        "true": sum(a * b for a, b in zip(shares, given["gradients"], strict=True)),
        "factor": f"{3 * sizes[2]}/{sum(sizes)}",
        "accuracy": f"{100 * sum(given['right']) / sum(sizes)} %",
    }


# Wrong ----------------------------------------------------------------------------------------


def ddp_weighs_samples(given):
    return by_hand(given) | {"ddp": by_hand(given)["true"]}


def ddp_sums(given):
    return by_hand(given) | {"ddp": sum(given["gradients"])}


def mean_of_means(given):
    return by_hand(given) | {"true": by_hand(given)["ddp"]}


def sum_over_three(given):
    return by_hand(given) | {"true": by_hand(given)["true"] * sum(given["sizes"]) / 3}


def means_over_samples(given):
    return by_hand(given) | {"true": sum(given["gradients"]) / sum(given["sizes"])}


def share_for_the_factor(given):
    return by_hand(given) | {"factor": given["sizes"][2] / sum(given["sizes"])}


def factor_upside_down(given):
    return by_hand(given) | {"factor": 1 / by_hand(given)["factor"]}


def factor_of_one(given):
    return by_hand(given) | {"factor": 1}


def factor_of_rank_2_alone(given):
    gradients, right = given["gradients"], by_hand(given)
    return right | {"factor": (3 * right["true"] - sum(gradients[:2])) / gradients[2]}


def weight_upside_down(given):
    return by_hand(given) | {"weight": given["sizes"][2] / given["sizes"][0]}


def weight_of_one(given):
    return by_hand(given) | {"weight": 1}


def mean_of_accuracies(given):
    pairs = zip(given["right"], given["sizes"], strict=True)
    return by_hand(given) | {"accuracy": 100 * sum(right / size for right, size in pairs) / 3}


def full_batches_counted(given):
    return by_hand(given) | {"accuracy": 100 * sum(given["right"]) / (3 * given["sizes"][0])}


RIGHT = [by_hand, as_fractions]

WRONG = {
    ddp_weighs_samples: {"ddp": "DDP does not count samples"},
    ddp_sums: {"ddp": "this is the sum"},
    mean_of_means: {"true": "this is the mean of means over unequal"},
    sum_over_three: {"true": "by the number of ranks"},
    means_over_samples: {"true": "as if each were one sample's gradient"},
    share_for_the_factor: {"factor": "DDP still divides by the number of ranks"},
    factor_upside_down: {"factor": "this is the inverse"},
    factor_of_one: {"factor": "this factor changes nothing"},
    factor_of_rank_2_alone: {"factor": "if ranks 0 and 1 have the factor 1"},
    weight_upside_down: {"weight": "this is the inverse"},
    weight_of_one: {"weight": "if all batches were equally large"},
    mean_of_accuracies: {"accuracy": "the few samples of rank 2 count a third"},
    full_batches_counted: {"accuracy": "as many samples on rank 2 as on rank 0"},
}
