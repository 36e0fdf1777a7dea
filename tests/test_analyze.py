"""`dtlab analyze` names the cause that was planted in a job, and says so in plain sentences."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import dtlab
from dtlab.cli import main
from dtlab.profiling.diagnosis import diagnose
from dtlab.trace import Event, Trace
from tests.marks import proof, retried

STEPS = 6
PROFILED_STEPS = 8
Piece = tuple[str, float]
ETHERNET = dtlab.Link(latency=1e-3, bandwidth=50e6)  # slow enough that a rank's own delays vanish
FAST = dtlab.Link(latency=1e-6, bandwidth=1e12)


@dataclass(frozen=True)
class Job:
    """A training step made of stand-ins; a rank in `late` needs these seconds more for a part."""

    ranks: int = 4
    link: dtlab.Link = FAST
    input: float = 0.002
    forward: float = 0.02
    buckets: int = 1
    bucket: int = 1000  # elements
    backward: float = 0.04
    overlap: bool = False
    unmarked: float = 0.0
    messages: bool = False  # a ring of send and recv
    late: tuple[tuple[int, str, float], ...] = ()

    def seconds(self, part: str) -> float:
        """The seconds of a part on this rank."""
        import torch.distributed as dist

        here = dist.get_rank(), part
        more = sum(more for rank, name, more in self.late if (rank, name) == here)
        return float(getattr(self, part)) + more


def train(job: Job) -> None:
    """Run on each rank."""
    import torch
    import torch.distributed as dist

    from dtlab.collectives import ring_all_reduce

    buckets = [torch.ones(job.bucket) for _ in range(job.buckets)]
    for _ in range(STEPS):
        with dtlab.span("input"):
            dtlab.compute(job.seconds("input"))
        with dtlab.span("forward"):
            dtlab.compute(job.seconds("forward"))
        works = []
        for bucket in buckets:
            with dtlab.span("backward"):
                dtlab.compute(job.seconds("backward") / job.buckets)
            if job.messages:
                ring_all_reduce(bucket)
            elif job.overlap:
                works.append(dist.all_reduce(bucket, async_op=True))
            else:
                dist.all_reduce(bucket)
        for work in works:
            work.wait()
        time.sleep(job.seconds("unmarked"))
        with dtlab.span("optimizer"):
            dtlab.compute(0.002)


JOBS = {
    "compute": ("compute-bound", Job(forward=0.1)),
    "compute, two ranks": ("compute-bound", Job(ranks=2, forward=0.1)),
    "compute over the wire": (
        "compute-bound",
        Job(link=ETHERNET, bucket=100_000, buckets=2, backward=0.16, overlap=True),
    ),
    "large buckets": ("exposed communication", Job(link=ETHERNET, bucket=800_000)),
    "overlap, and too much": (
        "exposed communication",
        Job(link=ETHERNET, bucket=500_000, buckets=2, overlap=True),
    ),
    "a ring of messages": (
        "exposed communication", Job(link=ETHERNET, bucket=800_000, messages=True)
    ),
    "slow rank": ("straggler", Job(late=((2, "backward", 0.1),))),
    "rank 0 logs": ("straggler", Job(late=((0, "unmarked", 0.1),))),
    "slow rank, messages": ("straggler", Job(messages=True, late=((1, "forward", 0.1),))),
    "slow input": ("input pipeline", Job(input=0.1)),
    "slow input of one rank": ("input pipeline", Job(late=((3, "input", 0.1),))),
    "slow input, some wire": (
        "input pipeline", Job(input=0.1, link=ETHERNET, bucket=200_000)
    ),
}  # fmt: skip


def run_of(job: Job) -> Trace:
    cluster = dtlab.Cluster(nodes=1, gpus_per_node=job.ranks, intra=job.link)
    run = dtlab.launch(train, job, world_size=job.ranks, cluster=cluster)
    assert run.trace is not None
    return run.trace


# DDP under torch.profiler, on gloo ---------------------------------------------------------------


@dataclass(frozen=True)
class Profiled:
    """A training loop as a user writes it: a DataLoader, DDP, SGD and the profiler's schedule."""

    ranks: int = 2
    width: int = 256
    layers: int = 3
    batch: int = 256
    bucket_mb: float = 25
    repeats: int = 0  # of the forward pass, on rank 1
    read: float = 0.0  # seconds to read a batch


