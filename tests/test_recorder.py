"""Traces of real ranks, compared with what the ranks did.

Fresh ranks import this module, so what is slow to import is imported where it is used.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce  # by name, before a recording starts
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import dtlab
from dtlab import errors
from dtlab.ranks.record.journal import Journal
from dtlab.ranks.record.recorder import Recorder
from dtlab.trace import Trace
from tests.marks import retried


@pytest.fixture(autouse=True)
def compiler_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing FSDP2 makes this folder, which else would stay behind."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def traced(fn: Any, *args: Any, world_size: int = 2) -> Trace:
    trace = dtlab.launch(fn, *args, world_size=world_size).trace
    assert trace is not None
    return trace


# ------------------------------------------------------------------------- every operation


def _every_operation() -> None:
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    one, two = torch.ones(4), torch.ones(8)
    shards = [torch.ones(4), torch.ones(4)]
    dist.all_reduce(one)
    dist.reduce(one, dst=0)
    dist.broadcast(one, src=1)
    dist.all_gather(shards, one)
    dist.all_gather_into_tensor(two, one)
    dist.reduce_scatter(one, shards)
    dist.reduce_scatter_tensor(one, two)
    dist.gather(one, shards if rank == 0 else None, dst=0)
    dist.scatter(one, shards if rank == 0 else None, src=0)
    dist.all_to_all(shards, [one, one])
    dist.all_to_all_single(torch.empty(8), two)
    dist.barrier()
    dist.monitored_barrier()
    if rank == 0:
        dist.send(one, other, tag=3)
        dist.recv(one, other)
    else:
        assert dist.recv(one, tag=3) == 0  # from any source
        dist.send(one, other)
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, one, other), dist.P2POp(dist.irecv, two[:4], other),
    ]):  # fmt: skip
        work.wait()


@pytest.mark.slow
def test_every_operation_is_recorded_once_with_its_size_and_line() -> None:
    trace = traced(_every_operation)
    ones = ("all_reduce", "reduce", "broadcast", "gather", "scatter", "barrier")
    for rank in range(2):
        seen = trace.ops(rank)
        # gloo's monitored_barrier sends further messages
        assert {name: seen[name] for name in ones} == dict.fromkeys(ones, 1)
        twos = ("all_gather", "reduce_scatter", "all_to_all", "send", "recv")
        assert {name: seen[name] for name in twos} == dict.fromkeys(twos, 2)
        assert seen["monitored_barrier"] == 1
        assert seen.total() == len(ones) + 2 * len(twos) + 1
    sizes = {event.name: event.bytes for event in trace.events if event.rank == 0}
    assert sizes == {
        "all_reduce": 16, "reduce": 16, "broadcast": 16, "all_gather": 32, "reduce_scatter": 32,
        "gather": 32, "scatter": 32, "all_to_all": 32, "barrier": 0, "monitored_barrier": 0,
        "send": 16, "recv": 16,
    }  # fmt: skip
    lines, first = inspect.getsourcelines(_every_operation)
    for event in trace.events:
        assert event.extra["file"] == __file__
        assert event.extra["group"] == (0, 1)
        assert event.name in "".join(lines[event.extra["line"] - first :][:3])
    messages = [event for event in trace.events if event.name in ("send", "recv")]
    assert all(event.peers == (1 - event.rank,) for event in messages)
    assert Counter(event.extra["tag"] for event in messages) == {3: 2, 0: 6}


def _without_gradients() -> None:
    with torch.no_grad():
        dist.all_reduce(torch.ones(2))
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2, requires_grad=True).detach())
    dist.all_reduce(torch.ones(2, dtype=torch.bfloat16))
    dist.all_gather_object([None, None], {"a": 1})


@pytest.mark.slow
def test_recorded_whatever_autograd_is_doing() -> None:
    trace = traced(_without_gradients)
    assert trace.ops(0) == Counter(all_reduce=4, all_gather=2)
    assert [e.extra["dtype"] for e in trace.events if e.rank == 0][3] == "bfloat16"


def _in_subgroups() -> None:
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    dist.all_reduce(torch.ones(1), group=pairs[rank % 2])
    if rank == 1:
        dist.send(torch.ones(1), group=pairs[1], group_dst=1)
    if rank == 3:
        dist.recv(torch.ones(1), group=pairs[1], group_src=0)


@pytest.mark.slow
def test_groups_and_peers_are_global_ranks() -> None:
    trace = traced(_in_subgroups, world_size=4)
    groups = {e.rank: (e.extra["group"], e.peers) for e in trace.events if e.name == "all_reduce"}
    assert groups == {
        0: ((0, 2), (2,)), 1: ((1, 3), (3,)), 2: ((0, 2), (0,)), 3: ((1, 3), (1,)),
    }  # fmt: skip
    assert [trace.peers(rank) for rank in range(4)] == [set(), {3}, set(), {1}]


# ---------------------------------------------------------------------- methods and dispatcher


class _Seen(TorchDispatchMode):
    """Counts the operators of c10d, as torch's own tools do (CommDebugMode)."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def _one_of_each(tensor: torch.Tensor, async_op: bool = False) -> None:
    """Every operation that the methods record: 7 of them, one a receive from any source."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    with torch.no_grad():
        double = torch.cat([tensor, tensor])
    for work in (
        all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=async_op),
        dist.broadcast(tensor, src=1, async_op=async_op),
        dist.reduce(tensor, dst=0, async_op=async_op),
        dist.all_gather_into_tensor(double, tensor.detach(), async_op=async_op),
        dist.reduce_scatter_tensor(tensor.detach(), double, async_op=async_op),
    ):
        assert (work is not None) == async_op
        if work is not None:
            work.wait()
    if rank == 0:
        dist.send(tensor, other, tag=2)
        dist.recv(tensor.detach())
    else:
        dist.recv(tensor.detach(), other, tag=2)
        dist.send(tensor, other)


ONE_OF_EACH = Counter(
    all_reduce=1, broadcast=1, reduce=1, all_gather=1, reduce_scatter=1, send=1, recv=1
)


def _ways_taken(kind: str) -> tuple[Counter[str], int]:
    """Which of the recorder's functions ran, and how many operators a mode saw."""
    ran: Counter[str] = Counter()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("interception.py"):
            ran[frame.f_code.co_name] += 1

    tensor = torch.ones(4, requires_grad=kind == "gradient")
    mode, profile = _Seen(), torch.profiler.profile()
    inside = {"mode": mode, "profiler": profile, "inference": torch.inference_mode()}
    with inside.get(kind, contextlib.nullcontext()), torch.set_grad_enabled(False):
        sys.setprofile(watch)
        _one_of_each(tensor, async_op=kind == "asynchronous")
        sys.setprofile(None)
    return ran, len(mode.names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ordinary", "asynchronous", "inference"])
def test_an_ordinary_operation_is_recorded_once_by_its_method(kind: str) -> None:
    run = dtlab.launch(_ways_taken, kind, world_size=2)
    assert run.trace is not None
    assert [run.trace.ops(rank) for rank in range(2)] == [ONE_OF_EACH] * 2
    for ran, _ in run.values:
        assert ran["method"] == 7
        assert ran["kernel"] == 0
    line = inspect.getsourcelines(_one_of_each)[1]
    lines = {e.name: e.extra["line"] - line for e in run.trace.events if e.rank == 0}
    assert lines == {"all_reduce": 6, "broadcast": 7, "reduce": 8, "all_gather": 9,
                     "reduce_scatter": 10, "send": 16, "recv": 17}  # fmt: skip


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kernels"), [("mode", 7), ("profiler", 7), ("gradient", 4)])
def test_under_modes_and_profilers_operations_pass_the_dispatcher(
    kind: str, kernels: int
) -> None:
    run = dtlab.launch(_ways_taken, kind, world_size=2)
    assert run.trace is not None
    assert [run.trace.ops(rank) for rank in range(2)] == [ONE_OF_EACH] * 2
    for ran, by_mode in run.values:
        assert ran["kernel"] == kernels
        assert by_mode == (7 if kind == "mode" else 0)


def _called_in_other_ways() -> list[Any]:
    """The methods take other arguments too; and tensors are not always what they hold."""
    group = dist.distributed_c10d._get_default_group()
    one = torch.ones(2)
    group.allreduce(one).wait()
    group.allreduce([one], dist.ReduceOp.MAX).wait()
    group.allreduce(tensors=[one], opts=dist.AllreduceOptions()).wait()
    group.broadcast(one, 0).wait()
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag  # lazily: memory has 2 and 4
    dist.broadcast(negated, src=0)
    sparse = torch.ones(4).to_sparse()
    dist.all_reduce(sparse)
    averaged = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
    many = [torch.ones(1), torch.ones(2)]
    dist.all_reduce_coalesced(many)
    dist.broadcast_object_list([1, "a"], src=0)
    return [one.tolist(), negated.tolist(), sparse.to_dense().tolist(), averaged.tolist()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_operations_called_in_other_ways_are_right_and_recorded_once() -> None:
    run = dtlab.launch(_called_in_other_ways, world_size=2)
    assert run.values == [[[4.0, 4.0], [-2.0, -4.0], [2.0] * 4, [0.5, 0.5]]] * 2
    assert run.trace is not None
    assert run.trace.ops(0) == Counter(all_reduce=3 + 1 + 1 + 1, broadcast=1 + 1 + 2)


def _refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="[Tt]ag"):
        dist.send(torch.ones(1), 1 - dist.get_rank(), tag=-1)
    dist.barrier()


@pytest.mark.slow
def test_an_operation_that_the_backend_refuses_has_ended() -> None:
    trace = traced(_refused)
    assert trace.ops(0) == Counter(send=1, barrier=1)
    own = {event.name: event for event in trace.events if event.rank == 0}
    refused, after = own["send"], own["barrier"]
    assert refused.end <= after.start


def _left_behind() -> list[str]:
    """Names of everything that differs after a recording that ended with an exception."""
    before = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    recorder = Recorder(dist.get_rank())
    recorder.start()
    changed = [name for name in before[0] if vars(dist.ProcessGroup)[name] is not before[0][name]]
    assert {"allreduce", "broadcast", "reduce", "send", "recv", "recv_anysource"} <= {*changed}
    try:
        dist.all_reduce("no tensor")  # type: ignore[arg-type]
    except TypeError:
        recorder.stop()
    dist.all_reduce(torch.ones(1))
    after = vars(dist.ProcessGroup), vars(dist.Work)
    return [
        name for old, new in zip(before, after, strict=True) for name in {*old, *new}
        if old.get(name) is not new.get(name)
    ]  # fmt: skip


@pytest.mark.slow
def test_nothing_is_left_in_torch_after_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTLAB_UNWATCHED", "1")
    assert dtlab.launch(_left_behind, world_size=2, trace=False).values == [[], []]


# -------------------------------------------------------------- issued by torch's own engines


def _ddp(steps: int) -> None:
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(8, 8) for _ in range(10))), bucket_cap_mb=1e-5
    )
    model.register_comm_hook(None, _reduce_in_python) if steps < 0 else None
    for _ in range(abs(steps)):
        model(torch.ones(2, 8)).sum().backward()
        with dtlab.span("after"):
            torch.ones(100).sum()


