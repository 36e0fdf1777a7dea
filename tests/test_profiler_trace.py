"""Traces of torch.profiler: real ones of ranks on gloo, and handwritten ones in NCCL's formats."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dtlab
from dtlab.errors import ArgumentError, DtlabError
from dtlab.profiling.kineto import parse
from dtlab.trace import Event, Trace
from tests.staying import on_ranks

# ------------------------------------------------------------------- jobs on gloo


def _profiled(**options: Any) -> Any:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options)


def _ddp(late: float, folder: str) -> Trace:
    """Two steps; the second rank's last backward begins `late` seconds after the others'."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import record_function
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(100, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(8, 100), batch_size=4)  # type: ignore[arg-type]
    with _profiled() as profiler:
        for number, batch in enumerate(loader):
            with record_function("forward"):
                loss = model(batch).square().mean()
            if number and rank == 1:
                time.sleep(late)
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
    trace = Trace.from_profiler(profiler)
    name = f"{folder}/rank{rank}.json" + ".gz" * rank
    profiler.export_chrome_trace(name)  # from_profiler has not used up the profiler
    return trace


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trace], Path]:
    folder = tmp_path_factory.mktemp("ddp")
    return on_ranks(_ddp, 0.4, str(folder), world_size=2).values, folder


@pytest.mark.slow
def test_a_rank_gets_its_own_trace_and_a_list_of_traces_becomes_one(
    ddp: tuple[list[Trace], Path],
) -> None:
    alone, folder = ddp
    assert [trace.world_size for trace in alone] == [2, 2]
    assert [{event.rank for event in trace.events} for trace in alone] == [{0}, {1}]
    merged = Trace.from_profiler(alone)
    files = Trace.from_chrome([folder / "rank1.json.gz", folder / "rank0.json"])
    assert [(e.rank, e.name) for e in merged.events] == [(e.rank, e.name) for e in files.events]
    assert merged.duration == pytest.approx(files.duration, abs=1e-6)
    assert merged.bytes_wire() == [None, None]


@pytest.mark.slow
def test_the_gradients_of_ddp_and_the_wait_for_a_late_rank(ddp: tuple[list[Trace], Path]) -> None:
    trace = Trace.from_profiler(ddp[0])
    for rank in (0, 1):
        reduces = [e for e in trace.events if (e.rank, e.name) == (rank, "all_reduce")]
        assert [e.bytes for e in reduces if e.bytes > 4000] == [4 * (100 * 40 + 40)] * 2
        assert {e.peers for e in reduces} == {(1 - rank,)}
        times = trace.busy(rank), trace.exposed_comm(rank), trace.idle(rank)
        assert sum(times) == pytest.approx(trace.duration)
    # Rank 0 is inside its annotation "backward" while C++ waits for the last bucket of rank 1.
    (start, end) = [(e.start, e.end) for e in trace.events if (e.rank, e.name) == (0, "backward")][
        1
    ]
    assert end - start > 0.15
    assert trace.idle(0) > 0.15
    assert trace.busy(0) + trace.exposed_comm(0) < trace.duration - 0.15


@pytest.mark.slow
def test_annotations_operators_and_figures(ddp: tuple[list[Trace], Path]) -> None:
    trace = Trace.from_profiler(ddp[0])
    compute = [event for event in trace.events if event.kind == "compute"]
    notes = {event.name for event in compute if event.extra.get("annotation")}
    assert {"forward", "backward", "optimizer", "Optimizer.step#SGD.step"} <= notes
    assert any(name.startswith("enumerate(DataLoader)#") for name in notes)
    phase = {event.name: event.extra.get("phase") for event in compute}
    assert phase["aten::linear"] == "forward"
    assert phase["AddmmBackward0"] == "backward"
    assert not any("c10d" in event.name or "gloo" in event.name for event in trace.events)
    assert trace.during("optimizer").events
    assert "2 all_reduce" in str(dtlab.show.timeline(trace).alt_text)