class Batches:
    """A data set whose storage is slow."""

    def __init__(self, job: Profiled) -> None:
        self.job = job

    def __len__(self) -> int:
        return PROFILED_STEPS + 1

    def __getitem__(self, index: int) -> Any:
        import torch

        time.sleep(self.job.read)
        return torch.ones(self.job.batch, self.job.width)


def profiled(job: Profiled, folder: Path) -> None:
    """Run on each rank: train, and write the profiler's trace."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule
    from torch.utils.data import DataLoader

    rank = dist.get_rank()
    layers = (torch.nn.Linear(job.width, job.width) for _ in range(job.layers))
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=job.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    plan = schedule(wait=0, warmup=1, active=PROFILED_STEPS - 1, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for samples in DataLoader(Batches(job), batch_size=None):
            for _ in range(job.repeats if rank == 1 else 0):
                model.module(samples)
            model(samples).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
            if profiler.step_num == PROFILED_STEPS:
                break
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))


PROFILED = {
    "compute": ("compute-bound", Profiled(width=128, batch=1 << 14)),
    "all-reduce": (
        "exposed communication", Profiled(ranks=4, width=16, layers=20, batch=4, bucket_mb=1e-4)
    ),
    "slow rank": ("straggler", Profiled(repeats=20)),
    "slow reading": ("input pipeline", Profiled(read=0.05)),
}  # fmt: skip


@retried
@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", PROFILED)
def test_the_planted_cause_is_named_in_a_profile(name: str, tmp_path: Path) -> None:
    planted, job = PROFILED[name]
    dtlab.launch(profiled, job, tmp_path, world_size=job.ranks)
    found = diagnose(Trace.from_chrome(sorted(tmp_path.iterdir())))
    print(found)
    assert found.verdict == planted
    assert found.steps > 0
    assert not any("The trace has" in note for note in found.notes)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", [name if n % 3 else proof(name) for n, name in enumerate(JOBS)])
def test_the_planted_cause_is_named(name: str) -> None:
    planted, job = JOBS[name]
    found = diagnose(run_of(job))
    print(found)
    assert found.verdict == planted
    for rank, _, _ in job.late:
        assert found.causes[0].ranks == (rank,)
        assert f"Rank {rank} " in found.message


# Traces built from events ------------------------------------------------------------------------


def steps_of(*ranks: tuple[Piece, ...], count: int = 3) -> Trace:
    """A trace of equal steps. A piece is a name and seconds; an all-reduce waits for all ranks."""
    clocks, events = [0.0] * len(ranks), []
    for _ in range(count):
        for pieces in zip(*ranks, strict=True):
            ready = max(clocks)
            for rank, (name, seconds) in enumerate(pieces):
                peers = tuple(other for other in range(len(ranks)) if other != rank)
                start = clocks[rank]
                if name == "all_reduce":
                    clocks[rank] = ready + seconds
                    events.append(Event(rank, "comm", name, peers, 8, start, clocks[rank]))
                else:
                    clocks[rank] += seconds
                    if name:
                        events.append(Event(rank, "compute", name, (), 0, start, clocks[rank]))
        for rank, at in enumerate(clocks):
            events.append(Event(rank, "compute", "optimizer", (), 0, at, at))
    return Trace(events)


def test_times_add_up_and_each_wait_has_its_kind() -> None:
    found = diagnose(steps_of(
        (("forward", 3.0), ("all_reduce", 1.0), ("", 0.5)),
        (("forward", 1.0), ("all_reduce", 1.0), ("", 0.5)),
        count=2,
    ))  # fmt: skip
    assert found.seconds[0] == pytest.approx({
        "compute": 3, "input": 0, "launch gaps": 0, "other": 0.5, "waiting": 0, "communication": 1,
    })  # fmt: skip
    assert found.seconds[1] == pytest.approx({
        "compute": 1, "input": 0, "launch gaps": 0, "other": 0.5, "waiting": 2, "communication": 1,
    })  # fmt: skip
    assert (found.step_seconds, found.steps) == (4.5, 2)
    straggler, exposed = found.causes
    assert (straggler.kind, straggler.ranks, straggler.seconds) == ("straggler", (0,), 2.0)
    assert (exposed.kind, exposed.seconds) == ("exposed communication", 1.0)
    assert "The others wait 2 s for it, mostly in all_reduce." in found.message


def test_two_causes_that_hide_each_other_are_both_named() -> None:
    """Without either one alone, the step stays as long."""
    found = diagnose(steps_of(
        (("input", 0.1), ("forward", 2.0), ("all_reduce", 0.1)),
        (("input", 0.1), ("forward", 1.0), ("all_reduce", 0.1)),
        (("input", 1.1), ("forward", 1.0), ("all_reduce", 0.1)),
        (("input", 0.1), ("forward", 1.0), ("all_reduce", 0.1)),
    ))  # fmt: skip
    assert {cause.kind: cause.ranks for cause in found.causes} == {
        "straggler": (0,), "input pipeline": (2,),
    }  # fmt: skip
    assert max(cause.seconds for cause in found.causes) < 0.2
    assert all(cause.seconds_last >= 1.0 for cause in found.causes)
    assert "if the other causes were gone too" in str(found)


def test_several_late_ranks_are_named_also_if_steps_differ() -> None:
    """Rank 3 is a little late, ranks 1 and 2 are much later; one step has another all-reduce."""
    fast, late = ("forward", 1.0), ("forward", 3.0)
    step = [(fast, late, late, ("forward", 1.2)), (("all_reduce", 0.01),) * 4]
    more = [*step, (("all_reduce", 0.01),) * 4]
    regular = steps_of(*zip(*step, strict=True), count=4)
    found = diagnose(regular)
    assert found.causes[0].ranks == (1, 2)
    assert "Ranks 1 and 2 compute 3 s per step, the other ranks 1.1 s." in found.message
    assert found.causes[0].seconds == pytest.approx(1.8)
    at = regular.duration
    odd = [
        replace(event, start=event.start + at, end=event.end + at)
        for event in steps_of(*zip(*more, strict=True), count=1).events
    ]
    found = diagnose(Trace([*regular.events, *odd]))
    assert found.causes[0].ranks == (1, 2)
    assert found.causes[0].seconds == pytest.approx(1.8, rel=0.1)


@pytest.mark.parametrize("name", ["forward", "input"])
def test_times_in_one_sentence_have_one_unit(name: str) -> None:
    step = [((name, 0.000531), (name, 0.157)), (("all_reduce", 1e-5),) * 2]
    message = diagnose(steps_of(*zip(*step, strict=True), count=4)).message
    assert "157 ms per step" in message and "the other ranks 0.531 ms." in message


def test_ranks_that_are_late_by_chance_are_no_stragglers() -> None:
    """On a busy machine, each rank is late now and then."""
    slow = {(1, 1), (2, 1), (3, 1), (4, 1), (6, 0)}  # step and rank
    at, events = 0.0, []
    for step in range(8):
        took = [1.4 if (step, rank) in slow else 1.0 for rank in range(2)]
        end = at + max(took)
        for rank in range(2):
            arrived = at + took[rank]
            events += [
                Event(rank, "compute", "forward", (), 0, at, arrived),
                Event(rank, "comm", "all_reduce", (1 - rank,), 8, arrived, end),
                Event(rank, "compute", "optimizer", (), 0, end, end),
            ]
        at = end
    found = diagnose(Trace(events))
    assert found.verdict == "compute-bound"
    assert found.causes == ()


def test_a_rank_that_is_late_in_every_second_step_is_a_straggler() -> None:
    logs = [("forward", 1.0), ("forward", 1.0)]
    odd = steps_of(*zip(logs, [("all_reduce", 0.01)] * 2, strict=True), count=1)
    logs[0] = ("forward", 2.0)
    even = steps_of(*zip(logs, [("all_reduce", 0.01)] * 2, strict=True), count=1)
    events: list[Event] = []
    at = 0.0
    for step in range(24):
        part = odd if step % 2 else even
        events += [replace(e, start=e.start + at, end=e.end + at) for e in part.events]
        at += part.duration
    found = diagnose(Trace(events))
    assert (found.verdict, found.causes[0].ranks) == ("straggler", (0,))


def test_ranks_that_work_one_after_the_other_wait_in_turn() -> None:
    idle, busy = ("forward", 0.1), ("forward", 1.0)
    found = diagnose(steps_of(
        (busy, ("all_reduce", 0.0), idle, ("all_reduce", 0.0)),
        (idle, ("all_reduce", 0.0), busy, ("all_reduce", 0.0)),
    ))  # fmt: skip
    assert (found.verdict, found.causes) == ("waiting in turn", ())


def test_time_without_an_event_is_called_unmarked() -> None:
    found = diagnose(steps_of((("forward", 1.0), ("", 3.0)), (("forward", 1.0), ("", 3.0))))
    assert found.verdict == "unmarked"
    assert "75 % of a step" in found.message


def test_input_that_is_loaded_during_compute_is_no_cause() -> None:
    events = []
    for step in range(4):
        at = 1.0 * step
        beside = {"thread": 1}
        events += [Event(0, "compute", "input", (), 0, at, at + 0.9, beside),
                   Event(0, "compute", "forward", (), 0, at, at + 1.0),
                   Event(0, "compute", "optimizer", (), 0, at + 1.0, at + 1.0)]  # fmt: skip
    found = diagnose(Trace(events))
    assert found.verdict == "compute-bound"
    assert found.seconds[0]["input"] == 0


def test_a_wait_in_cpp_inside_a_span_is_communication() -> None:
    """DDP's backward waits in C++ for its buckets: `blocked` is empty, and the span continues."""
    events = []
    for step in range(4):
        for rank in range(2):
            at, group = 2.0 * step, {"group": (0, 1), "blocked": ()}
            events += [
                Event(rank, "compute", "backward", (), 0, at, at + 1.5),
                Event(rank, "comm", "all_reduce", (1 - rank,), 8, at + 0.2, at + 0.8, group),
                Event(rank, "comm", "all_reduce", (1 - rank,), 8, at + 0.5, at + 1.4, group),
                Event(rank, "compute", "optimizer", (), 0, at + 1.5, at + 2.0),
            ]
    found = diagnose(Trace(events))
    assert found.verdict == "exposed communication"
    assert found.seconds[1]["communication"] == pytest.approx(1.4 - 0.5)
    assert found.seconds[1]["compute"] == pytest.approx(2.0 - 0.9)


