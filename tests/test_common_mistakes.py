"""Mistakes that many people make: the error says what is wrong and what to write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dtlab
from dtlab.checks import known_parts
from dtlab.checks.report import Reference
from dtlab.ranks.protocol import Frame
from dtlab.ranks.watch.advice import advice_on

pytestmark = pytest.mark.slow


def message_of(fn: Callable[..., object], world_size: int = 3, timeout: float = 30) -> str:
    """The error that a launch of `fn` ends with, as a learner reads it but in one line."""
    with pytest.raises(dtlab.DtlabError) as caught:
        dtlab.launch(fn, world_size=world_size, timeout=timeout)
    return f"{type(caught.value).__name__}: {' '.join(str(caught.value).split())}"


# Neighbours and numbers ------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["dst", "group_dst"])
def test_the_last_rank_has_no_right_neighbour(target: str) -> None:
    def to_the_right() -> None:
        dist.isend(torch.ones(4), **{target: dist.get_rank() + 1}).wait()

    message = message_of(to_the_right)
    assert "rank 2 sends to rank 3, but the ranks are 0 to 2." in message
    assert "The last rank has no right neighbour: in a ring it is (rank + 1) % 3" in message
    assert "IndexError" not in message


def test_an_index_in_a_variable_that_does_not_wrap_around() -> None:
    def to_the_right() -> None:
        ranks = list(range(dist.get_world_size()))
        right = dist.get_rank() + 1
        dist.isend(torch.ones(4), ranks[right]).wait()

    message = message_of(to_the_right)
    assert "rank 2 raised IndexError" in message
    assert "no index rank + 1 on the last rank: it has no right neighbour." in message


def test_an_exception_after_a_receive_into_a_tensor_of_another_size() -> None:
    def add_what_arrives() -> torch.Tensor:
        chunk, arriving = torch.ones(3), torch.empty(6)
        sending = dist.isend(chunk, 1 - dist.get_rank())
        dist.recv(arriving, 1 - dist.get_rank())
        total = arriving + chunk
        sending.wait()
        return total

    message = message_of(add_what_arrives, 2)  # a MismatchError if the watcher looks first
    assert "sends float32[3] and rank" in message
    assert "receives it into float32[6]." in message
    assert "dist.recv(arriving" in message


def test_an_index_beyond_the_end_of_a_list_has_no_neighbour_without_messages(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.py"
    file.write_text("def my_rows(bounds, rank):\n    return bounds[rank + 1]\n")
    advice = advice_on("IndexError: list index out of range", Frame(str(file), 2, "my_rows"))
    assert advice.endswith("on the last rank: a list of N elements has the indices 0 to N - 1.")


def test_a_message_from_the_left_is_not_received_from_the_right() -> None:
    def from_the_right() -> None:
        dist.recv(torch.ones(4), src=dist.get_rank() + 1)

    assert "If messages go to the right, receive from rank - 1." in message_of(from_the_right)


def test_rank_0_has_no_left_neighbour() -> None:
    def from_the_left() -> None:
        dist.recv(torch.ones(4), src=dist.get_rank() - 1)

    message = message_of(from_the_left)
    assert "rank 0 receives from rank -1, but the ranks are 0 to 2." in message
    assert "in a ring it is (rank - 1) % 3" in message


def test_one_minus_rank_is_the_other_rank_among_two_only() -> None:
    def with_the_other() -> None:
        work = dist.isend(torch.ones(4), dst=1 - dist.get_rank())
        dist.recv(torch.ones(4), src=1 - dist.get_rank())
        work.wait()

    assert "that is the other rank only if there are two ranks." in message_of(with_the_other)


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_a_rank_that_talks_to_itself(operation: str) -> None:
    def alone() -> None:
        getattr(dist, operation)(torch.ones(4), dist.get_rank())

    message = message_of(alone)
    assert message.startswith("RankError: ranks 0 to 2 raised ValueError: a rank ")
    assert "itself. If you mean another rank, check how you compute its number." in message
    assert "copy it without a message: buffer.copy_(part)." in message


@pytest.mark.parametrize(
    ("operation", "fate"),
    [("isend", "sends to itself."), ("irecv", "receives from itself.")],
)
def test_a_swap_with_a_fixed_rank(operation: str, fate: str) -> None:
    def swap() -> None:
        getattr(dist, operation)(torch.ones(4), 1).wait()

    message = message_of(swap, world_size=2)
    assert f"rank 1 raised ValueError: a rank {fate} If you mean another rank" in message
    assert "of two ranks, the other one is 1 - rank." in message
    assert "gets nothing" not in message  # rank 1 may get it from elsewhere


def test_a_global_rank_as_group_dst() -> None:
    def to_the_other_member() -> None:
        group = dist.new_group([1, 2])
        if dist.get_rank() > 0:
            dist.isend(torch.ones(4), group_dst=3 - dist.get_rank(), group=group)
            dist.recv(torch.ones(4), group_src=3 - dist.get_rank(), group=group)

    message = message_of(to_the_other_member)
    assert "sends to number 2 of a group, but the group of ranks 1 and 2 has the" in message
    assert "neighbour" not in message


def test_a_global_rank_as_group_src_of_a_broadcast() -> None:
    def broadcast() -> None:
        group = dist.new_group([1, 2])
        if dist.get_rank() > 0:
            dist.broadcast(torch.ones(4), group_src=2, group=group)

    assert "broadcast has root number 2 of a group, but the group of" in message_of(broadcast)


def test_a_number_in_the_group_as_dst() -> None:
    def to_the_other_member() -> None:
        group = dist.new_group([1, 2])
        if dist.get_rank() > 0:
            dist.isend(torch.ones(4), dst=1 - dist.get_rank(group), group=group)
            dist.recv(torch.ones(4), src=1 - dist.get_rank(group), group=group)

    message = message_of(to_the_other_member)
    assert "Global rank 0 is not part of the group. dst= and src= take global" in message
    assert "object at" not in message


# Groups ----------------------------------------------------------------------------------------


def test_a_collective_without_the_group() -> None:
    def pair() -> None:
        dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(4))

    message = message_of(pair)
    assert "This all_reduce needs ranks 0 to 2, all members of its group." in message
    assert "meant for the group of ranks 0 and 1, pass that group." in message


def test_collectives_of_two_groups_that_meet_in_the_default_group() -> None:
    def replicas() -> None:
        dist.new_group([0, 2])
        dist.all_reduce(torch.ones(4 + dist.get_rank() % 2))

    message = message_of(replicas)
    assert "This all_reduce needs ranks 0 to 2, all members of its group." in message
    assert "If it is meant for a smaller group, pass that group." in message


def test_groups_that_wait_in_a_circle() -> None:
    def crossed() -> None:
        groups = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 2])]
        for number in ([0, 2], [1, 0], [2, 1], [])[dist.get_rank()]:
            dist.all_reduce(torch.ones(4), group=groups[number])

    message = message_of(crossed, world_size=4)
    assert "in a circle: rank 0 → rank 1 → rank 2 → rank 0. Let every rank call" in message


def test_a_rank_that_is_not_in_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    def all_ranks_call() -> None:
        dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1]))

    message = message_of(all_ranks_call)
    assert message.startswith("MismatchError: rank 2 called all_reduce on a group that it is not")
    assert "dtlab ends the launch" in message
    assert "UserWarning" not in capsys.readouterr().out


# Messages that do not match --------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 16])
def test_a_receive_buffer_of_another_size(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    def pass_on() -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        work = dist.isend(torch.ones(8), dst=(rank + 1) % ranks)
        dist.recv(torch.ones(size), src=(rank - 1) % ranks)
        work.wait()

    message = message_of(pass_on)
    assert message.startswith("MismatchError: rank ")
    assert f"receives it into float32[{size}]" in message
    assert capsys.readouterr().out == ""  # no "terminate called after throwing ..."


def test_a_mismatch_is_still_a_deadlock_error_for_programs_that_catch_it() -> None:
    def other_sizes() -> None:
        dist.all_reduce(torch.ones(4 + dist.get_rank()))

    with pytest.raises(dtlab.DeadlockError) as caught:
        dtlab.launch(other_sizes, world_size=2)
    assert isinstance(caught.value, dtlab.MismatchError)
    assert caught.value.mismatch


def test_the_input_of_a_reduce_scatter_is_too_short(capsys: pytest.CaptureFixture[str]) -> None:
    def reduce_scatter() -> None:
        dist.reduce_scatter_tensor(torch.ones(2), torch.ones(4))

    message = message_of(reduce_scatter)
    assert "ranks 0 to 2 raised RuntimeError: the input of reduce_scatter must have" in message
    assert "it has 4, and the output requires 6." in message
    assert "ProcessGroupGloo" not in capsys.readouterr().out


@pytest.mark.parametrize("outputs", ["list", "list of equal sizes", "tensor"])
def test_an_all_gather_of_shards_of_different_sizes(outputs: str) -> None:
    def gather() -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        shard = torch.ones(3 if rank == ranks - 1 else 4)
        if outputs == "tensor":
            dist.all_gather_single(torch.empty(4 * ranks), shard)
        elif outputs == "list":
            dist.all_gather([torch.empty(4), torch.empty(4), torch.empty(3)], shard)
        else:
            dist.all_gather([torch.empty(4) for _ in range(ranks)], shard)

    message = message_of(gather)
    start = "MismatchError: ranks 0 and 1 called all_gather(float32[4]) but rank 2 called all_ga"
    assert message.startswith(start)
    assert message.index("rank 0 ") < message.index("rank 1 ") < message.index("rank 2 test")
    assert "pad them to the largest, and cut the results" in message
    assert "Gloo" not in message


def test_gloos_own_sentences_about_arguments_are_plain() -> None:
    def short_list() -> None:
        dist.all_gather([torch.empty(2)], torch.ones(2))

    def other_shape() -> None:
        dist.all_gather([torch.empty(2) for _ in range(3)], torch.ones(5))

    def other_count() -> None:
        dist.all_to_all_single(torch.empty(6), torch.ones(9))

    assert "all_gather needs a list of 3 output tensors, one for each" in message_of(short_list)
    assert "must have the same shape, (5) here, but number 0 of the" in message_of(other_shape)
    assert "the input and the output of all_to_all_single must have" in message_of(other_count)


# Waiting ---------------------------------------------------------------------------------------


def test_the_line_that_waits_is_shown_with_the_line_that_posted() -> None:
    def receive_first() -> None:
        works = [dist.irecv(torch.ones(4), src=1 - dist.get_rank())]
        for work in works:
            work.wait()

    with pytest.raises(dtlab.DeadlockError) as caught:
        dtlab.launch(receive_first, world_size=2)
    first = caught.value.waiting[0]
    assert "dist.irecv" in first.place
    assert first.waits_in.endswith("work.wait()")
    assert "in wait()" in str(caught.value)
    assert first.waits_in in str(caught.value)


def test_polling_for_a_message_that_no_rank_sends() -> None:
    def poll() -> None:
        if dist.get_rank() == 0:
            work = dist.irecv(torch.ones(4), src=1)
            while not work.is_completed():
                time.sleep(0.001)

    message = message_of(poll, timeout=1)
    assert "polls recv(src=1) with is_completed(), but rank 1 returned and did not send" in message
    assert "work = dist.irecv(" in message


@pytest.mark.parametrize("spin", [0, 0.001])
def test_polling_for_a_message_whose_sender_polls_too(spin: float) -> None:
    def poll() -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        work = dist.irecv(torch.ones(4), src=(rank - 1) % ranks)
        while not work.is_completed():
            time.sleep(spin)
        dist.send(torch.ones(4), dst=(rank + 1) % ranks)

    message = message_of(poll, timeout=1)
    assert message.count("was still running") == 3
    assert "Rank 0 polls recv(src=2) with is_completed(), but rank 2 does not send" in message
    assert "rank 2 polls recv(src=1). Every rank receives before it sends" in message
    assert "Call wait() instead of polling" in message


def test_polling_for_a_message_whose_sender_is_in_a_collective() -> None:
    def poll() -> None:
        if dist.get_rank() == 0:
            work = dist.irecv(torch.ones(4), src=1)
            while not work.is_completed():
                pass
        dist.barrier()

    message = message_of(poll, world_size=2, timeout=1)
    assert "but rank 1 does not send it: rank 1 waits in barrier()." in message


def test_polling_for_a_received_message_that_completes_only_in_wait() -> None:
    def poll() -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sending = dist.isend(torch.ones(4), dst=(rank + 1) % ranks)
        receiving = dist.irecv(torch.ones(4), src=(rank - 1) % ranks)
        while not receiving.is_completed():
            pass
        sending.wait()

    message = message_of(poll, timeout=1)
    assert "Both ranks have posted this message, but with gloo is_completed() of a" in message
    assert "need more time" not in message


def test_a_rank_that_has_waited_for_what_it_polled_computes() -> None:
    def poll() -> None:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        while not work.is_completed():
            pass
        if dist.get_rank() == 0:
            work = dist.irecv(torch.ones(4), src=1)
            assert not work.is_completed()
            work.wait()
            time.sleep(60)
        dist.send(torch.ones(4), dst=0)

    message = message_of(poll, world_size=2, timeout=1)
    assert "polls" not in message


@pytest.mark.parametrize("collective", [True, False])
def test_a_loop_without_an_end_that_communicates(collective: bool) -> None:
    def endless() -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        tensor = torch.ones(4)
        while tensor.sum() > 0:
            if collective:
                dist.all_reduce(tensor)
            else:
                work = dist.isend(tensor, dst=(rank + 1) % ranks)
                dist.recv(torch.empty(4), src=(rank - 1) % ranks)
                work.wait()

    message = message_of(endless, timeout=2)
    assert message.startswith("RankTimeoutError")
    assert "The ranks still communicate: each has called at least" in message
    assert "Look for a loop that does not end" in message


# Memory ----------------------------------------------------------------------------------------


def test_memory_that_runs_out_is_explained_in_one_sentence() -> None:
    def too_much() -> None:
        torch.empty(10**9)

    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(too_much, world_size=1, memory_limit=10**9)
    message = " ".join(str(caught.value).split())
    assert "ran out of memory: this line asks for 4,000,000,000 bytes more, and" in message
    assert "memory_limit allows each rank 1,000,000,000 bytes in all." in message
    assert ":   torch.empty(10**9)" in str(caught.value)
    assert "enforce fail" not in message


def test_a_stack_without_the_learners_lines_quotes_no_line() -> None:
    with pytest.raises(dtlab.RankTimeoutError) as caught:
        dtlab.launch(time.sleep, 60, world_size=1, timeout=0.5)
    assert caught.value.running[0].line is None


# Threads ---------------------------------------------------------------------------------------


def test_a_mismatch_in_a_thread_without_a_line_shows_the_main_threads_line() -> None:
    def in_threads() -> None:
        tensor = torch.ones(4 + dist.get_rank())
        thread = threading.Thread(target=dist.all_reduce, args=(tensor,))
        thread.start()
        thread.join()

    with pytest.raises(dtlab.MismatchError) as caught:
        dtlab.launch(in_threads, world_size=2)
    assert all("thread." in (each.code or "") for each in caught.value.waiting)


def test_threads_that_wait_for_each_other_get_advice_at_once() -> None:
    def in_threads() -> None:
        buffer, source = torch.ones(4), 1 - dist.get_rank()
        thread = threading.Thread(target=lambda: dist.recv(buffer, src=source))
        thread.start()
        thread.join()

    message = message_of(in_threads, world_size=2, timeout=20)
    assert message.startswith("DeadlockError")
    assert "Every rank receives before it sends, so no rank sends." in message


# DDP -------------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    """A module that uses one of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


