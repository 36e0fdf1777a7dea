"""Causes that an error names are known, and certain deadlocks of threads are found at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.ranks.protocol import Finding, Frame, OpInfo
from dtlab.ranks.watch.advice import advice_on
from dtlab.ranks.watch.deadlocks import pattern

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]


def message_of(function: Callable[[], object], world_size: int = 2, timeout: float = 30) -> str:
    with pytest.raises(dtlab.DtlabError) as caught:
        dtlab.launch(function, world_size=world_size, timeout=timeout)
    return " ".join(f"{type(caught.value).__name__}: {caught.value}".split())


def first() -> bool:
    return dist.get_rank() == 0


# Libraries -------------------------------------------------------------------------------------


def consolidates() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(8, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if first():
        optimizer.consolidate_state_dict(to=0)


def steps() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(8, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
    model(torch.ones(4, 8)).sum().backward()
    if first():
        optimizer.step()


def distributes() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    if first():
        distribute_tensor(torch.ones(4), mesh, [Replicate()])


def synchronises() -> None:
    from torch.distributed.utils import _sync_module_states

    if first():
        _sync_module_states(nn.Linear(4, 4), dist.group.WORLD, 1 << 20, 0, [], True)


def wraps() -> None:
    if first():
        nn.parallel.DistributedDataParallel(nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("program", "maker"),
    [
        (consolidates, "consolidate_state_dict (torch/distributed/optim/zero_redundancy_optimize"),
        (steps, "step (torch/distributed/optim/zero_redundancy_optimizer.py)"),
        (distributes, "distribute_tensor (torch/distributed/tensor/_api.py)"),
        (synchronises, "_sync_module_states (torch/distributed/utils.py)"),
        (wraps, "__init__ (torch/nn/parallel/distributed.py)"),
    ],
)
def test_the_library_in_the_stack_is_named(program: Callable[[], None], maker: str) -> None:
    message = message_of(program)
    assert maker in message
    assert "every member of its group must run that line" in message
    assert "DDP broadcasts" not in message
    assert "model.module" not in message


def test_ddp_is_named_where_it_broadcasts_buffers() -> None:
    def validates() -> None:
        layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = nn.parallel.DistributedDataParallel(layers)
        if first():
            model(torch.ones(2, 4))

    message = message_of(validates)
    assert "DDP broadcasts the module's buffers" in message
    assert "model.module(...)" in message


@pytest.mark.parametrize("objects", [False, True])
def test_a_collective_of_the_learners_own_names_no_library(objects: bool) -> None:
    def alone() -> None:
        if first():
            share(torch.ones(2), objects)

    message = message_of(alone)
    assert "did not call this broadcast, or rank 0 calls it once too often" in message
    assert ".py) makes it" not in message
    assert "DDP" not in message


def share(tensor: torch.Tensor, objects: bool) -> None:
    """Communicates in a line that does not name the operation."""
    run = (lambda: dist.broadcast_object_list([1])) if objects else (
        lambda: dist.broadcast(tensor, 0)
    )
    run()


# Advice that was false -------------------------------------------------------------------------


def test_different_calls_and_different_arguments_get_different_advice() -> None:
    def two() -> None:
        if first():
            dist.broadcast(torch.ones(3), src=0)
        dist.broadcast(torch.ones(4), src=1)

    def one() -> None:
        dist.broadcast(torch.ones(3), src=dist.get_rank())

    message = message_of(two)
    assert "These are calls in different lines." in message
    assert "a rank skipped a call before, or made one too many" in message
    assert "All ranks must pass the same arguments to broadcast." in message_of(one)


def test_advice_on_a_message_to_the_rank_itself_is_to_copy() -> None:
    def exchange() -> None:
        size, rank = dist.get_world_size(), dist.get_rank()
        boxes = [torch.empty(2) for _ in range(size)]
        ops = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), k) for k in range(size)]
        ops += [dist.P2POp(dist.irecv, boxes[k], k) for k in range(size)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    for ranks in (2, 3):
        message = message_of(exchange, ranks)
        assert "copy it without a message: buffer.copy_(part)." in message
        assert "gets nothing" not in message


def test_one_receive_too_many_is_no_wrong_order() -> None:
    def swap(times: int, more: int) -> None:
        box, other = torch.ones(1), 1 - dist.get_rank()
        for _ in range(times):
            work = dist.isend(torch.ones(1), other)
            dist.recv(box, other)
            work.wait()
        for _ in range(more):
            dist.recv(box, other)

    after = message_of(lambda: swap(3, 1))
    assert "Every rank waits for a message, and no rank sends one. Each receive needs" in after
    assert "Every rank receives before it sends, so no rank sends." in message_of(
        lambda: swap(0, 1)
    )


def op(rank: int, name: str, partners: tuple[int, ...], group: int = 0, **more: object) -> OpInfo:
    members = (0, 1, 2)
    text = f"{name}()"
    return OpInfo(rank, name, text, partners, 0, group, members, "a.py", 3)._replace(**more)


def test_a_member_that_has_called_a_collective_is_not_waited_for() -> None:
    """Rank 1 has called rank 0's all_reduce asynchronously, and waits for rank 0 elsewhere."""
    mine = op(0, "all_reduce", (1, 2), lacks=(2,))
    other = op(1, "barrier", (0,), group=7, lacks=(0,))
    assert "circle" not in pattern(Finding("standstill", [mine, other], []))
    truly = mine._replace(lacks=(1, 2))
    assert "rank 0 → rank 1 → rank 0" in pattern(Finding("standstill", [truly, other], []))


