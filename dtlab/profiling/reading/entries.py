"""The operations of a trace whose times and arguments can be read, and notes on the others.

An event whose time is null, text, NaN, negative or missing is left out; an argument that cannot
be read is ignored. A note says where the first of its kind is, so that nothing is computed from it
in silence.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dtlab.errors import DtlabError

__all__ = [
    "CALLS", "MOST_ELEMENTS", "STEP", "Broken", "Contents", "Entry", "Notes", "Unreadable",
    "category", "check_one_rank", "clean", "in_words", "is_count", "is_duration", "is_rank",
    "is_ranks", "is_time", "lacks_kernels",
]  # fmt: skip

_CATEGORIES: Final = {  # names before PyTorch 1.13 on the left
    "operator": "cpu_op", "cpu_op": "cpu_op", "user_annotation": "note",
    "kernel": "kernel", "memcpy": "copy", "gpu_memcpy": "copy", "memset": "copy",
    "gpu_memset": "copy", "runtime": "launch", "gpu_user_annotation": "gpu_note",
}  # fmt: skip


# Of Kineto's ActivityType.cpp: Meta's and Intel's accelerators, and ranges instead of kernels.
_DEVICES: Final = ("mtia_ccp_events", "hpu_op", "cuda_profiler_range")


def category(written: object) -> str | None:
    """Return cpu_op, note, kernel, copy, launch or gpu_note; None for events that do not count."""
    if not isinstance(written, str):
        return None
    lowered = written.lower()  # such as "cuda_runtime", "hip_driver"
    return "launch" if lowered.endswith(("_runtime", "_driver")) else _CATEGORIES.get(lowered)


class Entry(NamedTuple):
    """An operation with readable times, in microseconds."""

    name: str
    cat: str
    pid: Any
    tid: Any
    ts: float
    dur: float
    args: Mapping[str, Any]


class Broken(NamedTuple):
    """An entry of `traceEvents` that is not JSON, and the line of the file where it begins."""

    line: int


class Unreadable(NamedTuple):
    """An operation that cannot be read; `ts` is its start if that is readable."""

    name: str
    cat: str
    ts: float | None
    args: Mapping[str, Any]


@dataclass
class Contents:
    """What can be read of a trace; `header` has rank, world_size, backend, pg_config, zero, host.

    `zero` is the Unix time of ts 0 in ns, None if it cannot be read. `devices` are the categories
    of events of other devices than GPUs, which are not read. `has_stacks`: Python was recorded.
    """

    header: dict[str, Any]
    entries: list[Entry]
    unreadable: list[Unreadable]
    notes: list[str]
    devices: set[str]
    has_stacks: bool = False


_MISSING: Final = object()


class Notes:
    """Sentences on what cannot be read: one for each field and kind of fault."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._found: dict[tuple[str, str, str], list[Any]] = {}

    def add(self, key: str, place: str, value: object, result: str) -> None:
        """Note that `key` at a place has an unreadable value, and what comes of it."""
        kind = in_words(value)
        if isinstance(value, str) or kind.lstrip("-")[0].isdigit():
            kind = type(value).__name__
        found = self._found.setdefault((key, kind, result), [place, value, 0])
        found[2] += 1

    def sentences(self) -> list[str]:
        """Return a sentence for each kind of fault, with the place of the first."""
        lines = []
        for (key, _, result), (place, value, count) in self._found.items():
            what = f'the "{key}" of {place}' if key else place
            more = f" The same is true of {count - 1} more." if count > 1 else ""
            lines.append(f"{self._label}: {what} is {in_words(value)}, so {result}.{more}")
        return lines


def in_words(value: object) -> str:
    """Describe an unreadable value."""
    if value is _MISSING:
        return "missing"
    if isinstance(value, Broken):
        return "not JSON"
    if isinstance(value, str):
        return f'the text "{value[:30]}"'
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value)


