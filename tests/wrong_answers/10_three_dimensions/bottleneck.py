"""Answers to 10/bottlenecks: axis, operation and share of waiting, read off a trace of one step.

`WRONG` maps each wrong answer to the criteria that it must lose, exactly those, each with a piece
of its message. What is named neither there nor "blocked" in the report must be earned.
"""

from collections import defaultdict

from dtlab.parallel.mesh import coordinates_of, group_of

AXES = ("data", "pipeline", "tensor")


def blocked(event):
    return sum(end - start for start, end in event.extra["blocked"])


def from_start_to_end(event):
    return event.end - event.start


def once(event):
    return 1.0


def sent(event):
    return float(event.bytes)


def messages(trace):
    return [event for event in trace.events if event.kind == "comm"]


def axis_of(event, sizes):
    """The axis whose group an operation is in, None for the group of all ranks."""
    for axis in sizes:
        group = group_of(event.rank, axis, sizes)
        if len(group) > 1 and group == sorted(event.extra["group"]):
            return axis
    return None


def axis_for_rank_0(event, sizes):
    """Events of other groups than rank 0's are those of no axis."""
    for axis in sizes:
        if sizes[axis] > 1 and group_of(0, axis, sizes) == sorted(event.extra["group"]):
            return axis
    return None


def axis_in_the_usual_order(event, sizes):
    """As if the mesh were data x pipeline x tensor, whatever `sizes` says."""
    return axis_of(event, {axis: sizes[axis] for axis in AXES})


def sums(trace, sizes, cost=blocked, belongs=axis_of):
    found = defaultdict(float)
    for event in messages(trace):
        found[belongs(event, sizes), event.name] += cost(event)
    return found


def by_axis(found):
    axes = defaultdict(float)
    for (axis, _), seconds in found.items():
        if axis is not None:
            axes[axis] += seconds
    return max(axes, key=axes.get)


def by_operation(found, axis):
    own = {name: seconds for (one, name), seconds in found.items() if one == axis}
    return max(own, key=own.get)


def share(trace, cost=blocked, rank=None):
    waited = sum(cost(e) for e in messages(trace) if rank in (None, e.rank))
    steps = [e for e in trace.events if e.name == "step" and rank in (None, e.rank)]
    return waited / sum(e.end - e.start for e in steps)


def answer(trace, sizes, **instead):
    found = sums(trace, sizes)
    axis = by_axis(found)
    right = {"axis": axis, "operation": by_operation(found, axis), "waiting": share(trace)}
    return {**right, **instead}


# Right, written differently ---------------------------------------------------------------------


def sums_by_axis_and_name(trace, sizes):
    return answer(trace, sizes)


def rank_after_rank(trace, sizes):
    """The mean over ranks of each rank's waits; steps have nearly the same length."""
    ranks = range(trace.world_size)
    step = {e.rank: e.end - e.start for e in trace.events if e.name == "step"}
    waits = {rank: sum(blocked(e) for e in messages(trace) if e.rank == rank) for rank in ranks}
    return answer(trace, sizes, waiting=sum(waits.values()) / sum(step.values()))


def by_coordinates(trace, sizes):
    """The axis in which the coordinates of all members differ from those of the rank."""

    def belongs(event, sizes):
        places = [coordinates_of(rank, sizes) for rank in sorted(event.extra["group"])]
        moving = [axis for axis in sizes if len({place[axis] for place in places}) > 1]
        return moving[0] if len(moving) == 1 else None

    found = sums(trace, sizes, belongs=belongs)
    axis = by_axis(found)
    return {"axis": axis, "operation": by_operation(found, axis), "waiting": share(trace)}


def by_peers(trace, sizes):
    """Two ranks of a mesh of four share one axis at most."""

    def belongs(event, sizes):
        others = [rank for rank in event.extra["group"] if rank != event.rank]
        for axis in sizes:
            if len(others) == 1 and others[0] in group_of(event.rank, axis, sizes):
                return axis
        return None

    found = sums(trace, sizes, belongs=belongs)
    axis = by_axis(found)
    return answer(trace, sizes, axis=axis, operation=by_operation(found, axis))


# Wrong ------------------------------------------------------------------------------------------


def not_written(trace, sizes):
    raise NotImplementedError()


def the_axis_alone(trace, sizes):
    return answer(trace, sizes)["axis"]


def without_the_share(trace, sizes):
    found = answer(trace, sizes)
    del found["waiting"]
    return found


