"""Reader of trace files: in any encoding, compressed, without an end, and whole folders of them.

    bytes ─ unpacked, decoded ─► text ─ JSON, repaired where it is cut ─► File

A file that is not a trace of torch.profiler, or of `Trace.to_chrome`, is refused with its true
reason. `entries.py` selects the events that can be read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from dtlab.errors import DtlabError
from dtlab.profiling.reading.entries import Broken, category, in_words, is_rank

__all__ = ["NO_OPERATIONS", "ONLY_STACKS", "File", "PathType", "files_in", "read", "read_file"]

PathType = str | PathLike[str]


@dataclass
class File:
    """The JSON of a trace's file; `rank` is given by the user, `notes` say what is missing.

    `label` is the file's path. `from_folder` files may be left out, because the user did not name
    them. The end of an `incomplete` file is missing.
    """

    label: str
    content: Mapping[str, Any]
    rank: int | None = None
    from_folder: bool = False
    incomplete: bool = False
    notes: list[str] = field(default_factory=list)


def read(paths: PathType | Sequence[PathType] | Mapping[int, PathType]) -> list[File]:
    """Read files, and the traces in folders. A dictionary gives the files' ranks.

    Files in a folder that are not traces are left out; the notes of the first file say why.
    Raises: DtlabError if a file is named that is not a trace, or a folder has no trace.
    """
    if isinstance(paths, Mapping):
        for rank in paths:
            if not is_rank(rank):
                raise DtlabError(f"{rank!r} is no rank. Ranks are whole numbers from 0 on.")
        return [read_file(path, rank) for rank, path in paths.items()]
    files: list[File] = []
    for path in [paths] if isinstance(paths, str | PathLike) else paths:
        files += _in_folder(Path(path)) if Path(path).is_dir() else [read_file(path)]
    if not files:
        raise DtlabError("from_chrome got no files. Pass one path per rank.")
    return files


def files_in(path: Path) -> list[Path]:
    """Return the files .json and .json.gz in a folder, or else the file itself."""
    if not path.is_dir():
        return [path]
    names = sorted(each for each in path.iterdir() if each.name.endswith((".json", ".gz")))
    if not names:
        raise DtlabError(f"{path} has no files .json or .json.gz.")
    return names


def _in_folder(folder: Path) -> list[File]:
    files, strays = [], []
    for name in files_in(folder):
        try:
            files.append(read_file(name))
        except DtlabError as error:
            strays.append(str(error))
    if not files:
        more = f" So it is with the other {len(strays) - 1} files." if len(strays) > 1 else ""
        raise DtlabError(f"{folder} has no trace. {strays[0]}{more}")
    for file in files:
        file.from_folder = True
    files[0].notes += [f"A file is left out: {reason}" for reason in strays]
    return files


def read_file(path: PathType, rank: int | None = None, label: str = "") -> File:
    """Read a trace. Raises: DtlabError with the reason if the file is not one."""
    file = File(label or str(path), {}, rank)
    text, cut = _text(path)
    file.content = _content(text, cut, file)
    reason = _foreign(file.content)
    if reason:
        raise DtlabError(f"{file.label} {reason}")
    return file


# ------------------------------------------------------------------------------------------ bytes

_BINARY: Final = {
    b"PK\x03\x04": "is a zip archive, or was written by torch.save: unpack it first",
    b"BZh": "is compressed by bzip2: unpack it first",
    b"\xfd7zXZ": "is compressed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it first",
    b"SQLite format 3": "is a database, such as Nsight Systems writes, not a trace in JSON",
    b"\x80": "is a pickle, such as a snapshot of the GPU's memory, not a trace in JSON",
}
_ENCODINGS: Final = ("utf-8", "utf-8-sig")


def _text(path: PathType) -> tuple[str, bool]:
    """Return a file's text, and whether its compressed data end too early."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DtlabError(f"{path} cannot be read: {error.strerror or error}.") from None
    raw, cut = _unpacked(raw) if raw[:2] == b"\x1f\x8b" else (raw, False)
    reason = next((reason for magic, reason in _BINARY.items() if raw.startswith(magic)), "")
    encoding = json.detect_encoding(raw)
    if not reason and encoding in _ENCODINGS and b"\0" in raw[:1000]:
        reason = "is a binary file, not a trace in JSON"
    if reason:
        raise DtlabError(f"{path} {reason}.")
    return raw.decode(encoding, errors="replace"), cut


