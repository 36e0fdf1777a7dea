"""Correct programs of other styles: none may raise an alarm or a warning.

Each checks its own result. They use more of PyTorch than its tutorials do: hooks and optimizers
that communicate, several threads and groups, stores and RPC, models that are split in two ways.
Most leave the ranks as they found them, so that many can run one after the other in one launch.
"""

from __future__ import annotations

import asyncio
import copy
import os
import queue
import shutil
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.honest_programs import (
    _assert_equal_everywhere,
    _batch,
    _network,
    _train,
    program,
)

# ---------------------------------------------------------------------------- data parallel


def _mean_gradients(model: nn.Module, steps: list[int]) -> list[torch.Tensor]:
    """The gradients of the unwrapped model, summed over steps, averaged over ranks."""
    own = copy.deepcopy(model)
    for step in steps:
        inputs, targets = _batch(step)
        F.cross_entropy(own(inputs), targets).backward()
    found = []
    for parameter in own.parameters():
        dist.all_reduce(parameter.grad)
        found.append(parameter.grad / dist.get_world_size())
    return found


@program(2, shared=True)
def nested_accumulation() -> None:
    """no_sync in no_sync, and gradients that are views of the buckets."""
    model = nn.parallel.DistributedDataParallel(_network(), gradient_as_bucket_view=True)
    for first in (0, 10):
        model.zero_grad()
        wanted = _mean_gradients(model.module, [first, first + 1, first + 2, first + 3])
        with model.no_sync():
            for step in (first, first + 1):
                inputs, targets = _batch(step)
                with model.no_sync():
                    F.cross_entropy(model(inputs), targets).backward()
            inputs, targets = _batch(first + 2)
            F.cross_entropy(model(inputs), targets).backward()
        inputs, targets = _batch(first + 3)
        F.cross_entropy(model(inputs), targets).backward()
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            assert torch.allclose(parameter.grad, gradient, atol=1e-6)


@program(2, shared=True)
def join_of_model_and_optimizer() -> None:
    """Uneven inputs: one Join context for DDP and for ZeroRedundancyOptimizer."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    done = 0
    with Join([model, optimizer]):
        for step in range(2 + 3 * dist.get_rank()):
            inputs, targets = _batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            done += 1
    assert done == 2 + 3 * dist.get_rank()
    _assert_equal_everywhere(model)


@program(2, shared=True)
def zero_with_buckets() -> None:
    """ZeroRedundancyOptimizer with bucket views and a second parameter group."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(_network())
    optimizer = ZeroRedundancyOptimizer(
        list(model.parameters())[:2],
        torch.optim.SGD,
        lr=0.1,
        momentum=0.9,
        parameters_as_bucket_view=True,
    )
    optimizer.add_param_group({"params": list(model.parameters())[2:], "lr": 0.05})
    for step in range(3):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    for to in (0, 1):
        optimizer.consolidate_state_dict(to=to)
        if dist.get_rank() == to:
            optimizer.load_state_dict(optimizer.state_dict())
    _assert_equal_everywhere(model)


@program(2, shared=True)
def power_sgd_hook() -> None:
    """Gradients compressed by PowerSGD after two ordinary steps."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    model = nn.parallel.DistributedDataParallel(_network())
    state = powersgd.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powersgd.powerSGD_hook)
    _train(model, steps=6)
    _assert_equal_everywhere(model)


@program(4, shared=True)
def post_local_sgd() -> None:
    """Averages inside halves in each step, of all ranks in every second one."""
    import torch.distributed.algorithms.model_averaging.averagers as averagers
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
        PostLocalSGDState,
        post_localSGD_hook,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = nn.parallel.DistributedDataParallel(_network())
    halves, _ = dist.new_subgroups(group_size=2)
    model.register_comm_hook(
        PostLocalSGDState(None, halves, start_localSGD_iter=3), post_localSGD_hook
    )
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        averagers.PeriodicModelAverager(period=2, warmup_steps=3),
    )
    for step in range(8):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    averagers.PeriodicModelAverager(period=1).average_parameters(model.parameters())
    _assert_equal_everywhere(model)


@program(2, shared=True)
def steps_that_all_skip() -> None:
    """autocast and one flat all-reduce; all ranks skip a step when one finds inf."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = 0
    for step in range(4):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        if step == 2 and dist.get_rank() == 1:
            grads[0][0, 0] = float("inf")
        bad = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            skipped += 1
            continue
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        for g, f in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads), strict=True):
            g.copy_(f / 2)
        optimizer.step()
    assert skipped == 1
    _assert_equal_everywhere(model)


