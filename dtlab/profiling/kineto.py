"""Reader of one rank's trace by torch.profiler: what Kineto writes becomes events.

    cpu_op, user_annotation       -> compute on a CPU, phases, calls of collectives
    kernel, gpu_memcpy            -> compute on a GPU
    gloo:..., kernel nccl...      -> communication; other libraries' in `reading/kernels.py`

What such a file has, and where this was looked up:

- Kineto, `libkineto/src/output_json.cpp`: an entry has `cat` "cpu_op", "user_annotation",
  "kernel", "gpu_memcpy", ...; `ts` counts microseconds from `baseTimeNanoseconds` (files before
  2024: from 1970). The arguments of a collective, such as "In msg nelems", are copied from
  `record_param_comms` on the CPU to the NCCL kernel; files before March 2024 have them on neither
  or only on the first. "correlation" leads from a kernel to the call that launched it.
- Traces of each age: `tests/data` of facebookresearch/HolisticTraceAnalysis.
- gloo writes an annotation `gloo:all_reduce` on a separate thread, without a group. The call
  `c10d::allreduce_` on the calling thread says when the rank arrived.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dtlab.errors import DtlabError
from dtlab.profiling.collective_args import (
    Call,
    Groups,
    Op,
    dtype_of,
    elements_of,
    find_calls,
    is_call,
    is_public,
    issued,
    peer_and_tag,
    public_name,
)
from dtlab.profiling.reading.entries import (
    CALLS,
    STEP,
    Contents,
    Unreadable,
    check_one_rank,
    clean,
    lacks_kernels,
)
from dtlab.profiling.reading.files import NO_OPERATIONS, ONLY_STACKS
from dtlab.profiling.reading.kernels import NCCL, CommKernels, Spans, operation, pattern_of
from dtlab.trace.columns import Event

__all__ = ["Part", "parse"]

_WAIT = 3e-4  # s; Python takes less between two operators
_BLOCKING = ("c10d::send", "c10d::recv", "c10d::monitored_barrier")  # others only enqueue


@dataclass
class Part:
    """The events of one rank, in seconds from `zero`, the Unix time in nanoseconds or None.

    `steps` are the numbers of the profiler's steps, `host` is the machine's name or "". `notes`
    say what could not be read. `lacks_kernels`: the rank used a GPU, whose kernels are missing.
    `incomplete`: the end of the file is missing.
    """

    label: str
    rank: int
    world_size: int
    zero: int | None
    host: str = ""
    steps: tuple[int, ...] = ()
    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacks_kernels: bool = False
    incomplete: bool = False


def parse(
    content: Mapping[str, Any],
    label: str,
    rank: int | None = None,
    ranks: int = 1,
    comm: CommKernels | None = None,
) -> Part:
    """Turn the content of one rank's file into events.

    `rank`, and the number of `ranks`, are used if the file does not have them.
    Raises: DtlabError if the file has no operations, has those of several processes, or neither it
    nor `rank` gives the rank.
    """
    if "dtlab" in content:
        raise DtlabError(f"{label} was written by to_chrome and has all ranks: pass it alone.")
    contents = clean(content, label)
    about = contents.header
    if not contents.entries and contents.unreadable:
        raise DtlabError(f"{label} has no operation with a readable time. {contents.notes[0]}")
    if not contents.entries:
        raise DtlabError(f"{label} {NO_OPERATIONS}")
    only_steps = all(each.cat == "note" and STEP.fullmatch(each.name) for each in contents.entries)
    if contents.has_stacks and only_steps:
        raise DtlabError(f"{label} {ONLY_STACKS}")
    check_one_rank(contents, label)
    if "rank" not in about and rank is None:
        bad = [note for note in contents.notes if '"rank" of distributedInfo' in note]
        raise DtlabError(
            f"{label} does not say which rank wrote it"
            + (f". {bad[0]} " if bad else ": its profiler started before init_process_group. ")
            + "Start the profiler later, or pass the ranks yourself: dtlab analyze --ranks 0,1 "
            'a.json b.json, or Trace.from_chrome({0: "a.json", 1: "b.json"}).'
        )
    number = int(about.get("rank", rank or 0))
    groups = Groups(about, number, ranks)
    ops, first = _ops(contents)
    reader = _Rank(ops, groups, comm or CommKernels())
    events = [*reader.events(), *reader.unreadable(contents.unreadable, first)]
    steps = [match for op in ops if (match := STEP.fullmatch(op.name))]
    largest = max((peer for event in events for peer in event.peers), default=0)
    zero = about["zero"]
    return Part(
        label, number, max(groups.world_size, largest + 1),
        None if zero is None else zero + round(first * 1000), about["host"],
        tuple(int(match[1]) for match in steps), events, [*contents.notes, *reader.notes()],
        lacks_kernels(contents),
    )  # fmt: skip


def _ops(contents: Contents) -> tuple[list[Op], float]:
    """Return the operations by start, in seconds from the first; and its time in the file."""
    first = min(entry.ts for entry in contents.entries)
    ops = [
        Op(
            entry.name, entry.cat, entry.pid, entry.tid,
            (entry.ts - first) * 1e-6, (entry.ts - first + entry.dur) * 1e-6, entry.args,
        )
        for entry in contents.entries
    ]  # fmt: skip
    ops.sort(key=lambda op: (op.start, -op.end))
    return ops, first


class _Rank:
    """Builds the events of one rank from its operations."""

    def __init__(self, every: Sequence[Op], groups: Groups, comm: CommKernels) -> None:
        ops = [op for op in every if op.cat != "gpu_note"]
        self.gpu_notes = [op for op in every if op.cat == "gpu_note"]
        self.groups = groups
        self.ops = ops
        self.comm = comm
        self.on_gpu = any(op.cat in ("kernel", "copy") for op in ops)
        self.calls = find_calls(ops)
        self.calls_of: dict[Any, list[Call]] = defaultdict(list)
        for call in self.calls:
            self.calls_of[call.tid].append(call)
        self.gloo = [op for op in ops if op.cat != "kernel" and op.name.startswith("gloo:")]
        self.threads = _threads(ops, {op.tid for op in self.gloo})
        self.covers = _covers(ops)
        self.launches = {
            op.args["correlation"]: op
            for op in ops
            if op.cat == "launch" and "correlation" in op.args
        }
        self.phases = _phases(ops)
        # NCCL has a stream for each group.
        streams = {_place(op) for op in ops if op.cat == "kernel" and self._is_nccl(op)}
        groups.unlisted = len(streams) > 1
        self.has_nccl_kernels = bool(streams)
        self.carried: set[int] = set()  # the calls whose kernels are known, by `id`
        self.unknown: Counter[tuple[str, str]] = Counter()  # kernel, collective

    def events(self) -> Iterator[Event]:
        """Yield communication, operators or kernels, and annotations."""
        yield from self._gloo_events()
        if self.on_gpu:
            yield from self._gpu_events()
            self._find_unknown()
        else:
            yield from self._operators()
        if not self.has_nccl_kernels:
            yield from self._nccl_calls()
        yield from self._annotations()

    def _annotations(self) -> Iterator[Event]:
        """Annotations count as busy only where the CPU computes, except the profiler's steps."""
        for op in self.ops:
            if op.cat == "note" and not op.name.startswith(("gloo:", "nccl:")):
                extra = self._thread(op) | self._phase(op) | {"annotation": True}
                if self.on_gpu or op.name.startswith("ProfilerStep#"):
                    extra["busy"] = False
                yield self._compute(op.name, op, extra)

    def _operators(self) -> Iterator[Event]:
        """Yield the outermost operators of each thread."""
        until: dict[Any, float] = {}
        for op in self.ops:
            outermost = op.start >= until.get(op.tid, -1.0)
            waits = "wait_tensor" in op.name  # of a functional collective
            if op.cat == "cpu_op" or op.name.startswith("gloo:"):
                until[op.tid] = max(until.get(op.tid, -1.0), op.end)
                if outermost and op.cat == "cpu_op" and self.comm.is_users(op.name):
                    extra = self._thread(op) | {"blocked": [(op.start, op.end)]}
                    yield self._comm(operation(op.name), op.start, op.end, {}, [], extra, False)
                elif outermost and op.cat == "cpu_op" and not is_call(op) and not waits:
                    phase = self._phase(op)
                    name = op.name.removeprefix("autograd::engine::evaluate_function: ")
                    yield self._compute(name, op, self._thread(op) | phase)

    def _gpu_events(self) -> Iterator[Event]:
        for op in self.ops:
            if op.cat == "kernel" and self._communicates(op):
                yield self._comm_kernel(op)
            elif op.cat in ("kernel", "copy"):
                launch = self.launches.get(op.args.get("correlation"))
                extra = self._thread(op) | {"stream": op.args.get("stream", op.tid)}
                yield self._compute(op.name, op, extra | (self._phase(launch) if launch else {}))

    def _is_nccl(self, op: Op) -> bool:
        return "Collective name" in op.args or self.comm.library(op.name) == NCCL

    def _communicates(self, op: Op) -> bool:
        return "Collective name" in op.args or self.comm.library(op.name) != ""

    def _call_of(self, kernel: Op) -> Call | None:
        """Return the call of a collective that launched a kernel."""
        launch = self.launches.get(kernel.args.get("correlation"))
        return self._call_at(launch) if launch else None

    def _comm_kernel(self, op: Op) -> Event:
        call = self._call_of(op)
        if call:
            self.carried.add(id(call))
        args = op.args if "Collective name" in op.args else call.args if call else {}
        if args:
            name = public_name(str(args["Collective name"]))
        elif call:
            name = call.name
        elif self._is_nccl(op):  # RCCL's kernels are called Generic
            match = re.match(r"[a-z]*ccl\w*?Kernel_([A-Za-z]+)", op.name)
            name = public_name(match[1]) if match else ""
            name = name if is_public(name) else "collective"
        else:
            name = operation(op.name)
            self.comm.counts[op.name] += 1
        extra = self._thread(op) | {"stream": op.args.get("stream", op.tid)}
        ops = call.ops if call else []
        return self._comm(name, op.start, op.end, args, ops, extra, bool(args or ops))

    def _nccl_calls(self) -> Iterator[Event]:
        """Yield the calls of NCCL, as the CPU issued them, if the file has no kernels of NCCL.

        A rank that is alone in its group copies, or does nothing.
        """
        for call in self.calls:
            called = any(op.name.startswith(("nccl:", "xccl:", "hccl:")) for op in call.ops)
            if called and id(call) not in self.carried:
                extra = self._thread(call.ops[0]) | {"blocked": []}
                yield self._comm(call.name, call.start, call.end, call.args, call.ops, extra)

    def _find_unknown(self) -> None:
        """Count kernels in a recorded collective, none of whose kernels is known to communicate.

        The collective launched the kernel. If the launch is unknown, their times overlap.
        """
        kernels = [op for op in self.ops if op.cat == "kernel"]
        known = [op for op in kernels if self._communicates(op)]
        recorded = [(op.start, op.end, public_name(op.name)) for op in self.gpu_notes
                    if op.name.startswith(CALLS)]  # fmt: skip
        if all(op.args.get("correlation") in self.launches for op in known):
            recorded += [(call.start, call.end, call.name) for call in self.calls
                         if id(call) not in self.carried and call.name != "barrier"]  # fmt: skip
        taken = Spans((op.start, op.end, op.name) for op in known)
        alone = Spans(span for span in recorded if not taken.at(span[0], span[1]))
        for op in kernels if self.calls or recorded else ():
            if not self.comm.may_communicate(op.name):
                continue
            call = self._call_of(op)
            name = alone.at(op.start, op.end)
            if call and id(call) not in self.carried:
                self.unknown[op.name, call.name] += 1
            elif name and op.args.get("correlation") not in self.launches:
                self.unknown[op.name, name] += 1

    def notes(self) -> list[str]:
        """Say which kernels may communicate, though their names do not show it."""
        return [
            f"The kernel {kernel[:80]!r} ({count}) runs during a recorded {name}, but is not "
            "known to communicate, so it counts as compute. If it communicates, say so: "
            f"dtlab analyze --comm {pattern_of(kernel)!r}, or from_chrome(..., comm=[...])."
            for (kernel, name), count in self.unknown.most_common(3)
        ]

    def unreadable(self, missing: Sequence[Unreadable], first: float) -> Iterator[Event]:
        """Yield a mark at each event whose times cannot be read, where its place is known.

        Only events matter that would count: those of the GPU or else of the CPU. A kernel without
        a start is where it was launched. Where the number of a step is missing, the step before
        seems to be longer than it is.
        """
        rank, last = self.groups.rank, max(op.end for op in self.ops)
        extra = {"annotation": True, "busy": False, "unreadable": True}
        counts = ("kernel", "copy") if self.on_gpu else ("kernel", "copy", "cpu_op", "note")
        for each in missing:
            launch = self.launches.get(each.args.get("correlation"))
            at = launch.start if each.ts is None and launch else 0.0
            if each.ts is not None:
                at = min(max((each.ts - first) * 1e-6, 0.0), last)
            more = {} if each.ts is not None or launch else {"anywhere": True}
            if each.cat in counts and not STEP.fullmatch(each.name):
                yield Event(rank, "compute", each.name, (), 0, at, at, extra | more)
        steps = sorted((int(m[1]), op.end) for op in self.ops if (m := STEP.fullmatch(op.name)))
        for (number, end), (following, _) in pairwise(steps):
            if following > number + 1:
                name = f"ProfilerStep#{number + 1}"
                yield Event(rank, "compute", name, (), 0, end, end, extra)

    def _gloo_events(self) -> Iterator[Event]:
        pairs = list(issued(self.gloo, self.calls))
        has_calls = any(call for _, call in pairs)  # old files have none
        for op, call in pairs:
            name = call.name if call else public_name(op.name)
            start = call.start if call else op.start
            tid = call.tid if call else next(iter(self.threads))
            thread = {"thread": self.threads[tid]} if self.threads.get(tid) else {}
            extra = thread | {"blocked": self._blocked(tid, start, op.end)}
            ops = [*(call.ops if call else ()), op]
            inside = call is not None or not has_calls
            yield self._comm(name, start, op.end, {}, ops, extra, inside)

    def _comm(
        self,
        name: str,
        start: float,
        end: float,
        args: Mapping[str, Any],
        ops: Sequence[Op],
        extra: dict[str, Any],
        inside: bool = True,
    ) -> Event:
        """Build a communication from a collective's arguments, or else from the calls' shapes.

        `inside` is False if it was called before the profiler started. It gets no group then,
        because the profilers of other ranks may have missed it, so that it has no number.
        """
        group_name, ranks = self.groups.of(args) if args else self.groups.only()
        ranks = ranks if inside else ()
        rank = self.groups.rank
        dtype, item = dtype_of(args, ops)
        elements = elements_of(name, args, ops, len(ranks) or 1)
        if name == "barrier":
            dtype, item = "", 0
        peers = tuple(other for other in ranks if other != rank)
        if ranks:
            extra |= {"group": ranks, "group_name": group_name}
        if name in ("send", "recv"):
            peers, extra["tag"] = peer_and_tag(name, args, ops, ranks)
        if dtype:
            extra |= {"dtype": dtype, "numel": elements}
        if "Seq" in args:
            extra["sequence"] = args["Seq"]
        return Event(rank, "comm", name, peers, elements * item, start, end, extra)

    def _compute(self, name: str, op: Op, extra: dict[str, Any]) -> Event:
        return Event(self.groups.rank, "compute", name, (), 0, op.start, op.end, extra)

    def _thread(self, op: Op) -> dict[str, Any]:
        number = self.threads[_place(op)]
        return {"thread": number} if number else {}

    def _phase(self, op: Op) -> dict[str, Any]:
        starts, ends, names = self.phases.get(op.tid, ((), (), ()))
        found = bisect_right(starts, op.start) - 1
        return {"phase": names[found]} if found >= 0 and op.start < ends[found] else {}

    def _call_at(self, op: Op) -> Call | None:
        """Return the call that encloses an operation of the CPU."""
        calls = self.calls_of.get(op.tid, [])
        found = bisect_right(calls, op.start, key=lambda call: call.start) - 1
        return calls[found] if found >= 0 and op.start <= calls[found].end else None

    def _blocked(self, tid: Any, start: float, end: float) -> list[tuple[float, float]]:
        """Return when the thread waited for a communication of this duration.

        The profiler does not record waits. A thread that is in no operator when a communication
        ends, or for `_WAIT` while it is in progress, is taken to wait for it. (gloo's thread may
        write the end late: it wakes the waiting thread first.)
        """
        starts, ends = self.covers.get(tid, ((), ()))
        waits = []
        for number in range(bisect_right(ends, start), bisect_left(starts, end)):
            if starts[number] - start >= _WAIT:
                waits.append((start, starts[number]))
            start = ends[number]
        return [*waits, (start, end)] if start < end else waits


