"""Correct programs, in the patterns of PyTorch's own tutorials: none may ever raise an alarm.

Each is a plain function that runs on every rank, has no parameters and does not use dtlab.
`PROGRAMS` holds them all by name; `world_size` says on how many ranks each is meant to run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

Function = Callable[[], object]


@dataclass(frozen=True)
class Program:
    """A function, on how many ranks it runs, and whether it takes a second or more.

    A `shared` one leaves the ranks as they were, so that it may run with others in one launch.
    """

    function: Function
    world_size: int
    heavy: bool
    shared: bool = False


PROGRAMS: dict[str, Program] = {}


def program(
    world_size: int, *, heavy: bool = False, shared: bool = False
) -> Callable[[Function], Function]:
    """Put a function into `PROGRAMS`."""

    def add(function: Function) -> Function:
        PROGRAMS[function.__name__] = Program(function, world_size, heavy, shared)
        return function

    return add


# ---------------------------------------------------------------------------- messages


@program(2)
def blocking_pair() -> None:
    """Rank 0 sends, rank 1 receives: the first example of the tutorial on writing applications."""
    tensor = torch.zeros(1)
    if dist.get_rank() == 0:
        tensor += 1
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    assert tensor.item() == 1


@program(2)
def non_blocking_pair() -> None:
    """Both ranks send and receive with isend and irecv at once, with tags."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    inbox = [torch.zeros(8) for _ in range(3)]
    works = [dist.irecv(inbox[tag], src=other, tag=tag) for tag in (2, 0, 1)]
    works += [dist.isend(torch.full((8,), 10.0 * rank + tag), other, tag=tag) for tag in range(3)]
    for work in works:
        work.wait()
    assert [box[0].item() for box in inbox] == [10.0 * other + tag for tag in range(3)]


@program(2)
def ping_pong() -> None:
    """One message that is sent back and forth fifty times."""
    rank, ball = dist.get_rank(), torch.zeros(1)
    for turn in range(50):
        if turn % 2 == rank:
            ball += 1
            dist.send(ball, 1 - rank)
        else:
            dist.recv(ball, 1 - rank)
    assert ball.item() == 50


