"""Reader of one rank's trace by torch.profiler: what Kineto writes becomes events.

    cpu_op, user_annotation       -> compute on a CPU, phases, calls of collectives
    kernel, gpu_memcpy            -> compute on a GPU
    gloo:..., kernel nccl...      -> communication

What such a file has, and where this was looked up:

- Kineto, `libkineto/src/output_json.cpp`: an entry has `cat` "cpu_op", "user_annotation",
  "kernel", "gpu_memcpy", ...; `ts` counts microseconds from `baseTimeNanoseconds` (files before
  2024: from 1970). The arguments of a collective, such as "In msg nelems", are copied from
  `record_param_comms` on the CPU to the NCCL kernel; files before March 2024 have them on neither
  or only on the first. "correlation" leads from a kernel to the call that launched it.
- PyTorch, `torch/csrc/profiler/util.cpp` (`saveNcclMeta`): names of these arguments; long lists of
  ranks are cut ("[0, 1, ...]"), "Src Rank" and "Dst Rank" are global ranks.
- Traces of each age: `tests/data` of facebookresearch/HolisticTraceAnalysis.
- gloo writes an annotation `gloo:all_reduce` on a thread of its own, without a group. The call
  `c10d::allreduce_` on the calling thread says when the rank arrived.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from dtlab.errors import DtlabError
from dtlab.trace.columns import Event

__all__ = ["Part", "parse"]


@dataclass
class Part:
    """The events of one rank, in seconds from `zero`, the Unix time in nanoseconds.

    `steps` are the numbers of the profiler's steps, `host` is the machine's name or "".
    """

    label: str
    rank: int
    world_size: int
    zero: int
    host: str = ""
    steps: tuple[int, ...] = ()
    events: list[Event] = field(default_factory=list)


class _Op(NamedTuple):
    name: str
    cat: str
    pid: Any
    tid: Any
    start: float
    end: float
    args: Mapping[str, Any]


_CATEGORIES = {  # names before PyTorch 1.13 on the left
    "operator": "cpu_op", "cpu_op": "cpu_op", "user_annotation": "note",
    "kernel": "kernel", "memcpy": "copy", "gpu_memcpy": "copy", "memset": "copy",
    "gpu_memset": "copy", "runtime": "launch",
}  # fmt: skip


def parse(content: Mapping[str, Any], label: str, rank: int | None = None, ranks: int = 1) -> Part:
    """Turn the content of one rank's file into events.

    `rank`, and the number of `ranks`, are used if the file does not have them.
    Raises: DtlabError if the file has no operations, or neither it nor `rank` gives the rank.
    """
    if "dtlab" in content:
        raise DtlabError(f"{label} was written by to_chrome and has all ranks: pass it alone.")
    about = content.get("distributedInfo") or {}
    if "rank" not in about and rank is None:
        raise DtlabError(
            f"{label} does not say which rank wrote it: its profiler started before "
            "init_process_group. Start the profiler later, or pass the ranks yourself: "
            'Trace.from_chrome({0: "a.json", 1: "b.json"}).'
        )
    ops, zero = _ops(content)
    if not ops:
        raise DtlabError(
            f"{label} has no operations. With a schedule, the profiler records only the active "
            "steps: call step() at least wait + warmup + active times."
        )
    number = int(about.get("rank", rank or 0))
    groups = _Groups(about, number, ranks)
    steps = [match for op in ops if (match := re.fullmatch(r"ProfilerStep#(\d+)", op.name))]
    events = list(_Rank(ops, groups).events())
    largest = max((peer for event in events for peer in event.peers), default=0)
    return Part(
        label, number, max(groups.world_size, largest + 1), zero,
        str(content.get("host_name", "")), tuple(int(match[1]) for match in steps), events,
    )  # fmt: skip


def _ops(content: Mapping[str, Any]) -> tuple[list[_Op], int]:
    """Return the operations by start, in seconds from the first; and its Unix time in ns."""
    entries = []
    for entry in content["traceEvents"]:
        if not isinstance(entry, Mapping) or entry.get("ph") != "X":
            continue
        written = str(entry.get("cat", "")).lower()  # such as "cuda_runtime", "hip_driver"
        launches = written.endswith(("_runtime", "_driver"))
        cat = "launch" if launches else _CATEGORIES.get(written)
        if cat and isinstance(entry.get("ts"), int | float):
            entries.append((entry, cat))
    first = min((entry["ts"] for entry, _ in entries), default=0)
    ops = [
        _Op(
            str(entry.get("name", "")), cat, entry.get("pid"), entry.get("tid"),
            (entry["ts"] - first) * 1e-6, (entry["ts"] - first + entry.get("dur", 0)) * 1e-6,
            entry.get("args") or {},
        )
        for entry, cat in entries
    ]  # fmt: skip
    ops.sort(key=lambda op: (op.start, -op.end))
    return ops, int(content.get("baseTimeNanoseconds", 0)) + round(first * 1000)


class _Groups:
    """The process groups that a file describes."""

    def __init__(self, about: Mapping[str, Any], rank: int, ranks: int) -> None:
        self.rank = rank
        self.world_size = max(int(about.get("world_size", ranks)), rank + 1)
        self.unlisted = False  # there are several groups, and the file does not list them
        self._by_name: dict[str, tuple[int, ...]] = {}
        for group in about.get("pg_config") or ():
            if isinstance(group, Mapping):
                members = _ranks(group.get("ranks")) or range(int(group.get("pg_size", 0)))
                self._by_name[str(group.get("pg_name"))] = tuple(members)

    def of(self, args: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
        """Return name and ranks of the group in a collective's arguments; no ranks if unknown."""
        name = str(args.get("Process Group Name", args.get("Process Group ID", "")))
        size = int(args.get("Group size", 0))
        ranks = _ranks(args.get("Process Group Ranks")) or self._by_name.get(name, ())
        if not ranks and {"Global rank start", "Global rank stride"} <= args.keys():
            first, stride = int(args["Global rank start"]), int(args["Global rank stride"])
            ranks = tuple(first + stride * place for place in range(size))
        if not ranks and size == self.world_size:
            ranks = tuple(range(size))
        return name, ranks

    def only(self) -> tuple[str, tuple[int, ...]]:
        """Return the only group of several ranks, for a collective that does not name its group.

        These are gloo's, and NCCL's in old files, which do not list the groups either.
        """
        several = {name: ranks for name, ranks in self._by_name.items() if len(ranks) > 1}
        if not self._by_name and not self.unlisted:
            return "", tuple(range(self.world_size))
        return next(iter(several.items())) if len(set(several.values())) == 1 else ("", ())


