"""Tensors that are touched before the rank has waited: faulty programs are warned, no others.

The functions know nothing of dtlab. In a faulty one, the comments `# issued` and `# touched` mark
the lines that the warning must name.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import pickle
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.ranks.record.buffers import _Accesses
from dtlab.training.live import Storages

Function = Callable[[], object]

CORRECT: dict[str, tuple[int, Function]] = {}
FAULTY: dict[str, tuple[int, str, Function]] = {}
LARGE = 1_000_000


def correct(world_size: int) -> Callable[[Function], Function]:
    """Put a function into `CORRECT`."""

    def add(function: Function) -> Function:
        CORRECT[function.__name__] = world_size, function
        return function

    return add


def faulty(world_size: int, says: str) -> Callable[[Function], Function]:
    """Put a function into `FAULTY`, with the beginning of its warning."""

    def add(function: Function) -> Function:
        FAULTY[function.__name__] = world_size, says, function
        return function

    return add


def me() -> int:
    return dist.get_rank()


def right() -> int:
    return (me() + 1) % dist.get_world_size()


def left() -> int:
    return (me() - 1) % dist.get_world_size()


# ---------------------------------------------------------------------------- correct: messages


@correct(2)
def a_reply_implies_arrival() -> None:
    x = torch.ones(LARGE)
    if me() == 0:
        work = dist.isend(x, 1)
        dist.recv(torch.empty(1), 1)
        x += 1  # rank 1 has received it, or it could not have answered
        work.wait()
    else:
        dist.recv(x, 0)
        dist.send(torch.ones(1), 0)


@correct(3)
def an_answer_over_a_third_rank() -> None:
    x = torch.ones(10)
    if me() == 0:
        work = dist.isend(x, 1)
        dist.recv(torch.empty(1), 2)
        x.zero_()
        work.wait()
    else:
        dist.recv(x if me() == 1 else torch.empty(1), me() - 1)
        dist.send(torch.ones(1), right())


@correct(3)
def a_barrier_after_the_receive() -> None:
    x, y = torch.ones(10), torch.empty(10)
    work = dist.isend(x, right())
    dist.recv(y, left())
    dist.barrier()
    x.copy_(y)
    work.wait()


@correct(2)
def one_buffer_there_and_back() -> None:
    x = torch.ones(LARGE)
    if me() == 0:
        work = dist.isend(x, 1)
        dist.recv(x, 1)  # what arrives was sent after the first message had arrived
        work.wait()
        assert x[0].item() == 2
    else:
        dist.recv(x, 0)
        x += 1
        dist.send(x, 0)


@correct(3)
def neighbours_in_a_batch() -> None:
    x, y = torch.ones(10), torch.empty(10)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, right()), dist.P2POp(dist.irecv, y, left())]
    )
    for work in works:
        work.wait()
    x += y


@correct(3)
def a_batch_in_one_storage() -> None:
    grid = torch.full((4, 10), float(me()))
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, grid[1], left(), tag=1),
            dist.P2POp(dist.isend, grid[2], right(), tag=2),
            dist.P2POp(dist.irecv, grid[0], left(), tag=2),
            dist.P2POp(dist.irecv, grid[3], right(), tag=1),
        ]
    )
    inner = grid[1:3] * 2  # reads what is sent: allowed
    for work in works:
        work.wait()
    assert grid[0, 0].item() == left() and inner.sum().item() == 40 * me()


@correct(2)
def double_buffering() -> None:
    buffers = [torch.zeros(1000), torch.zeros(1000)]
    works: list[dist.Work | None] = [None, None]
    for step in range(6):
        buffer, work = buffers[step % 2], works[step % 2]
        if work is not None:
            work.wait()
        if me() == 0:
            buffer.fill_(step)
            works[step % 2] = dist.isend(buffer, 1)
        else:
            works[step % 2] = dist.irecv(buffer, 0)
    for work in works:
        work.wait()  # type: ignore[union-attr]
    assert me() == 0 or buffers[1][0].item() == 5


@correct(2)
def waiting_out_of_order() -> None:
    xs = [torch.full((10,), float(i)) for i in range(4)]
    works = [(dist.irecv if me() else dist.isend)(x, 1 - me(), tag=i) for i, x in enumerate(xs)]
    for i in (2, 0, 3, 1):
        works[i].wait()
        xs[i] += 1


@correct(2)
def a_later_send_is_over() -> None:
    x, y = torch.ones(10), torch.ones(10)
    if me() == 0:
        first, second = dist.isend(x, 1), dist.isend(y, 1)
        second.wait()  # messages of two ranks leave in order
        x += 1
        first.wait()
    else:
        dist.recv(x, 0)
        dist.recv(y, 0)


@correct(4)
def ring_all_reduce_in_chunks() -> None:
    """Every chunk is a view of one tensor; others change while one of them is sent."""
    size, x = dist.get_world_size(), torch.full((40,), 10.0 ** me())
    chunks, box = list(x.chunk(size)), torch.empty(10)
    for step in range(size - 1):
        work = dist.isend(chunks[(me() - step) % size], right())
        dist.recv(box, left())
        chunks[(me() - step - 1) % size] += box
        work.wait()
    for step in range(size - 1):
        work = dist.isend(chunks[(me() + 1 - step) % size], right())
        dist.recv(chunks[(me() - step) % size], left())
        work.wait()
    assert x.unique().tolist() == [1111.0]


@correct(2)
def a_receive_posted_early() -> None:
    """Rank 0 reads and sends the tensor first, and only then does rank 1 send its message."""
    x = torch.ones(1000)
    if me() == 0:
        arriving = dist.irecv(x, 1)
        first = x.sum().item()
        leaving = dist.isend(x, 1)
        time.sleep(0.2)  # meanwhile the message arrives in what was sent
        leaving.wait()
        arriving.wait()
        assert first == 1000 and x[0].item() == 3
    else:
        dist.recv(x, 0)
        dist.send(x + 2, 0)


@correct(2)
def an_empty_part_is_written() -> None:
    """Writing it also raises the version of the element that is being sent."""
    x = torch.ones(1)
    whole, nothing = x.tensor_split(2)
    if me() == 0:
        work = dist.isend(whole, 1)
        torch.add(nothing, 1, out=nothing)
        work.wait()
    else:
        dist.recv(x, 0)


@correct(2)
def only_shapes_are_read() -> None:
    x = torch.zeros(4, 5)
    if me() == 0:
        dist.isend(x + 1, 1).wait()
        return
    work = dist.irecv(x, 0)
    assert x.shape == (4, 5) and len(x) == 4 and x.numel() == 20 and x.dtype == torch.float32
    rows, like, new = x[0], torch.zeros_like(x), x.new_zeros(3)
    flat, array = x.view(-1), x.detach().numpy()
    assert type(x) is not None and x.is_contiguous() and x.data_ptr() and x.stride()
    assert isinstance(x, torch.Tensor) and like.sum() == new.sum() == 0
    work.wait()
    assert rows.sum() == 5 and flat.sum() == 20 and array.sum() == 20
    assert type(x) is type(rows) is torch.Tensor


@correct(2)
def what_is_sent_may_be_read() -> None:
    layer, x = nn.Linear(10, 10), torch.ones(8, 10)
    if me() == 0:
        work = dist.isend(x, 1)
        text = f"{x} {x.sum()}"
        layer(x).sum().backward()
        again = dist.isend(x, 1)  # two ranks may even get the same tensor at once
        copies = [x.clone(), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), nn.Parameter(x)]
        torch.save({"x": x}, io.BytesIO())
        x.unsqueeze_(0).squeeze_(0)
        work.wait()
        again.wait()
        assert text and all(copied.equal(x) for copied in copies)
    else:
        dist.recv(x, 0)
        dist.recv(x, 0)


@correct(3)
def sends_without_a_wait() -> None:
    x, y = torch.ones(10), torch.empty(10)
    dist.isend(x, right())
    dist.recv(y, left())


@correct(2)
def a_listener_that_gets_nothing() -> None:
    dist.irecv(torch.empty(1), 1 - me(), tag=7)
    dist.barrier()


@correct(2)
def asked_before_the_wait() -> None:
    x = torch.zeros(10)
    sending = dist.isend(torch.ones(10), 1 - me())
    work = dist.irecv(x, 1 - me())
    for _ in range(3):
        work.is_completed()
    work.wait()
    sending.wait()
    assert x.sum().item() == 10


@correct(2)
def a_thread_waits() -> None:
    x = torch.zeros(10)
    work = dist.irecv(x, 1 - me())
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    dist.send(torch.ones(10), 1 - me())
    waiter.join()
    assert x.sum().item() == 10


@correct(3)
def from_any_source() -> None:
    x = torch.ones(10)
    if me() == 0:
        for _ in range(2):
            source = dist.recv(x)
            dist.send(x, source)
        return
    work = dist.isend(x, 0)
    dist.recv(torch.empty(10), 0)
    x += 1
    work.wait()


# ------------------------------------------------------------------------- correct: collectives


@correct(3)
def a_reduction_in_the_background() -> None:
    x, a = torch.ones(LARGE), torch.randn(100, 100)
    work = dist.all_reduce(x, async_op=True)
    for _ in range(10):
        a = torch.tanh(a @ a)
    work.wait()
    x /= dist.get_world_size()
    assert x[0].item() == 1


@correct(2)
def many_reductions_waited_for_backwards() -> None:
    xs = [torch.full((1000,), float(i)) for i in range(100)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for x, work in reversed([*zip(xs, works, strict=True)]):
        work.wait()
        x /= 2


@correct(2)
def parts_of_one_tensor() -> None:
    x = torch.ones(1000)
    first, second = x[:500], x[500:]
    work = dist.all_reduce(first, async_op=True)
    second *= 3
    work.wait()
    assert x.sum().item() == 500 * 2 + 500 * 3


@correct(2)
def asked_until_complete() -> None:
    x = torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert x[0].item() == 2


@correct(2)
def a_future_and_a_callback() -> None:
    x, y = torch.ones(10), torch.ones(10)
    divided = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0].div_(2))
    future = dist.all_reduce(y, async_op=True).get_future()
    divided.wait()
    future.wait()
    assert x[0].item() == 1 and y[0].item() == 2


@correct(2)
def the_last_one_stands_for_all() -> None:
    xs = [torch.ones(10) for _ in range(3)]
    for x in xs:
        work = dist.all_reduce(x, async_op=True)
    work.wait()  # a queue of a GPU runs them in order
    for x in xs:
        x /= 2


@correct(2)
def every_asynchronous_collective() -> None:
    size = dist.get_world_size()
    one, many = torch.ones(2), torch.ones(2 * size)
    parts = [torch.ones(2) for _ in range(size)]
    calls: list[tuple[Callable[[], dist.Work], list[torch.Tensor]]] = [
        (lambda: dist.broadcast(one, 0, async_op=True), [one]),
        (lambda: dist.reduce(one, 0, async_op=True), [one]),
        (lambda: dist.all_gather(parts, one, async_op=True), parts),
        (lambda: dist.all_gather_single(many, one, async_op=True), [many]),
        (lambda: dist.reduce_scatter(one, parts, async_op=True), [one]),
        (lambda: dist.reduce_scatter_single(one, many, async_op=True), [one]),
        (lambda: dist.all_to_all_single(many, many.clone(), async_op=True), [many]),
        (lambda: dist.gather(one, parts if me() == 0 else None, async_op=True), parts),
        (lambda: dist.scatter(one, parts if me() == 0 else None, async_op=True), [one]),
    ]
    for operator in dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG:
        work = dist.all_reduce(one, operator, async_op=True)
        time.sleep(0.01)
        work.wait()
    for call, tensors in calls:
        work = call()
        time.sleep(0.01)
        work.wait()
        for tensor in tensors:
            tensor += 1


@correct(2)
def a_function_in_cpp_waits() -> None:
    tensors = [torch.full((10,), float(me())), torch.full((10,), float(me()))]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 1 << 20, 1)
    assert tensors[0].sum().item() == 10


@correct(2)
def gradients_in_hooks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    works: list[dist.Work] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        )
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()


@correct(2)
def data_parallel_with_hooks() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0].div_(2))

    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()


@correct(2)
def a_message_beside_ddp() -> None:
    """DDP waits in C++; its all-reduce tells that the other rank has received before it."""
    torch.manual_seed(0)
    model, x = DistributedDataParallel(nn.Linear(4, 2)), torch.ones(10)
    work = dist.isend(x, 1) if me() == 0 else None
    if me() == 1:
        dist.recv(x, 0)
    model(torch.ones(3, 4)).sum().backward()
    x += 1
    if work is not None:
        work.wait()


# ---------------------------------------------------------------------------- faulty


@faulty(2, "rank 0 changed the tensor of isend(dst=1) before wait(). The receiver may get")
def a_send_buffer_reused() -> None:
    x = torch.ones(LARGE)
    if me() == 0:
        work = dist.isend(x, 1)  # issued
        x += 1  # touched
        work.wait()
    else:
        dist.recv(x, 0)


@faulty(3, "ranks 0 to 2 changed the tensor of isend before wait()")
def a_ring_that_reuses_its_buffer() -> None:
    out, box = torch.ones(100), torch.empty(100)
    for _ in range(2):
        work = dist.isend(out, right())  # issued
        dist.recv(box, left())
        out.copy_(box)  # touched
        work.wait()


@faulty(2, "rank 0 changed the tensor of isend(dst=1) before wait()")
def a_chunk_that_is_sent_and_changed() -> None:
    chunks = list(torch.ones(100).chunk(4))
    if me() == 0:
        work = dist.isend(chunks[2], 1)  # issued
        chunks[2][3] = 7  # touched
        work.wait()
    else:
        dist.recv(chunks[0], 0)


@faulty(2, "rank 0 changed the tensor of isend(dst=1) before wait()")
def a_send_buffer_changed_by_another_view() -> None:
    x = torch.ones(1000)
    flat = x.view(-1)
    if me() == 0:
        work = dist.isend(x, 1)  # issued
        flat[500] = 7
        work.wait()
    else:
        dist.recv(x, 0)


@faulty(2, "rank 0 changed the tensor of isend(dst=1) before wait()")
def a_send_buffer_changed_by_numpy() -> None:
    array = np.ones(1000)
    x = torch.from_numpy(array)
    if me() == 0:
        work = dist.isend(x, 1)  # issued
        array += 1
        work.wait()
    else:
        dist.recv(x, 0)


@faulty(2, "rank 0 changed the tensor of isend(dst=1) before wait()")
def an_optimizer_step_during_a_send() -> None:
    layer = nn.Linear(4, 4)
    if me() == 0:
        layer(torch.ones(2, 4)).sum().backward()
        work = dist.isend(layer.weight.detach(), 1)  # issued
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
        work.wait()
    else:
        dist.recv(torch.empty(4, 4), 0)


@faulty(2, "rank 1 read the tensor of irecv(src=0) before wait()")
def a_receive_buffer_read() -> None:
    x = torch.ones(LARGE)
    if me() == 0:
        dist.send(x, 1)
    else:
        work = dist.irecv(x, 0)  # issued
        y = x * 2  # touched
        work.wait()
        assert y is not None


@faulty(2, "rank 1 read the tensor of irecv(src=0) before wait()")
def an_element_of_a_receive_buffer_printed() -> None:
    x = torch.ones(10)
    if me() == 0:
        dist.send(x, 1)
    else:
        work = dist.irecv(x, 0)  # issued
        print(x[0].item())  # touched
        work.wait()


@faulty(2, "rank 1 read the tensor of irecv(src=0) before wait()")
def a_receive_that_is_never_waited_for() -> None:
    x = torch.ones(10)
    if me() == 0:
        dist.send(x, 1)
    else:
        dist.irecv(x, 0)  # issued
        time.sleep(0.1)
        assert x.tolist()  # touched


@faulty(2, "rank 1 never waited for irecv(src=0). The function may return before the message")
def a_receive_that_is_returned() -> torch.Tensor:
    x = torch.ones(10)
    if me() == 0:
        dist.send(x, 1)
    else:
        dist.irecv(x, 0)  # issued
    return x


@faulty(2, "ranks 0 and 1 passed the tensor of isend to recv before wait()")
def one_buffer_both_ways() -> None:
    x = torch.ones(1000)
    work = dist.isend(x, 1 - me())  # issued
    dist.recv(x, 1 - me())  # touched
    work.wait()


@faulty(2, "ranks 0 and 1 passed the tensor of irecv to send before wait()")
def sent_on_before_it_has_arrived() -> None:
    x = torch.ones(1000)
    work = dist.irecv(x, 1 - me())  # issued
    dist.isend(x, 1 - me()).wait()  # touched
    work.wait()


@faulty(3, "ranks 0 to 2 changed the tensor of all_reduce(async_op=True) before wait()")
def a_sum_divided_too_early() -> None:
    x = torch.ones(LARGE)
    work = dist.all_reduce(x, async_op=True)  # issued
    x /= 3  # touched
    work.wait()


@faulty(2, "ranks 0 and 1 read the tensor of all_reduce(async_op=True) before wait()")
def a_step_before_the_gradients_are_there() -> None:
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 4)).sum().backward()
    work = dist.all_reduce(layer.weight.grad, async_op=True)  # issued
    optimizer.step()  # touched
    work.wait()


@faulty(2, "ranks 0 and 1 changed the tensor of all_reduce(async_op=True) before wait()")
def a_second_backward_during_a_reduction() -> None:
    layer = nn.Linear(4, 16)
    layer(torch.ones(2, 4)).sum().backward()
    work = dist.all_reduce(layer.weight.grad, async_op=True)  # issued
    layer(torch.ones(2, 4)).sum().backward()  # adds to the gradient in C++
    work.wait()


@faulty(2, "ranks 0 and 1 never waited for all_reduce(async_op=True)")
def a_reduction_that_is_forgotten() -> torch.Tensor:
    x = torch.ones(10)
    dist.all_reduce(x, async_op=True)  # issued
    return x


@faulty(2, "ranks 0 and 1 read the tensor of all_gather(async_op=True) before wait()")
def a_gathered_list_read() -> None:
    parts = [torch.empty(10) for _ in range(2)]
    work = dist.all_gather(parts, torch.ones(10), async_op=True)  # issued
    whole = torch.cat(parts)  # touched
    work.wait()
    assert whole is not None


# ---------------------------------------------------------------------------- the tests


def warnings_of(function: Function, world_size: int, **named: object) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        dtlab.launch(function, world_size=world_size, **named)  # type: ignore[arg-type]
    return said.getvalue() if "warning: r" in said.getvalue() else ""


def lines_of(function: Function, mark: str) -> list[int]:
    lines, first = inspect.getsourcelines(function)
    return [first + place for place, line in enumerate(lines) if line.rstrip().endswith(mark)]


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_program_is_not_warned(name: str) -> None:
    world_size, function = CORRECT[name]
    assert warnings_of(function, world_size) == ""


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_program_is_warned_once_with_its_lines(name: str) -> None:
    world_size, says, function = FAULTY[name]
    said = warnings_of(function, world_size)
    assert says in " ".join(said.split())
    assert said.count("warning: ") == 1
    for mark, label in ("# issued", "issued"), ("# touched", says.split("rank")[1].split()[1]):
        for line in lines_of(function, mark):
            assert f"line {line}:" in said, (mark, label)


def test_links_that_are_emulated() -> None:
    cluster = dtlab.Cluster(nodes=2, gpus_per_node=1)
    for name, is_faulty in (
        ("a_reduction_in_the_background", False),
        ("a_reply_implies_arrival", False),
        ("asked_until_complete", False),
        ("a_sum_divided_too_early", True),
        ("a_receive_buffer_read", True),
    ):
        *_, function = (FAULTY if is_faulty else CORRECT)[name]
        assert bool(warnings_of(function, 2, cluster=cluster)) == is_faulty, name


def test_a_dispatch_mode_hides_no_mistake() -> None:
    def counted() -> None:
        block = torch.ones(10)
        with Storages(block):
            works = [dist.isend(block, right()), dist.irecv(block, 1 - me())]
            for work in works:
                work.wait()

    (warning,) = dtlab.launch(counted, world_size=2).warnings
    assert "passed the tensor of isend to recv before wait()" in warning


def test_without_a_trace_nothing_is_watched() -> None:
    assert warnings_of(a_sum_divided_too_early, 2, trace=False) == ""


def test_a_switch_turns_the_warnings_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_plain() -> bool:
        x = torch.ones(10)
        work = dist.all_reduce(x, async_op=True)
        plain = type(x) is torch.Tensor
        work.wait()
        return plain

    assert dtlab.launch(is_plain).values == [False, False]
    monkeypatch.setenv("DTLAB_TOUCH_WARNINGS", "0")
    assert dtlab.launch(is_plain).values == [True, True]
    assert warnings_of(a_sum_divided_too_early, 2) == ""
    with dtlab.session(2) as session:
        assert session.run(is_plain).values == [True, True]


def in_a_loop() -> torch.Tensor:
    x = torch.ones(10)
    for _ in range(200):
        work = dist.all_reduce(x, async_op=True)
        x.fill_(1)
        work.wait()
    return x


def test_a_mistake_in_a_loop_is_reported_once() -> None:
    assert warnings_of(in_a_loop, 3).count("warning: ") == 1


def left_in_use() -> list[torch.Tensor]:
    with torch.inference_mode():
        unversioned = torch.ones(10)
        dist.all_reduce(unversioned, async_op=True)
    whole = torch.ones(4, 4)
    dist.all_reduce(whole, async_op=True)
    return [unversioned, whole, whole[1]]


def test_tensors_in_use_are_returned_as_ordinary_ones() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        values = dtlab.launch(left_in_use).values
    for tensors in values:
        assert [type(tensor) for tensor in tensors] == [torch.Tensor] * 3


def test_a_session_warns_after_the_cell() -> None:
    said = io.StringIO()
    with dtlab.session(2) as session, contextlib.redirect_stdout(said):
        session.cell("import torch, torch.distributed as dist")
        session.cell("x = torch.ones(10); work = dist.all_reduce(x, async_op=True)")
        session.cell("work.wait(); x /= 2")  # a later cell may wait
        assert said.getvalue() == ""
        session.cell("work = dist.all_reduce(x, async_op=True)\nx /= 2\nwork.wait()")
        assert "warning: ranks 0 and 1 changed the tensor" in said.getvalue()
        assert "changed: <cell 4 of the ranks>, line 2:   x /= 2" in said.getvalue()


def test_a_session_with_a_message_from_an_earlier_cell_does_not_warn() -> None:
    said = io.StringIO()
    with dtlab.session(2) as session, contextlib.redirect_stdout(said):
        session.cell("import torch, torch.distributed as dist; me = dist.get_rank()")
        session.cell("x, y = torch.ones(10), torch.ones(1)\nif me: work = dist.irecv(x, 0)")
        session.cell(
            "if me:\n    work.wait()\n    dist.send(y, 0)\n"
            "else:\n    work = dist.isend(x, 1)\n    dist.recv(y, 1)\n    x += 1\n    work.wait()"
        )
    assert said.getvalue() == ""


def test_a_watched_read_imports_no_compiler() -> None:
    """torch wraps a mode so that its first use imports torch._dynamo, which takes seconds."""
    assert not hasattr(_Accesses.__torch_dispatch__, "__wrapped__")
