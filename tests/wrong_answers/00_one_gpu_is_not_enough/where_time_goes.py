"""Answers to 00/where_time_goes: busy, exposed communication and idle, from events."""

import itertools

from dtlab.trace import Trace

# Right, written differently -------------------------------------------------------------------


def swept(events):
    """From edge to edge, on each rank."""
    ranks = {one.rank for one in events}
    calls = {r: [e for e in events if e.rank == r and e.kind == "comm"] for r in ranks}
    edges = sorted({e.start for e in events} | {e.end for e in events})
    found = {}
    for rank in ranks:
        spans = [e for e in events if e.rank == rank and e.kind == "compute"]
        open_ = [
            (max(calls[other][k].start for other in ranks), one.end)
            for k, one in enumerate(sorted(calls[rank], key=lambda one: one.start))
        ]
        busy = exposed = 0.0
        for start, end in itertools.pairwise(edges):
            if any(e.start <= start and end <= e.end for e in spans):
                busy += end - start
            elif any(first <= start and end <= last for first, last in open_):
                exposed += end - start
        found[rank] = [busy, exposed, edges[-1] - edges[0] - busy - exposed]
    return found


def merged(events, *, first=None, last=None, add=False, hidden=True, arrival=True, own=False,
           ends=None):  # fmt: skip
    """By merging intervals; the keywords put a mistake in."""
    ranks = sorted({one.rank for one in events})
    begin, end = min(e.start for e in events), max(e.end for e in events)
    calls = {r: [e for e in events if (e.rank, e.kind) == (r, "comm")] for r in ranks}
    found = {}
    for rank in ranks:
        mine = [e for e in events if e.rank == rank]
        spans = union([(e.start, e.end) for e in mine if e.kind == "compute"])
        busy = sum(b - a for a, b in spans)
        if add:
            busy = sum(e.end - e.start for e in mine if e.kind == "compute")
        waits = []
        for k, one in enumerate(calls[rank]):
            came = max(calls[other][k].start for other in ranks)
            through = ends[k] if ends else one.end
            waits.append((came if arrival else one.start, max(came, through)))
        both = union([*spans, *waits]) if hidden else []
        exposed = sum(b - a for a, b in both) - sum(b - a for a, b in spans)
        if not hidden:
            exposed = sum(b - a for a, b in waits)
        whole = end - begin
        if own:
            whole = max(e.end for e in mine) - min(e.start for e in mine)
        if first is not None:
            whole = end - first
        found[rank] = busy, exposed, whole - busy - exposed
    return found


def union(intervals):
    found = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def by_merging(events):
    return merged(events)


# Wrong ----------------------------------------------------------------------------------------


def spans_added_up(events):
    """Nested and overlapping seconds count twice; idle is right where there are none."""
    return merged(events, add=True)


def nested_only(events):
    """Looks for spans within others, not for those that overlap."""
    outer = [
        e for e in events
        if e.kind == "comm"
        or not any(o.kind == "compute" and o.rank == e.rank and o is not e
                   and o.start <= e.start and e.end <= o.end for o in events)
    ]  # fmt: skip
    return merged(outer, add=True)


def from_first_to_last_span(events):
    """Gaps between spans count as busy."""
    found = {}
    for rank, (_, exposed, idle) in merged(events).items():
        spans = [e for e in events if (e.rank, e.kind) == (rank, "compute")]
        busy = max(e.end for e in spans) - min(e.start for e in spans)
        found[rank] = busy, exposed, idle
    return found


def hidden_counts(events):
    """What lies behind compute counts as exposed."""
    return merged(events, hidden=False)


def waits_count(events):
    """Exposed from when the rank itself has come."""
    return merged(events, arrival=False)


def until_all_are_through(events):
    """A collective ends for all when it ends on the last rank."""
    ends = {}
    for rank in {one.rank for one in events}:
        for k, one in enumerate(e for e in events if (e.rank, e.kind) == (rank, "comm")):
            ends[k] = max(ends.get(k, 0.0), one.end)
    return merged(events, ends=ends)


def until_the_first_is_through(events):
    ends = {}
    for rank in {one.rank for one in events}:
        for k, one in enumerate(e for e in events if (e.rank, e.kind) == (rank, "comm")):
            ends[k] = min(ends.get(k, one.end), one.end)
    return merged(events, ends=ends)


def both_count(events):
    return merged(events, arrival=False, hidden=False)


def first_collective_only(events):
    """All collectives are under way from when the last rank has come to the first one."""
    ranks = {e.rank for e in events}
    calls = {r: [e for e in events if (e.rank, e.kind) == (r, "comm")] for r in ranks}
    if not all(calls.values()):
        return merged(events)
    came = max(own[0].start for own in calls.values())
    found = {}
    for rank, (busy, right, idle) in merged(events).items():
        seconds = sum(one.end - max(one.start, came) for one in calls[rank])
        spans = [e for e in events if (e.rank, e.kind) == (rank, "compute")]
        apart = all(s.end <= c.start or c.end <= s.start for s in spans for c in calls[rank])
        found[rank] = busy, seconds if apart else right, idle
    return found


def by_who_came_first(events):
    """From when the first rank has come."""
    ranks = {e.rank for e in events}
    calls = {r: [e for e in events if (e.rank, e.kind) == (r, "comm")] for r in ranks}
    found = {}
    for rank, (busy, _, idle) in merged(events).items():
        waits = [
            (min(calls[other][k].start for other in ranks), one.end)
            for k, one in enumerate(calls[rank])
        ]
        spans = [(e.start, e.end) for e in events if (e.rank, e.kind) == (rank, "compute")]
        exposed = sum(b - a for a, b in union(spans + waits)) - busy
        found[rank] = busy, exposed, idle
    return found


