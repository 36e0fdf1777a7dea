"""Answers to 00/scaling_report: what caps a job, and what it would reach without that."""

import numpy as np

COMPUTE = ("forward", "backward")

# Right, written differently -------------------------------------------------------------------


def fitted(trace):
    """Seconds of a collective: those that do not depend on bytes, and those of a byte."""
    calls = {}
    for one in trace.events:
        if one.kind == "comm":
            calls.setdefault(one.rank, []).append(one)
    meetings = list(zip(*calls.values(), strict=True))
    taken = np.array([max(e.end for e in m) - max(e.start for e in m) for m in meetings])
    sizes = np.array([m[0].bytes for m in meetings], dtype=float)
    table = np.column_stack([np.ones(len(sizes)), sizes])
    (fixed, each), *_ = np.linalg.lstsq(table, taken, rcond=None)
    return taken, fixed, each


def seconds_by_cause(trace):
    every = range(trace.world_size)
    sums = {"input": 0.0, "cores": 0.0, "serial": 0.0}
    for one in trace.events:
        if one.kind == "compute":
            name = "input" if one.name == "input" else "serial"
            sums["cores" if one.name in COMPUTE else name] += one.end - one.start
    sums["imbalance"] = sum(trace.idle(rank) for rank in every)
    exposed = sum(trace.exposed_comm(rank) for rank in every)
    sums["latency"] = sums["bandwidth"] = 0.0
    if trace.world_size > 1:
        taken, fixed, _ = fitted(trace)
        part = max(0.0, fixed) * len(taken) / taken.sum()
        sums["latency"], sums["bandwidth"] = exposed * part, exposed * (1 - part)
    return {cause: total / trace.world_size for cause, total in sums.items()}


def by_parts(traces, scaling, seconds=seconds_by_cause, share=None):
    n = max(traces)
    part = (1 / n if scaling == "strong" else 1.0) if share is None else share
    many, alone = seconds(traces[n]), seconds(traces[1])
    lost = {cause: many[cause] - part * alone[cause] for cause in many}
    (second, one), (first, most) = sorted(lost.items(), key=lambda pair: pair[1])[-2:]
    ideal = traces[1].duration * (1 / n if scaling == "strong" else 1.0)
    efficiency = ideal / traces[n].duration
    return {
        "ranks": n,
        "speedup": n * efficiency,
        "efficiency": efficiency,
        "lost": lost,
        "cause": first,
        "levers": [
            (first, n * ideal / (traces[n].duration - most)),
            (second, n * ideal / (traces[n].duration - one)),
        ],
    }


def in_one_piece(traces, scaling):
    return by_parts(traces, scaling)


def with_numpy(traces, scaling):
    """Numbers of NumPy, lists for pairs, more entries than asked for."""
    found = by_parts(traces, scaling)
    lost = {cause: np.float64(seconds) for cause, seconds in found["lost"].items()}
    levers = [[cause, np.float64(one)] for cause, one in found["levers"]]
    return found | {"lost": lost, "levers": levers, "ranks": np.int64(found["ranks"]), "by": "me"}


# Wrong ----------------------------------------------------------------------------------------


def changed(traces, scaling, **changes):
    return by_parts(traces, scaling) | changes


def consistent(traces, scaling, **changes):
    """What was lost is changed, and cause and levers follow from it."""

    def seconds(trace):
        found = seconds_by_cause(trace)
        for name, change in changes.items():
            found[name] = change(trace, found)
        return found

    return by_parts(traces, scaling, seconds)


def always_strong(traces, scaling):
    return by_parts(traces, "strong")


def always_weak(traces, scaling):
    return by_parts(traces, "weak")


def fewest_ranks(traces, scaling):
    return changed(traces, scaling, ranks=min(traces))


def efficiency_in_percent(traces, scaling):
    return changed(traces, scaling, efficiency=100 * by_parts(traces, scaling)["efficiency"])


def speedup_of_strong(traces, scaling):
    """In weak scaling the ratio of times."""
    found = by_parts(traces, scaling)
    ratio = traces[1].duration / traces[max(traces)].duration
    return found | {"speedup": ratio}


def not_less_the_share(traces, scaling):
    """What ranks spend is taken for lost."""
    return by_parts(traces, scaling, share=0.0)


def all_of_one_rank(traces, scaling):
    return by_parts(traces, scaling, share=1.0)


def serial_not_shared(traces, scaling):
    """In strong scaling what is done whole on each rank counts as nothing lost."""
    found = by_parts(traces, scaling)
    n = max(traces)
    alone = seconds_by_cause(traces[1])["serial"]
    if scaling == "strong":
        found["lost"]["serial"] -= alone * (1 - 1 / n)
    return found


def input_is_serial(traces, scaling):
    return consistent(
        traces, scaling,
        serial=lambda trace, found: found["serial"] + found["input"],
        input=lambda trace, found: 0.0,
    )  # fmt: skip


