"""When the tasks of a graph run on a number of workers.

    a 2 s ──► b 3 s ──► d 1 s         worker 1   a a b b b d      6 s on two workers
         └──► c 1 s ────┘             worker 2       c            7 s on one

No number of workers is faster than the critical path, the longest chain of tasks that need each
other: here a, b, d. Nor can W workers be faster than a W-th of all work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtlab.trace import Event, Trace

__all__ = ["TaskGraph", "critical_path", "scheduled"]

TaskGraph = Mapping[str, tuple[float, Sequence[str]]]  # name: seconds, names of the tasks it needs


def critical_path(tasks: TaskGraph) -> tuple[float, list[str]]:
    """Return the seconds of the longest chain of tasks, and the names in it.

    Raises: ValueError if a task needs one that does not come before it, or takes under 0 seconds.
    """
    _check(tasks)
    ends: dict[str, float] = {}
    before: dict[str, str] = {}
    for name, (seconds, needs) in tasks.items():
        if needs:
            before[name] = max(needs, key=ends.__getitem__)
        ends[name] = seconds + (ends[before[name]] if needs else 0.0)
    chain = [max(ends, key=ends.__getitem__)] if ends else []
    while chain and chain[0] in before:
        chain.insert(0, before[chain[0]])
    return max(ends.values(), default=0.0), chain


def scheduled(tasks: TaskGraph, workers: int) -> Trace:
    """Return the trace of the tasks on `workers` workers, without any cost of coordination.

    A free worker takes the first task, in the order of `tasks`, that has all it needs.
    Raises: as `critical_path`, and for fewer than 1 worker.
    """
    _check(tasks)
    if workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers!r}.")
    free = [0.0] * workers
    ends: dict[str, float] = {}
    events, waiting = [], dict(tasks)
    while waiting:
        ready = {
            name: max((ends[need] for need in needs), default=0.0)
            for name, (_, needs) in waiting.items()
            if ends.keys() >= set(needs)
        }
        now = max(min(free), min(ready.values()))
        name = next(name for name, since in ready.items() if since <= now)
        worker = next(number for number, since in enumerate(free) if since <= now)
        free[worker] = ends[name] = now + waiting.pop(name)[0]
        events.append(Event(worker, "compute", name, start=now, end=ends[name]))
    trace = Trace.from_events(events, world_size=workers)
    trace.lane_names = tuple(f"worker {number + 1}" for number in range(workers))
    return trace


def _check(tasks: TaskGraph) -> None:
    known: set[str] = set()
    for name, (seconds, needs) in tasks.items():
        if isinstance(needs, str) or not known.issuperset(needs):
            raise ValueError(
                f"Task {name!r} needs {needs!r}: give a list of tasks that come before it."
            )
        if seconds < 0:
            raise ValueError(f"Task {name!r} must take 0 seconds or more, not {seconds!r}.")
        known.add(name)