def own_begin_and_end(events):
    """Idle within the rank's own events."""
    return merged(events, own=True)


def from_zero(events):
    """As if the trace began at 0."""
    return merged(events, first=0.0)


def idle_left_out(events):
    return {rank: (busy, exposed, 0.0) for rank, (busy, exposed, _) in merged(events).items()}


def waiting_alone_is_idle(events):
    """Idle is what lies in collectives before the last rank comes, and no gap."""
    late, right = merged(events, arrival=False), merged(events)
    return {rank: (*right[rank][:2], late[rank][1] - right[rank][1]) for rank in right}


def one_for_all_ranks(events):
    """The mean over the ranks, for each."""
    found = merged(events)
    mean = [sum(uses[n] for uses in found.values()) / len(found) for n in range(3)]
    return dict.fromkeys(found, tuple(mean))


def in_milliseconds(events):
    return {rank: [1e3 * one for one in uses] for rank, uses in merged(events).items()}


def order_swapped(events):
    return {rank: (b, i, e) for rank, (b, e, i) in merged(events).items()}


def a_list(events):
    return list(merged(events).values())


def pairs(events):
    return {rank: uses[:2] for rank, uses in merged(events).items()}


def finished_code(events):
    trace = Trace(events)
    return {
        rank: (trace.busy(rank), trace.exposed_comm(rank), trace.idle(rank))
        for rank in range(trace.world_size)
    }


def shares(events):
    """Parts of the trace."""
    found = merged(events)
    whole = sum(found[0])
    return {rank: [one / whole for one in uses] for rank, uses in found.items()}


RIGHT = [swept, by_merging]

_ALL = {"busy": "", "hidden": "", "arrival": "", "idle": ""}

WRONG = {
    spans_added_up: {"busy": "each second counts once"},
    nested_only: {"busy": "and overlap"},
    from_first_to_last_span: {"busy": "is busy for"},
    hidden_counts: {"hidden": "loses nothing"},
    waits_count: {"arrival": "when the last rank joins"},
    until_all_are_through: {"arrival": "its end on this rank"},
    until_the_first_is_through: {"arrival": "its end on this rank"},
    both_count: {"hidden": "", "arrival": ""},
    first_collective_only: {"arrival": "the k-th one of each"},
    by_who_came_first: {"arrival": ""},
    own_begin_and_end: {"idle": "add up to the whole trace"},
    from_zero: {"idle": "add up to the whole trace"},
    idle_left_out: {"idle": ""},
    waiting_alone_is_idle: {"idle": "is idle for"},
    one_for_all_ranks: _ALL,
    in_milliseconds: _ALL,
    order_swapped: {"hidden": "", "arrival": "", "idle": ""},
    a_list: {"busy": "return a dict"},
    pairs: {"busy": "the triple"},
    finished_code: {"busy": "write it yourself"},
    shares: _ALL,
}

_AGAIN = "done once more, with the same outcome"
_APART = "neither needs the other to have been done"
_NUMBER = "a number either way"
_ORDER = "the order makes no difference"
_TWICE = "all of them twice: neither a fit nor what is covered changes"

EQUIVALENT = {
    "... = (min((one.start for one in events)), max((one.end for one in events)))"
    " -> ... = (min((one.start for one in reversed(events))), max((one.end for on"
    "e in events)))": _ORDER,
    "... events)), max((one.end for one in events))) -> ... events)), max((one.en"
    "d for one in reversed(events))))": _ORDER,
    "for one in events: -> for one in reversed(events):": _ORDER,
    "for one in events:; kept = spans if one.kind == 'compute' else calls; ... ->"
    " ; def covered(intervals):; ...": _APART,
    "... []).append((one.start, ... -> ... []).append((one.start, one.end)); kept"
    ".setdefault(one.rank, []).append((one.start, ...": _TWICE,
    "... []).append((one.start, one.end)) -> ... []).append((one.start, one.end))"
    "; for one in events:; ...": _AGAIN,
    "total += max(0.0, end - max(start, reached)) -> total += max(end - max(start"
    ", reached), 0.0)": _ORDER,
    "total += max(0.0, end - max(start, reached)) -> total += max(0.0, end - max("
    "reached, start))": _ORDER,
    "total += max(0.0, end - max(start, reached)) -> total = total + max(0.0, end"
    " - max(start, reached))": _NUMBER,
    "reached = max(reached, end) -> reached = max(end, reached)": _ORDER,
    "reached = max(reached, end) -> reached = max(reached, end); for start, end i"
    "n sorted(intervals):; ...": _AGAIN,
    "for rank, own in spans.items(): -> for rank, own in reversed(spans.items()):": _ORDER,
    "... [(max((others[k][0] for others in calls.values())), end) for k, (_, end)"
    " in enumerate(calls.get(rank, ... -> ... [(max((others[k][0] for others in r"
    "eversed(calls.values()))), end) for k, (_, end) in enumerate(calls.get(rank,"
    " ...": _ORDER,
    "... last - first - busy - exposed) -> ... last - first - busy - exposed); fo"
    "r rank, own in spans.items():; ...": _AGAIN,
}
