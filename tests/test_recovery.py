"""Replicas that die, are slow or begin late: no step is lost, and none is counted twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Iterator, Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam

import dtlab
from dtlab.parallel.recovery import Replica
from tests.marks import proof

pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.slow]

PATIENCE = 2.0  # seconds
STEPS = 10
Outcome = tuple[list[Tensor], list[list[int]]]


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that no replica runs."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def _model() -> tuple[nn.Module, Adam]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()
    module[2].eval()  # type: ignore[attr-defined]  its statistics would differ by replica
    return module, Adam(module.parameters(), lr=0.05)


def _loss(module: nn.Module, step: int, place: int, count: int) -> Tensor:
    """Of the part at `place` if the batch of a step has `count` parts."""
    draw = torch.Generator().manual_seed(100 * step + 10 * count + place)
    inputs = torch.randn(4, 5, generator=draw, dtype=torch.float64)
    targets = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    return mse_loss(module(inputs), targets)


def _trains(
    port: int,
    replicas: int,
    kills: Collection[tuple[int, int, str]] = (),
    late: Mapping[int, float] | None = None,
    slow: tuple[int, int] | None = None,
    pace: float = 0.0,
) -> Outcome:
    """Train as replica number `rank`; `kills` has (number, step, where): before or after backward.

    `late` has the seconds after which a replica begins, `slow` a replica and its step that takes
    long, and a step takes `pace` seconds.
    """
    number, slept = dist.get_rank(), False
    time.sleep((late or {}).get(number, 0.0))
    module, optimizer = _model()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    replica = Replica(store, number, replicas, module, optimizer, patience=PATIENCE)

    def backward(step: int, place: int, count: int) -> None:
        nonlocal slept
        time.sleep(pace)
        if (number, step, "before") in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        _loss(module, step, place, count).backward()
        if (number, step, "after") in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if (number, step) == slow and not slept:
            slept = True
            time.sleep(2.3 * PATIENCE)  # the others give it up after twice their patience

    replica.train(backward, until=STEPS)
    return [value.detach().clone() for value in module.parameters()], replica.members


def _reference(members: list[list[int]]) -> list[Tensor]:
    """One process, with the parts of the replicas that took part in each step."""
    module, optimizer = _model()
    for step, together in enumerate(members):
        optimizer.zero_grad()
        for place in range(len(together)):
            (_loss(module, step, place, len(together)) / len(together)).backward()
        optimizer.step()
    return [value.detach() for value in module.parameters()]


def run(port: int, replicas: int, *args: object) -> tuple[dtlab.Run, list[list[int]]]:
    """Launch it, compare the survivors with the reference; also return who took part when."""
    result = dtlab.launch(
        _trains, port, replicas, *args, world_size=replicas, survivors=True, timeout=120
    )
    outcomes: list[Outcome] = [value for value in result.values if value is not None]
    members = outcomes[0][1]
    assert len(members) == STEPS  # no step is lost, and none is counted twice
    wanted = _reference(members)
    for weights, seen in outcomes:
        assert seen == members
        torch.testing.assert_close(weights, wanted, rtol=1e-12, atol=1e-12)
    for weights, _ in outcomes[1:]:
        assert all(map(torch.equal, weights, outcomes[0][0]))  # the replicas agree in every bit
    return result, members


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_without_a_death_it_is_data_parallelism(port: int, replicas: int) -> None:
    result, members = run(port, replicas)
    assert (result.lost, members) == ([], [[*range(replicas)]] * STEPS)


@pytest.mark.parametrize(
    ("number", "step", "where"),
    [(1, 4, "after"), (0, 9, "before"), proof(0, 0, "before"), proof(2, 9, "after")],
)
def test_the_others_repeat_the_step_in_which_one_died(
    port: int, number: int, step: int, where: str
) -> None:
    result, members = run(port, 3, {(number, step, where)})
    left = [each for each in range(3) if each != number]
    assert result.lost == [number]
    assert members == [[0, 1, 2]] * step + [left] * (STEPS - step)


def test_the_last_one_goes_on_alone(port: int) -> None:
    result, members = run(port, 3, {(0, 2, "before"), (2, 6, "after")})
    assert sorted(result.lost) == [0, 2]
    assert members == [[0, 1, 2]] * 2 + [[1, 2]] * 4 + [[1]] * 4


def test_one_that_comes_late_gets_the_live_state(port: int) -> None:
    _, members = run(port, 3, (), {2: 1.4 * PATIENCE}, None, 0.3)
    assert members[0] == [0, 1]  # they went on without it
    assert members[-1] == [0, 1, 2]
    assert [2 in each for each in members] == sorted(2 in each for each in members)


def test_one_that_was_slow_takes_part_again(port: int) -> None:
    _, members = run(port, 3, (), None, (1, 4), 0.5)
    without = [step for step, each in enumerate(members) if 1 not in each]
    assert without
    assert min(without) == 4
    assert 1 in members[-1]


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20))
def test_any_deaths_at_any_steps(port: int, seed: int) -> None:
    draw = random.Random(seed)
    replicas = draw.choice((2, 3, 4))
    dying = draw.sample(range(replicas), draw.randint(1, replicas - 1))
    kills = {(n, draw.randrange(STEPS), draw.choice(("before", "after"))) for n in dying}
    result, members = run(port, replicas, kills)
    assert sorted(result.lost) == sorted(dying)
    for number, step, _ in kills:
        assert [number in each for each in members] == [s < step for s in range(STEPS)]


def test_one_that_comes_after_the_end_is_told_so(port: int) -> None:
    def comes_after_the_end() -> str:
        if dist.get_rank() == 0:
            _trains(port, 1)
            return "finished"
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        store.wait(["finished"])
        with pytest.raises(RuntimeError, match=f"have finished, after {STEPS} steps"):
            Replica(store, 1, 2, *_model()).train(lambda *_: None, until=STEPS)
        return "told"

    assert dtlab.launch(comes_after_the_end, world_size=2).values == ["finished", "told"]


def test_wrong_numbers_are_refused() -> None:
    module, optimizer = _model()
    with pytest.raises(ValueError, match="number=3 must be from 0 to 2"):
        Replica(dist.HashStore(), 3, 3, module, optimizer)
    with pytest.raises(ValueError, match="patience=0 must be above 0"):
        Replica(dist.HashStore(), 0, 3, module, optimizer, patience=0)
