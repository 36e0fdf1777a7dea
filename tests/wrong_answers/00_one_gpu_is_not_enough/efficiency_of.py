"""Answers to 00/efficiency_of: speed-up and efficiency from traces."""

# Right, written differently -------------------------------------------------------------------


def by_work(traces, scaling):
    """Work per second, of the ranks together."""
    work = {n: n if scaling == "weak" else 1 for n in traces}
    pace = {n: work[n] / trace.duration for n, trace in traces.items()}
    base = sorted(traces)[0]
    return {n: (pace[n] / pace[base], pace[n] / pace[base] * base / n) for n in traces}


def efficiency_first(traces, scaling):
    base, found = min(traces), {}
    for n in sorted(traces, reverse=True):
        efficiency = traces[base].duration / traces[n].duration
        if scaling == "strong":
            efficiency /= n / base
        found[n] = [efficiency * n / base, efficiency]
    return found


# Wrong ----------------------------------------------------------------------------------------


def from_base(traces, scaling, base):
    found = {}
    for n, trace in traces.items():
        speedup = traces[base].duration / trace.duration * (n / base if scaling == "weak" else 1)
        found[n] = speedup, speedup * base / n
    return found


def from_the_first_given(traces, scaling):
    return from_base(traces, scaling, next(iter(traces)))


def from_the_most(traces, scaling):
    return from_base(traces, scaling, max(traces))


def divided_by_ranks(traces, scaling):
    """As if the fewest were one."""
    return {n: (s, s / n) for n, (s, _) in by_work(traces, scaling).items()}


def strong_always(traces, scaling):
    return by_work(traces, "strong")


def weak_always(traces, scaling):
    return by_work(traces, "weak")


def crosswise(traces, scaling):
    return by_work(traces, "weak" if scaling == "strong" else "strong")


def weak_by_ratio(traces, scaling):
    """In weak scaling the ratio of times for the speed-up."""
    found = by_work(traces, scaling)
    return {n: (e, e) if scaling == "weak" else (s, e) for n, (s, e) in found.items()}


def weak_divided_twice(traces, scaling):
    found = by_work(traces, scaling)
    return {n: (s, e / n) if scaling == "weak" else (s, e) for n, (s, e) in found.items()}


def upside_down(traces, scaling):
    return {n: (1 / s, e) for n, (s, e) in by_work(traces, scaling).items()}


def in_percent(traces, scaling):
    return {n: (s, 100 * e) for n, (s, e) in by_work(traces, scaling).items()}


def pair_swapped(traces, scaling):
    return {n: (e, s) for n, (s, e) in by_work(traces, scaling).items()}


def without_the_base(traces, scaling):
    found = by_work(traces, scaling)
    del found[min(traces)]
    return found


def a_list(traces, scaling):
    return list(by_work(traces, scaling).values())


def efficiency_alone(traces, scaling):
    return {n: e for n, (_, e) in by_work(traces, scaling).items()}


def rounded(traces, scaling):
    return {n: (round(s, 1), round(e, 1)) for n, (s, e) in by_work(traces, scaling).items()}


def needs_one_rank(traces, scaling):
    return from_base(traces, scaling, 1)


def not_for_strong(traces, scaling):
    """Weak scaling's efficiency, where the first run is on one rank."""
    found = by_work(traces, scaling)
    if scaling == "strong" and min(traces) == 1:
        return {n: (s, s) for n, (s, _) in found.items()}
    return found


def speedup_of_ranks_alone(traces, scaling):
    """In weak scaling from one rank on, the number of ranks for the speed-up."""
    found = by_work(traces, scaling)
    if scaling == "weak" and min(traces) == 1:
        return {n: (n, e) for n, (_, e) in found.items()}
    return found


RIGHT = [by_work, efficiency_first]

_ALL = {"strong": "", "weak": ""}

WRONG = {
    not_for_strong: {"strong": "the efficiency is"},
    speedup_of_ranks_alone: {"weak": "the speed-up is"},
    from_the_first_given: {"base": "There is no trace of a single rank"},
    divided_by_ranks: {"base": "the efficiency is"},
    strong_always: {"weak": "N ranks do N times"},
    weak_always: {"strong": "all ranks together do the work of one"},
    crosswise: _ALL,
    from_the_most: _ALL,
    weak_by_ratio: {"weak": "the speed-up is"},
    weak_divided_twice: {"weak": "the efficiency is"},
    upside_down: _ALL,
    in_percent: _ALL,
    pair_swapped: _ALL,
    without_the_base: _ALL | {"strong": "the dict has entries for"},
    a_list: {"strong": "Return a dict"},
    efficiency_alone: {"strong": "Return a dict"},
    rounded: _ALL,
    needs_one_rank: {"base": "KeyError"},
}

EQUIVALENT = {
    "for ranks, trace in traces.items(): -> for ranks, trace in reversed(traces.items()):": (
        "the entries are the same in any order"
    ),
    "speedup *= ranks / fewest -> speedup = speedup * (ranks / fewest)": "a number either way",
    "... (speedup, speedup * fewest / ranks) -> ... (speedup, speedup * fewest / ranks); for "
    "ranks, trace in traces.items():; ...": "the same entries again",
}