def is_time(value: object, limit: float = 1e16) -> bool:
    """Return whether this is a number from 0 on that may be microseconds, even from 1970."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < limit  # type: ignore[operator]


def is_duration(value: object) -> bool:
    """Return whether this is a number of microseconds, of less than a year."""
    return is_time(value, 3e13)


def clean(content: Mapping[str, Any], label: str) -> Contents:
    """Return the operations of a trace whose times can be read, with readable arguments."""
    notes = Notes(label)
    contents = Contents(_header(content, notes), [], [], [], set())
    for number, entry in enumerate(content["traceEvents"]):
        if isinstance(entry, Broken):
            notes.add("", f"traceEvents[{number}] in line {entry.line}", entry, "it is left out")
            contents.unreadable.append(Unreadable("", "kernel", None, {}))
            continue
        if not isinstance(entry, dict):
            notes.add("", f"traceEvents[{number}]", entry, "it is left out")
            continue
        name = entry["name"] if isinstance(entry.get("name"), str) else ""
        place = f'traceEvents[{number}] ("{name[:60]}")'
        odd = next((key for key in ("ph", "cat") if not isinstance(entry.get(key, ""), str)), "")
        if odd:
            notes.add(odd, place, entry[odd], "the event is left out")
        cat = "kernel" if odd else category(entry.get("cat"))
        if cat is None and entry.get("cat") in _DEVICES:
            contents.devices.add(entry["cat"])
        contents.has_stacks |= entry.get("cat") == "python_function"
        if cat is None or (entry.get("ph") != "X" and not odd):
            continue
        if not isinstance(entry.get("name", ""), str):
            notes.add("name", place, entry["name"], "the event counts without a name")
        args = _arguments(entry, name, place, notes)
        ts, dur = entry.get("ts", _MISSING), entry.get("dur", _MISSING)
        readable = {"ts": is_time(ts), "dur": is_duration(dur)}
        for key in readable:
            if not readable[key] and not odd:
                notes.add(key, place, entry.get(key, _MISSING), "the event is left out")
        if all(readable.values()) and not odd:
            pid, tid = _plain(entry.get("pid")), _plain(entry.get("tid"))
            contents.entries.append(Entry(name, cat, pid, tid, ts, dur, args))
        else:
            start = ts if is_time(ts) else None
            contents.unreadable.append(Unreadable(name, cat, start, args))
    contents.notes = notes.sentences() + [
        f"{label}: events of the category {each!r} are not read, though they show what ran on the "
        "device: dtlab reads the kernels of GPUs."
        for each in sorted(contents.devices)
    ]
    return contents


def _plain(value: object) -> int | str | None:
    """Return the number of a process or thread, or its text."""
    is_plain = value is None or (isinstance(value, int | str) and not isinstance(value, bool))
    return value if is_plain else str(value)  # type: ignore[return-value]


# ------------------------------------------------------------------------------ a rank's content

STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")


def check_one_rank(contents: Contents, label: str) -> None:
    """Raise DtlabError if the file was merged from those of several ranks."""
    processes = dict.fromkeys(
        entry.pid for entry in contents.entries if entry.cat == "cpu_op" and entry.pid is not None
    )
    steps = Counter(
        (entry.pid, entry.name)
        for entry in contents.entries
        if entry.cat == "note" and STEP.fullmatch(entry.name)
    )
    twice = next((name for (_, name), count in steps.items() if count > 1), "")
    if len(processes) < 2 and not twice:
        return
    several = f"of {len(processes)} processes ({', '.join(map(str, list(processes)[:4]))})"
    why = f"has operations {several}" if len(processes) > 1 else f"has {twice} twice"
    raise DtlabError(
        f"{label} {why}: it was merged from the files of several ranks, which dtlab does not "
        "take apart. Pass each rank's own file, as export_chrome_trace wrote it."
    )


def lacks_kernels(contents: Contents) -> bool:
    """Return whether the rank used a GPU, but the file has nothing that ran on it.

    It launched kernels, called NCCL, or ran operators of CUDA's libraries.
    """
    entries = contents.entries
    found = {entry.cat for entry in entries} | {each.cat for each in contents.unreadable}
    if found & {"kernel", "copy"}:
        return False
    if contents.devices:
        return True
    on_cpu = any(entry.name.startswith("gloo:") for entry in entries)
    if contents.header.get("backend") in ("nccl", "xccl", "hccl") and not on_cpu:
        return True
    return any(
        (entry.cat == "launch" and "launch" in entry.name.lower())
        or entry.name.startswith(("nccl:", "xccl:", "hccl:"))
        or (entry.cat == "cpu_op" and _OF_GPU.search(entry.name) is not None)
        for entry in entries
    )


_OF_GPU = re.compile(r"aten::\w*(cudnn|miopen|_cuda(?!_)|flash_attention(?!_for_cpu))")


# -------------------------------------------------------------------------- arguments and header

_MOST = 1 << 20  # ranks
MOST_ELEMENTS: Final = 1 << 38  # of a tensor; more cannot be meant
CALLS: Final = (  # what names of a collective's calls begin with
    "c10d::", "nccl:", "xccl:", "hccl:", "gloo:", "record_param_comms",
)  # fmt: skip


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_ELEMENTS


def is_rank(value: object) -> bool:
    return is_count(value) and value < _MOST  # type: ignore[operator]


def is_ranks(value: object) -> bool:
    """Return whether this is a list of ranks; it may be text, and cut: "[0, 1, ...]"."""
    if isinstance(value, str):
        numbers = re.findall(r"\d+", value)
        return not re.search(r"[^\[\](),.\s\d]", value) and all(
            len(each) < 8 and int(each) < _MOST for each in numbers
        )
    return isinstance(value, list) and all(map(is_rank, value))


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_dims(value: object) -> bool:
    return is_count(value) or (isinstance(value, list) and all(map(_is_dims, value)))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_ARGUMENTS: Final[dict[str, Callable[[Any], bool]]] = {
    "correlation": _is_id, "stream": _is_id, "Seq": _is_id,
    "Collective name": lambda value: isinstance(value, str),
    "dtype": lambda value: isinstance(value, str),
    "In msg nelems": is_count, "Out msg nelems": is_count,
    "Group size": is_rank, "Global rank start": is_rank, "Global rank stride": is_rank,
    "Dst Rank": is_rank, "Src Rank": is_rank, "Process Group Ranks": is_ranks,
    "Process Group Name": _is_id, "Process Group ID": _is_id,
}  # fmt: skip
_OF_CALLS: Final = _ARGUMENTS | {
    "Input Dims": lambda value: isinstance(value, list) and _is_dims(value),
    "Input type": _is_texts,
    "Concrete Inputs": lambda value: isinstance(value, list),
}
_IRREGULAR: Final = ("Global rank start", "Global rank stride")  # -1: PyTorch found no stride


def _arguments(entry: Mapping[str, Any], name: str, place: str, notes: Notes) -> Mapping[str, Any]:
    """Return the arguments of an event without those that cannot be read."""
    args = entry.get("args", _MISSING)
    if not isinstance(args, dict):
        if args is not _MISSING:
            notes.add("args", place, args, "the event counts without arguments")
        return {}
    rules = _OF_CALLS if name.startswith(CALLS) else _ARGUMENTS
    bad = [key for key in args.keys() & rules.keys() if not rules[key](args[key])]
    for key in sorted(bad):
        if key not in _IRREGULAR or args[key] != -1:
            notes.add(key, place, args[key], "it is ignored")
    return {key: value for key, value in args.items() if key not in bad} if bad else args


def _header(content: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    about = content.get("distributedInfo", _MISSING)
    if about is _MISSING or not isinstance(about, dict):
        if about is not _MISSING:
            notes.add("distributedInfo", "the file", about, "it is ignored")
        about = {}
    header: dict[str, Any] = {"pg_config": [], "zero": 0, "host": content.get("host_name")}
    for key, readable in (("rank", is_rank), ("world_size", is_rank)):
        value = about.get(key, _MISSING)
        if value is not _MISSING and readable(value) and (key == "rank" or value):
            header[key] = value
        elif value is not _MISSING:
            notes.add(key, "distributedInfo", value, "it is ignored")
    if isinstance(about.get("backend"), str):
        header["backend"] = about["backend"]
    groups = about.get("pg_config")
    header["pg_config"] = list(_groups(groups, notes)) if isinstance(groups, list) else []
    if not isinstance(header["host"], str):
        header["host"] = ""
    zero = content.get("baseTimeNanoseconds", 0)
    header["zero"] = int(zero) if is_time(zero, 1e19) else None
    if header["zero"] is None:
        notes.add("baseTimeNanoseconds", "the file", zero, "its clock is unknown")
    return header


def _groups(groups: Sequence[Any], notes: Notes) -> Iterator[dict[str, Any]]:
    for number, group in enumerate(groups):
        if not isinstance(group, dict):
            notes.add("", f"pg_config[{number}]", group, "it is ignored")
            continue
        kept = {"pg_name": group.get("pg_name")}
        for key, readable in (("ranks", is_ranks), ("pg_size", is_rank)):
            if key in group and readable(group[key]):
                kept[key] = group[key]
            elif key in group:
                notes.add(key, f"pg_config[{number}]", group[key], "it is ignored")
        yield kept