def _reduce_in_python(state: Any, bucket):  # type: ignore[no-untyped-def]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


@pytest.mark.slow
def test_ddp_is_recorded_and_its_operations_end() -> None:
    trace = traced(_ddp, 2)
    reductions = [e for e in trace.events if e.rank == 0 and e.name == "all_reduce"]
    assert len(reductions) == 1 + 20  # DDP makes its buckets anew after the first step
    assert sum(event.bytes for event in reductions) == 2 * 10 * (64 + 8) * 4
    for after in (e for e in trace.events if e.rank == 0 and e.name == "after"):
        assert all(e.end <= after.start for e in reductions if e.start < after.start)
    line = inspect.getsourcelines(_ddp)[1]
    assert {e.extra["line"] - line for e in reductions} == {6}


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("steps", [300, -300])
def test_ddp_does_not_deadlock(steps: int) -> None:
    """20 all-reduces a step, 6,000 in all; also from a hook in Python."""
    trace = traced(_ddp, steps)
    assert trace.ops(0)["all_reduce"] == 1 + 20 * 299


def _fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 8)).sum().backward()


@pytest.mark.slow  # importing it takes a second
def test_fsdp2_is_recorded() -> None:
    seen = traced(_fsdp).ops(0)
    assert seen["all_gather"] == 4  # each layer, before forward and before backward
    assert seen["reduce_scatter"] == 2