def _unpacked(raw: bytes) -> tuple[bytes, bool]:
    """Return the data of a gzip file as far as it is complete, and whether it is cut off."""
    parts = []
    while raw[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(raw))
        except zlib.error:
            return b"".join(parts), True
        if not member.eof:
            return b"".join(parts), True
        raw = member.unused_data
    return b"".join(parts), False


# ------------------------------------------------------------------------------------------- JSON


def _content(text: str, cut: bool, file: File) -> Mapping[str, Any]:
    try:
        content = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        content = _repaired(text, error, file)
    if isinstance(content, list):
        content = {"traceEvents": content}
    if cut and not (isinstance(content, dict) and content.get("traceEvents")):
        raise DtlabError(_incomplete(file.label, "its compressed data end too early"))
    if cut and not file.incomplete:
        file.incomplete = True
        file.notes.append(f"{file.label}: its compressed data end too early; the rest is missing.")
    if not isinstance(content, dict):
        raise DtlabError(f"{file.label} is not a trace: its JSON is {in_words(content)}.")
    return content


def _incomplete(label: str, reason: object) -> str:
    return f"{label} is not a complete JSON file ({reason}). Was the rank still writing it?"


def _repaired(text: str, error: Exception, file: File) -> Any:
    """Read JSON that has faults: Chrome's list without an end, a file that is cut, C's numbers."""
    if not text.strip():
        raise DtlabError(_incomplete(file.label, "it is empty"))
    if re.match(r"[^\n{\[]*;[^\n]* \d+\s*(\n|$)", text):
        raise DtlabError(
            f"{file.label} has stacks (export_stacks), which have no times of operations. "
            + _EXPORT
        )
    if isinstance(error, json.JSONDecodeError) and text.lstrip()[0] not in "{[":
        begin = text.lstrip()[:20]
        readable = begin.isprintable() and "\ufffd" not in begin
        what = f"it begins with {begin!r}" if readable else "it is a binary file"
        raise DtlabError(f"{file.label} is not JSON: {what}. {_EXPORT}")
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        raise DtlabError(
            f"{file.label} has more than one JSON document; the second begins in line "
            f"{error.lineno}. Write a file for each trace."
        )
    fixed = re.sub(r"(:\s*)[-+]?(?:nan|inf(?:inity)?)(?:\(\w*\))?(?=\s*[,}\]])", r"\1NaN", text,
                   flags=re.IGNORECASE)  # fmt: skip
    fixed = re.sub(r'\\(?!["\\/bfnrtu])', r"\\\\", fixed)
    try:
        return json.loads(fixed, strict=False)
    except (ValueError, RecursionError):
        content = _cut(fixed, file)
    if content is None:
        raise DtlabError(_incomplete(file.label, error)) from None
    return content


def _cut(text: str, file: File) -> dict[str, Any] | None:
    """Read the entries one by one; None if this is no list of entries.

    The end "]" of a list is optional in Chrome's format. `Broken` stands for an entry that cannot
    be read.
    """
    start = re.match(r"\s*\[", text) or re.search(r'"traceEvents"\s*:\s*\[', text)
    if start is None:
        return None
    content: dict[str, Any] = {}
    is_list = text.lstrip().startswith("[")
    if not is_list:
        try:
            content = json.loads(text[: start.end()] + "]}", strict=False)
        except ValueError:
            return None
    decoder, entries, at, closed = json.JSONDecoder(strict=False), [], start.end(), False
    while (at := _past(text, at)) < len(text):
        if text[at] == "]":
            closed = True
            break
        try:
            entry, at = decoder.raw_decode(text, at)
            entries.append(entry)
        except (ValueError, RecursionError):
            entries.append(Broken(text.count("\n", 0, at) + 1))
            following = _NEXT.search(text, at)
            at = following.end() if following else len(text)
            file.incomplete |= following is None
    if not any(isinstance(entry, dict) and "ph" in entry for entry in entries):
        return None
    file.incomplete |= not (closed or is_list)
    if file.incomplete:
        last = f"traceEvents[{len(entries) - 1}]"
        file.notes.append(f"{file.label}: the file ends in or after {last}; the rest is missing.")
    return {**content, "traceEvents": entries}


_NEXT: Final = re.compile(r'\}\s*,\s*(?=\{\s*")')


def _past(text: str, at: int) -> int:
    """Return the next place that is neither space nor a comma."""
    found = re.compile(r"[\s,]*").match(text, at)
    return found.end() if found else at


# ------------------------------------------------------------------------------- foreign formats

