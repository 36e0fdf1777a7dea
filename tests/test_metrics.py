"""A mean over uneven ranks equals that of one process; the mean of means does not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dtlab.training.datasets import batches, digits
from dtlab.training.metrics import Mean
from dtlab.training.models import MLP
from tests.staying import on_ranks

VALUES = torch.arange(10, dtype=torch.float64) ** 2
SHARES = {1: [10], 2: [9, 1], 3: [2, 0, 8], 4: [1, 4, 2, 3]}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_uneven_ranks_have_the_mean_of_one_process(n: int) -> None:
    def ranks() -> tuple[float, float, float]:
        mine, mean = VALUES.split(SHARES[n])[dist.get_rank()], Mean()
        for batch in mine.split(3):
            mean.add(batch.sum(), len(batch))
        everywhere = mean.over_ranks()
        return everywhere.value, everywhere.count, mean.value

    run = on_ranks(ranks, world_size=n)
    for value, count, local in run.values:
        assert (value, count) == (VALUES.mean().item(), 10)
        if n > 1 and not math.isnan(local):
            assert local != value
    assert run.trace.ops(0)["all_reduce"] == 1


def test_the_mean_of_means_is_wrong() -> None:
    def ranks() -> tuple[float, float]:
        mine = VALUES.split(SHARES[2])[dist.get_rank()]
        mean_of_means = mine.mean()
        dist.all_reduce(mean_of_means, dist.ReduceOp.AVG)
        return mean_of_means.item(), Mean(mine.sum().item(), len(mine)).over_ranks().value

    truth = VALUES.mean().item()  # 28.5; the mean of 204 / 9 and 81 is nearly twice as much
    for mean_of_means, value in on_ranks(ranks, world_size=2).values:
        assert value == truth
        assert mean_of_means == pytest.approx((204 / 9 + 81) / 2)
        assert mean_of_means > 1.5 * truth


def test_evaluation_over_shards_that_do_not_divide() -> None:
    """359 images on three ranks: as one process has it, where DistributedSampler adds one."""
    test, model = digits().test, MLP(64, 16, 10).double()
    images, labels = test.tensors
    with torch.no_grad():
        outputs = model(images.double())
        truth = F.cross_entropy(outputs, labels).item(), (outputs.argmax(1) == labels).sum().item()

    @torch.no_grad()
    def ranks() -> tuple[float, float, float]:
        loss, accuracy = Mean(), Mean()
        for inputs, targets in batches(test, 50, sampler=range(dist.get_rank(), len(test), 3)):
            outputs = model(inputs.double())
            loss.add(F.cross_entropy(outputs, targets, reduction="sum"), len(targets))
            accuracy.add((outputs.argmax(1) == targets).sum(), len(targets))
        return loss.over_ranks().value, accuracy.over_ranks().total, accuracy.over_ranks().count

    expected = (pytest.approx(truth[0], rel=1e-12), truth[1], 359)
    assert on_ranks(ranks, world_size=3).values == [expected] * 3


def test_subgroups_have_their_own_mean() -> None:
    def ranks() -> float | None:
        group, me = dist.new_group([0, 2]), dist.get_rank()
        return Mean(me, 1).over_ranks(group).value if me != 1 else None

    assert on_ranks(ranks, world_size=3).values == [1, None, 1]


def test_without_ranks_it_is_the_mean_itself() -> None:
    mean = Mean()
    assert math.isnan(mean.value)
    assert math.isnan(mean.over_ranks().value)
    mean.add(torch.tensor(6.0), 4)
    mean.add(3, torch.tensor(2))
    assert (mean.value, mean.count, mean.over_ranks().value) == (1.5, 6, 1.5)
    assert repr(mean) == "Mean(1.5 over 6)"
    with pytest.raises(ValueError, match="must be 0 or more, not -1"):
        mean.add(1.0, -1)


@pytest.mark.slow
def test_many_small_losses_add_up() -> None:
    mean = Mean()
    for _ in range(100_000):
        mean.add(torch.tensor(0.1), 1)
    assert mean.value == pytest.approx(torch.tensor(0.1).item(), rel=1e-9)
