"""The watcher on random programs, and how fast it is: `python -m tests.benchmarks.watcher [n]`.

Goals: n (2,000) random programs on real ranks end as the oracle says, without an exception; a
hang's error comes within 1 s of the standstill, 0.5 s in the median.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist
from tqdm import tqdm

import dtlab
from tests.oracle import random_program, verdicts
from tests.test_random_programs import fits, said_on_real_ranks

PROGRAMS = 2000
AT_A_TIME = 4  # most of a hang is waiting
HANGS = 20
FIRST_SEED = 10_000  # others than in the tests


# ------------------------------------------------------------------------- agreement


def end_of(seed: int) -> tuple[str, str]:
    """How the program of a seed ends, and what the watcher says if that is wrong."""
    program = random_program(random.Random(seed))
    possible = verdicts(program)
    said = said_on_real_ranks(program)
    end = "depending on timing" if len(possible) > 1 else next(iter(possible))
    if fits(said, possible):
        return end, ""
    return end, f"seed {seed}: the oracle says {sorted(possible)}, the watcher {said}\n{program}"


def agreement(count: int) -> list[str]:
    """Run the programs and print how they ended. Returns what did not end as it should."""
    ends: Counter[str] = Counter()
    wrong = []
    begun = time.perf_counter()
    seeds = range(FIRST_SEED, FIRST_SEED + count)
    with ProcessPoolExecutor(AT_A_TIME, multiprocessing.get_context("spawn")) as pool:
        for end, mistake in tqdm(pool.map(end_of, seeds), "random programs", count, leave=False):
            ends[end] += 1
            if mistake:
                wrong.append(mistake)
                tqdm.write(f"{mistake}\n")
    minutes = (time.perf_counter() - begun) / 60
    print(f"{count} random programs on real ranks, {minutes:.1f} minutes")
    for end in ("finish", "standstill", "mismatch", "mismatch, standstill", "depending on timing"):
        print(f"  {end:<22}{ends[end]:>6}")
    print(f"  {'disagreements':<22}{len(wrong):>6}   (goal: 0)")
    return wrong


# ------------------------------------------------------------------------- speed


def _print_time_of_standstill() -> None:
    """Print the time, right before this rank makes a call that never returns."""
    print(time.monotonic(), flush=True)  # the same clock in all processes of a machine


def all_receive() -> None:
    _print_time_of_standstill()
    dist.recv(torch.ones(4), (dist.get_rank() - 1) % dist.get_world_size())


def all_send() -> None:
    message = torch.ones(4_000_000)
    _print_time_of_standstill()
    dist.send(message, (dist.get_rank() + 1) % dist.get_world_size())


def all_wait() -> None:
    work = dist.irecv(torch.ones(4), (dist.get_rank() + 1) % dist.get_world_size())
    _print_time_of_standstill()
    assert work is not None
    work.wait()


def one_leaves() -> None:
    for _ in range(3 if dist.get_rank() == 0 else 4):
        _print_time_of_standstill()
        dist.all_reduce(torch.ones(4))


def one_comes_late() -> None:
    if dist.get_rank() == 0:
        time.sleep(0.4)
    _print_time_of_standstill()
    if dist.get_rank() == 0:
        dist.recv(torch.ones(4), 1)
    dist.barrier()


def all_meet() -> None:
    dist.barrier()


HANG_KINDS: tuple[Callable[[], None], ...] = (
    all_receive,
    all_send,
    all_wait,
    one_leaves,
    one_comes_late,
)


def seconds_to_the_error(hang: Callable[[], None], world_size: int) -> float:
    """Seconds from the moment at which the last rank is blocked to the error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            dtlab.launch(hang, world_size=world_size, timeout=20)
    except dtlab.DeadlockError as error:
        now = time.monotonic()
        return now - max(float(line) for text in error.stdout for line in text.split())
    raise AssertionError(f"{hang.__name__} returned")


def speed() -> None:
    """Print the time to the error of 20 hangs."""
    dtlab.launch(all_meet)  # starts the warm server
    times: dict[str, list[float]] = {hang.__name__: [] for hang in HANG_KINDS}
    for number in range(HANGS):
        hang = HANG_KINDS[number % len(HANG_KINDS)]
        times[hang.__name__].append(seconds_to_the_error(hang, 2 + number % 3))
    every = [each for some in times.values() for each in some]
    print(f"from standstill to the error, {HANGS} hangs of 2 to 4 ranks (seconds)")
    print(f"  median {statistics.median(every):.3f} (goal: 0.5), worst {max(every):.3f} (goal: 1)")
    for name, some in times.items():
        print(f"  {name:<16} {statistics.median(some):.3f}   worst {max(some):.3f}")


def main(count: int = PROGRAMS) -> None:
    """Print both."""
    speed()
    agreement(count)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