@pytest.mark.slow
def test_ddp_names_the_parameters_without_a_gradient_once() -> None:
    def train() -> None:
        model = DistributedDataParallel(TwoLayers())
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()

    message = message_of(train)
    assert "ranks 0 to 2 raised RuntimeError: these parameters got no gradient in the" in message
    assert message.count("unused.weight, unused.bias") == 1
    assert "pass find_unused_parameters=True." in message


@pytest.mark.slow
def test_ddp_names_parameters_that_were_frozen_after_it_wrapped_the_module() -> None:
    def train() -> None:
        layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        layers[1].bias.requires_grad_(False)
        model = DistributedDataParallel(layers)
        layers[0].requires_grad_(False)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()

    message = message_of(train)
    frozen = "(frozen after you wrapped the module)"
    assert f"0.weight {frozen}, 0.bias {frozen}. DDP waits" in message
    assert "2.weight" not in message


@pytest.mark.slow
@pytest.mark.parametrize("steps_after", [0, 1])
def test_validation_on_one_rank_shifts_the_collectives_of_ddp(steps_after: int) -> None:
    def train() -> None:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        model(torch.ones(2, 4)).sum().backward()
        if dist.get_rank() == 0:
            model(torch.ones(2, 4))
        for _ in range(steps_after):
            model(torch.ones(2, 4)).sum().backward()

    message = message_of(train)
    assert "call the module that DDP wraps: model.module(...)" in message
    assert ("The ranks are in different lines of the program" in message) == bool(steps_after)


# The library's version -------------------------------------------------------------------------


def test_1f1b_is_not_compared_with_the_interleaved_schedule() -> None:
    part = next(part for part in known_parts() if part.name == "07/one_f_one_b")
    assert part.reference == "dtlab.simple.one_f_one_b"
    assert "interleaved" not in Reference.of(part.reference).source