@program(2, shared=True)
def workers_of_a_data_loader() -> None:
    """DataLoader with worker processes under DDP, a different number of workers per rank."""
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.parallel.DistributedDataParallel(_network())
    data = TensorDataset(torch.randn(24, 8), torch.randint(0, 4, (24,)))
    loader = DataLoader(data, batch_size=6, num_workers=1 + dist.get_rank())
    for _ in range(2):
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
    total = torch.cat([p.grad.flatten() for p in model.parameters()])
    low, high = total.clone(), total.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    assert torch.equal(low, high)


@program(4, shared=True)
def gossip() -> None:
    """Each rank averages with one partner per step, a different one each time; no collectives."""
    rank = dist.get_rank()
    x = torch.tensor([float(rank)])
    for bit in (1, 2):
        partner = rank ^ bit
        box = torch.empty(1)
        if rank < partner:
            dist.send(x, partner)
            dist.recv(box, partner)
        else:
            dist.recv(box, partner)
            dist.send(x, partner)
        x = (x + box) / 2
    assert x.item() == 1.5


# ---------------------------------------------------------------------- messages, collectives


@program(4, shared=True)
def two_rings_of_batches() -> None:
    """Two rings in one batch, in both directions, with mixed tags, sizes and groups."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    for length in (1, 100, 30_000):
        boxes = [torch.empty(length), torch.empty(2 * length), torch.empty(3)]
        ops = [
            dist.P2POp(dist.irecv, boxes[1], (rank + 1) % size, tag=7),
            dist.P2POp(dist.isend, torch.full((length,), float(rank)), (rank + 1) % size, tag=9),
            dist.P2POp(dist.irecv, boxes[0], (rank - 1) % size, tag=9),
            dist.P2POp(
                dist.isend, torch.full((2 * length,), float(-rank)), (rank - 1) % size, tag=7
            ),
        ]
        if rank % 2:
            ops.reverse()
        works = dist.batch_isend_irecv(ops)
        other = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((3,), 10.0 + rank), (rank + 2) % size, group, 9),
                dist.P2POp(dist.irecv, boxes[2], (rank + 2) % size, group, 9),
            ]
        )
        for work in [*other, *reversed(works)]:
            work.wait()
        assert [box[0].item() for box in boxes] == [
            (rank - 1) % size,
            -((rank + 1) % size),
            10 + (rank + 2) % size,
        ]


@program(4, shared=True)
def roots_that_change() -> None:
    """gather, scatter, reduce and broadcast with changing roots, all asynchronous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works, checks = [], []
    for root in [2, 0, 3, 1, 1, 2]:
        is_root = rank == root
        into = [torch.empty(3, dtype=torch.int32) for _ in range(size)] if is_root else None
        given = torch.full((3,), 10 * root + rank, dtype=torch.int32)
        works.append(dist.gather(given, into, dst=root, async_op=True))
        share = torch.empty(2, dtype=torch.float64)
        parts = [torch.full((2,), float(r), dtype=torch.float64) for r in range(size)]
        works.append(dist.scatter(share, parts if is_root else None, src=root, async_op=True))
        total = torch.tensor([rank + 1])
        works.append(dist.reduce(total, dst=root, op=dist.ReduceOp.PRODUCT, async_op=True))
        word = torch.tensor([root * 100 if is_root else -1])
        works.append(dist.broadcast(word, src=root, async_op=True))
        checks.append((root, into, share, total, word))
    for work in works:
        work.wait()
    for root, into, share, total, word in checks:
        assert share[0].item() == rank
        assert word.item() == 100 * root
        if rank == root:
            assert [int(each[0]) for each in into] == [10 * root + r for r in range(size)]
            assert total.item() == 24


