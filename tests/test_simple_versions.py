"""The simple version of each idea gives what the fast one gives."""

from __future__ import annotations

import time
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab import schedules
from dtlab.collectives import ring_all_reduce, simple_ring_all_reduce
from dtlab.parallel.data import DataParallel
from dtlab.parallel.data.data_parallel import average_by_hooks
from dtlab.parallel.pipeline import PipelineStage, run_schedule
from dtlab.parallel.pipeline.executor import simple_run_schedule
from dtlab.parallel.zero import Zero1, fully_sharded
from dtlab.parallel.zero.fully_sharded import SimpleShardedLinear
from dtlab.parallel.zero.optimizers import SimpleZero1
from dtlab.predict.simulate import Costs, simple_simulate, simulate
from tests.staying import on_ranks


def _drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def _loss(module: nn.Module, step: int) -> Tensor:
    x = _drawn(4, 5, seed=10 * step + dist.get_rank())
    loss: Tensor = module(x).square().sum()
    return loss


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("elements", [1, 3, 12, 1001])
def test_the_ring(ranks: int, elements: int) -> None:
    def both() -> bool:
        simple = _drawn(elements, seed=dist.get_rank())
        fast = simple.clone()
        simple_ring_all_reduce(simple)
        ring_all_reduce(fast)
        return simple.equal(fast)

    assert all(on_ranks(both, world_size=ranks).values)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (4, 0)])
def test_the_ring_with_tensors_of_any_shape(ranks: int, shape: tuple[int, ...]) -> None:
    def sums() -> bool:
        tensor = _drawn(*shape, seed=dist.get_rank())
        simple_ring_all_reduce(tensor)
        wanted = sum(_drawn(*shape, seed=rank) for rank in range(dist.get_world_size()))
        return torch.allclose(tensor, torch.as_tensor(wanted))

    assert all(on_ranks(sums, world_size=ranks).values)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_data_parallelism(ranks: int) -> None:
    def gradients() -> list[float]:
        simple, other = _net(dist.get_rank()), _net(dist.get_rank())
        average_by_hooks(simple)
        fast = DataParallel(other)
        _loss(simple, 0).backward()
        _loss(fast, 0).backward()
        pairs = zip(simple.parameters(), fast.parameters(), strict=True)
        return [float((a.grad - b.grad).abs().max()) for a, b in pairs]  # type: ignore[operator]

    assert max(max(far) for far in on_ranks(gradients, world_size=ranks).values) < 1e-12


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_zero_1(ranks: int) -> None:
    def both() -> list[float]:
        simple, fast = _net(dist.get_rank()), _net(dist.get_rank())
        one = SimpleZero1(simple.parameters(), torch.optim.Adam, lr=0.01)
        other = Zero1(fast.parameters(), torch.optim.Adam, lr=0.01)
        for step in range(3):
            for module, optimizer in ((simple, one), (fast, other)):
                _loss(module, step).backward()
                optimizer.step()
        pairs = zip(simple.parameters(), fast.parameters(), strict=True)
        return [float((a - b).abs().max()) for a, b in pairs]

    assert max(max(far) for far in on_ranks(both, world_size=ranks).values) < 1e-9


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stage_3(ranks: int) -> None:
    def far_off() -> list[float]:
        rank, size = dist.get_rank(), dist.get_world_size()
        weight = _drawn(6 * size, 5, seed=1)
        inputs = [_drawn(4, 5, seed=20 + one) for one in range(size)]
        shard = weight.chunk(size)[rank].clone().requires_grad_()
        x = inputs[rank].clone().requires_grad_()
        SimpleShardedLinear.apply(x, shard).square().sum().backward()  # type: ignore[no-untyped-call]
        whole = weight.clone().requires_grad_()
        own = [one.clone().requires_grad_() for one in inputs]
        sum(F.linear(one, whole).square().sum() for one in own).backward()  # type: ignore[union-attr]
        wanted = whole.grad.chunk(size)[rank] / size  # type: ignore[union-attr]
        pairs = [(shard.grad, wanted), (x.grad, own[rank].grad)]
        return [float((a - b).abs().max()) for a, b in pairs]  # type: ignore[operator]

    assert max(max(far) for far in on_ranks(far_off, world_size=ranks).values) < 1e-12


