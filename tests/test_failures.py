"""Ranks that fail: the error names the guilty rank, the learner's own line, and what to do."""

from __future__ import annotations

import ctypes
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import dtlab


def fails(fn: Callable[..., object], **arguments: object) -> dtlab.RankError:
    """Launch `fn` and return the RankError that it ends with."""
    begun = time.monotonic()
    with pytest.raises(dtlab.RankError) as caught:
        dtlab.launch(fn, **{"world_size": 3, **arguments})
    assert time.monotonic() - begun < 30  # a guard: about a second, once the server has started
    assert dtlab.launch(dist.get_rank).values == [0, 1]  # and the next launch works
    return caught.value


def code_of(fn: Callable[..., object], piece: str) -> tuple[int, str]:
    """Line number and text of the line of `fn` that contains `piece`."""
    lines, start = inspect.getsourcelines(fn)
    found = [(start + i, text.strip()) for i, text in enumerate(lines) if piece in text]
    return found[0]


@pytest.mark.slow
def test_an_exception_names_its_rank_and_the_learners_line() -> None:
    def broken() -> None:
        if dist.get_rank() == 1:
            raise ValueError("no such thing")
        dist.barrier()

    error = fails(broken)
    failure = error.failures[1]
    assert list(error.failures) == [1]
    assert failure.kind == "exception"
    assert failure.message == "ValueError: no such thing"
    assert (failure.line, failure.code) == code_of(broken, "raise")
    assert failure.file.endswith("test_failures.py")
    assert str(error).startswith("rank 1 raised ValueError: no such thing\n")
    assert "rank 0 was waiting in barrier and was ended" in str(error)
    assert 'raise ValueError("no such thing")' in str(error.__cause__)


@pytest.mark.slow
def test_a_rank_that_calls_input_is_told_that_it_has_no_keyboard() -> None:
    error = fails(lambda: input("how many? "))
    assert "ranks 0 to 2 raised EOFError" in str(error)
    advice = "read the input in a cell of the notebook, and pass it to the ranks."
    assert str(error).endswith(advice)


@pytest.mark.slow
def test_the_line_is_the_learners_also_when_the_error_is_deep_in_torch() -> None:
    def broken() -> None:
        torch.ones(2, 3) @ torch.ones(2, 3)

    error = fails(broken)
    assert sorted(error.failures) == [0, 1, 2]
    assert error.failures[2].code == "torch.ones(2, 3) @ torch.ones(2, 3)"
    assert str(error).startswith("ranks 0 to 2 raised RuntimeError: mat1 and mat2 shapes")


def test_values_and_output_of_the_others_are_kept() -> None:
    def broken() -> str:
        print("hello from", dist.get_rank())
        if dist.get_rank() == 0:
            raise KeyError("missing")
        return "fine"

    error = fails(broken)
    assert error.values == [None, "fine", "fine"]
    assert error.stdout == [f"hello from {rank}\n" for rank in range(3)]


def test_the_causes_of_an_exception_are_printed() -> None:
    def broken() -> None:
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("could not look it up") from error

    text = str(fails(broken, world_size=1).__cause__)
    assert "KeyError: 'key'" in text
    assert text.index("KeyError") < text.index("could not look it up")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "piece"),
    [
        (lambda: sys.exit(3), "left by sys.exit(3)"),
        (lambda: sys.exit(), "left by sys.exit()"),
        (lambda: os._exit(3), "left by os._exit(3)"),
    ],
)
def test_a_rank_that_leaves(leave: Callable[[], None], piece: str) -> None:
    def leaves() -> None:
        if dist.get_rank() == 2:
            leave()
        dist.barrier()

    error = fails(leaves)
    first = next(iter(error.failures))
    assert first == 2
    assert error.failures[2].kind == "exit"
    assert str(error).startswith(f"rank 2 {piece}")
    assert error.failures[2].line is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_rank_that_is_killed(number: int, name: str) -> None:
    def dies() -> None:
        if dist.get_rank() == 0:
            os.kill(os.getpid(), number)
        dist.barrier()

    error = fails(dies)
    assert next(iter(error.failures)) == 0
    assert error.failures[0].kind == "signal"
    assert str(error).startswith(f"rank 0 was ended by {name}")
    assert (error.failures[0].line, error.failures[0].code) == code_of(dies, "os.kill")


@pytest.mark.slow
def test_a_segmentation_fault_names_the_line() -> None:
    def crashes() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        dist.barrier()

    error = fails(crashes)
    assert next(iter(error.failures)) == 1
    assert error.failures[1].kind == "signal"
    assert "SIGSEGV" in error.failures[1].message
    assert (error.failures[1].line, error.failures[1].code) == code_of(crashes, "string_at")


