"""Answers to 11/who_does_it: three systems, and the cost of a task."""

from math import ceil

from dtlab.units.unit11.who_does_it import TASKS

SYSTEMS = ("Slurm", "Kubernetes", "Ray")
WHO = ("first", "second", "third")

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    submit, start, item = given["submit"], given["start"], given["item"]
    share = given["percent"] / 100
    return {
        **{name: TASKS[given[name]] for name in WHO},
        "each": given["items"] * max(submit, (start + item) / given["workers"]) / 1e6,
        "batch": ceil((submit * given["workers"] - start) / item),
        "worth": ceil(share / (1 - share) * start / item),
    }


def by_trying(given):
    """The first batch that is large enough, and another spelling."""
    start, item, workers = given["start"], given["item"], given["workers"]
    enough = (
        lambda items: start + items * item >= workers * given["submit"],
        lambda items: 100 * items * item >= given["percent"] * (items * item + start),
    )
    batch, worth = (next(items for items in range(1, 10**6) if test(items)) for test in enough)
    driver = given["items"] * given["submit"]
    return {
        **{name: TASKS[given[name]].upper() for name in WHO},
        "each": f"{driver / 1e3} ms",
        "batch": batch,
        "worth": f"{worth} items",
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answer."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right[name])}

    return answer


def workers_time(given, right):
    return given["items"] * (given["start"] + given["item"]) / given["workers"] / 1e6


def computing(given, right):
    return given["items"] * given["item"] / given["workers"] / 1e6


def without_start(given, right):
    return ceil(given["submit"] * given["workers"] / given["item"])


def for_one_worker(given, right):
    return ceil(given["submit"] / given["item"])


def half(given, right):
    return ceil(given["start"] / given["item"])


def drivers_too(given, right):
    cost = given["start"] + given["submit"]
    return ceil(given["percent"] * cost / ((100 - given["percent"]) * given["item"]))


def of_computing(given, right):
    return ceil(100 * given["start"] / ((100 - given["percent"]) * given["item"]))


def none_or_slurm(given, right):
    return "Slurm" if right == "none" else "none"


def some(system):
    """This system; if it is right, "torchrun"."""
    return lambda given, right: "torchrun" if right == system else system


RIGHT = [by_hand, by_trying]

WRONG = {
    **{instead(name, some(system)): {name: ""} for name in WHO for system in SYSTEMS},
    **{instead(name, none_or_slurm): {name: ""} for name in WHO},
    **{
        instead(name, lambda given, right: "torchrun"): {name: "none of the options"}
        for name in WHO
    },
    instead("each", workers_time): {"each": "Can the driver submit that many"},
    instead("each", computing): {"each": "this is the computing alone"},
    instead("each", lambda given, right: right + workers_time(given, right)): {
        "each": "submits while the workers work"
    },
    instead("each", lambda given, right: 3 * right): {"each": "is not it. How long does"},
    instead("batch", without_start): {"batch": "gives the driver time too"},
    instead("batch", for_one_worker): {"batch": "submit to all workers"},
    instead("batch", lambda given, right: right - 1): {"batch": "does not quite keep up"},
    instead("batch", lambda given, right: 10 * right): {"batch": "is not it. While a worker"},
    instead("worth", half): {"worth": "half of the time"},
    instead("worth", drivers_too): {"worth": "is not the worker's"},
    instead("worth", of_computing): {"worth": "and not of its computing"},
    instead("worth", lambda given, right: 10 * right): {"worth": "is not it. A worker computes"},
}  # fmt: skip
