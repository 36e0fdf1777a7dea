"""Odd values and foreign formats in traces: read, or refused with the true reason."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dtlab
from dtlab.cli import main
from dtlab.errors import DtlabError
from dtlab.profiling.diagnosis import Diagnosis, diagnose
from dtlab.trace import Event, Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STEPS = (3, 4, 5, 6)


def job(rank: int = 0, steps: tuple[int, ...] = STEPS, ranks: int = 1) -> dict[str, Any]:
    """Steps of 2 ms of a job on GPUs: 0.8 ms of compute, and then 0.2 ms of all-reduce.

    A step has five events: its mark, an operator, a launch, and two kernels.
    """
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 0 if tid > 6 else 100,
                       "tid": tid, "ts": ts, "dur": dur, "args": args})  # fmt: skip

    for step in steps:
        at = 2000.0 * step
        add("user_annotation", f"ProfilerStep#{step}", 1, at, 1990)
        add("cpu_op", "aten::mm", 1, at + 10, 50)
        add("cuda_runtime", "cudaLaunchKernel", 1, at + 20, 5, correlation=step)
        add("kernel", "sm90_gemm", 7, at + 100, 800, stream=7, correlation=step)
        add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 9, at + 900, 200, stream=9, **{
            "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
            "Group size": ranks, "dtype": "Float", "Process Group Name": "0",
            "Process Group Ranks": str([*range(ranks)])})  # fmt: skip
    about = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return {"distributedInfo": about, "baseTimeNanoseconds": 10**18, "traceEvents": events}


def saved(folder: Path, content: Any, name: str = "a.json") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def diagnosed(folder: Path, content: Any) -> Diagnosis:
    return diagnose(Trace.from_chrome(saved(folder, content)))


def has_sound_times(diagnosis: Diagnosis) -> None:
    """Assert that the diagnosis has no NaN and no negative time."""
    for seconds in diagnosis.seconds.values():
        assert all(math.isfinite(each) and each >= 0 for each in seconds.values())
    total = sum(sum(seconds.values()) for seconds in diagnosis.seconds.values())
    assert total / len(diagnosis.seconds) == pytest.approx(diagnosis.step_seconds)


# Odd values --------------------------------------------------------------------------------------

ODD = {
    "null": (None, "null"), "text": ("soon", 'the text "soon"'), "NaN": (math.nan, "NaN"),
    "negative": (-7, "-7"), "infinite": (math.inf, "infinite"), "a list": ([1], "a list"),
    "true": (True, "true"), "huge": (1e17, "1e+17"), "number as text": ("12", 'the text "12"'),
}  # fmt: skip


def test_a_job_without_faults(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, job())
    assert (found.notes, found.steps, found.verdict) == ((), 3, "launch gaps")
    assert found.seconds[0]["compute"] == pytest.approx(0.8e-3)
    assert found.seconds[0]["communication"] == pytest.approx(0.2e-3)


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize(("value", "words"), ODD.values(), ids=ODD.keys())
def test_a_time_that_cannot_be_read_leaves_out_its_step(
    key: str, value: Any, words: str, tmp_path: Path
) -> None:
    """The kernel's step is known: by its start, or by its launch."""
    content = job()
    content["traceEvents"][8][key] = value  # the second step's
    found = diagnosed(tmp_path, content)
    assert f'the "{key}" of traceEvents[8] ("sm90_gemm") is {words}, so the event is' in " ".join(
        found.notes
    )
    assert found.seconds[0]["compute"] == pytest.approx(0.8e-3)  # of the other steps
    assert "1 step with events whose times cannot be read is left out." in found.notes
    has_sound_times(found)


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_missing_time_is_not_zero(key: str, tmp_path: Path) -> None:
    content = job()
    del content["traceEvents"][8][key]
    found = diagnosed(tmp_path, content)
    assert f'the "{key}" of traceEvents[8] ("sm90_gemm") is missing' in found.notes[0]


