"""Traces of files, of profilers and of Ray: what `Trace.from_chrome` and its siblings call.

The methods of `Trace` describe the arguments and what is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dtlab.errors import ArgumentError
from dtlab.profiling import own_files
from dtlab.profiling.kineto import Part
from dtlab.profiling.profiler import merge, part_of, parts_of
from dtlab.profiling.ray_tasks import task_events
from dtlab.profiling.reading.files import PathType, read
from dtlab.profiling.reading.kernels import CommKernels
from dtlab.trace import Trace

__all__ = ["of_files", "of_profiler", "of_ray"]


def of_files(
    paths: PathType | Sequence[PathType] | Mapping[int, PathType], comm: Iterable[str]
) -> Trace:
    """Do what `Trace.from_chrome` describes."""
    kernels = CommKernels(comm)
    files = read(paths)
    if len(files) == 1 and "dtlab" in files[0].content:
        return own_files.trace_of(files[0])
    return _of_parts(parts_of(files, kernels), kernels)


def of_profiler(profiler: Any, comm: Iterable[str]) -> Trace:
    """Do what `Trace.from_profiler` describes."""
    if isinstance(profiler, Sequence):
        parts = [
            replace(trace.part, events=list(trace.events))
            for trace in profiler
            if isinstance(trace, Trace) and trace.part is not None
        ]
        if len(parts) < len(profiler) or not parts:
            raise ArgumentError(
                "from_profiler merges a list of the traces that it returned on each rank. "
                "This list has something else; from_chrome merges files."
            )
        return _of_parts(parts, CommKernels())
    kernels = CommKernels(comm)
    part = part_of(profiler, kernels)
    part.notes += kernels.notes()
    trace = Trace(part.events, world_size=part.world_size)
    first = min((event.start for event in part.events), default=0.0)
    zero = None if part.zero is None else part.zero + round(first * 1e9)
    trace.part = replace(part, zero=zero, events=[])
    trace.notes = tuple(part.notes)
    trace.without_kernels = (part.rank,) * part.lacks_kernels
    return trace


def of_ray(timeline: Iterable[Mapping[str, Any]], since: float) -> Trace:
    """Do what `Trace.from_ray` describes."""
    events, names = task_events(timeline, since)
    trace = Trace(events, world_size=len(names))
    trace.lane_names = tuple(names)
    return trace


def _of_parts(parts: Sequence[Part], kernels: CommKernels) -> Trace:
    parts[0].notes += kernels.notes()
    events, world_size, notes = merge(parts)
    trace = Trace(events, world_size=world_size)
    trace.notes = tuple(dict.fromkeys(notes))
    trace.without_kernels = tuple(sorted(part.rank for part in parts if part.lacks_kernels))
    trace.incomplete = tuple(sorted(part.rank for part in parts if part.incomplete))
    return trace