@pytest.mark.slow
def test_a_crash_in_a_functional_collective_may_be_gloos_doing() -> None:
    class Crashing:
        def lower(self) -> str:  # which functional_collectives.all_reduce calls
            ctypes.string_at(0)
            return "sum"

    def crashes() -> None:
        functional.all_reduce(torch.ones(1), Crashing(), dist.group.WORLD)  # type: ignore[arg-type]

    def aborts() -> None:
        os.abort()

    assert "Run it again, and wait for each result" in " ".join(str(fails(crashes)).split())
    assert "Run it again" not in str(fails(aborts))


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")
@pytest.mark.parametrize(
    ("what", "asks"),
    [("torch", "40,000,000 bytes more"), ("numpy", "38.1 MiB more"), ("python", "more than is l")],
)
def test_a_rank_that_runs_out_of_its_memory(what: str, asks: str) -> None:
    def hungry() -> None:
        kept: list[object] = []
        make = {"torch": torch.ones, "numpy": np.ones, "python": bytearray}[what]
        size = {"torch": 10_000_000, "numpy": 5_000_000, "python": 40_000_000}[what]
        for _ in range(100):
            kept.append(make(size))  # type: ignore[operator]

    error = fails(hungry, memory_limit=500_000_000, world_size=2)
    assert {failure.kind for failure in error.failures.values()} == {"memory"}
    assert (error.failures[0].line, error.failures[0].code) == code_of(hungry, "kept.append")
    text = " ".join(str(error).split())
    assert f"ran out of memory: this line asks for {asks}" in text
    assert "and memory_limit allows each rank 500,000,000 bytes in all." in text


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")
def test_within_its_memory_limit_a_rank_works() -> None:
    def modest() -> int:
        return torch.ones(100_000_000).numel()  # 400 MB

    run = dtlab.launch(modest, memory_limit=450_000_000)
    assert run.values == [100_000_000] * 2


def test_a_result_that_cannot_be_sent() -> None:
    def generator() -> object:
        return (number for number in range(3))

    error = fails(generator)
    assert error.failures[0].kind == "result"
    assert "returned a generator, which cannot be sent back" in str(error)
    assert "Return tensors or plain data" in str(error)
    assert "cloudpickle" not in str(error)  # no line of a library


def test_a_result_that_cannot_be_opened_here() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return eval, ("1 / 0",)

    error = fails(lambda: Trap(), world_size=1)
    assert error.failures[0].kind == "result"
    assert "ZeroDivisionError" in str(error)


@pytest.mark.slow
def test_endless_computing_ends_at_the_time_limit() -> None:
    def spins() -> None:
        if dist.get_rank() == 1:
            while True:
                pass
        dist.barrier()

    begun = time.monotonic()
    with pytest.raises(dtlab.RankTimeoutError) as caught:
        dtlab.launch(spins, world_size=3, timeout=1.0)
    assert time.monotonic() - begun < 4
    running = {one.rank: one for one in caught.value.running}
    assert sorted(running) == [0, 1, 2]
    assert running[1].op == "compute"
    assert running[1].code in ("while True:", "pass")
    assert running[0].op == "barrier"
    assert (running[0].line, running[0].code) == code_of(spins, "dist.barrier")
    assert "the time limit of 1 s has passed" in str(caught.value)


def test_a_rank_asleep_ends_at_the_time_limit_and_finished_values_are_kept() -> None:
    def sleeps() -> str:
        if dist.get_rank() == 0:
            time.sleep(60)
        return "done"

    with pytest.raises(dtlab.RankTimeoutError) as caught:
        dtlab.launch(sleeps, timeout=0.5)
    assert caught.value.values == [None, "done"]
    assert [one.rank for one in caught.value.running] == [0]
    assert caught.value.running[0].code == "time.sleep(60)"
    assert "rank 1 had returned" in str(caught.value)


def test_a_rank_whose_stack_cannot_be_read() -> None:
    def stopped() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(dtlab.RankTimeoutError):
        dtlab.launch(stopped, timeout=0.5)


def test_expect_shows_the_error_and_the_program_continues(
    capsys: pytest.CaptureFixture[str]
) -> None:
    with dtlab.expect(dtlab.RankError):
        dtlab.launch(lambda: 1 / 0)
    assert "RankError: ranks 0 and 1 raised ZeroDivisionError" in capsys.readouterr().out
    with pytest.raises(dtlab.DtlabError, match="finished without an error"), dtlab.expect(
        dtlab.RankError
    ):
        pass
    with pytest.raises(dtlab.DtlabError, match="but got ValueError"), dtlab.expect(
        dtlab.DeadlockError
    ):
        raise ValueError("other")