@pytest.mark.parametrize("value", [None, "x", math.nan])
def test_without_the_times_of_a_kernel_in_every_step_no_cause_is_named(
    value: Any, tmp_path: Path
) -> None:
    content = job()
    for event in content["traceEvents"]:
        if event["name"] == "sm90_gemm":
            event["dur"] = value
    found = diagnosed(tmp_path, content)
    assert (found.verdict, found.causes) == ("times unreadable", ())
    assert found.message.startswith("The times of 3 events cannot be read")  # of those that count
    assert len([note for note in found.notes if "sm90_gemm" in note]) == 1
    assert "The same is true of 3 more." in found.notes[0]


def test_a_kernel_whose_place_is_unknown_counts_if_there_are_few_events(tmp_path: Path) -> None:
    content = job()
    content["traceEvents"][9]["ts"] = None  # a kernel of NCCL, without a launch
    assert diagnosed(tmp_path, content).verdict == "times unreadable"
    content = job(steps=tuple(range(20)))
    content["traceEvents"][9]["ts"] = None
    found = diagnosed(tmp_path, content)
    assert found.verdict == "launch gaps"
    assert "traceEvents[9]" in found.notes[0]


@pytest.mark.parametrize("change", [{"ts": None}, {"dur": "x"}, {"name": None}, {"cat": 3}])
def test_a_step_whose_mark_cannot_be_read_makes_no_other_step_longer(
    change: dict[str, Any], tmp_path: Path
) -> None:
    content = job(steps=tuple(range(2, 10)))
    content["traceEvents"][20] |= change  # of step 6
    found = diagnosed(tmp_path, content)
    assert found.seconds[0]["compute"] == pytest.approx(0.8e-3)
    assert found.step_seconds < 2.1e-3
    assert "traceEvents[20]" in found.notes[0]


ARGUMENTS = [
    ("In msg nelems", "many", 'the text "many"'), ("Out msg nelems", -4, "-4"),
    ("Group size", None, "null"), ("dtype", 5, "5"), ("Collective name", None, "null"),
    ("Process Group Ranks", [0, -1], "a list"), ("Process Group Ranks", "[0, -1]", "the text"),
    ("Process Group Ranks", [0, 10**9], "a list"), ("stream", {}, "an object"),
    ("In msg nelems", math.nan, "NaN"), ("Group size", 1e3, "1000.0"),
    ("Global rank start", "a", 'the text "a"'), ("Dst Rank", -3, "-3"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "words"), ARGUMENTS)
def test_an_argument_that_cannot_be_read_is_ignored(
    key: str, value: Any, words: str, tmp_path: Path
) -> None:
    content = job()
    content["traceEvents"][4]["args"][key] = value
    trace = Trace.from_chrome(saved(tmp_path, content))
    (note,) = trace.notes
    assert f'the "{key}" of traceEvents[4] ("ncclDevKernel_AllReduce' in note
    assert words in note and note.endswith("so it is ignored.")
    assert (trace.world_size, trace.ops()) == (1, {"all_reduce": 4})
    has_sound_times(diagnose(trace))


def test_an_unknown_stride_is_no_fault(tmp_path: Path) -> None:
    content = job()
    content["traceEvents"][4]["args"] |= {"Global rank start": 0, "Global rank stride": -1}
    assert Trace.from_chrome(saved(tmp_path, content)).notes == ()


@pytest.mark.parametrize("value", [None, "first", -1, math.nan, 1 << 40, True])
def test_a_rank_that_cannot_be_read(value: Any, tmp_path: Path) -> None:
    content = job() | {"distributedInfo": {"rank": value, "world_size": value}}
    path, other = saved(tmp_path, content), saved(tmp_path, job(1), "b.json")
    trace = Trace.from_chrome(path)  # alone, it is of rank 0
    assert [e.rank for e in trace.events] == [0] * len(trace.events)
    assert 'the "rank" of distributedInfo is' in trace.notes[0]
    with pytest.raises(DtlabError, match='does not say which rank wrote it.*"rank" of distribu'):
        Trace.from_chrome([path, other])
    assert Trace.from_chrome({0: path, 1: other}).world_size == 2