def _ranks(written: Any) -> tuple[int, ...]:
    """Read a list of ranks, "[0, 1]" or [0, 1]; empty if it is cut: "[0, 1, ...]"."""
    if isinstance(written, str):
        if "..." in written:
            return ()
        written = re.findall(r"\d+", written)
    return tuple(int(rank) for rank in written or ())


class _Call:
    """A call of a collective on the CPU: `c10d::allreduce_` and what is nested in it."""

    def __init__(self, op: _Op) -> None:
        self.tid, self.start, self.end = op.tid, op.start, op.end
        self.ops = [op]

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments that `record_param_comms` wrote, or none."""
        return next((op.args for op in self.ops if "Collective name" in op.args), {})

    @property
    def name(self) -> str:
        written = [str(self.args.get("Collective name", "")), *(op.name for op in self.ops)]
        names = [_public(each) for each in written if each and each != "record_param_comms"]
        return next((name for name in names if name in _PUBLIC.values()), (*names, "unknown")[0])


def _is_call(op: _Op) -> bool:
    return op.name.startswith(("c10d::", "nccl:")) or op.name == "record_param_comms"


_PUBLIC = {  # in this order: "reducescatter" before "reduce"
    "allreduce": "all_reduce", "sparseallreduce": "all_reduce", "allgather": "all_gather",
    "reducescatter": "reduce_scatter", "alltoall": "all_to_all", "broadcast": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "monitoredbarrier": "barrier", "sendrecv": "send_recv", "send": "send", "recv": "recv",
}  # fmt: skip


def _public(written: str) -> str:
    """Return the function's name: all_gather for c10d::_allgather_base_ and nccl:all_gather."""
    short = written.rsplit(":", 1)[-1]
    letters = re.sub("[^a-z]", "", short.lower())
    return next((name for key, name in _PUBLIC.items() if letters.startswith(key)), short)