def forward_alone(traces, scaling):
    """Backward passes count as serial work."""

    def backward(trace):
        spans = [e for e in trace.events if e.name == "backward"]
        return sum(e.end - e.start for e in spans) / trace.world_size

    return consistent(
        traces, scaling,
        cores=lambda trace, found: found["cores"] - backward(trace),
        serial=lambda trace, found: found["serial"] + backward(trace),
    )  # fmt: skip


def sums_over_ranks(traces, scaling):
    """Rank-seconds in place of a mean, for compute."""
    return consistent(
        traces, scaling, cores=lambda trace, found: found["cores"] * trace.world_size
    )


def slowest_rank(traces, scaling):
    """The idle seconds of the rank that waits most."""
    return consistent(
        traces, scaling,
        imbalance=lambda trace, found: max(trace.idle(r) for r in range(trace.world_size)),
    )  # fmt: skip


def rank_0_waits(traces, scaling):
    return consistent(traces, scaling, imbalance=lambda trace, found: trace.idle(0))


def no_imbalance(traces, scaling):
    return consistent(traces, scaling, imbalance=lambda trace, found: 0.0)


def wire(traces, scaling, divide):
    """What is exposed, divided otherwise; `divide(trace)` is the part of latency."""

    def latency(trace, found):
        exposed = found["latency"] + found["bandwidth"]
        return exposed * divide(trace) if trace.world_size > 1 else 0.0

    def bandwidth(trace, found):  # latency is changed by now
        exposed = sum(map(trace.exposed_comm, range(trace.world_size))) / trace.world_size
        return exposed - found["latency"]

    return consistent(traces, scaling, latency=latency, bandwidth=bandwidth)


def halves(traces, scaling):
    return wire(traces, scaling, lambda trace: 0.5)


def all_is_bandwidth(traces, scaling):
    return wire(traces, scaling, lambda trace: 0.0)


def latency_of_one_message(traces, scaling):
    """a / (sum of seconds): as if there were one collective."""

    def part(trace):
        taken, fixed, _ = fitted(trace)
        return max(0.0, fixed) / taken.sum()

    return wire(traces, scaling, part)


def latency_and_bandwidth_swapped(traces, scaling):
    def part(trace):
        taken, fixed, _ = fitted(trace)
        return 1 - max(0.0, fixed) * len(taken) / taken.sum()

    return wire(traces, scaling, part)


def fit_from_own_start(traces, scaling):
    """Seconds of a collective from when rank 0 has come, and not the last one."""

    def part(trace):
        own = [e for e in trace.events if e.rank == 0 and e.kind == "comm"]
        taken = [e.end - e.start for e in own]
        fixed = np.polyfit([e.bytes for e in own], taken, 1)[1]
        return min(1.0, max(0.0, fixed) * len(taken) / sum(taken))

    return wire(traces, scaling, part)


def cause_by_least(traces, scaling):
    lost = by_parts(traces, scaling)["lost"]
    return changed(traces, scaling, cause=min(lost, key=lost.get))


def second_cause(traces, scaling):
    return changed(traces, scaling, cause=by_parts(traces, scaling)["levers"][1][0])


def communication(traces, scaling):
    """Names of its own."""
    found = by_parts(traces, scaling)
    cause = "communication" if found["cause"] in ("latency", "bandwidth") else found["cause"]
    return found | {"cause": cause}


def levers_swapped(traces, scaling):
    return changed(traces, scaling, levers=by_parts(traces, scaling)["levers"][::-1])


def levers_measured_now(traces, scaling):
    """The speed-up that there is, for both."""
    found = by_parts(traces, scaling)
    return found | {"levers": [(name, found["speedup"]) for name, _ in found["levers"]]}


def levers_added(traces, scaling):
    """The second with the first one pulled, too."""
    found = by_parts(traces, scaling)
    n = max(traces)
    both = sum(found["lost"][name] for name, _ in found["levers"])
    work = n if scaling == "weak" else 1
    reached = work * traces[1].duration / (traces[n].duration - both)
    first, (second, _) = found["levers"]
    return found | {"levers": [first, (second, reached)]}


def one_lever(traces, scaling):
    return changed(traces, scaling, levers=by_parts(traces, scaling)["levers"][:1])


def levers_by_name(traces, scaling):
    found = by_parts(traces, scaling)
    return found | {"levers": [name for name, _ in found["levers"]]}


def five_causes(traces, scaling):
    found = by_parts(traces, scaling)
    del found["lost"]["serial"]
    return found


def no_levers(traces, scaling):
    found = by_parts(traces, scaling)
    del found["levers"]
    return found


def words_only(traces, scaling):
    return "capped by " + by_parts(traces, scaling)["cause"]


RIGHT = [in_one_piece, with_numpy]