@program(4, shared=True)
def gathers_of_any_size() -> None:
    """all_gather_into_tensor of matrices, of one element each, and of nothing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2, 3), float(rank))
    concatenated, column = torch.empty(2 * size, 3), torch.empty(size)
    dist.all_gather_into_tensor(concatenated, mine)
    dist.all_gather_into_tensor(column, mine[0, :1])
    assert column.tolist() == list(range(size))
    assert concatenated[::2, 0].tolist() == list(range(size))
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))


@program(4, shared=True)
def shards_in_another_order() -> None:
    """reduce_scatter_tensor, many at once, waited for in a different order on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    outs, works = [torch.empty(i + 1) for i in range(8)], []
    for i, out in enumerate(outs):
        rows = torch.arange(size, dtype=torch.float32).repeat_interleave(i + 1)
        works.append(dist.reduce_scatter_tensor(out, rows + i, async_op=True))
    for i in sorted(range(8), key=lambda i: (i * (rank + 3)) % 7):
        works[i].wait()
        assert outs[i].tolist() == [size * (rank + i)] * (i + 1)


@program(4, shared=True)
def work_queue_from_any_source() -> None:
    """Rank 0 gives a task to each rank that asks (src=None); results have another tag."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        tasks, results, stopped = list(range(12)), {}, 0
        while stopped < size - 1:
            ask = torch.zeros(2)
            worker = dist.recv(ask, src=None, tag=1)
            if ask[0] >= 0:
                results[int(ask[0])] = float(ask[1])
            task = tasks.pop(0) if tasks else -1
            stopped += task < 0
            dist.send(torch.tensor([float(task)]), worker, tag=2)
        assert results == {n: float(n * n) for n in range(12)}
    else:
        done = torch.tensor([-1.0, 0.0])
        while True:
            dist.send(done, 0, tag=1)
            task = torch.zeros(1)
            dist.recv(task, 0, tag=2)
            if task.item() < 0:
                break
            time.sleep(0.005 * rank)
            done = torch.tensor([task.item(), task.item() ** 2])


@program(2, shared=True)
def coalesced_collectives() -> None:
    """Several tensors in one call: all_reduce_coalesced and all_gather_coalesced."""
    tensors = [torch.full((n,), 1.0) for n in (3, 1, 5)]
    dist.all_reduce_coalesced(tensors)
    assert [t[0].item() for t in tensors] == [2, 2, 2]
    outs = [[torch.empty(2), torch.empty(3)] for _ in range(2)]
    dist.all_gather_coalesced(outs, [torch.full((2,), float(dist.get_rank())), torch.ones(3)])
    assert [o[0][0].item() for o in outs] == [0, 1]


@program(2, shared=True)
def every_dtype() -> None:
    """bool, integers, halves, bf16, doubles and complex numbers."""
    rank = dist.get_rank()
    for dtype in (
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.half,
        torch.bfloat16,
        torch.double,
        torch.cfloat,
    ):
        x = torch.ones(3, dtype=dtype)
        dist.all_reduce(x)
        assert x[0].item() == 2
        out = [torch.empty(1, dtype=dtype) for _ in range(2)]
        dist.all_gather(out, torch.tensor([rank], dtype=dtype))
        assert [int(o.real if o.is_complex() else o) for o in out] == [0, 1]
    flag = torch.tensor([rank == 1])
    dist.broadcast(flag, src=1)
    assert flag.item()
    mask = torch.tensor([1 << rank])
    dist.all_reduce(mask, op=dist.ReduceOp.BOR)
    assert mask.item() == 3


@program(2, shared=True)
def not_contiguous_but_right() -> None:
    """channels_last under DDP, transposes in the same order, columns where torch copies."""
    rank = dist.get_rank()
    x = torch.full((4, 2), float(rank)).t()
    dist.all_reduce(x)
    assert x.tolist() == [[1] * 4] * 2
    column = torch.arange(6.0).reshape(3, 2)[:, rank]
    outs = [torch.empty(3) for _ in range(2)]
    dist.all_gather(outs, column)
    assert outs[1].tolist() == [1, 3, 5]
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    model = nn.parallel.DistributedDataParallel(body.to(memory_format=torch.channels_last))
    for _ in range(2):
        model(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)).sum().backward()
    _assert_equal_everywhere(model)


@program(4, shared=True)
def same_collective_from_other_lines() -> None:
    """Ranks meet in one collective that each calls in another branch."""
    rank = dist.get_rank()
    if rank == 0:
        settings = torch.tensor([3.0])
        dist.broadcast(settings, src=0)
    else:
        settings = torch.empty(1)
        dist.broadcast(settings, src=0)
    if rank % 2:
        loss = torch.tensor([1.0])
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss := torch.tensor([0.0]))
    assert (settings.item(), loss.item()) == (3, 2)


@program(4, shared=True)
def functional_collectives() -> None:
    """Functional collectives, whose results wait when they are used."""
    import torch.distributed._functional_collectives as fc

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((2, 2), float(rank))
    total = fc.all_reduce(x, "sum", dist.group.WORLD)
    whole = fc.all_gather_tensor(x, 0, dist.group.WORLD)
    mixed = fc.all_to_all_single(torch.full((size,), float(rank)), None, None, dist.group.WORLD)
    part = fc.reduce_scatter_tensor(torch.ones(size, 3), "sum", 0, dist.group.WORLD)
    assert (total * 2)[0, 0].item() == 12
    assert fc.wait_tensor(whole)[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert mixed.tolist() == [0, 1, 2, 3]
    assert part.tolist() == [[4, 4, 4]]
    assert fc.broadcast(x, 2, dist.group.WORLD)[0, 0].item() == 2


@program(2, shared=True)
def functional_with_gradients() -> None:
    """All of torch.distributed.nn.functional, forward and backward."""
    import torch.distributed.nn.functional as fn

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((2,), float(rank + 1), requires_grad=True)
    parts = fn.all_gather(x)
    torch.stack([each * (i + 1) for i, each in enumerate(parts)]).sum().backward()
    assert x.grad.tolist() == [size * (rank + 1)] * 2
    y = torch.ones(2 * size, requires_grad=True)
    fn.reduce_scatter(torch.empty(2), list((y * (rank + 1)).chunk(size))).sum().backward()
    assert y.grad.tolist() == [rank + 1] * 2 * size
    z = torch.arange(2.0 * size, requires_grad=True)
    fn.all_to_all_single(torch.empty(2 * size), z * 3).sum().backward()
    assert z.grad.tolist() == [3] * 2 * size
    w = torch.ones(3, requires_grad=True)
    fn.broadcast(w * 2, src=1).sum().backward()
    assert w.grad.tolist() == [2 * size if rank == 1 else 0] * 3


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        context.group = group
        out = torch.empty(dist.get_world_size(group) * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(context, gradient):
        rows = gradient.shape[0] // dist.get_world_size(context.group)
        out = torch.empty(rows, *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous(), group=context.group)
        return out, None


@program(2, shared=True)
def autograd_functions() -> None:
    """A gather whose backward is a reduce-scatter, a tensor hook, and recomputation."""
    from torch.utils.checkpoint import checkpoint

    rank, seen = dist.get_rank(), []
    layer = nn.Linear(4, 4)
    for p in layer.parameters():
        dist.broadcast(p.data, src=0)
    x = torch.full((3, 4), float(rank + 1), requires_grad=True)

    def block(x):
        return layer(_GatherRows.apply(x, None)).sum()

    def hook(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        seen.append(total)
        return total / 2

    x.register_hook(hook)
    loss = checkpoint(block, x, use_reentrant=False) + checkpoint(block, x, use_reentrant=True)
    loss.backward()
    wanted = 2 * 2 * layer.weight.sum(0).expand(3, 4)
    assert torch.allclose(x.grad, wanted, atol=1e-5)


@program(2, shared=True)
def chains_of_futures() -> None:
    """Futures: then() on all-reduces, collected, and one whose callback starts another one."""
    size = dist.get_world_size()
    tensors = [torch.full((4,), float(i)) for i in range(5)]
    futures = [
        dist.all_reduce(each, async_op=True).get_future().then(lambda f: f.value()[0] / size)
        for each in tensors
    ]
    means = torch.futures.collect_all(futures).wait()
    assert [future.value()[0].item() for future in means] == list(range(5))
    first = torch.ones(1)
    second = torch.tensor([float(dist.get_rank())])

    def go_on(future):
        future.value()
        return dist.all_reduce(second, async_op=True)

    work = dist.all_reduce(first, async_op=True).get_future().then(go_on).wait()
    work.wait()
    assert (first.item(), second.item()) == (2, 1)


# ------------------------------------------------------------------------- groups and threads


@program(4, shared=True)
def monitored_barriers_of_groups() -> None:
    """monitored_barrier of two groups at once, with wait_all_ranks; a member comes late."""
    rank = dist.get_rank()
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    own = odd if rank % 2 else even
    for late in range(4):
        if rank == late:
            time.sleep(0.1)
        dist.monitored_barrier(own, timeout=timedelta(seconds=20), wait_all_ranks=True)
    dist.barrier(own)


@program(4, shared=True)
def pairs_around_a_ring() -> None:
    """Each rank makes one group with the next rank and one with the previous rank, no others.

    All ranks have as many groups whenever a group is made: PyTorch 2.13 counts them in its name.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    for turn in (0, 1):
        left = rank - (rank + turn) % 2
        pair = sorted([left % size, (left + 1) % size])
        group = dist.new_group(pair, use_local_synchronization=True)
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(pair)
    if rank < 3:
        triple = dist.new_group([0, 1, 2], use_local_synchronization=True)
        out: list = [None] * 3
        dist.all_gather_object(out, {"rank": rank}, group=triple)
        assert [each["rank"] for each in out] == [0, 1, 2]