class _Rank:
    """Builds the events of one rank from its operations."""

    def __init__(self, ops: Sequence[_Op], groups: _Groups) -> None:
        self.groups = groups
        self.ops = ops
        self.on_gpu = any(op.cat == "kernel" for op in ops)
        self.calls = _calls(ops)
        self.calls_of: dict[Any, list[_Call]] = defaultdict(list)
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
        streams = {_place(op) for op in ops if op.cat == "kernel" and _is_communication(op)}
        groups.unlisted = len(streams) > 1

    def events(self) -> Iterator[Event]:
        """Yield communication, operators or kernels, and annotations."""
        yield from self._gloo_events()
        if self.on_gpu:
            yield from self._gpu_events()
        else:
            yield from self._operators()
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
            if op.cat == "cpu_op" or op.name.startswith("gloo:"):
                until[op.tid] = max(until.get(op.tid, -1.0), op.end)
                if outermost and op.cat == "cpu_op" and not _is_call(op) and not _waits(op):
                    phase = self._phase(op)
                    name = op.name.removeprefix("autograd::engine::evaluate_function: ")
                    yield self._compute(name, op, self._thread(op) | phase)

    def _gpu_events(self) -> Iterator[Event]:
        for op in self.ops:
            if op.cat == "kernel" and _is_communication(op):
                yield self._nccl_kernel(op)
            elif op.cat in ("kernel", "copy"):
                launch = self.launches.get(op.args.get("correlation"))
                extra = self._thread(op) | {"stream": op.args.get("stream", op.tid)}
                yield self._compute(op.name, op, extra | (self._phase(launch) if launch else {}))

    def _nccl_kernel(self, op: _Op) -> Event:
        launch = self.launches.get(op.args.get("correlation"))
        call = self._call_at(launch) if launch else None
        args = op.args if "Collective name" in op.args else call.args if call else {}
        match = re.match(r"[a-z]*ccl\w*?Kernel_([A-Za-z]+)", op.name)
        name = _public(match[1]) if match else op.name
        if call and not args:
            name = call.name
        elif args:
            name = _public(str(args["Collective name"]))
        extra = self._thread(op) | {"stream": op.args.get("stream", op.tid)}
        return self._comm(name, op.start, op.end, args, call.ops if call else [], extra)

    def _nccl_calls(self) -> Iterator[Event]:
        """Yield NCCL's calls of a file without kernels: when the CPU issued them."""
        for call in self.calls:
            if any(op.name.startswith("nccl:") for op in call.ops):
                extra = self._thread(call.ops[0]) | {"blocked": []}
                yield self._comm(call.name, call.start, call.end, call.args, call.ops, extra)

    def _gloo_events(self) -> Iterator[Event]:
        for op, call in _issued(self.gloo, self.calls):
            name = call.name if call else _public(op.name)
            start = call.start if call else op.start
            tid = call.tid if call else next(iter(self.threads))
            thread = {"thread": self.threads[tid]} if self.threads.get(tid) else {}
            extra = thread | {"blocked": self._blocked(tid, start, op.end)}
            yield self._comm(name, start, op.end, {}, [*(call.ops if call else ()), op], extra)

    def _comm(
        self,
        name: str,
        start: float,
        end: float,
        args: Mapping[str, Any],
        ops: Sequence[_Op],
        extra: dict[str, Any],
    ) -> Event:
        """Build a communication from a collective's arguments, or else from the calls' shapes."""
        group_name, ranks = self.groups.of(args) if args else self.groups.only()
        rank = self.groups.rank
        if name == "barrier":
            args, ops = {key: value for key, value in args.items() if "nelems" not in key}, ()
        dtype, item = _dtype([str(args.get("dtype", "")), *_types(ops)])
        elements = _elements(name, args, ops, len(ranks) or 1)
        peers = tuple(other for other in ranks if other != rank)
        if ranks:
            extra |= {"group": ranks, "group_name": group_name}
        if name in ("send", "recv"):
            peer, extra["tag"] = _peer_and_tag(name, args, ops)
            peers = () if peer is None else (peer,)
        if dtype:
            extra |= {"dtype": dtype, "numel": elements}
        if "Seq" in args:
            extra["sequence"] = args["Seq"]
        return Event(rank, "comm", name, peers, elements * item, start, end, extra)

    def _compute(self, name: str, op: _Op, extra: dict[str, Any]) -> Event:
        return Event(self.groups.rank, "compute", name, (), 0, op.start, op.end, extra)

    def _thread(self, op: _Op) -> dict[str, Any]:
        number = self.threads[_place(op)]
        return {"thread": number} if number else {}

    def _phase(self, op: _Op) -> dict[str, Any]:
        starts, ends, names = self.phases.get(op.tid, ((), (), ()))
        found = bisect_right(starts, op.start) - 1
        return {"phase": names[found]} if found >= 0 and op.start < ends[found] else {}

    def _call_at(self, op: _Op) -> _Call | None:
        """Return the call that encloses an operation of the CPU."""
        calls = self.calls_of.get(op.tid, [])
        found = bisect_right(calls, op.start, key=lambda call: call.start) - 1
        return calls[found] if found >= 0 and op.start <= calls[found].end else None

    def _blocked(self, tid: Any, start: float, end: float) -> list[tuple[float, float]]:
        """Return when the thread waited for an operation.

        The profiler does not record waits. A thread that is in no operator when the communication
        ends is taken to have waited for it since its last operator ended.
        """
        starts, ends = self.covers.get(tid, ((), ()))
        last = bisect_left(starts, end) - 1
        begin = max(start, ends[last]) if last >= 0 else start
        return [(begin, end)] if begin < end else []