@pytest.mark.parametrize(
    "change",
    [
        {"distributedInfo": None}, {"distributedInfo": [1]}, {"baseTimeNanoseconds": None},
        {"baseTimeNanoseconds": "now"}, {"baseTimeNanoseconds": math.nan},
        {"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [None]}]}},
        {"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "pg_size": "x"}, 3]}},
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_noted(change: dict[str, Any], tmp_path: Path) -> None:
    found = diagnosed(tmp_path, job() | change)
    assert found.notes and found.verdict == "launch gaps"
    has_sound_times(found)


@pytest.mark.parametrize(
    "shape", [[[9]], [[1, 2]], [["x"]], 3, [[[1, [2]]]], [[1 << 37, 1 << 37]]]
)
def test_shapes_that_cannot_be_read_have_no_bytes(shape: Any, tmp_path: Path) -> None:
    content = {"traceEvents": [x(cat="user_annotation", name="gloo:all_reduce", args={
        "Input Dims": [shape], "Input type": ["float"]})]}  # fmt: skip
    (event,) = Trace.from_chrome(saved(tmp_path, content)).events
    assert (event.name, event.bytes) == ("all_reduce", 0)


@pytest.mark.parametrize(
    "change", [{"world_size": 1 << 40}, {"world_size": None}, {"wire": "x"}, {"world_size": "2"}]
)
def test_a_header_of_to_chrome_that_cannot_be_read(change: dict[str, Any], tmp_path: Path) -> None:
    Trace([Event(0, "compute", "f", (), 0, 0.0, 1.0)]).to_chrome(tmp_path / "own.json")
    content = json.loads((tmp_path / "own.json").read_text())
    content["dtlab"] |= change
    with pytest.raises(DtlabError, match="own.json is not as to_chrome writes it"):
        Trace.from_chrome(saved(tmp_path, content, "own.json"))


def test_a_clock_that_cannot_be_read_is_not_0(tmp_path: Path) -> None:
    """The other rank's clock counts from 2001; the ranks' first events are put together."""
    contents = [job(0, ranks=2), job(1, ranks=2) | {"baseTimeNanoseconds": None}]
    for content in contents:
        for event in content["traceEvents"]:
            event["args"].pop("Process Group Ranks", None)  # without matches of their collectives
            event["args"].pop("Collective name", None)
    paths = [saved(tmp_path, each, f"{rank}.json") for rank, each in enumerate(contents)]
    assert Trace.from_chrome(paths).duration < 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("ts", None), ("dur", math.nan), ("ts", -1), ("pid", "0"), ("args", None), ("cat", "x"),
     ("bytes", -8), ("peers", [-1]), ("blocked", [[1]]), ("blocked", [[1, math.nan]]),
     ("peers", None), ("thread", "main")],
)  # fmt: skip
def test_odd_values_in_a_file_of_to_chrome(key: str, value: Any, tmp_path: Path) -> None:
    group = {"group": (0, 1), "blocked": [(1.0, 2.0)]}
    events = [Event(rank, "compute", "forward", (), 0, 0.0, 1.0) for rank in (0, 1)]
    events += [Event(rank, "comm", "all_reduce", (1 - rank,), 8, 1.0, 2.0, group)
               for rank in (0, 1)]  # fmt: skip
    path = tmp_path / "own.json"
    Trace(events).to_chrome(path)
    content = json.loads(path.read_text())
    entries = content["traceEvents"]
    number = next(n for n, each in enumerate(entries) if each["name"] == "all_reduce")
    where = entries[number] if key in entries[number] else entries[number]["args"]
    where[key] = value
    trace = Trace.from_chrome(saved(tmp_path, content, "own.json"))
    assert len(trace.events) == 3
    assert f'the "{key}" of traceEvents[{number}] ("all_reduce") is ' in trace.notes[0]
    has_sound_times(diagnose(trace))


# Encodings and damaged files ---------------------------------------------------------------------


def lines(content: dict[str, Any], end: str = "\n") -> str:
    return "[\n" + ",\n".join(map(json.dumps, content["traceEvents"])) + end


TEXT = json.dumps(job())
READABLE: dict[str, bytes] = {
    "byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "UTF-16": TEXT.encode("utf-16"), "UTF-16 without a mark": TEXT.encode("utf-16-le"),
    "UTF-16 of another machine": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "UTF-32": TEXT.encode("utf-32"), "gzip": gzip.compress(TEXT.encode()),
    "gzip in two members": gzip.compress(TEXT[:999].encode()) + gzip.compress(TEXT[999:].encode()),
    "gzip of UTF-16": gzip.compress(TEXT.encode("utf-16")),
    "a list": (lines(job()) + "]").encode(), "an open list": lines(job()).encode(),
    "an open list with a comma": lines(job(), ",\n").encode(),
    "an open list with a mark": b"\xef\xbb\xbf" + lines(job()).encode(),
    "a path of Windows": TEXT.replace('"sm90_gemm"', '"C:\\Users\\gemm"').encode(),
}  # fmt: skip


@pytest.mark.parametrize("content", READABLE.values(), ids=READABLE.keys())
def test_encodings_and_open_lists_are_read(content: bytes, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, content)
    assert (found.notes, found.steps, found.verdict) == ((), 3, "launch gaps")
    assert found.seconds[0]["compute"] == pytest.approx(0.8e-3)


CUT = {
    "an object": TEXT[:-300].encode(), "between events": TEXT[: TEXT.rindex(', {"ph"')].encode(),
    "a list": lines(job())[:-90].encode(), "gzip": gzip.compress(TEXT.encode())[:-60],
}  # fmt: skip


@pytest.mark.parametrize("content", CUT.values(), ids=CUT.keys())
def test_the_rest_of_a_cut_file_is_read(content: bytes, tmp_path: Path) -> None:
    trace = Trace.from_chrome(saved(tmp_path, content))
    assert trace.incomplete == (0,)
    found = diagnose(trace)
    assert found.verdict == "file incomplete"
    assert re.search(r"a.json: the file ends in or after traceEvents\[1?\d\]", found.notes[0])


def test_an_event_that_is_not_json_is_left_out_with_its_line(tmp_path: Path) -> None:
    text = lines(job(steps=tuple(range(20))), "]")
    broken = text.replace('"name": "aten::mm"', '"name": aten::mm', 1)
    found = diagnosed(tmp_path, broken.encode())
    assert found.notes == (f"{tmp_path / 'a.json'}: traceEvents[1] in line 3 is not JSON, so it "
                           "is left out.",)  # fmt: skip
    assert found.verdict == "launch gaps"


@pytest.mark.parametrize("written", ["nan", "-nan", "inf", "-nan(ind)"])
def test_numbers_as_c_writes_them(written: str, tmp_path: Path) -> None:
    text = TEXT.replace('"dur": 800', f'"dur": {written}', 1)
    assert 'the "dur" of traceEvents[3]' in diagnosed(tmp_path, text.encode()).notes[0]


# What is refused ---------------------------------------------------------------------------------


def x(**more: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 2, "ts": 1.0, "dur": 5.0, "name": "f"} | more


def process(name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}}


REFUSED: list[tuple[Any, str]] = [
    ({"traceEvents": [x(args={"hlo_op": "fusion.12"})]}, "is a trace of JAX, TensorFlow"),
    ({"traceEvents": [process("/device:TPU:0"), x()]}, "is a trace of JAX, TensorFlow"),
    ([process("/host:CPU"), x(args={"run_id": "3"})], "is a trace of JAX, TensorFlow"),
    ([[1, 2, 3], [[0, 4], [0, 4], [0, 8]]], "is a timeline of memory"),
    ([[17, 1, 512, 3], [18, 3, 512, 3]], "is a timeline of memory"),
    ({"traceEvents": [{"ph": "i", "name": "[memory]", "ts": 1}]}, "has only events of memory"),
    ({"segments": [], "device_traces": []}, "is a snapshot of the GPU's memory"),
    ({"traceEvents": [x(cat="python_function")]}, "has only the stacks of Python"),
    ([x(cat="python_function"), x(cat="user_annotation", name="ProfilerStep#3")],
     "has only the stacks of Python"),
    (b"main;train;forward 17\nmain;train;backward 31\n", "has stacks (export_stacks)"),
    ({"$schema": "x", "profiles": []}, "is a profile for speedscope"),
    ({"schema": "1.1.1", "nodes": []}, "is an execution trace (ExecutionTraceObserver)"),
    ([x(cat="task::f")], "is a timeline of Ray: pass the list of ray.timeline() to"),
    ([process("Ascend Hardware"), x()], "is a trace of torch_npu"),
    ([x(cat="dynamo_timed")], "is a log of torch.compile"),
    ([x(cat="FEE")], "was not written by torch.profiler"),
    ([{"ph": "B", "name": "f", "ts": 1}, {"ph": "E", "ts": 2}], "was not written by torch.prof"),
    (TEXT.encode() * 2, "has more than one JSON document; the second begins in line 1"),
    (b"PK\x03\x04rest", "is a zip archive"), (b"SQLite format 3\0", "is a database"),
    (b"\x80\x04\x95", "is a pickle"), (b"\0\1\2\3", "is not JSON: it is a binary file"),
    (b"<html></html>", "is not JSON: it begins with '<html></html>'"),
    (b"", "is not a complete JSON file (it is empty)"), (b"null", "is not a trace: its JSON is"),
    ([1, 2], "is not a trace: its list has no events"),
    ({"traceEvents": None}, 'is not a trace: it has no list "traceEvents"'),
    ({"traceEvents": [x(cat="kernel", ts=None)]}, "has no operation with a readable time."),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), REFUSED)
