"""The sign of each effect in the first lesson: scaling on real ranks and on the emulated wire,
what is in memory when, and where a job runs out of it.

The functions are the lesson's own, taken from its cells. An effect without a random part is
measured in several runs.
"""

from __future__ import annotations

import ast
import math
from functools import cache
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch

import dtlab
from dtlab.predict import Link, choose
from dtlab.training.models import MLP
from tests.marks import first, retried

pytestmark = [pytest.mark.slow, pytest.mark.unit("00"), retried]

LESSON = Path(__file__).parent.parent / "notebooks" / "00_one_gpu_is_not_enough.ipynb"
VALUES = ("large", "jobs", "networked")  # what its functions and its runs share
RUNS = range(5)
LARGE, SMALL = ((64, 512, 512, 10), 2048), ((64, 128, 128, 10), 256)


@cache
def lesson() -> Any:
    """Imports, functions and settings of the lesson, without its runs."""
    body: list[ast.stmt] = []
    for cell in nbformat.read(LESSON, as_version=4).cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else ():
            named = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("(")
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)) or (
                isinstance(named, str) and named.startswith(VALUES)
            ):
                body.append(node)
    names: dict[str, Any] = {"__name__": "__main__"}  # so that ranks get them by value
    exec(compile(ast.Module(body, []), "<lesson 00>", "exec"), names)
    return SimpleNamespace(**names)


def cores() -> int:
    return int(dtlab.launch(torch.get_num_threads, world_size=1).values[0])


def step(job: Any, ranks: int, steps: int, threads: int = 1) -> float:
    run = dtlab.launch(
        lesson().train, *job, steps, world_size=ranks, backend="gloo", threads=threads
    )
    return float(lesson().best_step(run))


# ------------------------------------------------------------------------------- real ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shares_of_a_batch_train_as_the_whole_of_it_does(ranks: int) -> None:
    def weights_on(ranks: int) -> list[torch.Tensor]:
        run = dtlab.launch(lesson().train, *SMALL, world_size=ranks, backend="gloo", threads=1)
        return [weights for weights, _ in run.values]

    (alone,), shared = weights_on(1), weights_on(ranks)
    assert all(other.equal(shared[0]) for other in shared)
    assert ((shared[0] - alone).norm() / alone.norm()).item() < (1e-3 if ranks == 3 else 1e-5)


@pytest.mark.proof
def test_a_small_job_gets_slower_with_every_rank() -> None:
    times = {n: median(step(SMALL, n, 12) for _ in RUNS) for n in (1, 8)}
    assert times[8] > 2 * times[1]


@pytest.mark.proof
def test_a_large_job_gets_faster_as_far_as_there_are_cores() -> None:
    if cores() < 2:
        pytest.skip("one core")
    best = {1: math.inf, 2: math.inf}
    for _ in range(15):  # others use the cores too: the best of some runs is nearly undisturbed
        best = {n: min(best[n], step(LARGE, n, 4)) for n in best}
        if best[1] > 1.1 * best[2]:
            break
    assert best[1] > 1.1 * best[2]
    few, many = cores(), 4 * cores()
    assert median(step(LARGE, many, 3) / step(LARGE, few, 3) for _ in range(3)) > 0.8


@pytest.mark.proof
def test_ranks_that_all_take_the_whole_machine_are_slower() -> None:
    ranks, threads = 4 * cores(), max(2, cores())
    pairs = [step(LARGE, ranks, 2, threads) / step(LARGE, ranks, 2) for _ in range(3)]
    assert median(pairs) > 1.2


def test_a_rank_with_a_batch_less_is_found_at_once() -> None:
    with pytest.raises(dtlab.DeadlockError, match="did not call this all_reduce"):
        dtlab.launch(lesson().train_on_my_batches, world_size=4, backend="gloo")


# ------------------------------------------------------------------------- the emulated wire


def emulated(job: str, ranks: int) -> float:
    return min(float(lesson().on_cluster(lesson().networked[job], ranks)[0]) for _ in range(2))