def _place(op: _Op) -> Any:
    return op.tid if op.cat in ("cpu_op", "note", "launch") else (op.pid, op.tid)


def _threads(ops: Sequence[_Op], gloo: set[Any]) -> dict[Any, int]:
    """Number the threads, the main thread first, and then the GPU's streams."""
    counts = Counter(_place(op) for op in ops)
    main = next((op.tid for op in ops if op.tid == op.pid), None)
    return {
        place: number
        for number, place in enumerate(
            sorted(
                counts,
                key=lambda at: (isinstance(at, tuple), at != main, at in gloo, -counts[at]),
            )
        )
    }


def _waits(op: _Op) -> bool:
    return "wait_tensor" in op.name


def _covers(ops: Sequence[_Op]) -> dict[Any, tuple[list[float], list[float]]]:
    """Return when each thread was in an operator that does not wait, as starts and ends.

    Nodes of autograd do not count, because they may contain communication; what they call does.
    """
    result: dict[Any, tuple[list[float], list[float]]] = {}
    wrappers = ("c10d::", "autograd::", "torch::autograd::", "_c10d_functional")
    for op in ops:
        if op.cat == "cpu_op" and "::" in op.name and not op.name.startswith(wrappers):
            starts, ends = result.setdefault(op.tid, ([], []))
            if ends and op.start <= ends[-1]:
                ends[-1] = max(ends[-1], op.end)
            else:
                starts.append(op.start)
                ends.append(op.end)
    return result


def _phases(ops: Sequence[_Op]) -> dict[Any, tuple[list[float], list[float], list[str]]]:
    """Return the outermost periods of forward, backward, optimizer and input, for each thread."""
    result: dict[Any, tuple[list[float], list[float], list[str]]] = {}
    for op in ops:
        phase = _phase_of(op.name) if op.cat in ("note", "cpu_op") else ""
        starts, ends, names = result.setdefault(op.tid, ([], [], [])) if phase else ([], [], [])
        if phase and (not ends or op.start >= ends[-1]):
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


def _is_communication(op: _Op) -> bool:
    return "Collective name" in op.args or re.match(r"\w*(nccl|rccl)", op.name) is not None


