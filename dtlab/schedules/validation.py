"""Validation of schedules: finds every fault and marks it in the schedule's grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from dtlab.schedules.actions import KINDS, Action, Row, Schedule, Stuck, as_schedule, clock, grid

__all__ = ["Fault", "ScheduleError", "find_faults", "validate"]

Place = tuple[int, int]  # rank, index in its list
_SHOWN = 12  # maximum number of faults that an error lists
_WIDTH = 92  # characters of a grid's line that fit into a notebook's output


class Fault(NamedTuple):
    """One fault: its kind, a message, and (rank, index) of the actions concerned.

    Kinds: "unknown": not an action of this pipeline. "placement": a stage on several ranks.
    "missing": no rank runs an action. "doubled": an action runs twice. "order": an action precedes
    an action of the same rank that it needs. "wait": ranks wait for each other in a cycle.
    """

    kind: Literal["unknown", "placement", "missing", "doubled", "order", "wait"]
    message: str
    places: tuple[Place, ...] = ()


class ScheduleError(ValueError):
    """A schedule that cannot run; `faults` lists all reasons, and the message marks them."""

    def __init__(self, schedule: Schedule, faults: list[Fault]) -> None:
        self.schedule, self.faults = schedule, faults
        marked = {place for fault in faults for place in fault.places}
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        lines = [*(f"{fault.kind}: {fault.message}" for fault in faults[:_SHOWN]), *more]
        drawn = f"\n\n{grid(schedule, marked=marked, width=_WIDTH)}\n" if any(schedule) else ""
        plural = "s" * (len(faults) != 1)
        listed = "\n".join(f"  {line}" for line in lines)
        super().__init__(f"this schedule has {len(faults)} fault{plural}.{drawn}\n{listed}")


def validate(
    schedule: Iterable[Row], num_stages: int | None = None, num_microbatches: int | None = None
) -> None:
    """Raise `ScheduleError` unless every rank can run all of its actions in this order.

    By default the numbers of stages and microbatches are inferred from the actions. Actions may be
    written as text, "2F0". A valid schedule can be run, simulated and drawn.
    """
    try:
        rows = as_schedule(schedule)
    except ValueError as error:
        raise ScheduleError(Schedule(), [Fault("unknown", str(error))]) from None
    faults = find_faults(rows, num_stages, num_microbatches)
    if faults:
        raise ScheduleError(rows, faults)


def find_faults(
    schedule: Iterable[Row], num_stages: int | None = None, num_microbatches: int | None = None
) -> list[Fault]:
    """Return all faults of a schedule, without their consequences; see `validate`.

    Raises: ValueError if `schedule` is not one list of actions for each rank.
    """
    rows = as_schedule(schedule)
    known: dict[Action, list[Place]] = defaultdict(list)
    faults: list[Fault] = []
    for rank, row in enumerate(rows):
        for index, action in enumerate(row):
            if _is_known(action, num_stages, num_microbatches):
                known[action].append((rank, index))
            else:
                message = f"{action} on rank {rank} is no action of this pipeline."
                faults.append(Fault("unknown", message, ((rank, index),)))
    if not known:
        return [*faults, Fault("missing", "no rank does anything.")]
    stages = num_stages or max(action.stage for action in known) + 1
    microbatches = num_microbatches or max(action.microbatch for action in known) + 1
    faults += _several_ranks(known)
    faults += _not_once(known, stages, microbatches)
    early = list(_too_early(known))
    faults += [fault for fault, _ in early]
    granted = {place for _, place in early}
    granted |= {place for fault in faults if fault.kind == "unknown" for place in fault.places}
    cycles = clock(rows, granted).stuck
    return faults + [_waiting(rows, cycle) for cycle in cycles]


def _is_known(action: Action, num_stages: int | None, num_microbatches: int | None) -> bool:
    stage, kind, microbatch = action
    return (
        0 <= stage < (num_stages or stage + 1)
        and kind in KINDS
        and len(kind) == 1
        and 0 <= microbatch < (num_microbatches or microbatch + 1)
    )


def _several_ranks(known: dict[Action, list[Place]]) -> Iterator[Fault]:
    """Find stages on several ranks: the parameters of a stage are on one rank."""
    ranks: dict[int, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for action, places in known.items():
        for place in places:
            ranks[action.stage][place[0]].append(place)
    for stage, of_rank in sorted(ranks.items()):
        if len(of_rank) > 1:
            home = max(of_rank, key=lambda rank: len(of_rank[rank]))
            strays = [place for rank in of_rank if rank != home for place in of_rank[rank]]
            listed = ", ".join(str(rank) for rank in sorted(of_rank))
            yield Fault("placement", f"stage {stage} is on ranks {listed}.", tuple(strays))


def _not_once(known: dict[Action, list[Place]], stages: int, microbatches: int) -> Iterator[Fault]:
    """Find missing and repeated actions: a stage needs F once, and once B, or both I and W."""
    for action, places in known.items():
        if len(places) > 1:
            times = f"{len(places)} times"
            yield Fault("doubled", f"{action} is done {times}.", tuple(places[1:]))
    for stage in range(stages):
        for k in range(microbatches):
            forward, both, first, second = (Action(stage, kind, k) for kind in KINDS)
            if forward not in known:
                yield Fault("missing", f"no rank does {forward}.")
            halves = [half for half in (first, second) if half in known]
            if both in known:
                for half in halves:
                    message = f"{half} is a part of {both}, which is done too."
                    yield Fault("doubled", message, tuple(known[half]))
            elif not halves:
                message = f"no rank does {both}, nor {first} and {second}."
                yield Fault("missing", message)
            elif len(halves) == 1:
                missing = second if halves[0] == first else first
                message = f"no rank does {missing}, but a rank does {halves[0]}."
                yield Fault("missing", message)


def _too_early(known: dict[Action, list[Place]]) -> Iterator[tuple[Fault, Place]]:
    """Find actions that precede, on the same rank, the F or the I that they need."""
    for action, places in known.items():
        if action.kind == "F":
            continue
        need = Action(action.stage, "I" if action.kind == "W" else "F", action.microbatch)
        for rank, index in places:
            earlier = [place for place in known.get(need, ()) if place[0] == rank]
            if earlier and earlier[0][1] > index:
                message = f"rank {rank} does {action} before {need}, which it needs."
                yield Fault("order", message, ((rank, index),)), (rank, index)


def _waiting(rows: Schedule, cycle: Stuck) -> Fault:
    """Describe a cycle of waiting ranks; a cycle of one rank is a wrong order of its actions."""
    actions = [rows[rank][index] for rank, index in zip(*cycle[:2], strict=True)]
    places = tuple(zip(cycle.ranks, cycle.indices, strict=True))
    if len(actions) == 1:
        rank, need = cycle.ranks[0], _done_as(rows[cycle.ranks[0]], cycle.needs[0])
        message = f"rank {rank} does {actions[0]} before {need}, which it needs."
        return Fault("order", message, places)
    ahead = [*cycle.ranks[1:], cycle.ranks[0]]
    waits = [
        f"rank {rank} waits in {action} for {_done_as(rows[other], need)}, which rank {other} "
        "does later"
        for rank, action, need, other in zip(cycle.ranks, actions, cycle.needs, ahead, strict=True)
    ]
    return Fault("wait", "; ".join(waits) + ".", places)


def _done_as(row: list[Action], need: Action) -> Action:
    """Return the action that provides an input gradient on this rank: B, or I if it has no B."""
    return need if need in row else need._replace(kind="I")