def on_gpu(kernel: float, gap: float, kernels: int, loading: float = 0.0) -> Trace:
    """Steps of equal kernels with gaps, as a profiler records them on a GPU."""
    events, at = [], 0.0
    for step in range(4):
        begin = at
        mark = {"annotation": True, "busy": False}
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events.append(Event(0, "compute", name, (), 0, at, at + loading, mark))
        at += loading
        for _ in range(kernels):
            stream = {"stream": 7, "thread": 1}
            events.append(Event(0, "compute", "gemm", (), 0, at, at + kernel, stream))
            at += kernel + gap
        events.append(Event(0, "compute", f"ProfilerStep#{step}", (), 0, begin, at, mark))
    return Trace(events)


def test_launch_gaps_are_times_in_which_a_gpu_has_no_kernel() -> None:
    found = diagnose(on_gpu(kernel=20e-6, gap=30e-6, kernels=100))
    assert found.verdict == "launch gaps"
    assert "in 100 gaps of 30 µs" in found.message
    assert found.advice[0].startswith("Launch fewer, longer kernels")
    assert found.causes[0].seconds == pytest.approx(3e-3)
    found = diagnose(on_gpu(kernel=5e-3, gap=5e-3, kernels=2))
    assert found.advice[0].startswith("Look for what the CPU does in the gaps")