_EXPORT: Final = "Pass the files that torch.profiler's export_chrome_trace wrote."
NO_OPERATIONS: Final = (
    "has no operations. With a schedule, the profiler records only the active steps: call step() "
    "at least wait + warmup + active times."
)


def _foreign(content: Mapping[str, Any]) -> str:
    """Return why this is not a trace of torch.profiler or of `to_chrome`; "" if it is one."""
    entries = content.get("traceEvents")
    if not isinstance(entries, list):
        for keys, what in _DOCUMENTS.items():
            if set(keys) <= content.keys():
                return f"is {what}, not a trace. {_EXPORT}"
        return (
            'is not a trace: it has no list "traceEvents". Pass files that torch.profiler\'s '
            "export_chrome_trace or Trace.to_chrome wrote."
        )
    if "dtlab" in content or any(
        isinstance(entry, dict) and category(entry.get("cat")) for entry in entries
    ):
        return ""
    if _is_memory(entries):
        return f"is a timeline of memory (export_memory_timeline), not of operations. {_EXPORT}"
    found = [entry for entry in entries if isinstance(entry, dict)]
    if entries and not found:
        return f"is not a trace: its list has no events. {_EXPORT}"
    return _of_others(found) or NO_OPERATIONS


def _is_memory(rows: Sequence[Any]) -> bool:
    """Return whether these are times and sizes, or rows of time, action, bytes and category."""
    if not rows or not all(isinstance(row, list) for row in rows):
        return False
    times = rows[0] if len(rows) == 2 else [row[0] for row in rows if len(row) == 4]
    return len(times) in (len(rows), len(rows[-1])) and all(
        isinstance(each, int | float) for each in times
    )


_DOCUMENTS: Final = {  # by keys
    ("$schema", "profiles"): "a profile for speedscope, such as py-spy's",
    ("segments", "device_traces"): "a snapshot of the GPU's memory",
    ("schema", "nodes"): "an execution trace (ExecutionTraceObserver), which has no times",
    ("entries", "pg_config"): "a dump of the flight recorder",
}


def _of_others(entries: Sequence[dict[str, Any]]) -> str:
    """Return which other program wrote these entries, none of which is an operation; or ""."""
    cats = {str(entry.get("cat")) for entry in entries if entry.get("ph") == "X"} - {"None", ""}
    names = {str(_dict(entry.get("args")).get("name")) for entry in entries
             if entry.get("name") == "process_name"}  # fmt: skip
    keys = {key for entry in entries if entry.get("ph") == "X" for key in _dict(entry.get("args"))}
    if keys & {"hlo_op", "hlo_module", "hlo_category"} or any(
        name.startswith(("/device:", "/host:")) for name in names
    ):
        return (
            "is a trace of JAX, TensorFlow or another user of XLA (its events are those of HLO, "
            "or of /device: and /host:). dtlab reads traces of torch.profiler only: open this one "
            "in XProf (TensorBoard's profiler) or https://ui.perfetto.dev."
        )
    if any(cat.startswith("task::") for cat in cats):
        return "is a timeline of Ray: pass the list of ray.timeline() to Trace.from_ray."
    if "Ascend Hardware" in names:
        return (
            "is a trace of torch_npu, whose operations of the NPU have no category. dtlab reads "
            "traces of GPUs and CPUs: open this one in MindStudio Insight."
        )
    if cats and cats <= {"python_function", "Trace", "overhead", "fwdbwd", "ac2g"}:
        return ONLY_STACKS
    if "dynamo_timed" in cats:
        return f"is a log of torch.compile (chromium events), not of a job's operations. {_EXPORT}"
    if not cats and any(entry.get("name") == "[memory]" for entry in entries):
        return f"has only events of memory, no operations. {_RECORD}"
    phases = {str(entry.get("ph")) for entry in entries}
    if "X" in phases:
        shown = f" ({', '.join(sorted(cats)[:3])})" if cats else ""
        return (
            f"was not written by torch.profiler: none of its events has a category of the "
            f"profiler's{shown}, such as cpu_op or kernel. {_EXPORT}"
        )
    if phases & {"B", "b"}:
        return (
            "was not written by torch.profiler: the beginnings and ends of its events are entries "
            f'of their own ("ph" is "B" and "E"). {_EXPORT}'
        )
    return ""


_RECORD: Final = (
    "Record operations: torch.profiler.profile(activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])."
)
ONLY_STACKS: Final = (
    "has only the stacks of Python (python_function), no operations of the CPU or the GPU: the "
    "profiler did not record them. " + _RECORD
)


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
