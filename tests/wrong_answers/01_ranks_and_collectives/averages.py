"""Answers to 01/averages: the gradient that two workers step with."""

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    first, second = given["gradients"]
    total = [first[0] + second[0], first[1] + second[1]]
    return {"sum": total, "average": [total[0] / 2, total[1] / 2], "divide": "both"}


def as_fractions(given):
    total = by_hand(given)["sum"]
    return {"sum": tuple(total), "average": [f"{one}/2" for one in total], "divide": "Both "}


# Wrong ----------------------------------------------------------------------------------------


def divided_at_once(given):
    return by_hand(given) | {"sum": by_hand(given)["average"]}


def summed_over_each_worker(given):
    return by_hand(given) | {"sum": [sum(gradient) for gradient in given["gradients"]]}


def sum_for_the_average(given):
    return by_hand(given) | {"average": by_hand(given)["sum"]}


def averaged_over_each_worker(given):
    return by_hand(given) | {"average": [sum(one) / 2 for one in given["gradients"]]}


def own_gradient_only(given):
    return by_hand(given) | {"average": given["gradients"][0]}


def divided_by_the_root(given):
    return by_hand(given) | {"divide": "worker 0"}


def divided_by_nobody(given):
    return by_hand(given) | {"divide": "none"}


def another_word(given):
    return by_hand(given) | {"divide": "the server"}


def vector_as_text(given):
    return by_hand(given) | {"sum": "{}, {}".format(*by_hand(given)["sum"])}


def one_number_for_two(given):
    return by_hand(given) | {"sum": by_hand(given)["sum"][0]}


def a_list_for_a_name(given):
    return by_hand(given) | {"divide": ["both"]}


RIGHT = [by_hand, as_fractions]

WRONG = {
    divided_at_once: {"sum": "SUM does not divide"},
    summed_over_each_worker: {"sum": "this adds the elements of one worker"},
    sum_for_the_average: {"average": "this is the sum"},
    averaged_over_each_worker: {"average": "averages over the elements of one worker"},
    own_gradient_only: {"average": "without worker 1's"},
    divided_by_the_root: {"divide": "no longer equal"},
    divided_by_nobody: {"divide": "SUM only adds"},
    vector_as_text: {"sum": "write a list of 2 numbers, as in ["},
    one_number_for_two: {"sum": "write a list of 2 numbers, as in [2.5, 1], not a number"},
    a_list_for_a_name: {"divide": "['both'] is a list; one name is asked for. Write one of"},
    another_word: {"divide": "is none of the options"},
}