def _calls(ops: Sequence[_Op]) -> list[_Call]:
    """Return the calls of collectives, each with the operations nested in it, by start."""
    calls: list[_Call] = []
    open_: dict[Any, _Call] = {}
    for op in ops:
        if op.cat not in ("cpu_op", "note") or not _is_call(op):
            continue
        if op.tid in open_ and op.start < open_[op.tid].end:
            open_[op.tid].ops.append(op)
        else:
            open_[op.tid] = _Call(op)
            calls.append(open_[op.tid])
    return calls


def _issued(gloo: Sequence[_Op], calls: Sequence[_Call]) -> Iterator[tuple[_Op, _Call | None]]:
    """Pair each operation of gloo with the call that issued it: first issued, first started.

    gloo carries out a reduce-scatter as an all-reduce.
    """
    waiting: dict[str, list[_Call]] = defaultdict(list)
    for call in calls:
        waiting["all_reduce" if call.name == "reduce_scatter" else call.name].append(call)
    for op in gloo:
        queue = waiting[_public(op.name)]
        if queue and queue[0].start <= op.start:
            yield op, queue.pop(0)
        else:
            yield op, None


def _types(ops: Iterable[_Op]) -> Iterator[str]:
    for op in ops:
        yield from (str(name) for name in op.args.get("Input type") or ())


_DTYPES = {  # names of c10 and of caffe2, without "c10::" and "torch."
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2), "long": ("int64", 8), "longint": ("int64", 8),
    "int": ("int32", 4), "short": ("int16", 2), "shortint": ("int16", 2), "char": ("int8", 1),
    "signedchar": ("int8", 1), "byte": ("uint8", 1), "unsignedchar": ("uint8", 1),
    "bool": ("bool", 1), "complexfloat": ("complex64", 8), "complexdouble": ("complex128", 16),
}  # fmt: skip


def _dtype(names: Iterable[str]) -> tuple[str, int]:
    """Return the dtype and the bytes of an element; "" and 0 if unknown."""
    for name in names:
        key = name.lower().removeprefix("c10::").replace(" ", "")
        if key in _DTYPES:
            return _DTYPES[key]
        if key.startswith("float8"):
            return key, 1
    return "", 0


def _elements(name: str, args: Mapping[str, Any], ops: Sequence[_Op], ranks: int) -> int:
    """Return the elements of the whole tensor, all shards together; 0 if unknown."""
    sharded = name in ("all_gather", "gather", "reduce_scatter", "scatter", "all_to_all")
    if args:
        sizes = [int(args.get("In msg nelems", 0)), int(args.get("Out msg nelems", 0))]
        shard = sizes[0] if name in ("all_gather", "gather") else sizes[1]
        return max(*sizes, shard * ranks if sharded and name != "all_to_all" else 0)
    for op in ops:
        known = list(_numels(op))
        if known:
            alone = len(known) == 1 and sharded and name != "all_to_all"
            return max(known) * (ranks if alone else 1)
    return 0


def _numels(op: _Op) -> Iterator[int]:
    """Yield the elements of each tensor, or list of tensors, among the arguments."""
    dims, types = op.args.get("Input Dims") or (), op.args.get("Input type") or ()
    for shape, kind in zip(dims, types, strict=False):
        if kind == "TensorList":
            if shape and isinstance(shape[0], list):
                yield sum(prod(each) for each in shape)
        elif kind and not kind.startswith("Scalar"):
            yield prod(shape)


def _peer_and_tag(
    name: str, args: Mapping[str, Any], ops: Sequence[_Op]
) -> tuple[int | None, int]:
    """Return the other end of a message, or None if unknown, and the tag."""
    key = "Dst Rank" if name == "send" else "Src Rank"
    if key in args:
        return int(args[key]), 0
    inputs: Sequence[Any] = next(
        (op.args["Concrete Inputs"] for op in ops if "Concrete Inputs" in op.args), ()
    )
    numbers = [int(each) for each in inputs if re.fullmatch(r"-?\d+", str(each))]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, (*numbers, 0)[0])