def _all_operations() -> Trace:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    small, whole = torch.ones(600), torch.ones(600 * ranks)
    parts = list(torch.ones(600 * ranks).chunk(ranks))
    with _profiled() as profiler:
        dist.all_reduce(small)
        dist.all_gather(parts, small)
        dist.all_gather_into_tensor(whole, small)
        dist.reduce_scatter_tensor(small, whole)
        dist.broadcast(small, 0)
        dist.reduce(small, 0)
        dist.all_to_all_single(whole, torch.ones(600 * ranks))
        dist.gather(small, parts if rank == 0 else None, 0)
        dist.barrier()
        dist.all_reduce(small, async_op=True).wait()
        if rank == 0:
            dist.send(small, 1, tag=3)
            dist.recv(small.double(), ranks - 1)
        elif rank == 1:
            dist.recv(small, 0, tag=3)
        if rank == ranks - 1:
            dist.isend(small.double(), 0).wait()
    return Trace.from_profiler(profiler)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_operations_are_those_that_dtlab_itself_records() -> None:
    run = dtlab.launch(_all_operations, world_size=3)
    trace = Trace.from_profiler(run.values)
    assert run.trace is not None
    for rank in range(3):
        seen, recorded = (
            [
                (e.name, e.peers, e.bytes, e.extra["group"], e.extra.get("tag"), e.extra["dtype"])
                for e in each.events
                if e.rank == rank and e.kind == "comm" and e.name != "barrier"
            ]
            for each in (trace, run.trace)
        )
        assert seen == recorded
        assert trace.ops(rank) == run.trace.ops(rank)
        assert trace.peers(rank) == run.trace.peers(rank)


def _profiled_without_rank() -> Trace:
    import torch
    import torch.distributed as dist

    with torch.autograd.profiler.profile() as profiler:  # does not write the rank
        dist.all_reduce(torch.ones(3))
    return Trace.from_profiler(profiler)


@pytest.mark.slow
def test_a_profiler_that_does_not_write_its_rank() -> None:
    trace = Trace.from_profiler(on_ranks(_profiled_without_rank, world_size=2).values)
    assert [trace.ops(rank) for rank in (0, 1)] == [{"all_reduce": 1}] * 2


