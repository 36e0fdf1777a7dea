"""Answers to 11/interval: failures of a large job, Young's interval, goodput."""

from math import sqrt

from dtlab.predict import seconds_between_failures, young_interval

# Right ----------------------------------------------------------------------------------------


def by_hand(given):
    failures = (466 - 47) / 54 * given["gpus"] / 16384
    between = 24 * 3600 / failures
    young = sqrt(2 * given["save"] * between)
    lost = [given["save"] / young, young / 2 / between, 60 * given["restart"] / between]
    cheaper, more = sqrt(given["pause"] / given["save"]), sqrt(given["times"])
    return {
        "failures": failures,
        "young": young / 60,
        "lost": lost,
        "goodput": 1 - sum(lost),
        "asynchronous": [cheaper, cheaper],
        "larger": [1 / more, more],
    }


def by_the_library(given):
    """With units and percent, and with the factors of two jobs instead of roots."""
    of_one, save = 54 * 86400 * 16384 / 419, given["save"]

    def job(save, gpus):
        between = seconds_between_failures(of_one, gpus)
        young = young_interval(save, between)
        return young, 100 * save / young, 50 * young / between

    young, saves, repeated = job(save, given["gpus"])
    between = seconds_between_failures(of_one, given["gpus"])
    restarts = 100 * 60 * given["restart"] / between
    changed = [job(given["pause"], given["gpus"]), job(save, given["times"] * given["gpus"])]
    factors = [[each[0] / young, (each[1] + each[2]) / (saves + repeated)] for each in changed]
    return {
        "failures": 86400 / between,
        "young": f"{young} s",
        "lost": [f"{each} %" for each in (saves, repeated, restarts)],
        "goodput": f"{100 - saves - repeated - restarts} %",
        "asynchronous": factors[0],
        "larger": tuple(factors[1]),
    }


# Wrong ----------------------------------------------------------------------------------------


def instead(name, wrong):
    """A right answer but for one value: a function of the values and of the right answers."""

    def answer(given):
        right = by_hand(given)
        return right | {name: wrong(given, right)}

    return answer


def times(name, factor):
    return instead(name, lambda given, right: factor * right[name])


def with_restart(given, right):
    return right["young"] * sqrt(1 + 60 * given["restart"] / given["save"])


def of_shares(compute):
    return instead("goodput", lambda given, right: compute(*right["lost"]))


RIGHT = [by_hand, by_the_library]

WRONG = {
    times("failures", 466 / 419): {"failures": "planned interruptions"},
    instead("failures", lambda given, right: 419 / 54 * 16384 / given["gpus"]): {
        "failures": "a job fails more often"
    },
    instead("failures", lambda given, right: 419 / 54): {"failures": "that was measured"},
    times("failures", 54): {"failures": "is not it. How many interruptions"},
    times("young", sqrt(1 / 2)): {"young": "a factor below the root"},
    times("young", sqrt(2)): {"young": "the factor is below the root"},
    instead("young", lambda given, right: right["young"] * sqrt(given["gpus"])): {
        "young": "the failures of one GPU"
    },
    instead("young", with_restart): {"young": "as long with any interval"},
    times("young", 3): {"young": "is not it. Which two times"},
    instead("lost", lambda given, right: [right["lost"][0], 2 * right["lost"][1],
                                          right["lost"][2]]): {"lost": "in the middle"},
    instead("lost", lambda given, right: [*right["lost"][:2], right["lost"][2] / 60]): {
        "lost": "in the same unit"
    },
    instead("lost", lambda given, right: [*right["lost"][:2], 0]): {"lost": "waits for"},
    instead("lost", lambda given, right: [0, 0, 0]): {"lost": "is not it. One save"},
    of_shares(lambda saves, repeated, restarts: 1 - saves - repeated): {"goodput": "the restarts"},
    of_shares(lambda saves, repeated, restarts: 1 - saves - restarts): {"goodput": "three losses"},
    of_shares(lambda saves, repeated, restarts: saves + repeated + restarts): {
        "goodput": "the share that is lost"
    },
    times("goodput", 0.5): {"goodput": "is not it. What remains"},
    instead("asynchronous", lambda given, right: [given["pause"] / given["save"]] * 2): {
        "asynchronous": "below a root"
    },
    instead("asynchronous", lambda given, right: [1 / right["asynchronous"][0],
                                                  right["asynchronous"][1]]): {
        "asynchronous": "made more often"
    },
    instead("asynchronous", lambda given, right: [1, given["pause"] / given["save"]]): {
        "asynchronous": "another interval is best"
    },
    instead("asynchronous", lambda given, right: [1, 1]): {"asynchronous": "is not it. Both are"},
    instead("larger", lambda given, right: [1 / given["times"], given["times"]]): {
        "larger": "below a root"
    },
    instead("larger", lambda given, right: right["larger"][::-1]): {"larger": "more frequent"},
    instead("larger", lambda given, right: [right["larger"][0]] * 2): {"larger": "takes as long"},
    instead("larger", lambda given, right: [1, 1]): {"larger": "is not it. What happens"},
}  # fmt: skip
