"""Answers to 01/step: one synchronous step of three workers."""

# Right ----------------------------------------------------------------------------------------


def mean(vectors):
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def stepped(given, gradient, rate=None):
    rate = given["rate"] if rate is None else rate
    return [w - rate * slope for w, slope in zip(given["weights"], gradient, strict=True)]


def by_hand(given):
    gradient = mean(given["gradients"])
    return {
        "gradient": gradient,
        "weights": stepped(given, gradient),
        "alone": stepped(given, given["gradients"][given["who"]]),
        "rate": given["rate"] / 3,
        "after": "the same",
    }


def weights_averaged_after_the_step(given):
    """Each worker steps alone, then the weights are averaged; the rate as a fraction."""
    alone = [stepped(given, gradient) for gradient in given["gradients"]]
    return by_hand(given) | {
        "weights": mean(alone),
        "alone": alone[given["who"]],
        "rate": f"{given['rate']}/3",
    }


# Wrong ----------------------------------------------------------------------------------------


def total(given):
    return [sum(column) for column in zip(*given["gradients"], strict=True)]


def sum_for_the_gradient(given):
    return by_hand(given) | {"gradient": total(given)}


def divided_by_two(given):
    return by_hand(given) | {"gradient": [one / 2 for one in total(given)]}


def stepped_with_the_sum(given):
    return by_hand(given) | {"weights": stepped(given, total(given))}


def uphill(given):
    return by_hand(given) | {"weights": stepped(given, mean(given["gradients"]), -given["rate"])}


def without_the_rate(given):
    return by_hand(given) | {"weights": stepped(given, mean(given["gradients"]), 1)}


def stepped_with_the_average_alone(given):
    return by_hand(given) | {"alone": by_hand(given)["weights"]}


def worker_0_asked_for_another(given):
    return by_hand(given) | {"alone": stepped(given, given["gradients"][0])}


def larger_rate_for_the_sum(given):
    return by_hand(given) | {"rate": given["rate"] * 3}


def same_rate_for_the_sum(given):
    return by_hand(given) | {"rate": given["rate"]}


def another_result_after(given):
    return by_hand(given) | {"after": "different"}


def same_only_where_gradients_are(given):
    return by_hand(given) | {"after": "the same if the gradients are"}


def weights_in_two_lists(given):
    return by_hand(given) | {"weights": [[one] for one in by_hand(given)["weights"]]}


RIGHT = [by_hand, weights_averaged_after_the_step]

WRONG = {
    sum_for_the_gradient: {"gradient": "this is the sum"},
    divided_by_two: {"gradient": "this divides by two"},
    stepped_with_the_sum: {"weights": "three times as far"},
    uphill: {"weights": "this goes uphill"},
    without_the_rate: {"weights": "leaves the learning rate out"},
    weights_in_two_lists: {"weights": "not a list with lists in it"},
    stepped_with_the_average_alone: {"alone": "this is the step with the average"},
    worker_0_asked_for_another: {"alone": "this is worker 0"},
    larger_rate_for_the_sum: {"rate": "this makes it longer still"},
    same_rate_for_the_sum: {"rate": "steps three times as far"},
    another_result_after: {"after": "compute both with your numbers"},
    same_only_where_gradients_are: {"after": "your gradients are not equal"},
}