@program(4, shared=True)
def hierarchical_all_reduce() -> None:
    """Reduce-scatter inside a node, all-reduce across, all-gather inside."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
    inside, across = mesh.get_group("local"), mesh.get_group("node")
    rank = dist.get_rank()
    x = torch.arange(8.0) * (rank + 1)
    shard, out = torch.empty(4), torch.empty(8)
    dist.reduce_scatter_tensor(shard, x, group=inside)
    dist.all_reduce(shard, group=across)
    dist.all_gather_into_tensor(out, shard, group=inside)
    assert out.tolist() == [10.0 * i for i in range(8)]


@program(4, shared=True)
def groups_by_enumeration() -> None:
    """new_subgroups_by_enumeration with a timeout, groups of different size."""
    rank = dist.get_rank()
    own, _ = dist.new_subgroups_by_enumeration([[0, 3], [1], [2]], timeout=timedelta(seconds=30))
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=own)
    assert x.item() == (3 if rank in (0, 3) else rank)
    dist.barrier(group=own)


@program(2, shared=True)
def polling_while_computing() -> None:
    """Works that are polled with is_completed while the rank computes."""
    rank = dist.get_rank()
    time.sleep(0.8 * rank)
    tensor, box = torch.ones(20_000), torch.zeros(1)
    works = [dist.all_reduce(tensor, async_op=True)]
    works.append(dist.isend(torch.ones(1), 1) if rank == 0 else dist.irecv(box, 0))
    turns = 0
    while not works[0].is_completed():
        torch.randn(30, 30) @ torch.randn(30, 30)
        turns += 1
    for work in works:
        work.wait()
    assert tensor[0].item() == 2
    assert box.item() == rank


@program(2, shared=True)
def prefetching_thread() -> None:
    """A thread receives batches over its own group into a queue while the rank trains."""
    rank = dist.get_rank()
    data, train = dist.new_group(), dist.new_group()
    inbox = queue.Queue(maxsize=2)

    def load():
        for step in range(6):
            loaded = torch.full((5,), float(step))
            dist.broadcast(loaded, src=0, group=data)
            inbox.put(loaded)
        inbox.put(None)

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    seen = []
    for batch in iter(inbox.get, None):
        if rank and len(seen) == 2:
            time.sleep(0.6)
        total = batch.clone()
        dist.all_reduce(total, group=train)
        seen.append(total[0].item() / 2)
    loader.join()
    assert seen == list(range(6))


@program(2, shared=True)
def event_loop() -> None:
    """asyncio: collectives of two groups in executors, awaited together."""
    groups = [dist.new_group() for _ in range(2)]
    rank = dist.get_rank()

    def reduce(number):
        time.sleep(0.3 * ((rank + number) % 2))
        tensor = torch.tensor([float(number)])
        dist.all_reduce(tensor, group=groups[number])
        return tensor.item()

    async def main():
        return await asyncio.gather(*(asyncio.to_thread(reduce, n) for n in range(2)))

    assert asyncio.run(main()) == [0, 2]


@program(4, shared=True)
def stores() -> None:
    """Counters, compare-and-set, prefixes and waits; also a second store, on another port."""
    rank, size = dist.get_rank(), dist.get_world_size()
    base = dist.distributed_c10d._get_default_store()
    store = dist.PrefixStore("job", base)
    ticket = store.add("ticket", 1)
    store.set(f"of {ticket}", str(rank))
    store.wait([f"of {n + 1}" for n in range(size)], timedelta(seconds=20))
    assert sorted(int(store.get(f"of {n + 1}")) for n in range(size)) == list(range(size))
    leader = int(store.compare_set("leader", "", str(rank)))
    leaders = [None] * size
    dist.all_gather_object(leaders, leader)
    assert set(leaders) == {leader}
    if rank == leader:
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("port", str(own.port))
    else:
        own = dist.TCPStore("127.0.0.1", int(store.get("port")), is_master=False)
    if rank == leader:
        time.sleep(0.8)
        own.set("go", "1")
    own.wait(["go"])
    if own.add("arrived", 1) == size:
        own.set("all", "yes")
    assert own.get("all") == b"yes"
    dist.barrier()


@program(2, shared=True)
def remote_calls() -> None:
    """RPC in addition to the process group: one call that waits, several that do not."""
    from torch.distributed import rpc

    rank, folder = dist.get_rank(), _shared_folder()
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=2,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc"),
    )
    if rank == 0:
        assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 3)).tolist() == [4, 4]
        futures = [rpc.rpc_async("worker1", torch.mul, args=(torch.ones(2), n)) for n in range(4)]
        assert [f.wait()[0].item() for f in futures] == [0, 1, 2, 3]
    dist.barrier()
    rpc.shutdown()
    dist.barrier()  # the other rank's shutdown still reads the file
    if rank == 0:
        shutil.rmtree(folder)


@program(4, shared=True)
def rank_0_evaluates_and_logs() -> None:
    """Rank 0 evaluates, logs and decides alone; the others wait a while for its message."""
    model = _network()
    best = torch.tensor([-1.0])
    for epoch in range(2):
        if dist.get_rank() == 0:
            with torch.no_grad():
                best.fill_(float(epoch) + model(torch.randn(500, 8)).mean().tanh())
            with tempfile.NamedTemporaryFile("w") as log:
                log.write(f"epoch {epoch} {best.item()}\n")
                log.flush()
                os.fsync(log.fileno())
            time.sleep(0.7)
        dist.broadcast(best, src=0)
        assert epoch - 1 <= best.item() <= epoch + 1
        model.train(True)


@program(4, heavy=True)
def one_rank_ends_late() -> None:
    """No barrier at the end: rank 3 writes its results for a second after all others returned."""
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    if dist.get_rank() == 3:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            torch.linalg.inv(torch.randn(40, 40))
        time.sleep(0.3)
    assert tensor.tolist() == [4, 4]


@program(2, heavy=True)
def left_and_entered_again() -> None:
    """The process group is destroyed, and the same ranks meet again, twice."""
    folder = _shared_folder()
    rank = dist.get_rank()
    for round_ in range(2):
        dist.barrier()
        dist.destroy_process_group()
        file = f"file://{folder}/{round_}"
        dist.init_process_group("gloo", init_method=file, rank=rank, world_size=2)
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, src=1)
        assert tensor.item() == 1
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


# ---------------------------------------------------------------------- models that are split


def _split_in_stages(name: str) -> None:
    """Train a step with two stages on each rank, and compare with the unsplit model."""
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2 * size)]
    whole = copy.deepcopy(nn.Sequential(*layers))
    places = (
        [rank, rank + size] if name != "ScheduleZBVZeroBubble" else [rank, 2 * size - 1 - rank]
    )
    stages = [
        pipelining.PipelineStage(layers[i], i, 2 * size, torch.device("cpu")) for i in places
    ]
    schedule = getattr(pipelining, name)(stages, n_microbatches=4, loss_fn=F.mse_loss)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    last = 2 * size - 1 in places
    kwargs = {"target": y, "losses": []} if last else {}
    schedule.step(*([x] if rank == 0 else []), **kwargs)
    F.mse_loss(whole(x), y).backward()
    for i in places:
        for p, q in zip(layers[i].parameters(), whole[i].parameters(), strict=True):
            assert torch.allclose(p.grad, q.grad, atol=1e-5), i


@program(2, shared=True)
def pipe_interleaved() -> None:
    """Two stages on each rank, one forward and one backward in turns."""
    _split_in_stages("ScheduleInterleaved1F1B")


@program(2, shared=True)
def pipe_looped() -> None:
    """Two stages on each rank, breadth first."""
    _split_in_stages("ScheduleLoopedBFS")


@program(2, shared=True)
def pipe_interleaved_zb() -> None:
    """Two stages on each rank, with the weights' gradients in the gaps."""
    _split_in_stages("ScheduleInterleavedZeroBubble")