def most_bytes(trace, sizes):
    """Counts bytes, not time: those of the tensor axis are more, in every run."""
    found = sums(trace, sizes, cost=sent)
    axis = by_axis(found)
    return answer(trace, sizes, axis=axis, operation=by_operation(found, axis))


def axis_by_bytes(trace, sizes):
    return answer(trace, sizes, axis=by_axis(sums(trace, sizes, cost=sent)))


def axis_by_number(trace, sizes):
    return answer(trace, sizes, axis=by_axis(sums(trace, sizes, cost=once)))


def usual_order_of_axes(trace, sizes):
    found = sums(trace, sizes, belongs=axis_in_the_usual_order)
    return answer(trace, sizes, axis=by_axis(found))


def always_tensor(trace, sizes):
    return answer(trace, sizes, axis="tensor")


def the_last_axis(trace, sizes):
    """What a loop over `sizes` leaves in its variable."""
    return answer(trace, sizes, axis=list(sizes)[-1])


def over_the_ends_of_steps(trace, sizes):
    """As if every step began at 0."""
    ends = sum(event.end for event in trace.events if event.name == "step")
    return answer(trace, sizes, waiting=sum(map(blocked, messages(trace))) / ends)


def the_outermost_axis(trace, sizes):
    """It crosses the network in every run; but the network is not always what costs."""
    outermost = next(axis for axis in sizes if sizes[axis] > 1)
    return answer(trace, sizes, axis=outermost)


def over_the_end_of_the_trace(trace, sizes):
    """The step and all that was before it, such as reading the batch."""
    waited = sum(blocked(event) for event in messages(trace))
    return answer(trace, sizes, waiting=waited / trace.duration / trace.world_size)


def an_axis_of_one_rank(trace, sizes):
    alone = next(axis for axis in sizes if sizes[axis] == 1)
    return answer(trace, sizes, axis=alone)


def the_most_frequent_operation(trace, sizes):
    """Of all axes together; the tensor axis has most."""
    number = defaultdict(int)
    for event in messages(trace):
        number[event.name] += 1
    return answer(trace, sizes, operation=max(number, key=number.get))


def operation_with_most_bytes(trace, sizes):
    found = sums(trace, sizes, cost=sent)
    axis = answer(trace, sizes)["axis"]
    largest = {n: e for (a, n), e in found.items() if a == axis}
    name = max(largest, key=lambda one: (largest[one], one == "send"))
    return answer(trace, sizes, operation=name)


def always_all_reduce(trace, sizes):
    return answer(trace, sizes, operation="all_reduce")


def the_send(trace, sizes):
    """The other end of a message has to be the one that costs."""
    found = answer(trace, sizes)
    return {**found, "operation": found["operation"].replace("recv", "send")}


def hidden_time_too(trace, sizes):
    return answer(trace, sizes, waiting=share(trace, cost=from_start_to_end))


def rank_0_alone(trace, sizes):
    return answer(trace, sizes, waiting=share(trace, rank=0))


def seconds_of_all_over_one_step(trace, sizes):
    return answer(trace, sizes, waiting=4 * share(trace))


def one_axis_alone(trace, sizes):
    found = sums(trace, sizes)
    steps = sum(e.end - e.start for e in trace.events if e.name == "step")
    own = sum(s for (axis, _), s in found.items() if axis == by_axis(found))
    return answer(trace, sizes, waiting=own / steps)


def outside_of_forward_and_backward(trace, sizes):
    spans = sum(e.end - e.start for e in trace.events if e.name in ("forward", "backward"))
    steps = sum(e.end - e.start for e in trace.events if e.name == "step")
    return answer(trace, sizes, waiting=1 - spans / steps)


def without_the_norm(trace, sizes):
    """Leaves out operations over all ranks: they belong to no axis."""
    found = sums(trace, sizes)
    steps = sum(e.end - e.start for e in trace.events if e.name == "step")
    waits = sum(seconds for (axis, _), seconds in found.items() if axis is not None)
    return answer(trace, sizes, waiting=waits / steps)


def in_percent(trace, sizes):
    return answer(trace, sizes, waiting=100 * share(trace))


def rank_0_for_all(trace, sizes):
    """As the lesson counts bytes: only the events of rank 0, and its groups."""
    found = sums(trace, sizes, belongs=axis_for_rank_0)
    axis = by_axis(found)
    return {
        "axis": axis,
        "operation": by_operation(found, axis),
        "waiting": share(trace, rank=0),
    }