@pytest.mark.sample(1)
@pytest.mark.covering(1)
@pytest.mark.parametrize("job", ["heavy", "hasty"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_step_on_the_cluster_takes_what_the_formula_says(job: str, ranks: int) -> None:
    predicted = lesson().by_formula(lesson().networked[job], ranks)
    assert predicted * 0.95 < emulated(job, ranks) < predicted * 1.4


def test_bandwidth_is_a_floor_and_latency_a_turn() -> None:
    found = lesson()
    heavy, hasty = ([found.by_formula(found.networked[job], 2**k) for k in range(13)]
                    for job in ("heavy", "hasty"))  # fmt: skip
    assert hasty.index(min(hasty)) == 2  # on four cards
    without = (*found.networked["heavy"][:2], Link(0, 1.25e9), 20)
    floor = [found.by_formula(without, 2**k) for k in range(13)]
    assert floor == sorted(floor, reverse=True)
    assert floor[-1] == pytest.approx(2 * 5e6 / 1.25e9, rel=0.01)
    assert min(heavy) > 2 * 5e6 / 1.25e9


@pytest.mark.proof
def test_the_hasty_job_is_slower_on_eight_cards_than_on_four() -> None:
    assert sum(emulated("hasty", 8) > emulated("hasty", 4) for _ in RUNS) >= 4


@pytest.mark.proof
@pytest.mark.sample(1)
@pytest.mark.parametrize(("job", "limit"), [("heavy", "bandwidth"), ("hasty", "latency")])
def test_the_change_that_helps_most_shows_the_limit(job: str, limit: str) -> None:
    compute, nbytes, link, slow = lesson().networked[job]
    better = {
        "cards": (compute / 10, nbytes, link, slow),
        "latency": (compute, nbytes, Link(link.latency / 10, link.bandwidth), slow),
        "bandwidth": (compute, nbytes, Link(link.latency, 10 * link.bandwidth), slow),
    }
    for _ in range(3):
        times = {name: lesson().on_cluster(each, 8)[0] for name, each in better.items()}
        assert min(times, key=times.__getitem__) == limit


@pytest.mark.proof
def test_a_batch_that_grows_keeps_the_cards_busier() -> None:
    job = lesson().networked["heavy"]
    for _ in range(3):
        alone, shared = emulated("heavy", 1), emulated("heavy", 8)
        grown = lesson().on_cluster(job, 8, grow=True)[0]
        assert alone / grown > 2 * alone / shared / 8


@pytest.mark.proof
def test_fast_links_shorten_the_transfer_and_not_the_waiting() -> None:
    compute, nbytes, link, slow = lesson().networked["heavy"]
    fast = Link(link.latency / 10, 10 * link.bandwidth)
    for _ in RUNS:
        traces = [
            lesson().on_cluster((compute, nbytes, each, slow), 4, slow_rank=3)[1]
            for each in (link, fast)
        ]
        waited = [lesson().early_by(trace, 0) / slow / 2 for trace in traces]
        assert waited == pytest.approx([2e-3, 2e-3], rel=0.4)
        exposed = [trace.exposed_comm(0) for trace in traces]
        assert exposed[1] < 0.5 * exposed[0]
        assert lesson().early_by(traces[1], 3) < 0.2 * lesson().early_by(traces[1], 0)


def test_bandwidth_alone_never_makes_four_slower_than_two_that_are_as_fast_as_one() -> None:
    for power in range(-400, 401):
        job = 1.0, 10 ** (power / 100), Link(0, 1.0), 1
        one, two, four = (lesson().by_formula(job, n) for n in (1, 2, 4))
        assert not (two <= 1.001 * one and four > 1.001 * two)


# ----------------------------------------------------------------------------------- memory


def sums(after: Any) -> dict[str, int]:
    return {line: sum(parts.values()) for line, parts in after.items()}


def test_moments_come_with_the_first_step_and_stay() -> None:
    after = lesson().memory_of((256, 512, 512, 10), 512)
    state = {line: parts["optimizer state"] for line, parts in after.items()}
    weights = after["Adam(...)"]["parameters"]
    lines = list(after)
    first = lines.index("1st step")
    assert all(state[line] == 0 for line in lines[:first])
    assert all(state[line] == pytest.approx(2 * weights, rel=0.01) for line in lines[first:])
    assert after["2nd forward"]["gradients"] == 0  # zero_grad() sets them to None


@pytest.mark.parametrize(
    ("batch", "line"),
    [(64, "no line"), (256, "no line"), (600, "2nd forward"), (1024, "1st forward")],
)
def test_the_batch_size_decides_where_memory_runs_out(batch: int, line: str) -> None:
    sizes = (256, 512, 512, 10)
    room = sums(lesson().memory_of(sizes, 512))["1st step"]
    totals = sums(lesson().memory_of(sizes, batch))
    assert next((where for where, total in totals.items() if total > room), "no line") == line


@pytest.mark.parametrize("seed", first(RUNS))
def test_room_for_three_times_the_parameters_is_not_enough_for_the_first_step(seed: int) -> None:
    wide = (1024, 3072, 3072, 10)
    limit = 3 * dtlab.held_bytes(MLP(*wide))
    with pytest.raises(dtlab.RankError) as death:
        dtlab.launch(
            lesson().two_iterations, wide, 32, world_size=1, memory_limit=limit, seed=seed
        )
    (failure,) = death.value.failures.values()
    assert failure.kind == "memory"
    assert death.value.stdout[0].splitlines()[-1] == "backward 1 is over"


# ----------------------------------------------------------------------------------- choice


def test_the_choices_of_the_lesson() -> None:
    assert choose(40e9, 80e9, 2e9, num_gpus=16).leaf.id == "zero3"
    almost = choose(4e9, 80e9, 24e9, microbatch_size=8, num_gpus=4)
    assert {"gradient accumulation", "activation checkpointing"} <= {
        each.name for each in almost.cheaper if each.enough
    }
    node = choose(20e9, 80e9, 4e9, num_gpus=8)
    assert node.gpus_to_fit is not None and node.gpus_to_fit <= 8