def _dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    split = distribute_tensor(torch.ones(1 << 18, 4), mesh, [Shard(0)], src_data_rank=None)
    (split.sum(dim=0) + 1).redistribute(mesh, [Replicate()]).to_local()
    if dist.get_rank():
        time.sleep(0.3)
    split.redistribute(mesh, [Replicate()]).to_local() + 1


@pytest.mark.slow  # importing it takes a second
def test_dtensor_is_recorded_and_its_waits_too() -> None:
    trace = traced(_dtensor)
    assert trace.ops(0) == Counter(all_reduce=1, all_gather=1)
    gather = next(e for e in trace.events if e.rank == 0 and e.name == "all_gather")
    assert sum(end - start for start, end in gather.extra["blocked"]) > 0.1
    assert trace.idle(0) > 0.1


def _pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    stage = PipelineStage(nn.Linear(8, 8), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    x = torch.ones(8, 8)
    schedule.step(x) if rank == 0 else schedule.step(target=x)


@pytest.mark.slow  # importing it takes a second
def test_pipelining_is_recorded() -> None:
    trace = traced(_pipeline)
    activations = 2 * 8 * 4
    for rank in range(2):
        sent = [
            e for e in trace.events
            if e.rank == rank and e.name == "send" and e.bytes == activations
        ]  # fmt: skip
        assert len(sent) == 4
    assert trace.peers(0) == {1}


def _fails_to_issue() -> None:
    with pytest.raises(RuntimeError):  # gloo sends one tensor at a time
        peer = 1 - dist.get_rank()
        dist.distributed_c10d._get_default_group().send([torch.ones(1), torch.ones(1)], peer, 0)
    with dtlab.span("after"):
        time.sleep(0.05)


@pytest.mark.slow
def test_an_operation_that_raises_has_ended() -> None:
    trace = traced(_fails_to_issue)
    assert all(e.end - e.start < 0.04 for e in trace.events if e.kind == "comm")
    assert trace.ops(0) == Counter(send=1)


# ------------------------------------------------------------------------------- threads, time


def _from_threads() -> None:
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    all_there = threading.Barrier(4)  # the system gives the number of one that has gone again

    def talk(group: Any) -> None:
        all_there.wait()
        with dtlab.span("mine", thread=group.group_name):
            for _ in range(50):
                dist.all_reduce(torch.ones(1), group=group)

    threads = [threading.Thread(target=talk, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_operations_and_spans_of_other_threads() -> None:
    trace = traced(_from_threads)
    assert trace.ops(0) == Counter(all_reduce=200)
    spans = [event for event in trace.events if event.kind == "compute" and event.rank == 0]
    assert len(spans) == 4
    threads = Counter(e.extra["thread"] for e in trace.events if e.rank == 0 and e.kind == "comm")
    assert list(threads.values()) == [50] * 4


def _overlapped() -> None:
    tensor = torch.ones(1 << 18)
    dist.barrier()
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(0.2)
    with dtlab.span("wait"):
        work.wait()
    sending = dist.isend(tensor, 1 - dist.get_rank())
    dist.recv(torch.empty_like(tensor), 1 - dist.get_rank())
    time.sleep(0.05)
    sending.wait()
    dist.all_reduce(tensor, async_op=True)
    time.sleep(0.1)


@pytest.mark.slow
def test_asynchronous_operations_run_from_issue_to_completion() -> None:
    trace = traced(_overlapped)
    mine = [event for event in trace.events if event.rank == 0]
    _, reduced, wait, sent, received, forgotten = mine
    assert reduced.end < wait.start - 0.05  # known by its future, long before the rank waits
    assert sum(end - start for start, end in reduced.extra["blocked"]) < 0.05
    assert sent.end - sent.start > 0.05  # a message: until the wait returned
    assert received.end < sent.end
    assert forgotten.extra["blocked"] == []
    assert forgotten.end < trace.duration + 1e-9
    assert forgotten.end - forgotten.start < 0.09


def _late() -> None:
    rank = dist.get_rank()
    dist.barrier()
    with dtlab.span("forward", microbatch=3, device=torch.device("cpu")):
        time.sleep(0.1 if rank else 0.02)
    if rank:
        dist.send(torch.ones(1), 0)
    else:
        dist.recv(torch.ones(1), 1)


@retried
@pytest.mark.slow
def test_a_late_sender_makes_the_receiver_idle() -> None:
    trace = traced(_late)
    span = next(e for e in trace.events if e.kind == "compute" and e.rank == 0)
    assert (span.name, span.extra) == ("forward", {"microbatch": 3, "device": "cpu"})
    assert 0.02 <= trace.busy(0) < 0.08
    assert trace.idle(0) > 0.05 > trace.exposed_comm(0)
    for rank in range(2):
        parts = trace.busy(rank) + trace.exposed_comm(rank) + trace.idle(rank)
        assert parts == pytest.approx(trace.duration)


def _clocks() -> list[float]:
    """Ping-pong: at the least round trip, the middle of it is when the other read its clock."""
    rank, message = dist.get_rank(), torch.zeros(1, dtype=torch.float64)
    offsets = []
    for _ in range(200):
        if rank == 0:
            start = time.perf_counter()
            dist.send(message, 1)
            dist.recv(message, 1)
            end = time.perf_counter()
            offsets.append((end - start, message.item() - (start + end) / 2))
        else:
            dist.recv(message, 0)
            message[0] = time.perf_counter()
            dist.send(message, 0)
    return [min(offsets)[1]] if offsets else []


@retried
@pytest.mark.slow
def test_clocks_of_ranks_agree_to_a_fifth_of_a_millisecond() -> None:
    run = dtlab.launch(_clocks, world_size=2)
    assert abs(run.values[0][0]) < 0.0002
    trace = run.trace
    sends = [e for e in trace.events if e.rank == 0 and e.name == "send"]
    receives = [e for e in trace.events if e.rank == 1 and e.name == "recv"]
    # Nothing arrives before it was sent, and the fastest arrives soon.
    delays = [b.end - a.start for a, b in zip(sends, receives, strict=True)]
    assert 0 < min(delays) < 0.003


def _from_threads_without_frames() -> tuple[list[Any], list[Any]]:
    import _thread

    errors: list[Any] = []
    sys.unraisablehook = lambda error: errors.append(error.exc_value)
    group, parts = dist.group.WORLD, [torch.zeros(4), torch.zeros(4)]
    by_method, options = torch.ones(3), dist.AllreduceOptions()
    options.asyncOp = True
    ops = torch.ops
    functional = ops._c10d_functional.all_reduce(torch.ones(5), "sum", group.group_name)
    work = dist.all_reduce(torch.ones(6), async_op=True)
    for function, args in (
        (group.allreduce, ([by_method], options)),
        (ops.c10d.allgather_.default._op, ([parts], [torch.ones(4)], group.boxed(), True, -1)),
        (work.is_completed, ()),
        (work.wait, ()),
        (ops._c10d_functional.wait_tensor.default._op, (functional,)),
    ):
        _thread.start_new_thread(function, args)  # the hook is the only Python frame
        time.sleep(0.1)
    return errors, [by_method.tolist(), torch.stack(parts).tolist(), functional.tolist()]


@pytest.mark.slow
def test_hooks_may_be_called_without_a_python_frame() -> None:
    """DDP does so on a GPU, where backward runs on a thread of C++."""
    run = dtlab.launch(_from_threads_without_frames, world_size=2)
    assert run.values == [([], [[2.0] * 3, [[1.0] * 4] * 2, [2.0] * 5])] * 2
    assert run.trace.ops(0) == {"all_reduce": 3, "all_gather": 1}


# ---------------------------------------------------------------------------- bytes on the wire


def _ring(count: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((count,), float(rank))
    chunks = list(tensor.chunk(world))
    for turn in range(2 * (world - 1)):
        out, into = (rank - turn) % world, (rank - turn - 1) % world
        work = dist.isend(chunks[out], (rank + 1) % world)
        received = torch.empty_like(chunks[into])
        dist.recv(received, (rank - 1) % world)
        assert work is not None
        work.wait()
        chunks[into].copy_(chunks[into] + received if turn < world - 1 else received)
    return tensor[:1]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_bytes_on_the_wire_agree_with_the_rings_arithmetic(world: int) -> None:
    size = 4 << 20
    run = dtlab.launch(_ring, size // 4, world_size=world)
    assert run.values[0].item() == sum(range(world))
    trace = run.trace
    for rank in range(world):
        expected = 2 * (world - 1) * size // world
        assert trace.bytes_sent(rank) == expected
        assert trace.bytes_wire(rank) == pytest.approx(expected, rel=0.005)
        assert trace.rounds(rank) == 2 * (world - 1)
        assert trace.peers(rank) == {(rank + 1) % world, (rank - 1) % world}


def _hidden() -> None:
    """Calls the backend directly, past the recorder."""
    group = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.device("cpu")).allreduce([torch.ones(1 << 20)]).wait()


@pytest.mark.slow
def test_the_wire_sees_what_goes_around_the_recorder() -> None:
    trace = traced(_hidden)
    assert trace.ops() == Counter()
    assert min(trace.bytes_wire()) > 4e6


# --------------------------------------------------------------------------- beginning and end


def _again() -> list[Any]:
    """Record several times in one process, as under torchrun, once with a limit."""
    plain, seen = dist.Work.wait, []
    for limit in (1_000, 2):
        dist.all_reduce(torch.ones(1))
        recorder = Recorder(dist.get_rank(), limit=limit)
        recorder.start()
        try:
            Recorder(dist.get_rank()).start()
        except RuntimeError as error:
            seen.append(str(error))
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        with dtlab.span("s"):
            pass
        records = recorder.stop()
        seen.append((len(records.comm), len(records.spans), records.dropped))
    seen.append(dist.Work.wait is plain)
    seen.append(len(Recorder(0).stop().comm))  # never started
    return seen


@pytest.mark.slow
def test_recording_can_be_repeated_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTLAB_UNWATCHED", "1")
    running = "A dtlab recorder is already running in this process."
    values = dtlab.launch(_again, world_size=2, trace=False).values
    assert values == [[running, (3, 1, 0), running, (2, 1, 1), True, 0]] * 2


def _fails() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError("no")


def test_a_failed_rank_leaves_its_error_alone() -> None:
    with pytest.raises(errors.RankError, match="ValueError: no"):
        dtlab.launch(_fails, world_size=2)


def _keeps_nothing() -> int:
    """Tensors of finished operations must go, or memory would grow with every step."""
    import gc
    import weakref

    alive = []
    for _ in range(20):
        tensor = torch.ones(1000)
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        sent = dist.isend(tensor, 1 - dist.get_rank())
        dist.recv(torch.empty(1000), 1 - dist.get_rank())
        sent.wait()
        alive.append(weakref.ref(tensor))
        del tensor, work, sent
    until = time.monotonic() + 2.0  # gloo's threads hold the last ones until they run again
    while (left := _living(alive)) > 1 and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    return left


def _living(references: Sequence[Callable[[], object]]) -> int:
    return sum(reference() is not None for reference in references)


@pytest.mark.slow
def test_finished_operations_hold_no_tensors() -> None:
    assert max(dtlab.launch(_keeps_nothing, world_size=2).values) <= 1


@pytest.mark.slow
def test_chrome_file_of_a_real_run(tmp_path: Path) -> None:
    trace = traced(_late)
    trace.to_chrome(tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in entries if e["ph"] == "X"} == {"barrier", "forward", "send", "recv"}
    assert sum(e["ph"] == "s" for e in entries) == 1


# ------------------------------------------------------------------------- threads that continue


def test_records_are_taken_while_another_thread_continues() -> None:
    """What it does after its operations have been read is left out of these records."""
    journal = Journal(world_size=1, limit=100)
    journal._members.append(("world", (0,)))

    def operate(index: int) -> None:
        row = (index, 0, 0, -1, 0, 4, -1, threading.get_ident(), -1, 0, time.perf_counter_ns())
        journal._issued.append(row)
        journal.block(index, row[-1])
        journal.end(index, row[-1])
        journal.source(index, 0)

    class Growing(list[tuple[int, ...]]):
        def __iter__(self) -> Any:
            rows = [*super().__iter__()]
            operate(len(rows))
            return iter(rows)

    journal._issued = Growing()
    operate(0)
    records = journal.records(0)
    assert len(records.comm) == len(records.blocked) == 1


# ------------------------------------------------------------------------- where it fails


def test_an_error_of_the_recorder_is_named() -> None:
    """The error has more than the rank's exit status, which does not explain it."""

    def breaks_the_recorder() -> None:
        def stop(_: Recorder) -> None:
            raise RuntimeError("the recorder cannot stop")

        Recorder.stop = stop  # type: ignore[assignment]

    with pytest.raises(errors.RankError, match="the recorder cannot stop"):
        dtlab.launch(breaks_the_recorder, world_size=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("is_async", [False, True])
def test_all_reduces_on_a_gpu_are_recorded(is_async: bool) -> None:
    """NCCL returns no Work for an operation that is not asynchronous."""

    def on_a_gpu() -> float:
        tensor = torch.full((1000,), 2.0, device="cuda")
        work = dist.all_reduce(tensor, async_op=is_async)
        if work is not None:
            work.wait()
        return float(tensor.sum())

    run = dtlab.launch(on_a_gpu, world_size=1)
    assert "nccl" in run.backend
    assert run.values == [2000.0]
    assert [(event.name, event.bytes) for event in run.trace.events] == [("all_reduce", 4000)]
