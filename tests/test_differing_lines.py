"""Collectives in which ranks meet from different lines: a hint after a wrong result, else none."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dtlab
from dtlab.parallel.data import assert_replicas_equal
from dtlab.ranks.watch import locate
from dtlab.trace.lines import hint_of_lines
from tests.honest_programs import PROGRAMS
from tests.honest_styles import same_collective_from_other_lines

HINT = "A hint, which need not be the cause: ranks met in a collective from different lines."


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.full((4, 4), value)) for value in (1.0, 5.0))


def experts_in_another_order() -> None:
    """Each rank reduces first what it used first; both tensors have 4 x 4 elements."""
    model = Experts()
    with torch.no_grad():
        for parameter in model.parameters():  # as gradients: not the same on all ranks
            parameter *= 1 + dist.get_rank()
        for _ in range(3):
            if dist.get_rank() == 0:
                dist.all_reduce(model.left.data)  # left on rank 0
                dist.all_reduce(model.right.data)
            else:
                dist.all_reduce(model.right.data)  # right on others
                dist.all_reduce(model.left.data)
    assert_replicas_equal(model)


def steps_in_another_order() -> None:
    """Two functions that all ranks call, on rank 1 in another order."""
    model = Experts()

    def sum_left() -> None:
        dist.all_reduce(model.left.data)  # in sum_left

    def sum_right() -> None:
        dist.all_reduce(model.right.data)  # in sum_right

    steps = [sum_left, sum_right]
    for step in steps if dist.get_rank() != 1 else reversed(steps):
        step()
    assert_replicas_equal(model)


def a_branch_of_one_group() -> None:
    """In the group of ranks 1 and 2, rank 2 takes what is meant for the other branch."""
    model = Experts()
    group = dist.new_group([1, 2])
    rank = dist.get_rank()
    if rank == 1:
        dist.broadcast(model.left.data.fill_(7), src=1, group=group)  # sends left
    elif rank == 2:
        dist.broadcast(model.right.data, src=1, group=group)  # takes it for right
    if rank:
        assert_replicas_equal(model, group)


@pytest.mark.parametrize(
    ("program", "ranks", "words"),
    [
        (
            experts_in_another_order,
            2,
            [
                "all_reduce of 16 float32, 3 times",
                "# left on rank 0",
                "# right on others",
            ],
        ),
        (
            steps_in_another_order,
            3,
            [
                "all_reduce of 16 float32\n",
                "ranks 0, 2 in ",
                "# in sum_left",
                "rank 1 in ",
                "# in sum_right",
                "Ranks among them call the other line too, at another time.",
            ],
        ),
        (
            a_branch_of_one_group,
            3,
            [
                "broadcast of 16 float32\n",
                "rank 1 in ",
                "# sends left",
                "rank 2 in ",
                "# takes it for right",
            ],
        ),
    ],
)
def test_replicas_that_differ_name_the_lines(program, ranks: int, words: list[str]) -> None:
    with pytest.raises(dtlab.RankError, match="replicas differ in [12] of 2 tensors") as raised:
        dtlab.launch(program, world_size=ranks)
    text = str(raised.value)
    assert text.count(HINT) == 1
    hint = text[text.index(HINT) :]
    for word in words:
        assert word in hint, hint
    assert ("at another time" in hint) == (program is steps_in_another_order)


def test_it_is_silent_without_a_trace() -> None:
    with pytest.raises(dtlab.RankError, match="replicas differ") as raised:
        dtlab.launch(steps_in_another_order, world_size=3, trace=False)
    assert "hint" not in str(raised.value)


def unequal_but_in_the_same_lines() -> None:
    model = Experts()
    model.left.data += dist.get_rank()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data.clone())
    assert_replicas_equal(model)


def test_it_is_silent_where_the_lines_are_the_same() -> None:
    with pytest.raises(dtlab.RankError, match="replicas differ in 1 of 2") as raised:
        dtlab.launch(unequal_but_in_the_same_lines, world_size=2)
    assert "hint" not in str(raised.value)


def honest_branches() -> None:
    same_collective_from_other_lines()
    assert_replicas_equal(Experts())


def test_it_is_silent_where_the_result_is_right() -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run = dtlab.launch(honest_branches, world_size=4)
    assert not said.getvalue()
    assert run.trace is not None
    found = run.trace.differing_lines()  # a direct call lists the branches without a suspicion
    assert [(each.operation, each.times, each.swapped) for each in found] == [
        ("broadcast", 1, False),
        ("all_reduce", 1, False),
    ]


@pytest.mark.parametrize("name", ["data_parallel_by_hand", "every_collective", "nested_subgroups"])
def test_ordinary_programs_have_none(name: str) -> None:
    program = PROGRAMS[name]
    trace = dtlab.launch(program.function, world_size=program.world_size).trace
    assert trace is not None
    assert trace.differing_lines() == []
    assert hint_of_lines([]) == ""


def test_the_most_suspicious_come_first_and_few_are_shown() -> None:
    def event(rank: int, line: int, start: float) -> dtlab.Event:
        extra = {"group": (0, 1), "group_name": "0", "file": "train.py", "line": line}
        return dtlab.Event(rank, "comm", "all_reduce", (1 - rank,), 64, start, start + 0.5, extra)

    lines = [(10, 11), (12, 13), (14, 15), (20, 21), (21, 20), (30, 30)]
    trace = dtlab.Trace(
        event(rank, pair[rank], float(start))
        for start, pair in enumerate(lines)
        for rank in range(2)
    )
    found = trace.differing_lines()
    assert [each.swapped for each in found] == [True, True, False, False, False]
    text = hint_of_lines(found)
    assert "rank 0 in train.py, line 20" in text
    assert "and 2 more" in text
    assert "line 30" not in text


def test_cells_are_called_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "_cell_numbers", lambda: {"/tmp/ipykernel_1/5.py": 7})
    text = "rank 0 in /tmp/ipykernel_1/5.py, line 4"
    assert locate.with_cells(text) == "rank 0 in cell 7, line 4"