def _sharded(folder: str) -> None:
    """Two cycles of a schedule, of two steps each, in which FSDP2 trains."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.profiler import schedule

    torch.manual_seed(0)
    model = fully_shard(nn.Linear(60, 40, device="cpu"))

    def write(profiler: Any) -> None:
        name = f"{folder}/{profiler.step_num}-{dist.get_rank()}.json"
        profiler.export_chrome_trace(name)
        Trace.from_profiler(profiler)  # Kineto saves only once; this is the second time

    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with _profiled(schedule=plan, on_trace_ready=write) as profiler:
        for _ in range(8):
            model(torch.ones(2, 60)).sum().backward()
            profiler.step()


@pytest.mark.slow
def test_fsdp_and_the_cycles_of_a_schedule(tmp_path: Path) -> None:
    on_ranks(_sharded, str(tmp_path), world_size=2)
    first, second = ([tmp_path / f"{cycle}-{rank}.json" for rank in (0, 1)] for cycle in (4, 8))
    trace = Trace.from_chrome(first)
    sizes = {(e.name, e.bytes) for e in trace.events if e.kind == "comm"}
    assert sizes == {("all_gather", 4 * 2440), ("reduce_scatter", 4 * 2440)}
    assert trace.ops(0) == {"all_gather": 2, "reduce_scatter": 2}
    marks = [event for event in trace.events if event.name.startswith("ProfilerStep#")]
    assert [event.extra["busy"] for event in marks] == [False] * 4
    assert trace.during("ProfilerStep#3").ops(0) == {"all_gather": 1, "reduce_scatter": 1}
    assert trace.busy(0) < trace.duration
    with pytest.raises(DtlabError, match=r"4-0.json and \S+8-0.json are both of rank 0"):
        Trace.from_chrome([first[0], second[0]])
    with pytest.raises(DtlabError, match=r"has the profiler's steps 2 to 3, \S+ has 6 to 7"):
        Trace.from_chrome([first[0], second[1]])


@pytest.mark.parametrize(
    ("rows", "waits"),
    [
        ([("aten::mm", 100, 1000)], [(1000, 4000)]),
        ([("aten::mm", 100, 1000), ("aten::mm", 3900, 4500)], [(1000, 3900)]),  # end written late
        ([("aten::mm", 100, 2000), ("aten::mm", 2200, 4500)], []),  # Python between operators
        ([("c10d::allreduce_", 0, 3900)], [(3900, 4000)]),  # the call does not wait
        ([("MmBackward0", 100, 5000), ("aten::mm", 110, 500)], [(500, 4000)]),
        ([("enumerate(DataLoader)#next", 100, 3000), ("aten::mm", 3100, 4500)], []),
    ],
)
def test_waits_are_gaps_between_operators(
    rows: list[tuple[str, float, float]], waits: list[tuple[float, float]]
) -> None:
    operations = [("c10d::allreduce_", 0, 100), *rows, ("gloo:all_reduce", 50, 4000)]
    content = {"traceEvents": [
        {"ph": "X", "name": name, "pid": 1, "tid": 2 if name.startswith("gloo:") else 1,
         "cat": "cpu_op" if "::" in name or "Backward" in name else "user_annotation",
         "ts": start, "dur": end - start}
        for name, start, end in operations
    ]}  # fmt: skip
    (event,) = (e for e in parse(content, "a.json", 0).events if e.kind == "comm")
    assert [(round(a * 1e6), round(b * 1e6)) for a, b in event.extra["blocked"]] == waits


# ------------------------------------------------------------------- NCCL's formats

# The fields and their nesting are those of traces in tests/data of HolisticTraceAnalysis
# (facebookresearch): trace_filter (April 2023), ns_resolution_trace (April 2024) and
# nccl_parser_config (May 2024); the last is what Kineto's output_json.cpp and PyTorch's
# saveNcclMeta write in 2026.
AGES = ("2023", "2024-04", "2024-05", "2026")
_KERNELS = {
    "2023": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "2026": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}


def nccl(age: str, rank: int, late: float = 0.0, ranks: str = "[0, 1]") -> dict[str, Any]:
    """One step of two ranks, in microseconds; `late` is how far the rank's clock is ahead.

    stream 7    forward 0-1000, backward 1000-3000
    stream 40   all-reduce 2000-3500 (rank 1: from 2600), 4000-5000 (rank 1: from 4600)
    """
    start = 1_682_725_898_000_000 if age == "2023" else 4_458_676_416_000.5
    meta = {
        "Collective name": "allreduce", "In msg nelems": 500, "Out msg nelems": 500,
        "Group size": 2, "dtype": "Float", "Process Group Ranks": ranks,
    }  # fmt: skip
    if age == "2024-04":
        meta |= {"Process Group ID": 0, "Global rank start": 0, "Global rank stride": 1}
    if age in ("2024-05", "2026"):
        meta |= {"Process Group Name": "0", "Process Group Description": "default_pg"}
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, tid: int, begin: float, end: float, **args: Any) -> None:
        place = {"pid": rank if tid in (7, 40) else 99, "tid": tid}
        times = {"ts": start + begin + late, "dur": end - begin}
        events.append({"ph": "X", "cat": cat, "name": name, **place, **times, "args": args})

    def kernel(
        tid: int, name: str, begin: float, end: float, launched: float, **args: Any
    ) -> None:
        number = len(events)
        thread = 99 if launched < 100 else 98  # autograd has a separate thread
        add("cuda_runtime", "cudaLaunchKernel", thread, launched, launched + 1, correlation=number)
        about = {"stream": tid, "correlation": number, "device": rank}
        add("kernel", name, tid, begin, end, **about, **args)

    add("user_annotation", "ProfilerStep#4", 99, -50, 5100)
    add("user_annotation", "forward", 99, 0, 90)
    add("cpu_op", "aten::mm", 99, 10, 20)
    add("user_annotation", "backward", 99, 100, 400)
    add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 98, 110, 390)
    kernel(7, "ampere_sgemm", 0, 1000, 12)
    kernel(7, "ampere_sgemm", 1000, 3000, 120)
    for number, (begin, end) in enumerate(((2000, 3500), (4000, 5000))):
        issue = 200 + 50 * number
        old = {"Input Dims": [[500]], "Input type": ["float"]} if age == "2023" else {}
        add("cpu_op", "c10d::allreduce_", 98, issue, issue + 40)
        add("cpu_op", "record_param_comms", 98, issue + 5, issue + 38,
            **({} if age == "2023" else meta))  # fmt: skip
        add("user_annotation", "nccl:all_reduce", 98, issue + 8, issue + 30, **old)
        args = {} if age == "2023" else dict(meta)
        if age == "2026":
            args["Seq"] = number
        kernel(40, _KERNELS["2026" if age == "2026" else "2023"], begin + 600 * rank, end,
               issue + 10, **args)  # fmt: skip
    about = {"backend": "nccl", "rank": rank, "world_size": 2}
    if age == "2026":
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
        about |= {"pg_count": 1, "pg_config": groups}
    content: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": about}
    if age == "2026":
        content |= {"baseTimeNanoseconds": 1790857026000000000, "host_name": f"node{rank}"}
    return content | {"traceEvents": events}


def written(folder: Path, contents: Sequence[Any]) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return paths


@pytest.mark.parametrize("age", AGES)
def test_nccl_traces_of_each_age(age: str, tmp_path: Path) -> None:
    trace = Trace.from_chrome(written(tmp_path, [nccl(age, 1, late=7e3), nccl(age, 0)]))
    assert [trace.busy(rank) for rank in (0, 1)] == pytest.approx([3e-3, 3e-3])
    # Exposed are 3.0 to 3.5 ms, and from 4.6 ms, when both have arrived, to 5.0 ms.
    assert [trace.exposed_comm(rank) for rank in (0, 1)] == pytest.approx([0.9e-3, 0.9e-3])
    reduces = [event for event in trace.events if event.kind == "comm"]
    assert {(e.name, e.bytes, e.extra["dtype"], e.extra["group"]) for e in reduces} == {
        ("all_reduce", 2000, "float32", (0, 1))
    }
    begin = {event.name: event.start for event in trace.events}["ProfilerStep#4"]
    assert [round((e.start - begin) * 1e6) for e in reduces] == [2050, 2650, 4050, 4650]
    kernels = [event for event in trace.events if event.name == "ampere_sgemm"]
    assert sorted((e.extra["phase"], e.rank, e.extra["stream"]) for e in kernels) == [
        ("backward", 0, 7), ("backward", 1, 7), ("forward", 0, 7), ("forward", 1, 7),
    ]  # fmt: skip
    assert "3.00 ms compute" in dtlab.show.timeline(trace).alt_text
    trace.to_chrome(tmp_path / "own.json")
    again = Trace.from_chrome(tmp_path / "own.json")
    assert [(e.rank, e.kind, e.name, e.bytes, e.peers, {**e.extra}) for e in again.events] == [
        (e.rank, e.kind, e.name, e.bytes, e.peers, {**e.extra}) for e in trace.events
    ]
    assert again.exposed_comm(0) == pytest.approx(trace.exposed_comm(0))


def test_the_annotations_of_a_gpu_job_are_marks() -> None:
    part = parse(nccl("2026", 0), "a.json")
    notes = [event for event in part.events if event.extra.get("annotation")]
    assert {event.name for event in notes} == {"ProfilerStep#4", "forward", "backward"}
    assert not any(event.extra["busy"] for event in notes)
    assert not any(event.name == "aten::mm" for event in part.events)


def test_messages_and_a_list_of_ranks_that_is_cut(tmp_path: Path) -> None:
    contents = [nccl("2026", rank, ranks="[0, ...]") for rank in (0, 1)]
    for rank, content in enumerate(contents):
        way, key = ("recv", "Src Rank") if rank else ("send", "Dst Rank")
        message = content["traceEvents"][-1]
        message["name"] = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        message["args"] |= {"Collective name": way, key: 1 - rank, "dtype": "BFloat16"}
    trace = Trace.from_chrome(written(tmp_path, contents))
    assert (trace.sends(0), trace.peers(1), trace.bytes_sent(0)) == (1, {0}, 1000)
    first = next(event for event in trace.events if event.name == "all_reduce")
    assert first.extra["group"] == (0, 1)  # from the list of groups


def test_several_groups_without_names_are_not_matched() -> None:
    content = nccl("2023", 0)
    content["traceEvents"][-1]["tid"] = 44  # NCCL has a stream for each group
    comm = [event for event in parse(content, "a.json").events if event.kind == "comm"]
    assert [event.peers for event in comm] == [(), ()]
    content = nccl("2023", 0) | {"traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2,
         "ts": 5, "dur": 9, "args": {"Input Dims": [[3]], "Input type": ["double"]}}]}  # fmt: skip
    groups = [{"pg_name": str(len(ranks)), "ranks": ranks} for ranks in ([0, 1, 2, 3], [0, 1])]
    for number, peers in ((2, ()), (1, (1, 2, 3))):
        content["distributedInfo"] |= {"world_size": 4, "pg_config": groups[:number]}
        (event,) = parse(content, "a.json").events
        assert (event.name, event.peers, event.bytes) == ("all_reduce", peers, 24)


def test_a_collective_from_before_the_profiler_does_not_shift_the_others(tmp_path: Path) -> None:
    contents = [nccl("2024-05", rank) for rank in (0, 1)]
    early = next(e for e in contents[1]["traceEvents"] if e["name"].startswith("ncclKernel"))
    args = {"stream": 40, "correlation": 12345, "device": 1}  # launched before: nothing is linked
    contents[1]["traceEvents"].append(early | {"args": args, "ts": early["ts"] - 2500, "dur": 50})
    trace = Trace.from_chrome(written(tmp_path, contents))
    assert next(event.peers for event in trace.events if event.kind == "comm") == ()
    assert trace.exposed_comm(0) == pytest.approx(0.9e-3)
    gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2}
    call = {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1}
    rows = [gloo | {"ts": 1, "dur": 4}, call | {"ts": 6, "dur": 1}, gloo | {"ts": 8, "dur": 4}]
    contents[0]["traceEvents"] = rows
    events = parse(contents[0], "a.json").events
    assert [(round(e.start * 1e6), round(e.end * 1e6), e.peers) for e in events] == [
        (0, 4, ()), (5, 11, (1,)),
    ]  # fmt: skip


def test_collectives_that_differ_are_a_warning(tmp_path: Path) -> None:
    contents = [nccl("2024-05", rank) for rank in (0, 1)]
    args = contents[1]["traceEvents"][-1]["args"]
    args |= {"In msg nelems": 7, "Out msg nelems": 7}
    words = (
        r"Collective 2 of the ranks \[0, 1\] is all_reduce of 2,000 bytes on rank 0, and "
        r"all_reduce of 28 bytes on rank 1.*start the profilers at the same step"
    )
    with pytest.warns(UserWarning, match=words):
        Trace.from_chrome(written(tmp_path, contents))


@pytest.mark.parametrize("without", ["", "nccl"])  # all kernels; NCCL's, on a rank that is alone
def test_calls_of_nccl_without_kernels_do_not_block(without: str) -> None:
    content = nccl("2024-05", 0)
    content["traceEvents"] = [
        event
        for event in content["traceEvents"]
        if event["cat"] != "kernel" or not event["name"].startswith(without)
    ]
    comm = [event for event in parse(content, "a.json").events if event.kind == "comm"]
    assert [(event.name, event.bytes, event.extra["blocked"]) for event in comm] == [
        ("all_reduce", 2000, []), ("all_reduce", 2000, []),
    ]  # fmt: skip


def test_clocks_of_one_host_stay_unless_that_is_impossible(tmp_path: Path) -> None:
    def differences(late: float, host: str) -> Iterator[float]:
        other = nccl("2026", 1, late=late) | {"host_name": host}
        paths = written(tmp_path, [nccl("2026", 0), other])
        ends = [e for e in Trace.from_chrome(paths).events if e.kind == "comm"]
        for number in (0, 1):
            yield [e.end for e in ends if e.rank == 1][number] - [
                e.end for e in ends if e.rank == 0
            ][number]  # fmt: skip

    assert [*differences(300, "node0")] == pytest.approx([3e-4, 3e-4])  # a late wake-up
    assert [*differences(300, "node1")] == pytest.approx([0, 0], abs=1e-9)
    assert [*differences(9000, "node0")] == pytest.approx([0, 0], abs=1e-9)
    assert [*differences(-9000, "node1")] == pytest.approx([0, 0], abs=1e-9)


def test_clocks_are_aligned_through_ranks_in_between(tmp_path: Path) -> None:
    """Ranks 0 and 2 share no collective; rank 1 shares one with each."""

    def content(rank: int, groups: dict[str, tuple[float, str]]) -> dict[str, Any]:
        rows = [
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "pid": rank,
             "tid": 9, "ts": 100 * rank + at, "dur": 50, "args": {
                 "Collective name": "_allgather_base", "In msg nelems": 2, "Out msg nelems": 4,
                 "Group size": 2, "dtype": "Half", "Process Group Name": name,
                 "Process Group Ranks": ranks}}
            for name, (at, ranks) in groups.items()
        ]  # fmt: skip
        about = {"rank": rank, "world_size": 3}
        return {"distributedInfo": about, "traceEvents": rows}

    left, right = (1000.0, "[0, 1]"), (3000.0, "[1, 2]")
    contents = [content(0, {"a": left}), content(1, {"a": left, "b": right}),
                content(2, {"b": right})]  # fmt: skip
    trace = Trace.from_chrome(written(tmp_path, contents))
    times = [(e.rank, round(e.start * 1e6)) for e in trace.events]
    assert sorted(times) == [(0, 0), (1, 0), (1, 2000), (2, 2000)]
    assert {event.bytes for event in trace.events} == {8}


# ------------------------------------------------------------------- files and errors


def test_a_missing_rank_is_a_warning_and_the_rest_is_read(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [nccl("2026", 1)])
    with pytest.warns(UserWarning, match="There is no trace of rank 0, of 2 ranks") as caught:
        trace = Trace.from_chrome(path)
    assert caught[0].filename == __file__
    assert (trace.world_size, trace.ops()) == (2, {"all_reduce": 2})
    assert trace.exposed_comm(1) == pytest.approx(0.9e-3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a complete JSON file"),
        (b'{"traceEvents": [', "is not a complete JSON file"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "is not a complete JSON file"),
        (b'{"nodes": []}', 'is not a trace: it has no list "traceEvents"'),
        (b'{"traceEvents": []}', "has no operations"),
    ],
)
def test_a_file_that_is_no_trace(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DtlabError, match=f"a.json {words}"):
        Trace.from_chrome(path)


def test_files_that_do_not_say_their_rank_or_are_not_there(tmp_path: Path) -> None:
    contents = [nccl("2024-04", rank) for rank in (0, 1)]
    for content in contents:
        del content["distributedInfo"]
    paths = written(tmp_path, contents)
    with pytest.raises(DtlabError, match=r"0.json does not say which rank wrote it"):
        Trace.from_chrome(paths)
    given = Trace.from_chrome({1: paths[1], 0: paths[0]})
    assert (given.world_size, given.exposed_comm(1)) == (2, pytest.approx(0.9e-3))
    with pytest.warns(UserWarning, match="no trace of rank 1, of 2 ranks"):  # known by its group
        assert Trace.from_chrome(paths[0]).ops(0) == {"all_reduce": 2}
    with pytest.raises(DtlabError, match=r"none.json cannot be read: No such file"):
        Trace.from_chrome(tmp_path / "none.json")
    with pytest.raises(DtlabError, match="got no files"):
        Trace.from_chrome([])


def test_a_file_of_to_chrome_is_read_back(tmp_path: Path) -> None:
    events = [
        Event(0, "compute", "forward", (), 0, 0.0, 1.0, {"microbatch": 2}),
        Event(0, "compute", "step", (), 0, 0.5, 1.5, {"busy": False}),
        Event(0, "comm", "send", (1,), 8, 1.0, 2.0, {"tag": 4, "blocked": [(1.25, 1.5)]}),
        Event(1, "comm", "recv", (0,), 8, 1.5, 2.0, {"tag": 4}),
    ]
    trace = Trace(events, world_size=3, wire=[9, None, 7])
    trace.to_chrome(tmp_path / "own.json")
    again = Trace.from_chrome(tmp_path / "own.json")
    assert list(again.events) == list(trace.events)
    assert again.bytes_wire() == trace.bytes_wire()
    assert (again.busy(0), again.ops()) == (trace.busy(0), trace.ops()) == (1.0, again.ops())
    assert list(Trace.from_chrome([tmp_path / "own.json"]).events) == list(trace.events)
    with pytest.raises(DtlabError, match="has all ranks: pass it alone"):
        Trace.from_chrome([tmp_path / "own.json", tmp_path / "own.json"])


def test_a_profiler_that_has_no_result() -> None:
    import torch

    profiler = _profiled()
    with pytest.raises(DtlabError, match="not started, or not stopped"):
        Trace.from_profiler(profiler)
    with profiler:
        torch.ones(2).add(1)
        with pytest.raises(DtlabError, match="not started, or not stopped"):
            Trace.from_profiler(profiler)
    trace = Trace.from_profiler(profiler)  # of one process, without a process group
    assert (trace.world_size, "aten::add" in {e.name for e in trace.events}) == (1, True)
    with pytest.raises(ArgumentError, match=r"needs a torch.profiler.profile.* not int"):
        Trace.from_profiler(3)
    with pytest.raises(ArgumentError, match="something else; from_chrome merges files"):
        Trace.from_profiler([trace, Trace()])