def test_a_gpu_that_waits_for_its_input_or_computes_has_no_launch_gaps() -> None:
    found = diagnose(on_gpu(kernel=1e-3, gap=1e-6, kernels=10, loading=30e-3))
    assert found.verdict == "input pipeline"
    assert found.seconds[0]["input"] == pytest.approx(30e-3)
    assert diagnose(on_gpu(kernel=1e-3, gap=1e-6, kernels=10)).verdict == "compute-bound"


def test_one_rank_of_eight_is_analyzed_as_far_as_possible() -> None:
    group = {"group": tuple(range(8))}
    events = []
    for step in range(4):
        at = 2.0 * step
        events += [Event(3, "compute", "forward", (), 0, at, at + 1.0),
                   Event(3, "comm", "all_reduce", (), 8, at + 1.0, at + 2.0, group),
                   Event(3, "compute", "optimizer", (), 0, at + 2.0, at + 2.0)]  # fmt: skip
    found = diagnose(Trace(events, world_size=8))
    assert list(found.seconds) == [3]
    assert found.seconds[3]["communication"] == pytest.approx(1.0)
    (note,) = found.notes
    assert note.startswith("The trace has rank 3 of 8.")
    assert "cannot be told apart" in note
    assert found.verdict == "communication or late ranks"
    assert found.advice[0].startswith("Give the files of all ranks")


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    steps_of(
        (("forward", 3.0), ("all_reduce", 1.0)), (("forward", 1.0), ("all_reduce", 1.0))
    ).to_chrome(path)
    return path


