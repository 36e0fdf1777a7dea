"""Local SGD against data parallelism, one process per rank's arithmetic, and PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy

from dtlab.parallel.data import NaiveDataParallel, assert_replicas_equal
from dtlab.parallel.data.local_sgd import LocalSGD
from tests.marks import slow
from tests.staying import on_ranks

NUM_STEPS = 9


def _model(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(7, 13), nn.ReLU(), nn.BatchNorm1d(13), nn.Linear(13, 5)]
        return nn.Sequential(*layers).double()  # rounding that grows is not what this looks for


def _batches(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(NUM_STEPS):
        inputs = torch.randn(6, 7, generator=generator, dtype=torch.float64)
        yield inputs, torch.randint(5, (6,), generator=generator)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]
) -> None:
    optimizer.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def _sgd(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def _values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _local(steps: int, momentum: float = 0.0, until: int = 0) -> tuple[list[list[Tensor]], str]:
    """Every rank begins with a different model, and the first rank's must be used."""
    model = _model(seed=dist.get_rank())
    local = LocalSGD(model, steps, every_step_until=until)
    optimizer, after, when = _sgd(model, momentum), [], ""
    for batch in _batches(dist.get_rank()):
        _step(model, optimizer, batch)
        averaged = local.step()
        when += "A" if averaged else "-"
        if averaged:
            assert_replicas_equal(model)
        after.append(_values(model))
    return after, when


def _alone(n: int, when: str, momentum: float) -> list[list[list[Tensor]]]:
    """Train n models next to each other in one process; return each model after each step."""
    models = [_model(seed=0) for _ in range(n)]
    optimizers = [_sgd(model, momentum) for model in models]
    history = []
    for averages, batches in zip(when, zip(*map(_batches, range(n)), strict=True), strict=True):
        for model, optimizer, batch in zip(models, optimizers, batches, strict=True):
            _step(model, optimizer, batch)
        if averages == "A":
            for same in zip(*(model.parameters() for model in models), strict=True):
                mean = torch.stack([p.detach() for p in same]).mean(dim=0)
                for parameter in same:
                    parameter.data.copy_(mean)
        history.append([_values(model) for model in models])
    return history


@pytest.mark.covering(1)
@pytest.mark.slow
@pytest.mark.parametrize("n", [slow(1), slow(2), 3, slow(4)])
@pytest.mark.parametrize(
    ("steps", "until", "momentum", "when"),
    [(1, 0, 0.9, "AAAAAAAAA"), (4, 0, 0.9, "---A---A-"), (3, 2, 0.0, "AA--A--A-")],
)
def test_is_what_models_side_by_side_are(
    n: int, steps: int, until: int, momentum: float, when: str
) -> None:
    run = on_ranks(_local, steps, momentum, until, world_size=n)
    assert [seen for _, seen in run.values] == [when] * n
    for step, expected in enumerate(_alone(n, when, momentum)):
        for rank in range(n):
            torch.testing.assert_close(run.values[rank][0][step], expected[rank])


def _data_parallel() -> list[list[Tensor]]:
    model = NaiveDataParallel(_model(seed=dist.get_rank()))
    optimizer, after = _sgd(model), []
    for batch in _batches(dist.get_rank()):
        _step(model, optimizer, batch)
        after.append(_values(model))
    return after


@pytest.mark.slow
def test_each_step_with_plain_sgd_is_data_parallelism() -> None:
    ours = on_ranks(_local, 1, world_size=3)
    theirs = on_ranks(_data_parallel, world_size=3)
    for (after, _), expected in zip(ours.values, theirs.values, strict=True):
        torch.testing.assert_close(after, expected)


@pytest.mark.slow
def test_with_momentum_it_is_not_the_same_as_data_parallelism_every_four_steps() -> None:
    ours = on_ranks(_local, 4, world_size=2).values[0][0]
    theirs = on_ranks(_data_parallel, world_size=2).values[0]
    assert not torch.allclose(ours[-1][0], theirs[-1][0])


def _torchs(steps: int) -> list[list[Tensor]]:
    """PyTorch's averages with step 0 already; so its warm-up is as long as our first round."""
    model = _model(seed=0)
    averager = PeriodicModelAverager(period=steps, warmup_steps=steps - 1)
    optimizer, after = _sgd(model, 0.9), []
    for batch in _batches(dist.get_rank()):
        _step(model, optimizer, batch)
        averager.average_parameters(model.parameters())
        after.append(_values(model))
    return after


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 4])
def test_is_pytorchs_periodic_model_averager(steps: int) -> None:
    ours = on_ranks(_local, steps, 0.9, world_size=3)
    theirs = on_ranks(_torchs, steps, world_size=3)
    for (after, _), expected in zip(ours.values, theirs.values, strict=True):
        torch.testing.assert_close(after, expected)


def _only_averages(steps: int) -> None:
    local = LocalSGD(nn.Linear(250, 1000), steps)
    for _ in range(12):
        local.step()


@pytest.mark.slow
def test_sends_a_kth_of_the_bytes() -> None:
    def sent(steps: int) -> tuple[int, int]:
        run = on_ranks(_only_averages, steps, world_size=2)
        assert run.trace is not None
        wire = run.trace.bytes_wire(0)
        assert wire is not None
        return run.trace.ops(0)["all_reduce"], wire

    broadcast = 1_004_000  # bytes: the start, which does not shrink
    (one, all_bytes), (four, fewer_bytes) = sent(1), sent(4)
    assert (one, four) == (12, 3)
    assert (all_bytes - broadcast) / (fewer_bytes - broadcast) == pytest.approx(4, rel=0.05)


def _mixed() -> None:
    """Two dtypes, a frozen and a tied parameter."""
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = self.a
            self.c = nn.Parameter(torch.zeros(5, dtype=torch.float64))
            self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)

    model, me = Mixed(), dist.get_rank()
    local = LocalSGD(model, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(me)
    local.step()
    assert model.a.weight.eq(1).all()
    assert model.c.eq(1).all()
    assert model.frozen.eq(me).all()


@pytest.mark.slow
def test_dtypes_tied_and_frozen_parameters() -> None:
    on_ranks(_mixed, world_size=3)


def _in_subgroup() -> float:
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    group = groups[dist.get_rank() // 2]
    model = nn.Linear(1, 1, bias=False)
    local = LocalSGD(model, 1, group)
    model.weight.data.fill_(dist.get_rank())
    local.step()
    return model.weight.item()


@pytest.mark.slow
def test_subgroups_average_among_themselves() -> None:
    assert on_ranks(_in_subgroup, world_size=4).values == [0.5, 0.5, 2.5, 2.5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(LocalSGD, nn.Linear(1, 1), 0), "steps of 1 or more"),
        (partial(LocalSGD, nn.Linear(1, 1), 1, every_step_until=-1), "every_step_until=-1"),
        (partial(LocalSGD, nn.ReLU(), 1), "requires a gradient, so there is nothing"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make: partial[LocalSGD], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