def test_stage_3_frees_each_weight_before_the_next_collective() -> None:
    def ranks() -> tuple[list[int], int, list[str]]:
        gathered: list[weakref.ref[Tensor]] = []
        gathered_before: list[int] = []
        alive = 0
        gather, reduce = fully_sharded._gather_rows, dist.reduce_scatter_single

        def gather_and_note(shard: Tensor) -> Tensor:
            weight = gather(shard)
            gathered.append(weakref.ref(weight))
            return weight

        def reduce_and_note(*args: Any) -> None:
            nonlocal alive
            gathered_before.append(len(gathered))
            limit = time.monotonic() + 5  # gloo's thread may hold a tensor a moment longer
            while any(weight() is not None for weight in gathered) and time.monotonic() < limit:
                time.sleep(0.001)
            alive += sum(weight() is not None for weight in gathered)
            reduce(*args)

        x, shard = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            patch.setattr(fully_sharded, "_gather_rows", gather_and_note)
            patch.setattr(dist, "reduce_scatter_single", reduce_and_note)
            SimpleShardedLinear.apply(x, shard).sum().backward()  # type: ignore[no-untyped-call]
        return gathered_before, alive, [str(warning.message) for warning in caught]

    assert on_ranks(ranks, world_size=2).values == [([2], 0, [])] * 2


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b])
def test_a_pipeline(ranks: int, make: Any) -> None:
    def both() -> list[float]:
        rank, size, count = dist.get_rank(), dist.get_world_size(), 5
        batch, targets = _drawn(2 * count, 6, seed=1), _drawn(2 * count, 6, seed=2)
        simple, fast = (nn.Linear(6, 6).double() for _ in range(2))
        for module in (simple, fast):
            module.weight.data, module.bias.data = _drawn(6, 6, seed=rank), _drawn(6, seed=rank)
        schedule = make(size, count)
        simple_run_schedule(schedule, simple, batch.chunk(count), targets.chunk(count), F.mse_loss)
        run_schedule(schedule, PipelineStage(fast), batch, targets, F.mse_loss)
        pairs = zip(simple.parameters(), fast.parameters(), strict=True)
        return [float((a.grad - b.grad).abs().max()) for a, b in pairs]  # type: ignore[operator]

    assert max(max(far) for far in on_ranks(both, world_size=ranks).values) < 1e-12


class _Transposes(nn.Module):
    """A stage whose output is not contiguous, and whose input gets such a gradient."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).T


def test_a_pipeline_of_stages_whose_outputs_are_not_contiguous() -> None:
    def both() -> list[float]:
        rank, size, count = dist.get_rank(), dist.get_world_size(), 2
        batch, targets = _drawn(4 * count, 4, seed=1), _drawn(4 * count, 4, seed=2)
        weights = [_drawn(4, 4, seed=10 + stage) for stage in range(size)]
        stages = [_Transposes(weight.clone()) for weight in weights]
        whole = nn.Sequential(*(_Transposes(weight.clone()) for weight in weights))
        inputs, wanted = batch.chunk(count), targets.chunk(count)
        transposed = [x.T.contiguous().T for x in inputs]
        schedule = schedules.one_f_one_b(size, count)
        simple_run_schedule(schedule, stages[rank], transposed, wanted, F.mse_loss)
        losses = [F.mse_loss(whole(x), y) / count for x, y in zip(inputs, wanted, strict=True)]
        torch.stack(losses).sum().backward()
        pairs = zip(stages[rank].parameters(), whole[rank].parameters(), strict=True)
        return [float((a.grad - b.grad).abs().max()) for a, b in pairs]  # type: ignore[operator]

    assert max(max(far) for far in on_ranks(both, world_size=2).values) < 1e-12


@pytest.mark.parametrize("communication", [0.0, 0.25])
@pytest.mark.parametrize(
    "schedule",
    [schedules.naive(3, 4), schedules.gpipe(4, 6), schedules.one_f_one_b(4, 7),
     schedules.interleaved(2, 4, 2), schedules.zb_h1(3, 6)],
)  # fmt: skip
def test_the_simulator(schedule: Any, communication: float) -> None:
    seconds = {"F": 1.0, "I": 1.5, "W": 0.5, "B": 2.0}
    trace = simulate(schedule, Costs(1.0, 1.5, 0.5, communication))
    simple = simple_simulate(schedule, seconds, communication)
    for rank, times in enumerate(simple):
        spans = [e for e in trace.events if e.rank == rank and e.kind == "compute"]
        assert np.allclose([(e.start, e.end) for e in spans], times)


@pytest.mark.parametrize("schedule", [[[], []], [[]], []])
def test_a_simulation_of_nothing(schedule: Any) -> None:
    with pytest.raises(ValueError, match="the schedule has no actions"):
        simple_simulate(schedule, dict.fromkeys("FBIW", 1.0))


def test_a_simulation_that_cannot_end() -> None:
    with pytest.raises(ValueError, match="no rank can proceed"):
        simple_simulate([["0B0", "0F0"], ["1F0", "1B0"]], dict.fromkeys("FBIW", 1.0))