def _place(op: Op) -> Any:
    return op.tid if op.cat in ("cpu_op", "note", "launch") else (op.pid, op.tid)


def _threads(ops: Sequence[Op], gloo: set[Any]) -> dict[Any, int]:
    """Number the threads, the main thread first, and then the GPU's streams."""
    counts = Counter(_place(op) for op in ops)
    main = next((op.tid for op in ops if op.tid == op.pid), None)

    def order(place: Any) -> tuple[Any, ...]:
        return isinstance(place, tuple), place != main, place in gloo, -counts[place]

    return {place: number for number, place in enumerate(sorted(counts, key=order))}


def _covers(ops: Sequence[Op]) -> dict[Any, tuple[list[float], list[float]]]:
    """Return when each thread did not wait for communication, as starts and ends.

    It is in an operator or issues a collective, or it waits for input. Nodes of autograd do not
    count, because they may contain communication; what they call does.
    """
    result: dict[Any, tuple[list[float], list[float]]] = {}
    wrappers = ("autograd::", "torch::autograd::", "_c10d_functional", *_BLOCKING)
    for op in ops:
        computes = op.cat == "cpu_op" and "::" in op.name and not op.name.startswith(wrappers)
        if computes or (op.cat == "note" and _phase_of(op.name) == "input"):
            starts, ends = result.setdefault(op.tid, ([], []))
            if ends and op.start <= ends[-1]:
                ends[-1] = max(ends[-1], op.end)
            else:
                starts.append(op.start)
                ends.append(op.end)
    return result


def _phases(ops: Sequence[Op]) -> dict[Any, tuple[list[float], list[float], list[str]]]:
    """Return the outermost periods of forward, backward, optimizer and input, for each thread."""
    result: dict[Any, tuple[list[float], list[float], list[str]]] = {}
    for op in ops:
        phase = _phase_of(op.name) if op.cat in ("note", "cpu_op") else ""
        if phase:
            starts, ends, names = result.setdefault(op.tid, ([], [], []))
            if not ends or op.start >= ends[-1]:
                starts.append(op.start)
                ends.append(op.end)
                names.append(phase)
    return result


def _phase_of(name: str) -> str:
    lowered = name.lower()
    if lowered.startswith("autograd::engine"):
        return "backward"
    if lowered.startswith(("enumerate(dataloader)", "input")):
        return "input"
    if lowered.startswith("aten::"):
        return ""
    return next((word for word in ("optimizer", "backward", "forward") if word in lowered), "")