def test_a_rank_that_called_it_in_a_thread_did_call_it() -> None:
    in_a_thread = op(0, "all_reduce", (1, 2), lacks=(1, 2))
    advice = pattern(Finding("standstill", [in_a_thread], [0, 1, 2]))
    assert advice.startswith("Ranks 1 and 2 did not call this all_reduce, or rank 0 calls it")


def test_a_message_on_another_group_is_no_wrong_destination() -> None:
    waits, sent = op(0, "recv", (1,)), op(1, "send", (0,), group=7)
    other = op(1, "recv", (0,))
    advice = pattern(Finding("standstill", [waits, other], [], [sent]))
    assert advice.startswith("Rank 1 has sent a message to rank 0, but on another group.")


def test_ranks_that_wait_for_a_rank_that_returned_do_not_wait_for_the_busy_one() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), 1)
        if dist.get_rank() == 2:
            time.sleep(60)

    message = message_of(program, 3, timeout=1.5)
    assert "Rank 0 waits for rank 2" not in message
    waits = message_of(lambda: time.sleep(60) if dist.get_rank() else dist.barrier(), 2, 1.5)
    assert "Rank 0 waits for rank 1" in waits


@pytest.mark.parametrize(
    ("message", "code", "advised"),
    [
        ("AttributeError: 'NoneType' object", "dist.all_reduce(p.grad.view(-1))", 0),
        ("AttributeError: 'NoneType' object", "total = dist.all_reduce(x)", 1),
        ("TypeError: unsupported operand: 'NoneType'", "return dist.all_reduce(x) / 2", 1),
        ("IndexError: list index out of range", "rows[step + 1].add_(1)", 0),
        ("IndexError: list index out of range", "rows[rank + 1].add_(1)", 1),
    ],
)  # fmt: skip
def test_advice_on_exceptions_only_where_the_line_shows_the_mistake(
    message: str, code: str, advised: int, tmp_path: object
) -> None:
    file = f"{tmp_path}/program.py"
    with open(file, "w") as text:
        text.write(f"{code}\n")
    assert bool(advice_on(message, Frame(file, 1, "f"))) == bool(advised)


# Threads ---------------------------------------------------------------------------------------


def joins() -> None:
    if first():
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
        thread.start()
        thread.join()


def waits_for_a_result() -> None:
    with ThreadPoolExecutor(2) as pool:
        if first():
            pool.submit(dist.all_reduce, torch.ones(1)).result()


def leaves_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        if first():
            pool.submit(dist.barrier)


