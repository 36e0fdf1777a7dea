"""Accumulation against one process on the whole batch, and its traffic against DDP's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.training.accumulation import accumulate, naive_accumulate, num_samples, per_step
from dtlab.training.metrics import Mean
from dtlab.training.models import GPT, MLP, ConvNet, GPTConfig
from tests.marks import slow
from tests.staying import on_ranks

Batch = tuple[Tensor, Tensor]
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # float64, so that errors larger than rounding show
UNEVEN = {  # ranks -> the sizes of the microbatches of each
    1: [[3, 5, 1]],
    2: [[4, 1], [2, 7]],
    3: [[5, 2, 1], [1], [0, 3]],
    4: [[2], [0], [7, 1], [1, 1, 1]],
}


def _samples(count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (count,), generator=generator)


def _cut(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    return list(zip(*(part.split(list(sizes)) for part in batch), strict=True))


def _loss(model: nn.Module, batch: Batch, reduction: str = "sum") -> Tensor:
    inputs, targets = batch
    return F.cross_entropy(
        model(inputs).flatten(0, -2), targets.flatten(), reduction=reduction, ignore_index=-100
    )


_mean_loss = partial(_loss, reduction="mean")


def _flat(model: nn.Module, what: str = "data") -> Tensor:
    return torch.cat([getattr(each, what).flatten() for each in model.parameters()])


def _trained(
    model: nn.Module, step_batches: Sequence[Callable[[], None]], rate: float = 0.3
) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for backward in step_batches:
        backward()
        optimizer.step()
        optimizer.zero_grad()
    return _flat(model)


def _in_one_process(model: nn.Module, wholes: Sequence[Batch]) -> Tensor:
    return _trained(
        model, [lambda whole=whole: _mean_loss(model, whole).backward() for whole in wholes]
    )


def _mlp() -> nn.Module:
    return MLP(6, 5, 3, seed=1).double()


# One process --------------------------------------------------------------------------


def test_uneven_micro_batches_equal_the_whole_batch_over_several_steps() -> None:
    wholes = [_samples(11, seed) for seed in range(4)]
    model = _mlp()
    sizes = [[3, 5, 3], [1, 10], [11], [4, 0, 6, 1]]
    steps = [
        partial(accumulate, model, _cut(whole, cut), _loss)
        for whole, cut in zip(wholes, sizes, strict=True)
    ]
    torch.testing.assert_close(_trained(model, steps), _in_one_process(_mlp(), wholes), **CLOSE)


def test_the_last_group_may_be_short_and_its_last_batch_small() -> None:
    whole = _samples(23, 0)
    micro = _cut(whole, [4] * 5 + [3])
    groups = list(per_step(micro, 4))
    assert [[len(batch[0]) for batch in group] for group in groups] == [[4] * 4, [4, 3]]
    model = _mlp()
    steps = [partial(accumulate, model, group, _loss) for group in groups]
    expected = _in_one_process(_mlp(), _cut(whole, [16, 7]))
    torch.testing.assert_close(_trained(model, steps), expected, **CLOSE)


def test_the_naive_way_is_right_for_even_micro_batches_only() -> None:
    whole, expected = _samples(12, 0), _mlp()
    _mean_loss(expected, whole).backward()
    for sizes, is_right in ([4, 4, 4], True), ([12], True), ([9, 2, 1], False):
        model = _mlp()
        naive_accumulate(model, _cut(whole, sizes), _mean_loss)
        off = (_flat(model, "grad") - _flat(expected, "grad")).abs().max()
        assert (off < 1e-12) if is_right else (off > 1e-2)


def test_batchnorm_sees_the_micro_batches() -> None:
    """No scaling of losses fixes that: each microbatch is normalised by itself."""
    generator = torch.Generator().manual_seed(0)
    whole = (
        torch.rand(16, 1, 8, 8, generator=generator, dtype=torch.float64),
        torch.randint(0, 10, (16,), generator=generator),
    )
    for training, is_right in (True, False), (False, True):
        expected, model = ConvNet().double().train(training), ConvNet().double().train(training)
        _mean_loss(expected, whole).backward()
        accumulate(model, _cut(whole, [8, 8]), _loss)
        off = (_flat(model, "grad") - _flat(expected, "grad")).abs().max()
        assert (off < 1e-12) if is_right else (off > 1e-3)


def test_gradients_are_added_and_the_mean_loss_is_returned() -> None:
    whole, model, expected = _samples(7, 0), _mlp(), _mlp()
    _mean_loss(expected, whole).backward()
    losses = [accumulate(model, _cut(whole, [5, 2]), _loss) for _ in range(2)]
    torch.testing.assert_close(_flat(model, "grad"), 2 * _flat(expected, "grad"), **CLOSE)
    assert losses[0].count == 7
    assert losses[0].value == pytest.approx(_mean_loss(expected, whole).item(), rel=1e-12)


def test_a_gradient_scaler_can_do_the_backward_pass() -> None:
    whole, model, expected = _samples(7, 0), _mlp(), _mlp()
    _mean_loss(expected, whole).backward()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    accumulate(
        model, _cut(whole, [5, 2]), _loss, backward=lambda loss: scaler.scale(loss).backward()
    )
    torch.testing.assert_close(_flat(model, "grad"), 1024 * _flat(expected, "grad"), **CLOSE)
    scaler.unscale_(torch.optim.SGD(model.parameters(), lr=1))
    torch.testing.assert_close(_flat(model, "grad"), _flat(expected, "grad"), **CLOSE)


# Ranks --------------------------------------------------------------------------------


def _of_ranks(sizes: Sequence[Sequence[int]], whole: Batch, rank: int) -> list[Batch]:
    """The microbatches of `rank`: `sizes[rank]` samples each."""
    shares = _cut(whole, [sum(each) for each in sizes])
    return _cut(shares[rank], sizes[rank])


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [slow(1), 2, slow(3), slow(4)]
)
def test_data_parallelism_on_uneven_ranks_equals_one_process(n: int) -> None:
    def ranks(sizes: list[list[int]], wholes: list[Batch]) -> Tensor:
        shares = [_of_ranks(sizes, whole, dist.get_rank()) for whole in wholes]
        trained = []
        for wrap in (DistributedDataParallel, NaiveDataParallel, DataParallel):
            model = wrap(_mlp())
            steps = [partial(accumulate, model, share, _loss) for share in shares]
            trained.append(_trained(model, steps))
        return torch.stack(trained)

    sizes = UNEVEN[n]
    wholes = [_samples(sum(map(sum, sizes)), seed) for seed in range(3)]
    expected = _in_one_process(_mlp(), wholes)
    for values in on_ranks(ranks, sizes, wholes, world_size=n).values:
        torch.testing.assert_close(values, expected.expand(3, -1), **CLOSE)


@pytest.mark.slow
def test_token_counts_that_differ_between_ranks() -> None:
    """Tied embeddings, and targets of which some do not count."""
    config = GPTConfig(vocab_size=11, context=5, num_layers=1, num_heads=2, width=8)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (7, 5), generator=generator)
    targets = torch.randint(0, 11, (7, 5), generator=generator)
    targets[0, 1:] = targets[3] = targets[6, :2] = -100
    whole = (tokens, targets)

    def ranks(wrong: bool) -> Tensor:
        model = DistributedDataParallel(GPT(config).double())
        micro = _of_ranks([[1, 2], [3, 1]], whole, dist.get_rank())
        if wrong:
            accumulate(model, micro, _loss)  # counts sequences
        else:
            accumulate(model, micro, _loss, count=lambda batch: (batch[1] != -100).sum())
        return _flat(model, "grad")

    expected = GPT(config).double()
    _mean_loss(expected, whole).backward()
    for values in on_ranks(ranks, False, world_size=2).values:
        torch.testing.assert_close(values, _flat(expected, "grad"), **CLOSE)
    off = on_ranks(ranks, True, world_size=2).values[0] - _flat(expected, "grad")
    assert off.abs().max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [DistributedDataParallel, DataParallel])
def test_gradients_travel_once_per_step(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """One all-reduce of two counts, and then one for each bucket: here one bucket."""

    def ranks(way: str) -> Tensor:
        model = wrap(_mlp())
        micro = [_samples(4, 10 * step + dist.get_rank()) for step in range(3)]
        dist.barrier()
        if way == "accumulate":
            accumulate(model, micro, _loss)
        elif way == "naive":
            naive_accumulate(model, micro, _mean_loss)
        return _flat(model, "grad") if way != "nothing" else torch.zeros(())

    ways = ("nothing", "naive", "accumulate")
    runs = {way: on_ranks(ranks, way, world_size=2) for way in ways}
    all_reduces = {way: run.trace.ops(0)["all_reduce"] for way, run in runs.items()}
    assert all_reduces["naive"] - all_reduces["nothing"] == 3
    assert all_reduces["accumulate"] - all_reduces["nothing"] == 1 + 1
    # Even microbatches: the same gradients, for a third of the traffic.
    torch.testing.assert_close(runs["naive"].values[0], runs["accumulate"].values[0], **CLOSE)


@pytest.mark.slow
def test_only_the_last_backward_pass_synchronises() -> None:
    class Spy(DistributedDataParallel):
        forwards: list[bool]

        def forward(self, *args: Tensor) -> Tensor:
            self.forwards.append(self.require_backward_grad_sync)
            output: Tensor = super().forward(*args)
            return output

    def ranks() -> list[bool]:
        model = Spy(_mlp())
        model.forwards = []
        for group in per_step(_cut(_samples(10, 0), [2] * 5), 3):
            accumulate(model, group, _loss)
        with pytest.raises(ZeroDivisionError):
            accumulate(model, _cut(_samples(4, 0), [2, 2]), lambda *_: 1 // 0)
        assert model.require_backward_grad_sync  # no_sync is left behind by errors too
        return model.forwards

    assert on_ranks(ranks, world_size=2).values == [[False, False, True, False, True]] * 2


@pytest.mark.slow
def test_without_no_sync_the_caller_averages() -> None:
    whole = _samples(9, 0)

    def ranks() -> Tensor:
        model = _mlp()
        accumulate(model, _of_ranks([[3], [5, 1]], whole, dist.get_rank()), _loss)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        return _flat(model, "grad")

    expected = _mlp()
    _mean_loss(expected, whole).backward()
    for values in on_ranks(ranks, world_size=2).values:
        torch.testing.assert_close(values, _flat(expected, "grad"), **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("is_passed", [True, False])
def test_subgroups_count_their_own_samples(is_passed: bool) -> None:
    wholes = [_samples(6, 0), _samples(9, 1)]

    def ranks() -> Tensor:
        groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]
        mine = 0 if dist.get_rank() in (0, 3) else 1
        sizes = [[[1, 1], [4]], [[2], [3, 4]]][mine]
        share = _of_ranks(sizes, wholes[mine], dist.get_rank(groups[mine]))
        models = (
            DistributedDataParallel(_mlp(), process_group=groups[mine]),
            DataParallel(_mlp(), group=groups[mine]),
        )
        for model in models:
            accumulate(model, share, _loss, group=groups[mine] if is_passed else None)
        return torch.stack([_flat(model, "grad") for model in models])

    values = on_ranks(ranks, world_size=4).values
    for whole, members in zip(wholes, [(0, 3), (1, 2)], strict=True):
        expected = _mlp()
        _mean_loss(expected, whole).backward()
        for rank in members:
            for gradient in values[rank]:
                torch.testing.assert_close(gradient, _flat(expected, "grad"), **CLOSE)


@pytest.mark.slow
def test_the_loss_over_ranks_is_that_of_the_whole_batch() -> None:
    whole = _samples(9, 0)

    def ranks() -> tuple[float, float]:
        share = _of_ranks([[3], [5, 1]], whole, dist.get_rank())
        losses: Mean = accumulate(DistributedDataParallel(_mlp()), share, _loss)
        everywhere = losses.over_ranks()
        return everywhere.value, everywhere.count

    expected = _mean_loss(_mlp(), whole).item()
    for value, count in on_ranks(ranks, world_size=2).values:
        assert (value, count) == (pytest.approx(expected, rel=1e-12), 9)


# Errors -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rank_without_a_micro_batch_is_an_error_on_every_rank() -> None:
    def ranks() -> str:
        model = DistributedDataParallel(_mlp())
        micro = [_samples(3, 0)] if dist.get_rank() == 0 else []
        with pytest.raises(ValueError, match="1 of 3 ranks|2 of 3 ranks") as caught:
            accumulate(model, micro, _loss)
        with pytest.raises(ValueError, match="No rank has a sample"):
            accumulate(model, [_samples(0, 0)], _loss)
        return str(caught.value)

    first, *others = on_ranks(ranks, world_size=3).values
    assert "2 of 3 ranks have no microbatch" in first
    assert others == [first] * 2


def test_what_is_not_a_batch_or_a_loss() -> None:
    model, batch = _mlp(), _samples(3, 0)
    with pytest.raises(ValueError, match=r"shape \[3\].*reduction="):
        accumulate(model, [batch], partial(_loss, reduction="none"))
    with pytest.raises(ValueError, match="1 of 1 ranks have no microbatch"):
        accumulate(model, [], _loss)
    with pytest.raises(TypeError, match="not dict.*count="):
        accumulate(model, [{"inputs": batch[0]}], _loss)
    assert num_samples(batch) == num_samples(batch[0]) == num_samples(list(batch)) == 3
    with pytest.raises(TypeError, match="count="):
        num_samples((7, batch[0]))
    with pytest.raises(ValueError, match="at least one microbatch, not 0"):
        per_step([batch], 0)
    assert list(per_step([], 2)) == []