@program(4)
def ring_of_isends() -> None:
    """A sum around a ring: post the send, receive, wait for the send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = torch.full((1000,), float(rank))
    total, incoming = outgoing.clone(), torch.empty(1000)
    for _ in range(size - 1):
        work = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        work.wait()
        total += incoming
        outgoing = incoming.clone()
    assert total[0].item() == sum(range(size))


@program(3)
def ring_with_an_odd_one_out() -> None:
    """A blocking ring is correct where one rank receives first."""
    rank, size, token = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
    for _ in range(5):
        if rank == 0:
            dist.send(token + 1, 1)
            dist.recv(token, size - 1)
        else:
            dist.recv(token, rank - 1)
            dist.send(token + 1, (rank + 1) % size)
    assert token.item() == 5 * size - (size - rank if rank else 0)


@program(4, heavy=True)
def long_relay() -> None:
    """All but one rank wait for 1.5 seconds, and each passes on what it gets."""
    rank, baton = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        time.sleep(1.5)
    else:
        dist.recv(baton, rank - 1)
    if rank < dist.get_world_size() - 1:
        dist.send(baton + 1, rank + 1)
    dist.barrier()
    assert baton.item() == rank


@program(4)
def batch_of_neighbours() -> None:
    """Halo exchange with batch_isend_irecv."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    mine, from_left, from_right = torch.full((4,), float(rank)), torch.empty(4), torch.empty(4)
    for _ in range(5):
        operations = [
            dist.P2POp(dist.isend, mine, left, tag=1),
            dist.P2POp(dist.isend, mine, right, tag=2),
            dist.P2POp(dist.irecv, from_left, left, tag=2),
            dist.P2POp(dist.irecv, from_right, right, tag=1),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert (from_left[0].item(), from_right[0].item()) == (left, right)


@program(4)
def receive_from_any_source() -> None:
    """Rank 0 takes results in the order in which they come."""
    rank, size, seen = dist.get_rank(), dist.get_world_size(), []
    if rank == 0:
        for _ in range(2 * (size - 1)):
            box = torch.zeros(1)
            seen.append((dist.recv(box), int(box.item())))
        assert sorted(seen) == sorted((r, 10 * r + i) for r in range(1, size) for i in range(2))
    else:
        for number in range(2):
            time.sleep(0.02 * (size - rank))
            dist.send(torch.tensor([10.0 * rank + number]), 0)


@program(3)
def parameter_server() -> None:
    """Rank 0 serves parameters on request; workers request, compute, and say when they stop."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        weights, working = torch.zeros(4), size - 1
        while working:
            gradient = torch.zeros(5)  # the last entry: whether this worker stops
            worker = dist.recv(gradient)
            weights -= 0.1 * gradient[:4]
            working -= int(gradient[4].item())
            dist.send(weights, worker)
        assert torch.allclose(weights, torch.full((4,), -0.1 * 10 * (size - 1)))
    else:
        weights = torch.zeros(4)
        for step in range(10):
            stop = torch.tensor([float(step == 9)])
            dist.send(torch.cat([torch.ones(4), stop]), 0)
            dist.recv(weights, 0)


@program(2)
def object_messages() -> None:
    """Python objects from rank to rank: send_object_list and recv_object_list."""
    if dist.get_rank() == 0:
        dist.send_object_list([{"step": 3}, "text", 2.5], dst=1)
    else:
        objects: list[object] = [None] * 3
        dist.recv_object_list(objects, src=0)
        assert objects == [{"step": 3}, "text", 2.5]


@program(2)
def large_messages() -> None:
    """120 MB in each direction at once, then 100 MB one way."""
    other, box = 1 - dist.get_rank(), torch.empty(30_000_000)
    work = dist.isend(torch.full((30_000_000,), float(dist.get_rank())), other)
    dist.recv(box, other)
    work.wait()
    assert box[-1].item() == other
    if dist.get_rank() == 0:
        dist.send(box[:25_000_000], other)
    else:
        dist.recv(box[:25_000_000], other)


# ---------------------------------------------------------------------------- collectives


@program(4)
def every_collective() -> None:
    """Broadcast, scatter, gather, reduce, all_reduce, all_gather, and barriers."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, src=2)
    assert tensor[0].item() == 2
    share = torch.empty(2)
    parts = [torch.full((2,), float(r)) for r in range(size)] if rank == 1 else None
    dist.scatter(share, parts, src=1)
    assert share[0].item() == rank
    into = [torch.empty(2) for _ in range(size)] if rank == 3 else None
    dist.gather(share, into, dst=3)
    total = share.clone()
    dist.reduce(total, dst=0, op=dist.ReduceOp.MAX)
    dist.all_reduce(share, op=dist.ReduceOp.PRODUCT)
    assert share[0].item() == 0
    everyone = [torch.empty(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(everyone, torch.tensor([rank]))
    assert torch.cat(everyone).tolist() == list(range(size))
    dist.barrier()


@program(4)
def pieces_for_all() -> None:
    """all_to_all, reduce_scatter and all_gather_into_tensor, in even and uneven pieces."""
    rank, size = dist.get_rank(), dist.get_world_size()
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(size) + 10.0 * rank)
    assert out.tolist() == [10.0 * r + rank for r in range(size)]
    lengths = [r + 1 for r in range(size)]
    mine = torch.empty(size * (rank + 1))
    dist.all_to_all_single(mine, torch.ones(sum(lengths)), [rank + 1] * size, lengths)
    boxes = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(boxes, [torch.full((2,), float(rank)) for _ in range(size)])
    piece = torch.empty(5)
    dist.reduce_scatter_tensor(piece, torch.ones(5 * size))
    assert piece[0].item() == size
    whole = torch.empty(5 * size)
    dist.all_gather_into_tensor(whole, piece)
    assert whole.sum().item() == 5 * size * size


@program(3)
def object_collectives() -> None:
    """Objects of a different size on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, "x" * (100 * rank + 1))
    assert [len(str(each)) for each in gathered] == [100 * r + 1 for r in range(size)]
    plan = [{"lr": 0.1}, [1, 2]] if rank == 0 else [None, None]
    dist.broadcast_object_list(plan, src=0)
    assert plan == [{"lr": 0.1}, [1, 2]]
    box: list[object] = [None]
    dist.scatter_object_list(box, ["a", "bb", "ccc"] if rank == 1 else None, src=1)
    assert len(str(box[0])) == rank + 1
    into: list[object] | None = [None] * size if rank == 2 else None
    dist.gather_object({"rank": rank}, into, dst=2)


@program(3)
def asynchronous_all_reduces() -> None:
    """Many all-reduces in flight while the rank computes; waited for in another order."""
    tensors = [torch.full((50_000,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    a = torch.randn(200, 200)
    for _ in range(50):
        a = torch.tanh(a @ a)
    for work in reversed(works):
        work.wait()
    assert [tensor[0].item() for tensor in tensors] == [3.0 * i for i in range(20)]


@program(3, heavy=True)
def asynchronous_and_forgotten_until_late() -> None:
    """One all-reduce stays in flight during a second of work before a rank waits for it."""
    tensor = torch.ones(10)
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(1.2 if dist.get_rank() == 1 else 0.1)
    work.wait()
    while not work.is_completed():
        time.sleep(0.01)
    assert tensor[0].item() == 3


@program(4, heavy=True)
def staggered_arrivals() -> None:
    """Ranks come to each collective one after the other, in changing order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for round_ in range(4):
        time.sleep(0.1 * ((rank + round_) % size))
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        assert tensor.item() == 6


@program(3)
def one_rank_sleeps() -> None:
    """A rank sleeps 1.5 seconds before it joins the others."""
    if dist.get_rank() == 2:
        time.sleep(1.5)
    dist.all_reduce(torch.ones(1))
    dist.barrier()


@program(3, heavy=True)
def one_rank_computes() -> None:
    """A rank computes for long, in torch and in Python, before it joins the others."""
    if dist.get_rank() == 0:
        end, a = time.monotonic() + 1.3, torch.randn(300, 300)
        while time.monotonic() < end:
            a = torch.tanh(a @ a)
            sum(range(10_000))
    dist.barrier()


@program(2)
def one_rank_computes_in_one_call() -> None:
    """A single long call into torch, with no bytecode in between."""
    if dist.get_rank() == 1:
        torch.linalg.svd(torch.randn(700, 700))
    dist.all_reduce(torch.ones(1))


@program(2)
def one_rank_waits_for_a_child() -> None:
    """A rank that is asleep because it waits for a program that it started."""
    if dist.get_rank() == 0:
        os.system("sleep 1.2")
    dist.barrier()


@program(3)
def disk_work() -> None:
    """Rank 0 prepares data on disk while the others wait at the barrier; then all read it."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    file = Path(folder[0]) / "data.bin"
    if dist.get_rank() == 0:
        with open(file, "wb") as stream:
            for _ in range(10):
                stream.write(os.urandom(2_000_000))
                os.fsync(stream.fileno())
    dist.barrier()
    assert len(file.read_bytes()) == 20_000_000
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


@program(2)
def large_collectives() -> None:
    """An all-reduce and a broadcast of 100 MB."""
    tensor = torch.ones(25_000_000)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    assert tensor[-1].item() == 2


@program(3)
def monitored_barriers() -> None:
    """gloo's monitored_barrier, which rank 0 answers for; one rank comes late."""
    from datetime import timedelta

    for round_ in range(3):
        if dist.get_rank() == round_:
            time.sleep(0.3)
        dist.monitored_barrier(timeout=timedelta(seconds=20))


# ---------------------------------------------------------------------------- groups


@program(4)
def nested_subgroups() -> None:
    """Pairs, halves and the world, used in turns and at different speed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([a, b]) for a in range(size) for b in range(a + 1, size)]
    halves, own = dist.new_subgroups(group_size=2)
    for _ in range(3):
        for pair in pairs:
            if rank in dist.get_process_group_ranks(pair):
                dist.all_reduce(torch.ones(2), group=pair)
        if rank < 2:
            time.sleep(0.05)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=halves)
        assert tensor.item() == (1 if rank < 2 else 5)
        dist.all_reduce(tensor)
    assert own
    if rank in (1, 3):
        alone = pairs[4]
        dist.send(tensor, 4 - rank, group=alone) if rank == 1 else dist.recv(tensor, 1, alone)


@program(4)
def groups_of_some_only() -> None:
    """`use_local_synchronization`: only the members make the group, as torch allows."""
    rank = dist.get_rank()
    if rank in (1, 2):
        group = dist.new_group([1, 2], use_local_synchronization=True)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    dist.barrier()


@program(4)
def device_mesh() -> None:
    """A mesh of 2 x 2: sums along rows, gathers along columns."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tensor = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(tensor, group=mesh.get_group("tp"))
    column = [torch.empty(1) for _ in range(2)]
    dist.all_gather(column, tensor, group=mesh["dp"].get_group())
    assert torch.cat(column).tolist() == [1, 5]
    flat = mesh["dp", "tp"]._flatten("all")
    dist.all_reduce(tensor, group=flat.get_group())


@program(2)
def two_threads_two_groups() -> None:
    """A thread for each of two groups; they do not wait for each other."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    sums: list[float] = [0.0, 0.0]

    def work(number: int) -> None:
        for step in range(20):
            if step % 5 == 0:
                time.sleep(0.05 * number * dist.get_rank())
            tensor = torch.ones(100)
            dist.all_reduce(tensor, group=groups[number])
            sums[number] += tensor[0].item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [40.0, 40.0]


@program(2)
def messages_from_a_thread() -> None:
    """The main thread is blocked in a receive until a thread of the other rank sends."""
    inbox, work = torch.zeros(1), None
    if dist.get_rank() == 0:
        work = threading.Timer(1.0, lambda: dist.send(torch.ones(1), 1))
        work.start()
        dist.recv(inbox, 1)
        work.join()
    else:
        dist.recv(inbox, 0)
        dist.send(inbox, 0)
    assert inbox.item() == 1


@program(2)
def one_rank_only_groups() -> None:
    """Groups of one rank, whose collectives need no other rank."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    if dist.get_rank() == 0:
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=groups[0])
        dist.barrier(group=groups[0])


@program(2)
def the_store_instead() -> None:
    """Ranks meet at the key-value store, as rendezvous code does."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        time.sleep(0.8)
        store.set("greeting", "hello")
    assert store.get("greeting") == b"hello"
    dist.barrier()


# ---------------------------------------------------------------------------- training


def _network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _batch(step: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return (
        torch.randn(size, 8, generator=generator),
        torch.randint(0, 4, (size,), generator=generator),
    )


def _train(model: nn.Module, steps: int = 3, lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def _assert_equal_everywhere(model: nn.Module) -> None:
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    least, most = flat.clone(), flat.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    assert torch.equal(least, most)


@program(3, heavy=True)
def data_parallel_by_hand() -> None:
    """Average the gradients after backward: the tutorial's own first distributed training."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    _assert_equal_everywhere(model)


@program(2)
def gradients_in_hooks() -> None:
    """All-reduce each gradient from a hook, as soon as it is accumulated."""
    model, works = _network(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    for step in range(3):
        inputs, targets = _batch(step)
        F.cross_entropy(model(inputs), targets).backward()
        for work in works:
            work.wait()
        works.clear()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
                parameter.grad = None
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def ddp() -> None:
    """DistributedDataParallel, a few steps."""
    model = nn.parallel.DistributedDataParallel(_network())
    _train(model)
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def ddp_with_a_slow_rank() -> None:
    """One rank comes to backward 1.2 seconds late: the other waits for it inside C++."""
    model = nn.parallel.DistributedDataParallel(_network())
    for step in range(3):
        inputs, targets = _batch(step)
        if dist.get_rank() == 1 and step == 1:
            time.sleep(1.2)
        F.cross_entropy(model(inputs), targets).backward()
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def ddp_with_unused_parameters() -> None:
    """Ranks take different branches; DDP finds them with find_unused_parameters."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.left, self.right = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            branch = self.left if (dist.get_rank() + step) % 2 else self.right
            return branch(self.trunk(x))

    model = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    for step in range(4):
        model(torch.randn(3, 8), step).sum().backward()


@program(2, heavy=True)
def ddp_no_sync() -> None:
    """Gradient accumulation: two backward passes without, the third with communication."""
    model = nn.parallel.DistributedDataParallel(_network())
    for step in range(6):
        inputs, targets = _batch(step)
        if step % 3 < 2:
            with model.no_sync():
                F.cross_entropy(model(inputs), targets).backward()
        else:
            F.cross_entropy(model(inputs), targets).backward()


@program(3, heavy=True)
def ddp_join_with_uneven_inputs() -> None:
    """Ranks have different numbers of batches; join shadows the missing collectives."""
    model = nn.parallel.DistributedDataParallel(_network())
    with model.join():
        for step in range(3 + 2 * dist.get_rank()):
            inputs, targets = _batch(step)
            F.cross_entropy(model(inputs), targets).backward()
    dist.barrier()


@program(2, heavy=True)
def ddp_static_graph() -> None:
    """static_graph, small buckets, and gradients as views of the buckets."""
    model = nn.parallel.DistributedDataParallel(
        _network(), static_graph=True, bucket_cap_mb=1, gradient_as_bucket_view=True
    )
    _train(model, steps=4)
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def ddp_with_batch_norm() -> None:
    """Buffers that DDP broadcasts in each forward pass, then SyncBatchNorm's sibling by hand."""
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    model = nn.parallel.DistributedDataParallel(body)
    _train(model)
    model.eval()
    with torch.no_grad():
        accuracy = (model(_batch(9)[0]).argmax(1) == _batch(9)[1]).float().mean()
    dist.all_reduce(accuracy)


@program(2, heavy=True)
def ddp_with_a_communication_hook() -> None:
    """Gradients compressed to 16 bits on their way, with torch's own hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(_network())
    model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    _train(model)


@program(2, heavy=True)
def ddp_on_one_rank_evaluates() -> None:
    """Rank 0 evaluates for a second with the unwrapped module while the other waits."""
    model = nn.parallel.DistributedDataParallel(_network())
    _train(model, steps=2)
    if dist.get_rank() == 0:
        end = time.monotonic() + 1.0
        with torch.no_grad():
            while time.monotonic() < end:
                model.module(torch.randn(64, 8))
    dist.barrier()
    _train(model, steps=1)


@program(2, heavy=True)
def zero_redundancy_optimizer() -> None:
    """States of Adam sharded over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def fsdp2() -> None:
    """fully_shard on each layer and on the whole, with clipping by the global norm."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = _network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        inputs, targets = _batch(step)
        F.cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@program(2, heavy=True)
def tensor_parallel() -> None:
    """parallelize_module: a column and a row, forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_network(), mesh, plan)
    torch.manual_seed(5)
    for _ in range(3):
        model(torch.randn(6, 8)).sum().backward()


@program(2, heavy=True)
def dtensors() -> None:
    """Tensors over a mesh: shard, redistribute, gather."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(24.0).reshape(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = (columns @ distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])).full_tensor()
    assert torch.allclose(product, whole @ whole.t())
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)


def _pipeline(schedule_name: str) -> None:
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = pipelining.PipelineStage(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()), rank, size, torch.device("cpu")
    )
    schedule = getattr(pipelining, schedule_name)(stage, n_microbatches=4, loss_fn=F.mse_loss)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.randn(8, 8))
        elif rank == size - 1:
            losses: list[torch.Tensor] = []
            schedule.step(target=torch.randn(8, 8), losses=losses)
            assert len(losses) == 4
        else:
            schedule.step()


@program(3, heavy=True)
def pipeline_gpipe() -> None:
    """torch.distributed.pipelining: all forward passes, then all backward passes."""
    _pipeline("ScheduleGPipe")


@program(3, heavy=True)
def pipeline_1f1b() -> None:
    """torch.distributed.pipelining: one forward, one backward."""
    _pipeline("Schedule1F1B")


@program(2)
def pipeline_by_hand() -> None:
    """Two stages with send and recv, activations one way and gradients the other."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layer = nn.Linear(8, 8)
    for _ in range(4):
        if rank == 0:
            hidden = layer(torch.randn(5, 8))
            dist.send(hidden.detach(), 1)
            gradient = torch.empty(5, 8)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            inputs = torch.empty(5, 8)
            dist.recv(inputs, 0)
            inputs.requires_grad_()
            layer(inputs).pow(2).mean().backward()
            dist.send(inputs.grad, 0)


@program(2, heavy=True)
def distributed_checkpoint() -> None:
    """Save a sharded model to a folder, load it into another, and remove the folder."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    models = [fully_shard(_network(seed), mesh=mesh) for seed in (1, 2)]
    dcp.save({"model": models[0].state_dict()}, checkpoint_id=folder[0])
    state = {"model": models[1].state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


@program(2, heavy=True)
def local_sgd() -> None:
    """Several steps alone, then the average of the models, a few times over."""
    model = _network()
    for _ in range(3):
        _train(model, steps=2 + dist.get_rank())
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
    _assert_equal_everywhere(model)


@program(2, heavy=True)
def sampler_and_early_stopping() -> None:
    """A DataLoader with DistributedSampler; all ranks agree to stop when one wants to."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.randn(41, 8), torch.randint(0, 4, (41,)))
    sampler: DistributedSampler[object] = DistributedSampler(data, shuffle=True)
    model = nn.parallel.DistributedDataParallel(_network())
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler):
            F.cross_entropy(model(inputs), targets).backward()
        stop = torch.tensor([int(dist.get_rank() == 1 and epoch == 2)])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
    assert epoch == 2