WRONG = {
    fewest_ranks: {"numbers": 'report["ranks"] is 1'},
    efficiency_in_percent: {"numbers": 'report["efficiency"]'},
    speedup_of_strong: {"numbers": 'report["speedup"]'},
    always_strong: {"numbers": "", "compute": ""},
    always_weak: {"numbers": "", "compute": ""},
    not_less_the_share: {"compute": ""},
    all_of_one_rank: {"compute": ""},
    serial_not_shared: {"compute": "are lost to serial"},
    input_is_serial: {"compute": "are lost to input"},
    forward_alone: {"compute": ""},
    sums_over_ranks: {"compute": "are lost to cores"},
    slowest_rank: {"waiting": "the mean over the ranks"},
    rank_0_waits: {"waiting": "are lost to imbalance"},
    no_imbalance: {"waiting": "you have"},
    halves: {"wire": "are lost to latency"},
    all_is_bandwidth: {"wire": "Fit seconds"},
    latency_of_one_message: {"wire": ""},
    latency_and_bandwidth_swapped: {"wire": ""},
    fit_from_own_start: {"wire": ""},
    cause_by_least: {"cause": "largest part of the lost time"},
    second_cause: {"cause": "You lose"},
    communication: {"cause": "'communication'"},
    levers_swapped: {"levers": "the better one first"},
    levers_measured_now: {"levers": "How long would the run take without it"},
    levers_added: {"levers": "would be"},
    one_lever: {"levers": "must be a list of two pairs"},
    levers_by_name: {"levers": "must be a list of two pairs"},
    five_causes: {"compute": "must be a dict with the causes", "waiting": "", "wire": ""},
    no_levers: {"numbers": "has no 'levers'"},
    words_only: {"numbers": "returns a str"},
}

_ALIKE = "all members of a collective have the same bytes"
_APART = "neither needs the other to have been done"
_NOTHING = "without collectives nothing is exposed, so its share is of nothing"
_NUMBER = "a number either way"
_ORDER = "the order makes no difference"
_TOGETHER = "all members of a collective end together"
_TWICE = "all of them twice: neither a fit nor what is covered changes"

EQUIVALENT = {
    "calls = [[] for _ in range(ranks)] -> calls = [[] for _ in reversed(range(ranks))]": _ORDER,
    "for one in trace.events: -> for one in reversed(trace.events):": _ORDER,
    "for one in trace.events:; if one.kind == 'comm':; ... -> seconds['imbalance'"
    "] = sum((trace.idle(rank) for rank in range(ranks))) / ranks; for one in tra"
    "ce.events:; ...": _APART,
    "if one.kind == 'comm':; calls[one.rank].append(one); ... -> cause = 'cores' "
    "if one.name in ('forward', 'backward') else one.name; if one.kind == 'comm':"
    "; ...": _APART,
    "calls[one.rank].append(one) -> calls[one.rank - 1].append(one)": _ORDER,
    "calls[one.rank].append(one) -> calls[one.rank].append(one); calls[one.rank]."
    "append(one)": _TWICE,
    "... cause in seconds else 'serial'] += (one.end - one.start) / ranks -> ... "
    "cause in seconds else 'serial'] = seconds[cause if cause in seconds else 'se"
    "rial'] + (one.end - one.start) / ranks": _NUMBER,
    "... sum((trace.idle(rank) for rank in range(ranks))) / ranks -> ... sum((tra"
    "ce.idle(rank) for rank in reversed(range(ranks)))) / ranks": _ORDER,
    "... sum((trace.exposed_comm(rank) for rank in range(ranks))) / ranks -> ... "
    "sum((trace.exposed_comm(rank) for rank in reversed(range(ranks)))) / ranks": _ORDER,
    "if not meetings:; return 0.0; sizes = [members[0].bytes for members in meeti"
    "ngs] -> sizes = [members[0].bytes for members in meetings]; if not meetings:"
    "; return 0.0": _APART,
    "return 0.0 -> return 1.0": _NOTHING,
    "return 0.0 -> return -1.0": _NOTHING,
    "sizes = [members[0].bytes for members in meetings] -> sizes = [members[1].by"
    "tes for members in meetings]": _ALIKE,
    "sizes = [members[0].bytes for members in meetings] -> sizes = [members[-1].b"
    "ytes for members in meetings]": _ALIKE,
    "taken = [max((one.end for one in members)) - max((one.start for one in ... -"
    "> taken = [max((one.end for one in reversed(members))) - max((one.start for "
    "one in ...": _ORDER,
    "... members)) - max((one.start for one in members)) for members in meetings]"
    " -> ... members)) - max((one.start for one in reversed(members))) for member"
    "s in meetings]": _ORDER,
    "taken = [max((one.end for one in members)) ... -> taken = [min((one.end for "
    "one in members)) ...": _TOGETHER,
    "... share * one[cause] for cause in many} -> ... share * one[cause] for caus"
    "e in reversed(many)}": _ORDER,
}