def test_a_foreign_file_is_refused_with_its_reason(
    content: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, content)
    assert main(["analyze", str(path)]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"dtlab analyze: {path} {words}")
    assert not out


def shifted(pid: Callable[[Any], Any]) -> list[dict[str, Any]]:
    return [event | {"pid": pid(event["pid"])} for event in job(1)["traceEvents"]]


@pytest.mark.parametrize(
    ("pid", "words"),
    [
        (lambda pid: pid + 1000, r"has operations of 2 processes \(100, 1100\)"),
        (lambda pid: f"rank 1 {pid}", r"has operations of 2 processes \(100, rank 1 100\)"),
        (lambda pid: pid, "has ProfilerStep#3 twice"),
    ],
)
def test_ranks_merged_into_one_file_are_refused(
    pid: Callable[[Any], Any], words: str, tmp_path: Path
) -> None:
    content = job() | {"traceEvents": job()["traceEvents"] + shifted(pid)}
    with pytest.raises(DtlabError, match=words + ": it was merged from the files of several"):
        Trace.from_chrome(saved(tmp_path, content))


# Folders and ranks -------------------------------------------------------------------------------


def test_stray_files_in_a_folder_are_left_out_with_their_reason(tmp_path: Path) -> None:
    for rank in (0, 1):
        saved(tmp_path, job(rank, ranks=2), f"r{rank}.json")
    strays: dict[str, Any] = {
        "config.json": {"layers": 3}, "broken.json": b"[1, 2", "._r0.json": b"\0\5\x16\7",
        "memory.json": [[1, 2], [[3], [4]]], "zz.json": {"traceEvents": [x(cat="kernel", ts="")]},
    }  # fmt: skip
    for name, content in strays.items():
        saved(tmp_path, content, name)
    (tmp_path / "notes.txt").write_text("not looked at")
    trace = Trace.from_chrome(tmp_path)
    assert (trace.world_size, {event.rank for event in trace.events}) == (2, {0, 1})
    assert len(trace.notes) == len(strays)
    for name in strays:
        assert any(f"A file is left out: {tmp_path / name} " in note for note in trace.notes)
    with pytest.raises(DtlabError, match="config.json is not a trace"):  # if it is named
        Trace.from_chrome([tmp_path / "r0.json", tmp_path / "config.json"])


