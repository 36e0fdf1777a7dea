"""What the kernel counts of a rank's memory, at the moments that the rank names."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
import torch

from dtlab.checks.functions.trials import Observation, Trial
from dtlab.ranks.launch.launcher import launch
from dtlab.ranks.record import resident_memory
from dtlab.ranks.record.resident_memory import (
    TIMES,
    Count,
    _let_other_threads_run,
    bytes_of,
    count,
    give_back_at_once,
)
from dtlab.units.unit05.stage_2 import LargeStage2
from tests.staying import on_ranks
from tests.test_waiting import Start, start  # noqa: F401

MB = 1_000_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts by Linux")


def holds_40_mb_for_a_while() -> None:
    rank = torch.distributed.get_rank()
    give_back_at_once()
    torch.ones(10)
    count()
    hidden = b"\1" * (40 * MB if rank else 0)  # no tensor, so no count of tensors sees it
    count()
    del hidden
    count()


def test_memory_is_counted_whatever_holds_it_and_not_once_it_is_free() -> None:
    run = on_ranks(holds_40_mb_for_a_while, world_size=2)
    assert all(len(asked) == 3 * TIMES for asked in run.resident)
    for rank, asked in enumerate(run.resident):
        before, held, freed = (min(asked[at : at + TIMES]) for at in range(0, len(asked), TIMES))
        assert held - before == pytest.approx(40 * MB * rank, abs=2 * MB)
        assert freed - before == pytest.approx(0, abs=2 * MB)


def test_a_session_forgets_what_it_counted_in_an_earlier_turn() -> None:
    on_ranks(count, world_size=2)
    run = on_ranks(count, world_size=2)
    assert [len(asked) for asked in run.resident] == [TIMES, TIMES]


def test_outside_of_a_rank_count_does_nothing() -> None:
    count()


def test_a_process_that_has_ended_has_no_memory() -> None:
    assert bytes_of(2**22 + 1) is None


def in_a_file_in_memory_and_in_a_child() -> None:
    give_back_at_once()
    torch.ones(10)
    count()
    file = os.memfd_create("hidden")
    os.write(file, b"\1" * 20 * MB)
    count()
    os.close(file)
    if (child := os.fork()) == 0:
        hidden = bytearray(b"\1" * 20 * MB)
        time.sleep(2)
        os._exit(len(hidden) % 1)
    time.sleep(0.5)
    count()
    os.kill(child, 9)
    os.waitpid(child, 0)
    count()


def test_files_in_memory_and_processes_that_a_rank_has_started_count_too() -> None:
    (asked,) = on_ranks(in_a_file_in_memory_and_in_a_child, world_size=1).resident
    before, file, child, after = (
        min(asked[at : at + TIMES]) for at in range(0, len(asked), TIMES)
    )
    assert file - before == pytest.approx(20 * MB, abs=2 * MB)
    assert child - before >= 20 * MB
    assert after - before == pytest.approx(0, abs=2 * MB)


def frees_before_each_count() -> None:
    give_back_at_once()
    torch.ones(10)
    count()
    held = bytearray(b"\1" * 30 * MB)
    del held
    count()
    held = bytearray(b"\1" * 50 * MB)
    del held


def test_a_count_has_the_peak_since_the_one_before_it_and_the_last_one_that_after_it() -> None:
    (asked,) = on_ranks(frees_before_each_count, world_size=1).resident
    first, second = asked[0], asked[TIMES]
    assert isinstance(first, Count)
    assert isinstance(second, Count)
    if second.peak is None:
        pytest.skip("this system cannot start a new peak")
    last = asked[-1]
    assert isinstance(last, Count)
    assert last.later is not None
    # Building a bytearray from a product of bytes takes twice its size.
    assert second.peak - first == pytest.approx(60 * MB, abs=5 * MB)
    assert last.later - first == pytest.approx(100 * MB, abs=5 * MB)
    assert second - first == pytest.approx(0, abs=2 * MB)


# What the judge makes of counts ------------------------------------------------------------------

SIZE = 4 * LargeStage2.elements  # bytes of all parameters
SHARE = SIZE // 4


def counted(now: int, peak: int) -> list[int | None]:
    result = Count(now)
    result.peak = peak
    return [result, *[Count(now) for _ in range(TIMES - 1)]]


def faults(*counts: tuple[int, int], later: int) -> list[str]:
    """What the judge says of a rank that is counted with these bytes, each with a peak before."""
    readings = [count for pair in counts for count in counted(*pair)]
    last = readings[-1]
    assert isinstance(last, Count)
    last.later = later
    case = LargeStage2(0)
    observation = Observation(Trial(4, [case], secret=True), resident=[readings])
    return sorted(f"{name}: {message}" for name, message in case.grown(observation))


FRESH = (0, 0)
START = (SIZE, SIZE)
STEPPED = (SIZE + 3 * SHARE, 4 * SIZE)
REDUCED = (SIZE + 4 * SHARE, 4 * SIZE)


def test_a_right_rank_has_no_fault() -> None:
    assert faults(FRESH, FRESH, START, STEPPED, REDUCED, later=REDUCED[0]) == []


def test_memory_that_is_held_after_the_last_count_is_a_fault_of_every_criterion() -> None:
    found = faults(FRESH, FRESH, START, (SIZE, 2 * SIZE), (SIZE, 2 * SIZE), later=4 * SIZE)
    assert [one.partition(":")[0] for one in found] == ["gradients", "optimizer"]
    assert all("counted at other moments" in one for one in found)


def test_counts_without_the_work_between_them_are_no_evidence() -> None:
    found = faults(FRESH, FRESH, START, STEPPED, (STEPPED[0], STEPPED[0]), later=STEPPED[0])
    assert any("counted at other moments" in one for one in found)


def test_memory_that_an_answer_holds_before_its_use_hides_nothing_later() -> None:
    ballast = 2 * SIZE
    begun = (SIZE + ballast, SIZE + ballast)
    stepped = (SIZE + 3 * SHARE + ballast, 6 * SIZE)
    reduced = (SIZE + 4 * SHARE + ballast, 6 * SIZE)
    found = faults(FRESH, FRESH, begun, stepped, reduced, later=reduced[0])
    assert [one.partition(":")[0] for one in found] == ["optimizer"]
    assert "the kernel counts" in found[0]


def held_by_a_thread_without_a_cpu() -> None:
    begins = threading.Event()

    def thread() -> None:
        block = bytearray(64 * MB)
        block[:] = b"x" * len(block)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        holds.set()
        begins.wait()
        end = time.thread_time() + 0.003
        while time.thread_time() < end:  # takes far longer than a count, for want of a CPU
            pass
        del block

    def first_begins() -> None:
        begins.set()
        _let_other_threads_run()

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    count()
    holds = threading.Event()
    threading.Thread(target=thread).start()
    holds.wait()
    resident_memory._let_other_threads_run = first_begins
    count()


def test_a_count_waits_for_threads_that_wait_for_a_cpu(start: Start) -> None:  # noqa: F811
    for _ in range(2):
        start(min(os.sched_getaffinity(0)))
    (asked,) = launch(held_by_a_thread_without_a_cpu, world_size=1).resident
    before, after = (min(asked[at : at + TIMES]) for at in (0, TIMES))
    assert asked[TIMES] > before + 50 * MB
    assert after < before + 10 * MB


def test_a_count_does_not_wait_for_a_thread_that_runs() -> None:
    ended = threading.Event()

    def thread() -> None:
        while not ended.is_set():
            pass

    threading.Thread(target=thread).start()
    begun = time.monotonic()
    _let_other_threads_run()
    ended.set()
    assert time.monotonic() - begun < 1.5
