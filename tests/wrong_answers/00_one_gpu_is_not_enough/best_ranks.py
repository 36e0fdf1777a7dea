"""Answers to 00/best_ranks: the fastest number of ranks by a fitted law."""

import math

import numpy as np

# Right, written differently -------------------------------------------------------------------


def law(times):
    ranks, seconds = np.array(list(times), dtype=float), np.array(list(times.values()))
    table = np.stack([np.ones_like(ranks), 1 / ranks, ranks], axis=1)
    return np.linalg.lstsq(table, seconds, rcond=None)[0]


def at(times, n):
    a, b, c = law(times)
    return float(a + b / n + c * n)


def by_trying(times, most):
    best = min(range(1, most + 1), key=lambda n: at(times, n))
    return best, at(times, best)


def by_the_root(times, most):
    """Where the derivative is 0, and its whole neighbours."""
    _, b, c = law(times)
    if c <= 1e-12:
        return most, at(times, most)
    root = math.sqrt(max(b, 0) / c)
    near = {min(max(n, 1), most) for n in (math.floor(root), math.ceil(root))}
    seconds, best = min((at(times, n), n) for n in near)
    return best, seconds


# Wrong ----------------------------------------------------------------------------------------


def best_measured(times, most):
    best = min(times, key=times.get)
    return best, times[best]


def not_rounded(times, most):
    _, b, c = law(times)
    root = min(math.sqrt(max(b, 1e-9) / c), most) if c > 1e-12 else most
    return max(1.0, root), by_trying(times, most)[1]


def rounded_down(times, most):
    n = math.floor(not_rounded(times, most)[0])
    return max(n - 1, 1), by_trying(times, most)[1]


def amdahl(times, most):
    """Nothing grows with the ranks."""
    ranks = np.array(list(times), dtype=float)
    table = np.stack([np.ones_like(ranks), 1 / ranks], axis=1)
    a, b = np.linalg.lstsq(table, np.array(list(times.values())), rcond=None)[0]
    return most, a + b / most


def up_to_the_last_but_one(times, most):
    best = min(range(1, max(most, 2)), key=lambda n: at(times, n))
    return best, by_trying(times, most)[1]


def from_two_on(times, most):
    best = min(range(2, most + 1), key=lambda n: at(times, n))
    return best, by_trying(times, most)[1]


def without_a_limit(times, most):
    best = min(range(1, 257), key=lambda n: at(times, n))
    return best, by_trying(times, most)[1]


def powers_of_two(times, most):
    tried = [2**k for k in range(9) if 2**k <= most]
    best = min(tried, key=lambda n: at(times, n))
    return best, by_trying(times, most)[1]


def saved(times, most):
    """The seconds that are saved beside one rank."""
    best, seconds = by_trying(times, most)
    return best, at(times, 1) - seconds


def in_milliseconds(times, most):
    best, seconds = by_trying(times, most)
    return best, 1e3 * seconds


def of_the_last_measured(times, most):
    best, _ = by_trying(times, most)
    return best, times[max(times)]


def a_number(times, most):
    return by_trying(times, most)[0]


def by_efficiency(times, most):
    """The most ranks that are put to use by half."""
    one = at(times, 1)
    best = max((n for n in range(1, most + 1) if one / at(times, n) / n > 0.5), default=1)
    return best, by_trying(times, most)[1]


RIGHT = [by_trying, by_the_root]

WRONG = {
    best_measured: {"best": "Then try every N", "time": "", "edges": ""},
    not_rounded: {"best": "the run is fastest on"},
    rounded_down: {"best": "", "edges": ""},
    amdahl: {"best": "Fit three numbers", "time": "", "edges": ""},
    up_to_the_last_but_one: {"edges": "may fall all the way"},
    from_two_on: {"edges": "rise from one rank on"},
    without_a_limit: {"edges": ""},
    powers_of_two: {"best": "", "edges": ""},
    saved: {"time": "the least time is"},
    in_milliseconds: {"time": "Evaluate the fitted curve"},
    of_the_last_measured: {"time": ""},
    a_number: {"best": "Return a pair"},
    by_efficiency: {"best": "", "edges": ""},
}

EQUIVALENT = {
    "best = min(range(1, most + 1), key=seconds) -> best = min(range(0, most + 1), key=seconds)": (
        "b / 0 is infinite among NumPy's numbers, and never the least"
    ),
}