@program(2, shared=True)
def pipe_zbv() -> None:
    """Two stages on each rank, arranged as a V."""
    _split_in_stages("ScheduleZBVZeroBubble")


@program(2, shared=True)
def mixed_precision_shards() -> None:
    """fully_shard with bf16 compute, fp32 gradients, clipping, accumulation without sync."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _network()
    fully_shard(model[2], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        inputs, targets = _batch(step)
        model.set_requires_gradient_sync(step % 2 == 1)
        F.cross_entropy(model(inputs).float(), targets).backward()
        if step % 2:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            assert norm.full_tensor() > 0
            optimizer.step()
            optimizer.zero_grad()
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    _assert_equal_everywhere(nn.ParameterList(whole))


@program(4, shared=True)
def hybrid_shards() -> None:
    """fully_shard on a mesh of replicas and shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(_network(), mesh=mesh)
    reference = _network()
    for step in range(2):
        inputs, targets = _batch(step)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for own, wanted in zip(
            model.parameters(), _mean_gradients(reference, [step]), strict=True
        ):
            assert torch.allclose(own.grad.full_tensor(), wanted, atol=1e-6)


@program(4, shared=True)
def device_mesh_2d_training() -> None:
    """2-D: tensor parallel inside, fully_shard across."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _network()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    reference = _network()
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    x = torch.randn(6, 8, generator=generator)
    model(x).pow(2).mean().backward()
    reference(x).pow(2).mean().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        dist.all_reduce(q.grad)
        assert torch.allclose(p.grad.full_tensor(), q.grad / 4, atol=1e-5)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@program(2, shared=True)
def sequence_parallel() -> None:
    """A block with SequenceParallel and a sharded sequence around it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(F.gelu(self.up(self.norm(x))))

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    whole = Block()
    split = parallelize_module(
        copy.deepcopy(whole),
        mesh,
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
    x = torch.randn(2, 6, 8)
    own = x.chunk(2, dim=1)[dist.get_rank()].contiguous()
    result = split(own)
    wanted = whole(x)
    assert torch.allclose(result, wanted.chunk(2, dim=1)[dist.get_rank()], atol=1e-5)
    result.sum().backward()
    wanted.sum().backward()
    for p, q in zip(split.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(p.grad.full_tensor(), q.grad, atol=1e-4)


@program(4, shared=True)
def partial_averages() -> None:
    """DTensors with partial sums, and redistribution of uneven shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    rank = dist.get_rank()
    x = DTensor.from_local(torch.full((5,), float(rank)), mesh, [Partial(), Partial()])
    assert x.redistribute(mesh, [Replicate(), Replicate()]).to_local()[0].item() == 6
    whole = torch.arange(35.0).reshape(5, 7)
    y = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    z = y.redistribute(mesh, [Shard(1), Replicate()])
    assert torch.equal(z.full_tensor(), whole)
    assert torch.equal((y.sum(0)).full_tensor(), whole.sum(0))


@program(4, shared=True)
def uneven_experts() -> None:
    """Tokens routed to experts: counts first, then rows, some of them none; and back."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        tokens = torch.randn(7, 4, generator=generator)
        expert = torch.randint(0, size - (step == 1), (7,), generator=generator).sort().values
        counts = torch.bincount(expert, minlength=size)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        gets, gives = arriving.tolist(), counts.tolist()
        rows = torch.empty(sum(gets), 4)
        dist.all_to_all_single(rows, tokens, gets, gives, async_op=True).wait()
        back = torch.empty_like(tokens)
        dist.all_to_all_single(back, rows * (rank + 1), gives, gets)
        assert torch.allclose(back, tokens * (expert + 1).unsqueeze(1))


def _shared_folder() -> str:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    return folder[0]


@program(2, shared=True)
def asynchronous_checkpoint() -> None:
    """Training continues while dcp.async_save writes on a separate process group."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = _shared_folder()
    saver = dist.new_group(backend="gloo")
    model = nn.parallel.DistributedDataParallel(_network())
    optimizer = torch.optim.Adam(model.parameters())
    saved, before = None, None
    for step in range(4):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step % 2 == 0:
            if saved is not None:
                saved.result()
            weights, states = get_state_dict(model, optimizer)
            before = copy.deepcopy(weights)
            saved = dcp.async_save(
                {"model": weights, "optimizer": states},
                checkpoint_id=f"{folder}/{step}",
                process_group=saver,
            )
    saved.result()
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=f"{folder}/2", process_group=saver)
    for name, tensor in before.items():
        assert torch.equal(weights[name], tensor)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(before[name], tensor)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