def waits_for_an_event() -> None:
    done = threading.Event()

    def receive() -> None:
        dist.recv(torch.ones(1), 1)
        done.set()

    if first():
        threading.Thread(target=receive).start()
        done.wait()


def takes_what_is_completed() -> None:
    if first():
        with ThreadPoolExecutor(2) as pool:
            for future in as_completed([pool.submit(dist.barrier)]):
                future.result()


def joins_three() -> None:
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    if first():
        threads = [
            threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": each})
            for each in groups
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        dist.all_reduce(torch.ones(1), group=groups[0])


@pytest.mark.parametrize(
    "program",
    [
        joins, waits_for_a_result, leaves_a_pool, waits_for_an_event, takes_what_is_completed,
        joins_three,
    ],
)  # fmt: skip
def test_a_main_thread_that_waits_for_a_deadlocked_thread(
    program: Callable[[], None],
) -> None:
    begun = time.monotonic()
    message = message_of(program, timeout=60)
    assert message.startswith("DeadlockError: no rank can make progress")
    assert time.monotonic() - begun < 20  # about 1 s without other load
    assert "rank 1 returned" in message


def joins_with_a_time_limit() -> str:
    if first():
        thread = threading.Thread(target=lambda: dist.recv(torch.ones(1), 1))
        thread.start()
        thread.join(timeout=1.5)
        dist.send(torch.ones(1), 1)
        thread.join()
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)
    return "ok"


def another_thread_helps() -> str:
    def help_later() -> None:
        time.sleep(1.5)
        dist.send(torch.ones(1), 1)

    if first():
        targets = help_later, lambda: dist.recv(torch.ones(1), 1)
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)
    return "ok"


def the_main_thread_waits_and_a_second_thread_helps() -> str:
    def help_later() -> None:
        time.sleep(1.5)
        dist.send(torch.ones(1), 1)

    group = dist.new_group([0, 1])
    if first():
        other = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1), group=group))
        helper = threading.Thread(target=help_later)
        other.start()
        helper.start()
        dist.recv(torch.ones(1), 1)
        other.join()
        helper.join()
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)
        dist.all_reduce(torch.ones(1), group=group)
    return "ok"


def waits_for_an_event_with_a_time_limit() -> str:
    event = threading.Event()
    if first():
        thread = threading.Thread(target=lambda: dist.recv(torch.ones(1), 1))
        thread.start()
        event.wait(1.5)
        dist.send(torch.ones(1), 1)
        thread.join()
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)
    return "ok"


@pytest.mark.parametrize(
    "program",
    [
        joins_with_a_time_limit, another_thread_helps, waits_for_an_event_with_a_time_limit,
        the_main_thread_waits_and_a_second_thread_helps,
    ],
)  # fmt: skip
def test_a_thread_that_another_one_frees_raises_no_alarm(program: Callable[[], str]) -> None:
    assert dtlab.launch(program, world_size=2, timeout=30).values == ["ok", "ok"]


# Compiled code ---------------------------------------------------------------------------------


