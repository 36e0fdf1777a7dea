"""Sizes that differ by rank, and tensors with which gloo computes wrong numbers.

`GLOO` runs each operation with each layout while dtlab does not look, and compares what it gives
with what is refused: exactly the wrong ones, so that no program that works is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dtlab
from dtlab.ranks.protocol import UNWATCHED
from dtlab.ranks.record.layouts import unchecked_layouts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]

Tensors = list[tuple[torch.Tensor, torch.Tensor]]  # what an operation gave, and should give
Make = Callable[[torch.Tensor], torch.Tensor]


def message_of(function: Callable[[], object], world_size: int = 2) -> str:
    with pytest.raises(dtlab.DtlabError) as caught:
        dtlab.launch(function, world_size=world_size, timeout=20)
    return " ".join(f"{type(caught.value).__name__}: {caught.value}".split())


# Layouts ---------------------------------------------------------------------------------------


def matrix(rank: int, number: int = 0) -> torch.Tensor:
    """A 4 x 6 matrix that is different on each rank."""
    return torch.arange(24.0).reshape(4, 6) * (rank + 1) + 100 * number + 1000 * rank


def lay(layout: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor with these values, and the memory around it."""
    rows, columns = values.shape
    if layout == "transposed":
        memory = torch.full((columns, rows), -5.0)
        tensor = memory.t()
    elif layout == "every second column":
        memory = torch.full((rows, 2 * columns + 1), -5.0)
        tensor = memory[:, 0 : 2 * columns : 2]
    elif layout == "slice":
        memory = torch.full((rows, columns + 3), -5.0)
        tensor = memory[:, :columns]
    else:  # contiguous, inside a larger tensor
        memory = torch.full((rows + 2, columns), -5.0)
        tensor = memory[1:-1]
    return tensor.copy_(values), memory


def all_reduce(make: Make) -> Tensors:
    dist.all_reduce(tensor := make(matrix(dist.get_rank())))
    return [(tensor, matrix(0) + matrix(1))]


def reduce(make: Make) -> Tensors:
    dist.reduce(tensor := make(matrix(dist.get_rank())), 0)
    return [(tensor, matrix(0) + matrix(1))] if dist.get_rank() == 0 else []


def broadcast(make: Make) -> Tensors:
    dist.broadcast(tensor := make(matrix(dist.get_rank())), 0)
    return [(tensor, matrix(0))]


def all_gather_input(make: Make) -> Tensors:
    outputs = [torch.zeros(4, 6) for _ in range(2)]
    dist.all_gather(outputs, make(matrix(dist.get_rank())))
    return [(output, matrix(rank)) for rank, output in enumerate(outputs)]


def all_gather_output(make: Make) -> Tensors:
    outputs = [make(torch.zeros(4, 6)) for _ in range(2)]
    dist.all_gather(outputs, matrix(dist.get_rank()))
    return [(output, matrix(rank)) for rank, output in enumerate(outputs)]