def test_a_folder_without_a_trace_says_why(tmp_path: Path) -> None:
    saved(tmp_path, {"layers": 3}, "a.json")
    saved(tmp_path, b"", "b.json")
    with pytest.raises(DtlabError, match=r"has no trace. \S+a.json is not a trace: .*other 1 fil"):
        Trace.from_chrome(tmp_path)


@pytest.mark.parametrize(
    ("files", "steps"),
    [
        ([(0, (2, 3)), (1, (2, 3)), (0, (6, 7)), (1, (6, 7))], (6, 7)),
        ([(0, (2, 3)), (1, (2, 3)), (0, (6, 7))], (2, 3)),  # rank 1 did not write the second
        ([(0, (2, 3)), (0, (6, 7)), (0, (10, 11))], (10, 11)),
    ],
)
def test_one_cycle_of_a_profiler_is_read_from_a_folder(
    files: list[tuple[int, tuple[int, ...]]], steps: tuple[int, ...], tmp_path: Path
) -> None:
    for number, (rank, numbers) in enumerate(files):
        content = job(rank, steps=numbers, ranks=len({rank for rank, _ in files}))
        saved(tmp_path, content, f"host_{number}.pt.trace.json")
    trace = Trace.from_chrome(tmp_path)
    marks = {event.name for event in trace.events if event.name.startswith("ProfilerStep")}
    assert marks == {f"ProfilerStep#{step}" for step in steps}
    assert f"This is the one of {steps[0]} to {steps[1]}" in trace.notes[0]
    with pytest.raises(DtlabError, match="are both of rank 0|has the profiler's steps"):
        Trace.from_chrome(sorted(tmp_path.iterdir()))


