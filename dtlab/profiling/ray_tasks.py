"""The tasks of a Ray program as events: one lane for the driver, and one for each worker process.

`ray.timeline()` returns Chrome's trace events, times in microseconds since 1970:

    tid         cat                            becomes
    driver:…    submit_task                    a span "submit": arguments by value are copied here
    worker:…    task::name                     a span "name": a task, or a call of an actor
    worker:…    task:deserialize_arguments     a span "arguments", inside that of the task
    worker:…    task:store_outputs             a span "result", inside that of the task

Ray writes other categories only if RAY_PROFILING=1; of these, only `ray.put` is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dtlab.trace.columns import Event

__all__ = ["task_events"]

_NAMES: Final = {
    "submit_task": "submit",
    "ray.put": "put",
    "task:deserialize_arguments": "arguments",
    "task:store_outputs": "result",
}
_TASK: Final = "task::"


def task_events(
    chrome: Iterable[Mapping[str, Any]], since: float = 0.0
) -> tuple[list[Event], list[str]]:
    """Return the events, and the name of each lane: the driver, and workers by their first task.

    Events that began before `since`, in seconds since 1970, are left out.
    """
    found: list[tuple[float, float, str, str, bool]] = []
    for each in chrome:
        category, start = str(each.get("cat", "")), float(each.get("ts", 0.0)) / 1e6
        is_task = category.startswith(_TASK)
        if start >= since and (is_task or category in _NAMES):
            name = category.removeprefix(_TASK) if is_task else _NAMES[category]
            end = start + float(each["dur"]) / 1e6
            found.append((start, end, str(each["tid"]), name, is_task))
    found.sort()
    first = found[0][0] if found else 0.0
    processes = dict.fromkeys(process for _, _, process, *_ in found)
    ordered = sorted(processes, key=lambda process: not process.startswith("driver"))
    lanes = {process: number for number, process in enumerate(ordered)}
    drivers = sum(process.startswith("driver") for process in ordered)
    names = ["driver"] * drivers + [f"worker {n + 1}" for n in range(len(ordered) - drivers)]
    moves = {"phase": "communication"}  # spans in which data is copied, or looked up
    events = [
        Event(lanes[process], "compute", name, start=start - first, end=end - first,
              extra={} if is_task else moves)
        for start, end, process, name, is_task in found
    ]  # fmt: skip
    return events, names