def gather(make: Make) -> Tensors:
    outputs = [make(torch.zeros(4, 6)) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(make(matrix(dist.get_rank())), outputs)
    return [(output, matrix(rank)) for rank, output in enumerate(outputs or [])]


def scatter_input(make: Make) -> Tensors:
    output, rank = torch.zeros(4, 6), dist.get_rank()
    dist.scatter(output, [make(matrix(0, n)) for n in range(2)] if rank == 0 else None)
    return [(output, matrix(0, rank))]


def scatter_output(make: Make) -> Tensors:
    output, rank = make(torch.zeros(4, 6)), dist.get_rank()
    dist.scatter(output, [matrix(0, n) for n in range(2)] if rank == 0 else None)
    return [(output, matrix(0, rank))]


def reduce_scatter_input(make: Make) -> Tensors:
    output, rank = torch.zeros(4, 6), dist.get_rank()
    dist.reduce_scatter(output, [make(matrix(rank, n)) for n in range(2)])
    return [(output, matrix(0, rank) + matrix(1, rank))]


def reduce_scatter_output(make: Make) -> Tensors:
    output, rank = make(torch.zeros(4, 6)), dist.get_rank()
    dist.reduce_scatter(output, [matrix(rank, n) for n in range(2)])
    return [(output, matrix(0, rank) + matrix(1, rank))]


def reduce_scatter_tensor(make: Make) -> Tensors:
    output, rank = torch.zeros(2, 6), dist.get_rank()
    dist.reduce_scatter_tensor(output, make(matrix(rank)))
    return [(output, (matrix(0) + matrix(1))[2 * rank : 2 * rank + 2])]


def all_to_all_input(make: Make) -> Tensors:
    outputs, rank = [torch.zeros(4, 6) for _ in range(2)], dist.get_rank()
    dist.all_to_all(outputs, [make(matrix(rank, n)) for n in range(2)])
    return [(output, matrix(n, rank)) for n, output in enumerate(outputs)]


def all_to_all_single(make: Make) -> Tensors:
    output, rank = make(torch.zeros(4, 6)), dist.get_rank()
    dist.all_to_all_single(output, matrix(rank), [2, 2], [2, 2])
    return [(output, torch.cat([matrix(n)[2 * rank : 2 * rank + 2] for n in range(2)]))]


OPERATIONS = (
    all_reduce, reduce, broadcast, all_gather_input, all_gather_output, gather, scatter_input,
    scatter_output, reduce_scatter_input, reduce_scatter_output, reduce_scatter_tensor,
    all_to_all_input, all_to_all_single,
)  # fmt: skip
LAYOUTS = ("contiguous", "slice", "every second column", "transposed")


def is_right(operation: Callable[[Make], Tensors], layout: str, on: int) -> bool:
    """Whether an operation gives the right numbers and changes nothing else on this rank.

    Rank `on` has tensors of this layout, or all ranks if it is -1.
    """
    memories: Tensors = []

    def make(values: torch.Tensor) -> torch.Tensor:
        layout_here = layout if on in (-1, dist.get_rank()) else "contiguous"
        tensor, memory = lay(layout_here, values)
        memories.append((tensor, memory))
        return tensor

    right = all(torch.equal(got, wanted) for got, wanted in operation(make))
    for tensor, memory in memories:
        inside = int((tensor == -5).sum())
        right = right and int((memory == -5).sum()) == memory.numel() - tensor.numel() + inside
    return right


def which_are_right(operations: tuple[Any, ...], layout: str, on: int) -> list[bool]:
    return [is_right(operation, layout, on) for operation in operations]


@pytest.mark.parametrize(
    ("layout", "on"),
    [("contiguous", -1), *((layout, on) for layout in LAYOUTS[1:] for on in (-1, 0, 1))],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_gloo_computes_wrong_is_refused_and_nothing_else(
    layout: str, on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as alone:
        alone.setenv(UNWATCHED, "1")
        args = OPERATIONS, layout, on
        values = dtlab.launch(which_are_right, *args, world_size=2, timeout=20, trace=False).values
    right = dict(zip(OPERATIONS, map(all, zip(*values, strict=True)), strict=True))
    assert sum(right.values()) >= 4  # all_gather, gather and all_to_all copy what they get
    works = tuple(operation for operation in OPERATIONS if right[operation])
    run = dtlab.launch(which_are_right, works, layout, on, world_size=2, timeout=20)
    assert run.values == [[True] * len(works)] * 2
    for operation in OPERATIONS:
        if right[operation]:
            continue
        with pytest.raises((dtlab.RankError, dtlab.MismatchError)) as caught:
            dtlab.launch(is_right, operation, layout, on, world_size=2, timeout=20)
        text = " ".join(str(caught.value).split())
        assert "y = x.contiguous()" in text
        assert "tests/test_layouts.py, line" in text


def test_a_column_is_refused_with_the_line_and_what_to_write() -> None:
    def column() -> None:
        dist.broadcast(torch.zeros(4, 2)[:, 0], src=0)

    message = message_of(column)
    assert message.startswith("RankError: ranks 0 and 1 raised ValueError: the tensor of broadcas")
    assert "its shape is (4,), but in memory its strides are (2,)" in message
    assert "dist.broadcast(torch.zeros(4, 2)[:, 0], src=0)" in message


def test_a_transposed_tensor_on_one_rank_is_a_mismatch() -> None:
    def turned() -> None:
        weight = torch.ones(3, 3)
        dist.all_reduce(weight.t() if dist.get_rank() else weight)

    message = message_of(turned)
    assert "all_reduce(float32[3, 3] with strides (1, 3), SUM)" in message
    assert "their elements lie in memory in another order" in message


def test_tensors_that_gloo_handles_are_not_refused() -> None:
    def many() -> float:
        image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
        dist.all_reduce(image)
        work = dist.all_reduce(torch.ones(6, 2).t(), async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(torch.ones(1, 5)[:, 2:3], src=0)  # a single element
        dist.all_reduce(torch.ones(4, 1).t())  # contiguous: it has one column
        dist.broadcast(torch.empty(4, 0)[:, ::2], src=1)
        return float(image.sum())

    assert dtlab.launch(many, world_size=2).values == [192.0, 192.0]


def test_a_column_on_a_single_rank_is_right() -> None:
    def column() -> list[float]:
        tensor = torch.arange(4.0).reshape(2, 2)
        dist.all_reduce(tensor[:, 0])
        return tensor.flatten().tolist()

    assert dtlab.launch(column, world_size=1).values == [[0.0, 1.0, 2.0, 3.0]]


# Sizes -----------------------------------------------------------------------------------------


def exchange(sends: list[list[int]], gets: list[list[int]], width: int = 2) -> list[float]:
    rank = dist.get_rank()
    output = torch.full((sum(gets[rank]), width), -7.0)
    given = torch.full((sum(sends[rank]), width), float(rank))
    dist.all_to_all_single(output, given, gets[rank], sends[rank])
    return output[:, 0].tolist()


@pytest.mark.parametrize(
    ("sends", "gets", "says"),
    [
        ([[3, 1], [2, 2]], [[3, 2], [2, 2]], "rank 0 sends 1 row to rank 1, which expects 2."),
        ([[1, 0], [3, 1]], [[1, 2], [0, 1]], "rank 1 sends 3 rows to rank 0, which expects 2."),
        (
            [[1, 1, 1], [1, 1, 2], [1, 0, 1]], [[1, 1, 1], [1, 1, 0], [1, 1, 1]],
            "rank 1 sends 2 rows to rank 2, which expects 1.",
        ),
        (
            [[0] * 9, *[[1] * 9 for _ in range(8)]], [[0, *[1] * 8] for _ in range(9)],
            "",  # it fits, on more ranks than fit into one record
        ),
    ],
)  # fmt: skip
def test_splits_that_do_not_fit(sends: Any, gets: Any, says: str) -> None:
    ranks = len(sends)
    if not says:
        run = dtlab.launch(exchange, sends, gets, world_size=ranks)
        assert run.values[0] == [float(rank) for rank in range(1, 9)]
        return
    message = message_of(lambda: exchange(sends, gets), ranks)
    assert message.startswith(f"MismatchError: in all_to_all, {says}")
    sender, receiver = re.findall(r"rank (\d)", says)
    assert f"Number {receiver} of input_split_sizes on rank {sender} must equal" in message


def test_splits_of_earlier_steps_do_not_matter() -> None:
    def steps() -> float:
        total = 0.0
        for step in range(40):
            mine, theirs = 1 + step % 3, 1 + step % 2
            first = dist.get_rank() == 0
            sends = [1, mine] if first else [theirs, 1]
            gets = [1, theirs] if first else [mine, 1]
            output = torch.zeros(sum(gets))
            dist.all_to_all_single(output, torch.ones(sum(sends)), gets, sends)
            total += float(output.sum())
        return total

    assert dtlab.launch(steps, world_size=2).values == [100.0, 119.0]


def test_equal_splits_and_none_belong_together() -> None:
    def mixed() -> list[float]:
        output, given = torch.zeros(4), torch.full((4,), float(dist.get_rank()))
        splits = {} if dist.get_rank() else {"output_split_sizes": [2, 2]}
        dist.all_to_all_single(output, given, **splits)
        return output.tolist()

    assert dtlab.launch(mixed, world_size=2).values == [[0.0, 0.0, 1.0, 1.0]] * 2


def test_splits_that_a_rank_can_judge_alone() -> None:
    def of(outputs: int, inputs: int, gets: list[int], sends: list[int]) -> str:
        output, given = torch.empty(outputs, 2), torch.ones(inputs, 2)
        return message_of(lambda: dist.all_to_all_single(output, given, gets, sends))

    message = of(4, 5, [2, 2], [2, 2])
    assert "input_split_sizes of all_to_all_single is [2, 2], which makes 4 rows" in message
    assert "but the input has 5 rows." in message
    assert "the output has 3 rows." in of(3, 4, [2, 2], [2, 2])
    assert "has length 1, but the group has 2 ranks" in of(4, 4, [4], [4])
    assert "ValueError: this rank sends 1 row to itself in all_to_all_single, but expects 2" in of(
        4, 4, [2, 2], [1, 3]
    )


def test_lists_and_equal_shares_of_other_sizes() -> None:
    def lists() -> None:
        size = 2 + dist.get_rank()
        dist.all_to_all([torch.empty(size) for _ in "ab"], [torch.ones(size) for _ in "ab"])

    def shares() -> None:
        size = 4 + 2 * dist.get_rank()
        dist.all_to_all_single(torch.empty(size), torch.ones(size))

    def rows_of_other_length() -> None:
        width = 2 + dist.get_rank()
        dist.all_to_all_single(torch.empty(3, width), torch.ones(3, width), [1, 2], [1, 2])

    for program in (lists, shares):
        message = message_of(program)
        assert re.search(r"in all_to_all, rank \d sends [23] elements to rank \d, which", message)
    assert "MismatchError" in message_of(rows_of_other_length)


def test_a_reduce_scatter_of_pieces_of_different_length() -> None:
    def pieces(lengths: tuple[list[int], list[int]]) -> list[float]:
        rank = dist.get_rank()
        output = torch.empty(lengths[rank][rank])
        dist.reduce_scatter(output, [torch.full((n,), rank + 1.0) for n in lengths[rank]])
        return output.tolist()

    right = dtlab.launch(pieces, ([2, 3], [2, 3]), world_size=2)
    assert right.values == [[3.0, 3.0], [3.0, 3.0, 3.0]]  # gloo computes it, so it is no mistake
    message = message_of(lambda: pieces(([2, 3], [2, 2])))
    assert "reduce_scatter(float32[2], float32[3], SUM) but rank 1 called" in message
    assert message.startswith("MismatchError")
    assert message_of(lambda: pieces(([3, 3], [2, 3]))).startswith("MismatchError")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coalesced_operations_of_other_sizes() -> None:
    def coalesced() -> None:
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(2 + dist.get_rank())])

    def in_a_block() -> None:
        with dist._coalescing_manager():
            for size in (3, 2) if dist.get_rank() else (2, 3):
                dist.all_reduce(torch.ones(size))

    def fits() -> None:
        with dist._coalescing_manager():
            for size in (3, 2):
                dist.all_reduce(torch.ones(size))

    text = "all_reduce(float32[3], float32[2], SUM)"
    assert f"MismatchError: rank 0 called {text} but rank 1 called" in message_of(coalesced)
    assert f"rank 1 called {text}" in message_of(in_a_block)
    dtlab.launch(fits, world_size=2)


def test_many_tensors_in_one_call_are_described_in_a_line() -> None:
    def many() -> None:
        with dist._coalescing_manager():
            for size in range(200):
                dist.all_reduce(torch.ones(size + (size == 199 and dist.get_rank() == 1)))

    message = message_of(many)
    assert message.startswith("MismatchError")  # the last of 200 tensors differs
    assert len(message) < 1500


# What gloo says --------------------------------------------------------------------------------


def test_a_check_of_gloos_is_a_cause_and_a_lost_peer_a_consequence() -> None:
    from dtlab.ranks.watch.explain import is_about_a_lost_peer, rank_error

    failed = "RuntimeError: [enforce fail at third_party/gloo/gloo/alltoallv.cc:138] in == out. "
    lost = "RuntimeError: [third_party/gloo/gloo/pair.cc:547] Connection closed by peer"
    failures = {rank: dtlab.Failure("exception", text) for rank, text in enumerate((failed, lost))}
    error = rank_error(failures, [], [None, None], ["", ""])
    assert "rank 0 raised RuntimeError: [enforce fail at" in str(error)
    assert "rank 1 then lost its peer" in str(error)
    assert not is_about_a_lost_peer(error)
    assert is_about_a_lost_peer(rank_error({1: failures[1]}, [], [None], [""]))


def test_gloo_computes_with_any_layout_on_request() -> None:
    """Exercise 01/fix_5 shows what gloo does with a slice."""

    def program() -> list[float]:
        table = torch.ones(2, 3)
        with unchecked_layouts():
            dist.all_reduce(table[:, :2])
        return table.flatten().tolist()

    assert dtlab.launch(program).values == [[2, 2, 2, 2, 1, 1]] * 2
