"""Unit 11, Level II: what its checks take for right, and what they do to a learner's program."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from dtlab.checks.learners import being_graded
from dtlab.ranks.protocol import MOST_SECONDS
from dtlab.units.unit11 import resumable, server, sharded
from dtlab.units.unit11.disk import Disk

SEEDS = range(5)


def cases_of(part: Any, seed: int) -> list[Any]:
    """The cases of the first trial."""
    return list(part.check.trials(seed)[0].cases)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_parameters_are_those_of_plain_sgd(seed: int) -> None:
    case = cases_of(server.PART, seed)[0]
    parameters = case.drawn(-1, 0)
    for step in range(3):
        pulls = [n for n, call in enumerate(case.calls) if call[0] == "pull" and call[2] == step]
        for name, tensor in parameters.items():
            assert all(case.right[pull][1][name].equal(tensor) for pull in pulls)
            gradients = torch.stack([case.drawn(w, step)[name] for w in range(case.workers)])
            parameters[name] = tensor - server.RATE * gradients.mean(0)


def test_the_clock_of_the_loop_is_simulated() -> None:
    async def an_hour() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert server.running(an_hour()) >= 3600
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fair_share_is_nearly_the_best(seed: int) -> None:
    for case in cases_of(sharded.PART, seed):
        sizes = [case.bytes([name]) for name, _, _ in case.sizes]
        loads = (
            [sum(size for size, on in zip(sizes, places, strict=True) if on == n)
             for n in range(case.servers)]
            for places in product(range(case.servers), repeat=len(sizes))
        )  # fmt: skip
        best = min(map(max, loads))
        assert best <= case.fair <= sharded.NEAR * best


@pytest.mark.slow
def test_a_run_is_killed_with_half_of_its_file(tmp_path: Path) -> None:
    def saves(run: object, folder: Path, steps: int, every: int) -> None:
        torch.save(torch.arange(5000), folder / "new")
        (folder / "new").rename(folder / "old")
        (folder / "text").write_text("complete")

    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    found = []
    for operation in range(1, 5):
        folder = tmp_path / str(operation)
        folder.mkdir()
        left = iter(range(operation - 1))  # operations that succeed
        killed = False
        try:
            with Disk(str(folder), lambda _, left=left: next(left, None), die):
                saves(None, folder, 1, 1)
        except Killed:
            killed = True
        found.append((killed, {path.name: path.stat().st_size for path in folder.iterdir()}))
    whole = found[3][1]["old"]
    assert [killed for killed, _ in found] == [True, True, True, False]
    assert 0 < found[0][1]["new"] < whole
    assert found[1][1] == {"new": whole}
    assert found[2][1] == {"old": whole, "text": 0}
    assert found[3][1] == {"old": whole, "text": len("complete")}


@pytest.mark.slow
def test_the_judge_leaves_the_random_numbers_of_its_process_alone() -> None:
    before = torch.get_rng_state(), random.getstate()
    first, second = (resumable.uninterrupted(3, 2) for _ in range(2))
    assert torch.get_rng_state().equal(before[0])
    assert random.getstate() == before[1]
    assert not resumable.differences(first[2], second[2], 2)
    assert {name for name, _ in resumable.differences(first[1], second[2], 2)} == {
        "parameters", "schedule", "data", "random",
    }  # fmt: skip


def test_a_sandbox_says_that_a_notebook_is_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not being_graded()
    monkeypatch.setenv(MOST_SECONDS, "8")
    assert being_graded()


ACTOR = """
import threading
from dtlab.ranks.ray import local_ray

class Copied:
    def __reduce__(self):
        return str, (threading.current_thread().name,)

class Actor:
    async def pull(self):
        return threading.current_thread().name, Copied()

ray = local_ray(num_cpus=1)
ran, copied = ray.get(ray.remote(Actor).remote().pull.remote())
print(ran != copied)
"""


@pytest.mark.proof
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'dtlab[ray]'")
def test_a_result_is_copied_in_another_thread_than_the_loops() -> None:
    done = subprocess.run([sys.executable, "-c", ACTOR], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
