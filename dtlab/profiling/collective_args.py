"""What a trace of torch.profiler says of a collective: function, group, size, dtype and peer.

NCCL's collectives have arguments, which `saveNcclMeta` in PyTorch's `torch/csrc/profiler/util.cpp`
writes: "Collective name", "In msg nelems", "Process Group Ranks" (cut if long: "[0, 1, ...]"),
"Dst Rank" (a global rank), ... For gloo, and for NCCL in files before March 2024, there are only
the shapes and types of the arguments of `c10d::allreduce_`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from dtlab.profiling.reading.entries import CALLS, MOST_ELEMENTS, is_count, is_rank

__all__ = [
    "Call", "Groups", "Op", "dtype_of", "elements_of", "find_calls", "is_call", "is_public",
    "issued", "peer_and_tag", "public_name",
]  # fmt: skip


class Op(NamedTuple):
    """An entry of a trace; times are in seconds. `cat` is cpu_op, note, kernel, copy or launch."""

    name: str
    cat: str
    pid: Any
    tid: Any
    start: float
    end: float
    args: Mapping[str, Any]


class Groups:
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
            ranks = ranks if all(map(is_rank, ranks)) else ()
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


_PUBLIC = {  # in this order: "reducescatter" before "reduce"
    "allreduce": "all_reduce", "sparseallreduce": "all_reduce", "allgather": "all_gather",
    "reducescatter": "reduce_scatter", "alltoall": "all_to_all", "broadcast": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "monitoredbarrier": "barrier", "sendrecv": "send_recv", "send": "send", "recv": "recv",
}  # fmt: skip


def public_name(written: str) -> str:
    """Return the function's name: all_gather for c10d::_allgather_base_ and nccl:all_gather."""
    short = written.rsplit(":", 1)[-1]
    letters = re.sub("[^a-z]", "", short.lower())
    return next((name for key, name in _PUBLIC.items() if letters.startswith(key)), short)


def is_public(name: str) -> bool:
    """Return whether this is the name of a collective or message."""
    return name in _PUBLIC.values()


_DTYPES = {  # names of c10 and of caffe2, without "c10::" and "torch."
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2), "long": ("int64", 8), "longint": ("int64", 8),
    "int": ("int32", 4), "short": ("int16", 2), "shortint": ("int16", 2), "char": ("int8", 1),
    "signedchar": ("int8", 1), "byte": ("uint8", 1), "unsignedchar": ("uint8", 1),
    "bool": ("bool", 1), "complexfloat": ("complex64", 8), "complexdouble": ("complex128", 16),
}  # fmt: skip


def dtype_of(args: Mapping[str, Any], ops: Sequence[Op]) -> tuple[str, int]:
    """Return the dtype and the bytes of an element; "" and 0 if unknown."""
    types = (name for op in ops for name in op.args.get("Input type") or ())
    for name in (str(args.get("dtype", "")), *types):
        key = name.lower().removeprefix("c10::").replace(" ", "")
        if key in _DTYPES:
            return _DTYPES[key]
        if key.startswith("float8"):
            return key, 1
    return "", 0


_INPUTS = "Concrete Inputs"


def elements_of(name: str, args: Mapping[str, Any], ops: Sequence[Op], ranks: int) -> int:
    """Return the elements of the whole tensor, all shards together; 0 if unknown."""
    if args:
        sizes = (int(args.get(f"{way} msg nelems", 0)) for way in ("In", "Out"))
        known = [size for size in sizes if size]
    else:
        every = next(filter(None, ([*_numels(op)] for op in ops)), [])
        known = [size for size in every if size < MOST_ELEMENTS]
    if len(known) == 1 and name in ("all_gather", "gather", "reduce_scatter", "scatter"):
        return known[0] * ranks
    return max(known, default=0)


def _numels(op: Op) -> Iterator[int]:
    """Yield the elements of each tensor, or list of tensors, among the arguments."""
    dims, types = op.args.get("Input Dims") or (), op.args.get("Input type") or ()
    for shape, kind in zip(dims, types, strict=False):
        if kind == "TensorList":
            if shape and isinstance(shape[0], list):
                yield sum(map(_numel, shape))
        elif kind and not kind.startswith("Scalar"):
            yield _numel(shape)


def _numel(shape: Any) -> int:
    """Return the elements of a tensor; 0 if this is no shape."""
    is_shape = isinstance(shape, list) and all(map(is_count, shape))
    return prod(shape) if is_shape else 0


def peer_and_tag(
    name: str, args: Mapping[str, Any], ops: Sequence[Op], ranks: tuple[int, ...]
) -> tuple[tuple[int, ...], int]:
    """Return the other end of a message, () if unknown, and the tag."""
    key = "Dst Rank" if name == "send" else "Src Rank"
    if key in args:
        return (int(args[key]),), 0
    written: Iterable[Any] = next((op.args[_INPUTS] for op in ops if _INPUTS in op.args), ())
    numbers = [int(each) for each in written if re.fullmatch(r"-?\d{1,15}", str(each))]
    if len(numbers) == 2 and ranks:  # c10d has the number in the group; without it, any source
        return ranks[numbers[0] : numbers[0] + 1], numbers[1]
    return (), numbers[-1] if numbers else 0


class Call:
    """A call of a collective on the CPU: `c10d::allreduce_` and what is nested in it."""

    def __init__(self, op: Op) -> None:
        self.tid, self.start, self.end = op.tid, op.start, op.end
        self.ops = [op]

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments that `record_param_comms` wrote, or none."""
        return next((op.args for op in self.ops if "Collective name" in op.args), {})

    @property
    def name(self) -> str:
        written = [str(self.args.get("Collective name", "")), *(op.name for op in self.ops)]
        names = [public_name(each) for each in written if each and each != "record_param_comms"]
        return next((name for name in names if is_public(name)), (*names, "unknown")[0])


def is_call(op: Op) -> bool:
    return op.name.startswith(CALLS) and not op.name.startswith("gloo:")


def find_calls(ops: Sequence[Op]) -> list[Call]:
    """Return the calls of collectives, each with the operations nested in it, by start."""
    calls: list[Call] = []
    open_: dict[Any, Call] = {}
    for op in ops:
        if op.cat not in ("cpu_op", "note") or not is_call(op):
            continue
        if op.tid in open_ and op.start < open_[op.tid].end:
            open_[op.tid].ops.append(op)
        else:
            open_[op.tid] = Call(op)
            calls.append(open_[op.tid])
    return calls


def issued(gloo: Sequence[Op], calls: Sequence[Call]) -> Iterator[tuple[Op, Call | None]]:
    """Pair each operation of gloo with the call that issued it: first issued, first started.

    gloo carries out a reduce-scatter as an all-reduce.
    """
    waiting: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        waiting["all_reduce" if call.name == "reduce_scatter" else call.name].append(call)
    for op in gloo:
        queue = waiting[public_name(op.name)]
        if queue and queue[0].start <= op.start:
            yield op, queue.pop(0)
        else:
            yield op, None