# ---------------------------------------------------------------------------- unusual, but correct


@program(2, heavy=True)
def thousands_of_operations() -> None:
    """More operations than a watcher can remember at a time, with some always in flight."""
    rank, tensor, works = dist.get_rank(), torch.ones(2), []
    for step in range(3000):
        if step % 3:
            works.append(dist.all_reduce(tensor.clone(), async_op=True))
        elif rank:
            dist.send(tensor, 0)
        else:
            dist.recv(tensor, 1)
        if len(works) > 50:
            works.pop(0).wait()
    for work in works:
        work.wait()


@program(3, heavy=True)
def thousands_of_shapes() -> None:
    """A relay and collectives of 1500 sizes: more descriptions than fit into a small table."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for length in range(1, 1501):
        tensor = torch.ones(length)
        if rank:
            dist.recv(tensor, rank - 1)
        if rank < size - 1:
            dist.send(tensor, rank + 1)
        if length % 2:
            dist.all_reduce(tensor)


@program(2)
def reshaped_message() -> None:
    """What is received may have another shape, as long as it has as many elements."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(6.0).reshape(2, 3), 1)
        dist.send(torch.tensor(5.0), 1)
    else:
        flat, one = torch.empty(6), torch.empty(1)
        dist.recv(flat, 0)
        dist.recv(one, 0)
        assert flat.tolist() == [0, 1, 2, 3, 4, 5]
        assert one.item() == 5


