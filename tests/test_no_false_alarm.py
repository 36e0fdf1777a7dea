"""No correct program may ever raise an alarm: alone, and while others keep every core busy."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch.distributed as dist

import dtlab
from tests import honest_styles
from tests.honest_programs import PROGRAMS, Program

UNDER_LOAD = (
    "long_relay",
    "ring_of_isends",
    "one_rank_waits_for_a_child",
    "nested_subgroups",
    "ddp_with_a_slow_rank",
    "pipeline_1f1b",
)


def alarm(program: Program, timeout: float = 30) -> str | None:
    """Run a program; what dtlab said about it although it is correct, None if nothing."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            dtlab.launch(program.function, world_size=program.world_size, timeout=timeout)
        except dtlab.DtlabError as error:
            return f"{type(error).__name__}: {error}"
    text = said.getvalue()  # torch's own deprecations may be in it
    return text if "warning: " in text.replace("FutureWarning: ", "") else None


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with something else."""
    others = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run_many(times: int = 200, *, load: bool = False, seed: int = 0) -> dict[str, list[str]]:
    """Run the programs `times` times in all, in a random order: the alarms, by program.

    For the benchmark: every program runs about equally often; `load` keeps the cores busy.
    """
    names = list(itertools.islice(itertools.cycle(PROGRAMS), times))
    random.Random(seed).shuffle(names)
    alarms: dict[str, list[str]] = {}
    with busy_cores() if load else contextlib.nullcontext():
        for name in names:
            text = alarm(PROGRAMS[name])
            if text is not None:
                alarms.setdefault(name, []).append(text)
    return alarms


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 30
    assert (
        sum(each.function.__module__ == honest_styles.__name__ for each in PROGRAMS.values()) > 18
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if program.heavy else [])
        for name, program in PROGRAMS.items()
        if not program.shared
    ],
)
def test_a_correct_program_raises_no_alarm(name: str) -> None:
    assert alarm(PROGRAMS[name]) is None


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_many_correct_programs_in_a_row_raise_no_alarm(world_size: int) -> None:
    shared = [each for each in PROGRAMS.values() if each.shared and each.world_size == world_size]
    assert len(shared) > 9

    def all_in_turn() -> None:
        for each in shared:
            each.function()
            dist.barrier()

    assert alarm(Program(all_in_turn, world_size, heavy=True), timeout=120) is None


@pytest.mark.proof
@pytest.mark.slow
def test_correct_programs_raise_no_alarm_while_the_cores_are_busy() -> None:
    with busy_cores():
        alarms = {name: alarm(PROGRAMS[name]) for name in UNDER_LOAD}
    assert not any(alarms.values()), alarms