def test_the_command_prints_the_table_the_cause_and_what_to_try(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "compute   input   waiting   communication   other" in out
    assert "Likely cause: straggler. Rank 0 computes 3 s per step, the other ranks 1 s." in out
    assert "  Without it, a step would be 2 s (50 %) shorter." in out
    assert "  try: Give rank 0 as much work as the others" in out
    assert max(map(len, out.splitlines())) < 100
    assert not err


def test_json_names_its_units(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--json", str(file.parent)]) == 0  # a folder
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "straggler"
    assert told["causes"][0]["ranks"] == [0]
    assert told["ranks"][1]["waiting_seconds"] == pytest.approx(2.0)
    assert told["step_seconds"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("[1, 2", "is not a complete JSON file"),
        ('{"a": 1}', "is not a trace"),
        (
            '{"traceEvents": [], "dtlab": {"world_size": 2, "emulated": "", "wire": []}}',
            "has no events",
        ),
        ('{"traceEvents": []}', "has no operations"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_a_sentence(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    assert main(["analyze", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"dtlab analyze: {path}")
    assert message in err


def test_a_folder_without_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(tmp_path)]) == 1
    assert "has no files .json or .json.gz" in capsys.readouterr().err


def test_a_long_analysis_prints_a_notice(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dtlab.cli.analyze.PATIENCE", 0.0)
    told = threading.Event()
    read = Trace.from_chrome
    monkeypatch.setattr("builtins.print", lambda *args, **_: told.set())
    monkeypatch.setattr(Trace, "from_chrome", lambda files, **_: told.wait(10) and read(files))
    assert main(["analyze", str(file)]) == 0
    assert told.is_set()


def test_a_diagnosis_needs_no_torch() -> None:
    code = "import sys, dtlab.profiling.diagnosis; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