def in_eager() -> None:
    @torch.compile(backend="eager")
    def total(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    if first():
        total(torch.ones(3))


def in_aot() -> None:
    @torch.compile(backend="aot_eager")
    def total(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 + 1
        dist.all_reduce(y)
        return y

    if first():
        total(torch.ones(3))


def in_a_module() -> None:
    class Summed(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output = super().forward(input)
            dist.all_reduce(output)
            return output

    if first():
        with torch.no_grad():
            torch.compile(Summed(4, 4), backend="eager")(torch.ones(2, 4))


@pytest.mark.parametrize("program", [in_eager, in_aot, in_a_module])
def test_a_place_in_compiled_code_is_the_learners_line(program: Callable[[], None]) -> None:
    message = message_of(program, timeout=100)
    assert "eval_with_key" not in message
    assert "tests/test_causes.py, line" in message
    assert ": dist.all_reduce(" in message


def test_files_that_the_compiler_writes_are_not_the_learners() -> None:
    from dtlab.ranks.watch.locate import is_learners

    name = "chzv2nclec5ufcydne6knb6ja7zr3hnaccl53vsfdsfhmvppl4q3.py"
    assert not is_learners(f"/tmp/torchinductor_me/hz/{name}")
    assert is_learners(f"/home/me/ab/{name}")
    assert not is_learners("<eval_with_key>.3 from proxy_tensor.py:1738 in wrapped")


# PyTorch's paragraphs --------------------------------------------------------------------------


class Branches(nn.Module):
    """A module whose second layer is used in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor, both: bool) -> torch.Tensor:
        hidden = self.always(inputs)
        return self.sometimes(hidden) if both else hidden


class Checkpointed(Branches):
    """A module that runs its second layer twice, or once, under a checkpoint."""

    def forward(self, inputs: torch.Tensor, both: bool) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        hidden = self.always(inputs)
        for _ in range(1 + both):
            hidden = checkpoint(self.sometimes, hidden, use_reentrant=True)
        return hidden


def train(module: nn.Module, both: list[bool], **arguments: bool) -> None:
    model = nn.parallel.DistributedDataParallel(module, **arguments)
    for each in both:
        model(torch.ones(2, 4), each).sum().backward()


def frozen_on_rank_0() -> None:
    module = Branches()
    module.always.requires_grad_(not first())
    nn.parallel.DistributedDataParallel(module)


def outside_the_forward() -> None:
    module = Branches()
    model = nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
    output = model(torch.ones(2, 4), False)
    (output.sum() + module.sometimes(torch.ones(2, 4)).sum()).backward()


@pytest.mark.parametrize(
    ("program", "says", "theirs"),
    [
        (
            lambda: train(Checkpointed(), [True]),
            "sometimes.bias got two gradients in one backward pass, because re-entrant "
            "checkpoints run a backward pass each: pass use_reentrant=False to checkpoint.",
            "Expected to mark a variable ready only once.",
        ),
        (
            lambda: train(Checkpointed(), [False], find_unused_parameters=True),
            "re-entrant checkpoints run a backward pass each: pass use_reentrant=False",
            "Expected to mark a variable ready only once.",
        ),
        (
            outside_the_forward,
            "sometimes.bias got two gradients in one backward pass: use it only in the forward",
            "Expected to mark a variable ready only once.",
        ),
        (
            lambda: train(Branches(), [True, False, False], static_graph=True),
            "here without a gradient for sometimes.weight, sometimes.bias: leave out static_graph",
            "not compatible with static_graph set to True",
        ),
        (
            lambda: train(Branches(), [False, True], static_graph=True),
            "but this one uses others than the first: leave out static_graph=True",
            "Your training graph has changed in this iteration",
        ),
        (
            frozen_on_rank_0,
            "freeze the same parameters on every rank before you wrap it. Frozen on this rank: "
            "always.weight, always.bias.",
            "DDP expects same model across all ranks",
        ),
        (
            lambda: train(Branches(), [False, False]),
            "no gradient in the last backward: sometimes.weight, sometimes.bias.",
            "Parameter indices which did not receive grad for this rank: 2 3",
        ),
    ],
)
def test_a_paragraph_of_ddp_begins_with_the_remedy(
    program: Callable[[], None], says: str, theirs: str
) -> None:
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(program, world_size=2, timeout=60)
    message = " ".join(str(caught.value).split())
    assert says in message
    assert message.index(says) < message.rindex("PyTorch's text: ")
    assert theirs in message
    lines = str(caught.value).splitlines()
    assert max(len(line) for line in lines if "test_causes.py" not in line) <= 92  # wrapped


def test_a_hook_of_ddp_whose_future_never_completes() -> None:
    def hooked() -> None:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        model.register_comm_hook(None, lambda state, bucket: torch.futures.Future())
        model(torch.ones(2, 4)).sum().backward()

    message = message_of(hooked, timeout=4)
    assert "Ranks 0 and 1 are inside backward, and no operation is open. If only more" in message
    assert "return work.get_future()" in message