def test_cycles_of_a_job_without_ranks_are_not_taken_for_ranks(tmp_path: Path) -> None:
    for number, steps in enumerate([(2, 3), (6, 7), (10, 11)]):
        content = job(steps=steps)
        del content["distributedInfo"]
        saved(tmp_path, content, f"host_{number}.pt.trace.json")
    trace = Trace.from_chrome(tmp_path)
    assert trace.world_size == 1
    assert "3 cycles of the profiler, with the steps 2 to 3, 6 to 7, 10 to 11" in trace.notes[0]


@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_figure_of_a_trace_with_unreadable_events(key: str, tmp_path: Path) -> None:
    content = job()
    content["traceEvents"][8][key] = None
    trace = Trace.from_chrome(saved(tmp_path, content))
    assert "4 all_reduce" in str(dtlab.show.timeline(trace).alt_text)


def test_ranks_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for rank in range(3):
        content = job(ranks=3)
        del content["distributedInfo"]
        paths.append(str(saved(tmp_path, content, f"{'cab'[rank]}.json")))
    assert main(["analyze", *paths]) == 1
    assert "dtlab analyze --ranks 0,1 a.json b.json" in capsys.readouterr().err
    for ranks in ("0,1,2", "0-2", "2,0-1"):
        assert main(["analyze", "--json", "--ranks", ranks, *paths]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [each["rank"] for each in told["ranks"]] == [0, 1, 2]
    assert main(["analyze", "--ranks", "0-2", str(tmp_path)]) == 0  # in the order of the names
    capsys.readouterr()
    for ranks, words in (("0,1", "give each of the 3 files a rank"), ("0,0,1", "a rank of its"),
                         ("0,x,2", "'x' is no rank. Write 0,1,2 or 0-2")):  # fmt: skip
        assert main(["analyze", "--ranks", ranks, *paths]) == 1
        assert words in capsys.readouterr().err


def test_a_rank_that_the_user_gives_counts_more_than_the_files(tmp_path: Path) -> None:
    paths = [saved(tmp_path, job(0, ranks=2), f"{name}.json") for name in "ab"]
    trace = Trace.from_chrome({0: paths[0], 1: paths[1]})
    assert {event.rank for event in trace.events} == {0, 1}
    assert "b.json says that rank 0 wrote it; it is read as rank 1, as you say." in trace.notes[0]
    with pytest.raises(DtlabError, match="-1 is no rank"):
        Trace.from_chrome({-1: paths[0]})


def test_notes_are_warnings_and_stay_with_the_trace(tmp_path: Path) -> None:
    content = job()
    content["traceEvents"][8]["ts"] = None
    path = saved(tmp_path, content)
    with pytest.warns(UserWarning, match=r'the "ts" of traceEvents\[8\]') as caught:
        trace = Trace.from_chrome(path)
    assert caught[0].filename == __file__
    trace.to_chrome(tmp_path / "own.json")
    again = Trace.from_chrome(tmp_path / "own.json")
    assert again.notes == trace.notes == trace.during("ProfilerStep#3").notes
    assert str(diagnose(again)) == str(diagnose(trace))