@program(4)
def ranks_counted_in_the_group() -> None:
    """Peers named by their rank in a subgroup: group_src and group_dst."""
    rank, box = dist.get_rank(), torch.zeros(1)
    group = dist.new_group([1, 3])
    if rank == 1:
        dist.send(torch.ones(1), group=group, group_dst=1)
        dist.broadcast(box, group=group, group_src=1)
    elif rank == 3:
        dist.recv(box, group=group, group_src=0)
        dist.broadcast(box, group=group, group_src=1)
    assert box.item() == rank % 2


@program(2)
def collectives_with_gradients() -> None:
    """Collectives that autograd goes through: torch.distributed.nn.functional."""
    from torch.distributed.nn.functional import all_reduce

    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        all_reduce(x * (dist.get_rank() + 1)).sum().backward()


@program(2)
def every_asynchronous_collective() -> None:
    """async_op=True on many collectives at once; a barrier too; the result read by a future."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty(2) for _ in range(size)]
    sum_, copy = torch.ones(2), torch.full((2,), float(rank))
    works = [
        dist.all_gather(gathered, torch.full((2,), float(rank)), async_op=True),
        dist.broadcast(copy, src=1, async_op=True),
        dist.barrier(async_op=True),
        dist.all_reduce(sum_, async_op=True),
    ]
    assert works[3].get_future().wait()[0][0].item() == 2
    for work in works[:3]:
        work.wait()
    assert copy[0].item() == 1
    assert torch.cat(gathered).tolist() == [0, 0, 1, 1]


@program(3)
def sends_left_to_themselves() -> None:
    """isends whose Work is thrown away; every one of them is received before the end."""
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing = torch.full((10,), float(rank))
    dist.isend(outgoing, (rank + 1) % size)
    box = torch.empty(10)
    dist.recv(box, (rank - 1) % size)
    assert box[0].item() == (rank - 1) % size
    dist.barrier()


@program(2)
def waited_for_by_another_thread() -> None:
    """A Work that one thread makes and another one waits for."""
    rank, box = dist.get_rank(), torch.zeros(1)
    work = dist.irecv(box, 1 - rank)
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    time.sleep(0.6 * rank)
    dist.send(torch.ones(1), 1 - rank) if rank else dist.isend(torch.ones(1), 1).wait()
    waiter.join()
    assert box.item() == 1


@program(2, heavy=True)
def slow_disk_under_a_message() -> None:
    """A rank is asleep inside torch.distributed's own code, on a slow disk, not on a peer."""
    import ctypes
    import functools

    from torch.distributed import checkpoint

    rank, box = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        dist.recv(box, 1)
        dist.send(box, 1)
        return
    work = dist.irecv(box, 0)
    folder = tempfile.mkdtemp()
    os.fsync = functools.partial(ctypes.CDLL(None).poll, None, 0, 1500)  # sleeps 1.5 s
    checkpoint.save({"x": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    shutil.rmtree(folder)
    dist.send(torch.ones(1), 0)
    work.wait()
    assert box.item() == 1


@program(3)
def group_made_and_destroyed() -> None:
    """A group that is made, used and destroyed, round after round."""
    for _ in range(4):
        group = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2), group=group)
            dist.destroy_process_group(group)
    dist.barrier()


@program(2)
def exception_that_is_caught() -> None:
    """A rank that catches its own error and continues."""
    with contextlib.suppress(TypeError, AttributeError, RuntimeError, ValueError):
        dist.all_reduce("no tensor")
    if dist.get_rank() == 0:
        with contextlib.suppress(ValueError, RuntimeError):
            dist.send(torch.ones(1), 0)  # to itself: torch refuses
    dist.barrier()