def groups_of_rank_0(trace, sizes):
    """All waiting, but events of groups without rank 0 count for no axis."""
    found = sums(trace, sizes, belongs=axis_for_rank_0)
    axis = by_axis(found)
    return answer(trace, sizes, axis=axis, operation=by_operation(found, axis))


RIGHT = [sums_by_axis_and_name, rank_after_rank, by_coordinates, by_peers]

WRONG = {
    not_written: {"axis": "not written yet"},
    the_axis_alone: {"axis": "Return a dict"},
    without_the_share: {"axis": "without 'waiting'"},
    most_bytes: {"axis": "those of another axis", "operation": ""},
    axis_by_bytes: {"axis": "not bytes"},
    axis_by_number: {"axis": "those of another axis"},
    usual_order_of_axes: {"axis": "the group of its own rank"},
    always_tensor: {"axis": "those of another axis"},
    the_last_axis: {"axis": ""},
    over_the_ends_of_steps: {"waiting": "is not the share of the step"},
    the_outermost_axis: {"axis": "those of another axis"},
    an_axis_of_one_rank: {"axis": "has no group of several ranks"},
    the_most_frequent_operation: {"operation": "Add up the waits of that axis"},
    operation_with_most_bytes: {"operation": "Add up the waits"},
    always_all_reduce: {"operation": "in another operation"},
    the_send: {"operation": "'send'"},
    hidden_time_too: {"waiting": "from start to end"},
    rank_0_alone: {"waiting": ""},
    seconds_of_all_over_one_step: {"waiting": "over the step of one"},
    one_axis_alone: {"waiting": "one axis alone"},
    outside_of_forward_and_backward: {"waiting": ""},
    without_the_norm: {"waiting": ""},
    over_the_end_of_the_trace: {"waiting": "is not the share of the step"},
    in_percent: {"waiting": "is not the share of the step"},
    rank_0_for_all: {"axis": "of its own rank", "operation": "", "waiting": ""},
    groups_of_rank_0: {"axis": "of its own rank", "operation": "Add up the waits"},
}


# Mutants that no check can tell from the solution ------------------------------------------------

_ORDER = "a sum or a maximum in another order"
_NEW = "a number or an entry is set anew, to the same value"
_SCALE = "all sums that are compared grow by the same factor"
_ALONE = "a rank does not wait in a group of its own"

EQUIVALENT = {
    "for event in trace.events: -> for event in reversed(trace.events):": _ORDER,
    "stepped += event.end - event.start -> stepped = stepped + (event.end - event.start)": _NEW,
    "... sum((end - start for start, end in event.extra['blocked'])) -> ... sum((end - "
    "start for start, end in reversed(event.extra['blocked'])))": _ORDER,
    "waited += seconds; for axis in sizes:; ... -> for axis in sizes:; group = "
    "group_of(event.rank, axis, sizes); ...": _ORDER,
    "waited += seconds -> waited = waited + seconds": _NEW,
    "for axis in sizes: -> for axis in reversed(sizes):": _ORDER,
    "by_name[axis, event.name] += seconds -> by_name[axis, event.name] += seconds; for "
    "axis in sizes:; ...": _SCALE,
    "if len(group) > 1 and group == sorted(event.extra['group']): -> if len(group) > 0 "
    "and group == sorted(event.extra['group']):": _ALONE,
    "if len(group) > 1 and group == sorted(event.extra['group']): -> if len(group) >= 1 "
    "and group == sorted(event.extra['group']):": _ALONE,
    "waits[axis] += seconds; by_name[axis, event.name] += seconds -> by_name[axis, "
    "event.name] += seconds; waits[axis] += seconds": _ORDER,
    "waits[axis] += seconds -> waits[axis] = waits[axis] + seconds": _NEW,
    "waits[axis] += seconds -> waits[axis] += seconds; waits[axis] += seconds": _SCALE,
    "by_name[axis, event.name] += seconds -> by_name[axis, event.name] += seconds; "
    "by_name[axis, event.name] += seconds": _SCALE,
    "by_name[axis, event.name] += seconds -> by_name[axis, event.name] = by_name[axis, "
    "event.name] + seconds": _NEW,
    "by_name[axis, event.name] += seconds -> by_name[axis, event.name] += seconds; for "
    "event in trace.events:; ...": _SCALE,
    "operation = max((key for key in by_name if key[0] == axis), key=by_name.get)[1] -> "
    "operation = max((key for key in reversed(by_name) if key[0] == axis), "
    "key=by_name.get)[1]": _ORDER,
}
