"""The sign of each effect in the lesson on batch size and learning rate, on real ranks.

Each effect is measured over five seeds. Where runs do not communicate, two ranks divide
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache, partial
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD, Adam

import dtlab
from dtlab.training.accumulation import accumulate, naive_accumulate
from dtlab.training.datasets import Split, batches, digits, standard_library
from dtlab.training.learning_rate import (
    NoiseScale,
    WarmupThenDecay,
    batch_gradients,
    gradient_noise_scale,
    linear_scaled_lr,
    sqrt_scaled_lr,
)
from dtlab.training.models import GPT, MLP, ConvNet, GPTConfig
from tests.marks import first
from tests.staying import on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.unit("03")]
SEEDS = range(5)
Batch = tuple[Tensor, ...]


@cache
def data() -> Split:
    return digits()


def shuffled(seed: int) -> Batch:
    train = data().train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    return train[order]


def loss_of(model: nn.Module, batch: Sequence[Tensor], reduction: str) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], reduction=reduction)


loss_sum, loss_mean = (partial(loss_of, reduction=each) for each in ("sum", "mean"))


def flat(model: nn.Module, what: str = "data") -> Tensor:
    return torch.cat([getattr(each, what).flatten() for each in model.parameters()])


def share_of(tensor: Tensor) -> Tensor:
    return tensor.tensor_split(dist.get_world_size())[dist.get_rank()]


def gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def on_two_ranks(work: Callable[..., Any], todo: Sequence[tuple[Any, ...]]) -> dict[Any, Any]:
    """What `work` gives for each item; two ranks share them."""

    def mine() -> dict[Any, Any]:
        return {each: work(*each) for each in todo[dist.get_rank() :: 2]}

    first, second = on_ranks(mine, world_size=2, timeout=100).values
    return dict(first | second)


# -------------------------------------------------------------------------- accumulation

CUTS = {"even": [32] * 8, "uneven": [60, 4] * 4}
WAYS = {"mean of means": (naive_accumulate, loss_mean), "accumulate": (accumulate, loss_sum)}


def trained(way: str, cut: str, seed: int, steps: int = 10) -> Tensor:
    images, labels = shuffled(seed)
    model = DDP(MLP(64, 64, 10, seed=seed))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    for step in range(steps):
        batch = [each[256 * step : 256 * (step + 1)] for each in (images, labels)]
        pieces = list(zip(*(each.split(CUTS[cut]) for each in batch), strict=True))
        optimizer.zero_grad()
        if way == "at once":
            loss_mean(model, batch).backward()  # type: ignore[no-untyped-call]
        else:
            add_up, loss = WAYS[way]
            add_up(model, pieces[4 * dist.get_rank() :][:4], loss)  # type: ignore[operator]
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_only_the_mean_of_means_of_uneven_batches_is_not_the_large_batch(seed: int) -> None:
    def in_pieces() -> dict[tuple[str, str], Tensor]:
        return {(way, cut): trained(way, cut, seed) for way in WAYS for cut in CUTS}

    whole = on_ranks(trained, "at once", "even", seed, world_size=1).values[0]
    found = on_ranks(in_pieces, world_size=2).values[0]
    gaps = {each: gap(parameters, whole) for each, parameters in found.items()}
    assert gaps.pop(("mean of means", "uneven")) > 1e-2
    assert max(gaps.values()) < 1e-4


PADDED = -100


def of_tokens(way: str, seed: int) -> Tensor:
    code = standard_library(context=32, max_bytes=20_000).train
    rows = torch.randperm(len(code), generator=torch.Generator().manual_seed(seed))[:8]
    tokens, following = code[rows]
    lengths = torch.tensor([30] * 4 + [3] * 4)
    following = following.masked_fill(torch.arange(32) >= lengths[:, None], PADDED)
    model = DDP(GPT(GPTConfig(num_layers=1, width=32), seed=seed))

    def loss(model: nn.Module, batch: Batch, reduction: str) -> Tensor:
        logits, wanted = model(batch[0]).flatten(0, 1), batch[1].flatten()
        return cross_entropy(logits, wanted, reduction=reduction, ignore_index=PADDED)

    mine = [(share_of(tokens), share_of(following))]
    if way == "mean of means":
        naive_accumulate(model, mine, partial(loss, reduction="mean"))
    else:
        accumulate(model, mine, partial(loss, reduction="sum"),
                   count=lambda batch: (batch[1] != PADDED).sum())  # fmt: skip
    return flat(model, "grad")


@pytest.mark.parametrize("seed", first(SEEDS))
def test_by_the_mean_of_means_tokens_of_short_sequences_count_more(seed: int) -> None:
    whole = on_ranks(of_tokens, "accumulate", seed, world_size=1).values[0]

    def both() -> list[Tensor]:
        return [of_tokens(way, seed) for way in ("accumulate", "mean of means")]

    exact, naive = (gap(each, whole) for each in on_ranks(both, world_size=2).values[0])
    assert exact < 1e-4
    assert naive > 0.1


def with_group_norm(model: ConvNet) -> ConvNet:
    for place, layer in enumerate(model.layers):
        if isinstance(layer, nn.BatchNorm2d):
            model.layers[place] = nn.GroupNorm(4, layer.num_features)
    return model


def of_conv_net(batch_norm: bool, size: int, seed: int) -> Tensor:
    net = ConvNet(seed=seed)
    model = DDP(net if batch_norm else with_group_norm(net))
    mine = [share_of(each[:64]).split(size) for each in shuffled(seed)]
    accumulate(model, list(zip(*mine, strict=True)), loss_sum)
    return flat(model, "grad")


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_batch_norm_is_not_the_large_batch_and_less_so_with_smaller_ones(seed: int) -> None:
    def gradients(sizes: Sequence[int]) -> dict[tuple[bool, int], Tensor]:
        return {(norm, n): of_conv_net(norm, n, seed) for norm in (True, False) for n in sizes}

    whole = on_ranks(gradients, [64], world_size=1).values[0]
    found = on_ranks(gradients, [32, 4], world_size=2).values[0]
    gaps = {each: gap(gradient, whole[each[0], 64]) for each, gradient in found.items()}
    assert gaps[True, 4] > gaps[True, 32] > 0.01
    assert max(gaps[False, 4], gaps[False, 32]) < 1e-4


# ------------------------------------------------------------------------ what is sent


def steps_of(way: str, steps: int, seed: int) -> None:
    model = DDP(MLP(64, 128, 128, 10, seed=seed))
    for _ in range(steps):
        mine = [share_of(each[:256]) for each in shuffled(seed)]
        small = list(zip(*(each.tensor_split(8) for each in mine), strict=True))
        if way == "all at once":
            loss_mean(model, mine).backward()  # type: ignore[no-untyped-call]
        elif way == "plain loop":
            naive_accumulate(model, small, loss_mean)
        else:
            accumulate(model, small, loss_sum)


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(range(3)))
def test_accumulation_sends_as_much_as_the_large_batch_and_the_plain_loop_more(seed: int) -> None:
    sent = {}
    for way in ("all at once", "plain loop", "accumulate"):
        begin, end = (on_ranks(steps_of, way, n, seed, world_size=2).trace for n in (1, 4))
        assert begin is not None
        assert end is not None
        sent[way] = end.bytes_wire(0) - begin.bytes_wire(0)  # type: ignore[operator]
    assert 6 < sent["plain loop"] / sent["all at once"] < 9
    assert 0.8 < sent["accumulate"] / sent["all at once"] < 1.2


Run = tuple[list[float], float, float]


def undivided(name: str, divisor: float, rate: float, seed: int) -> Run:
    """Losses, norm of the first gradient, and how far the parameters moved."""
    images, labels = shuffled(seed)
    model = MLP(64, 128, 10, seed=seed)
    make = Adam if name == "Adam" else partial(SGD, momentum=0.9)
    optimizer, start = make(model.parameters(), lr=rate, fused=True), flat(model).clone()
    losses, norms = [], []
    for step in range(30):
        optimizer.zero_grad()
        total = 0.0
        batch = (each[256 * step :][:256].tensor_split(8) for each in (images, labels))
        for small in zip(*batch, strict=True):
            loss = loss_mean(model, small)
            (loss / divisor).backward()  # type: ignore[no-untyped-call]
            total += loss.item() / 8
        norms.append(float(flat(model, "grad").norm()))
        optimizer.step()
        losses.append(total)
    return losses, norms[0], float((flat(model) - start).norm())


@pytest.mark.proof
def test_a_missing_division_is_a_rate_k_times_as_large_and_adam_hides_it() -> None:
    settings = ("SGD", 8, 0.3), ("SGD", 1, 0.3), ("SGD", 1, 0.3 / 8), ("Adam", 8, 0.01), (
        "Adam", 1, 0.01)  # fmt: skip
    found = on_two_ranks(undivided, [(*each, seed) for each in settings for seed in SEEDS])
    for seed in SEEDS:
        right, wrong, cured, adam, adam_wrong = (found[*each, seed] for each in settings)
        assert wrong[1] / right[1] == pytest.approx(8, rel=1e-3)
        assert cured[0] == pytest.approx(right[0], rel=0.05, abs=0.01)
        assert max(wrong[0]) > 1.5 * max(right[0])
        assert wrong[0][-1] > right[0][-1]
        assert wrong[2] > 2 * right[2]
        assert adam_wrong[2] / adam[2] == pytest.approx(1, abs=0.05)
        assert adam_wrong[0] == pytest.approx(adam[0], rel=0.05, abs=0.01)


# ------------------------------------------------------------------------------- rules


def moved(start: nn.Module, rows: Sequence[Tensor], rate: float) -> Tensor:
    model = deepcopy(start)
    optimizer = SGD(model.parameters(), lr=rate, fused=True)
    for each in rows:
        optimizer.zero_grad()
        loss_mean(model, data().train[each]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return flat(model) - flat(start)


def ends_apart(rate: float, seed: int) -> list[float]:
    """Distances of eight small steps from a large one: unscaled, by the square root, linear."""
    start = MLP(64, 128, 128, 10, seed=seed)
    order = torch.randperm(len(data().train), generator=torch.Generator().manual_seed(seed))
    small = moved(start, order[:256].split(32), rate)
    return [gap(moved(start, [order[:256]], rate * by), small) for by in (1, math.sqrt(8), 8)]


def test_k_small_steps_are_about_one_large_one_at_small_rates() -> None:
    rates = 0.001, 0.05, 1.0
    apart = on_two_ranks(ends_apart, [(rate, seed) for rate in rates for seed in SEEDS])
    for seed in SEEDS:
        unscaled, root, linear = apart[0.001, seed]
        assert linear < 0.02
        assert unscaled == pytest.approx(7 / 8, abs=0.02)
        assert root == pytest.approx(1 - 1 / math.sqrt(8), abs=0.02)
        assert apart[0.001, seed][2] < apart[0.05, seed][2] < apart[1.0, seed][2]
        assert min(apart[1.0, seed]) > 0.3  # where no rule is right


def updates(batch: int, rate: float, seed: int) -> Tensor:
    """Updates from batches drawn at random, at the parameters of the start."""
    model, generator = MLP(64, 64, 10, seed=seed), dtlab.rank_generator()
    rows = torch.randint(len(data().train), (8192,), generator=generator)
    pieces = (data().train[each] for each in rows.split(batch))
    found = batch_gradients(model, pieces, loss_mean)
    return -rate * torch.stack([torch.cat([g.flatten() for g in each]) for each in found])


def noise(batch: int, rate: float, seed: int) -> list[float]:
    """The noise of one update and of 512 samples, and how far 512 samples move the parameters."""
    one = updates(batch, rate, seed)
    of_512 = one.unflatten(0, (-1, 512 // batch)).sum(1)
    way = of_512.mean(0).square().sum()
    mean = torch.stack([one.var(0).sum(), of_512.var(0).sum(), way])
    dist.all_reduce(mean)
    return [float(each) for each in (mean / dist.get_world_size()).sqrt()]


@pytest.mark.parametrize("seed", first(SEEDS))
def test_the_square_root_keeps_the_noise_of_an_update_and_linear_the_way(seed: int) -> None:
    def each_rule() -> list[list[float]]:
        settings = (32, 0.05), (512, 0.05), (512, 0.2), (512, 0.8)
        return [noise(batch, rate, seed) for batch, rate in settings]

    base, none, root, linear = on_ranks(each_rule, world_size=2).values[0]
    of_update = [each[0] / base[0] for each in (none, root, linear)]
    assert of_update == pytest.approx([1 / 4, 1, 4], rel=0.3)
    assert linear[1] / base[1] == pytest.approx(1, rel=0.4)  # the noise of 512 samples
    way = [each[2] / base[2] for each in (none, root, linear)]
    assert way == pytest.approx([1 / 16, 1 / 4, 1], rel=0.15)


def adams_step(epochs: int, seed: int) -> float:
    """How many times as long Adam's mean step is with 16 times the batch."""
    model, generator = MLP(64, 64, 10, seed=seed), torch.Generator().manual_seed(seed)
    optimizer = Adam(model.parameters(), lr=1e-3, fused=True)
    for _ in range(epochs):
        for batch in batches(data().train, 32, generator=generator):
            optimizer.zero_grad()
            loss_mean(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    (true,) = batch_gradients(model, [data().train.tensors], loss_mean)
    lengths = []
    for size in (32, 512):
        drawn = list(batches(data().train, size, generator=generator))[:-1]
        squares = [
            torch.cat([g.flatten() for g in each]).square()
            for each in batch_gradients(model, drawn, loss_mean)
        ]
        size_of_past = (sum(squares) / len(squares)).sqrt()  # type: ignore[union-attr]
        step = torch.cat([g.flatten() for g in true]) / (size_of_past + 1e-8)
        lengths.append(float(step.norm()))
    return lengths[1] / lengths[0]


@pytest.mark.proof
def test_adams_steps_grow_by_themselves_and_more_where_noise_rules() -> None:
    times = on_two_ranks(adams_step, [(epochs, seed) for epochs in (0, 1) for seed in SEEDS])
    for seed in SEEDS:
        assert 1.2 < times[0, seed] < times[1, seed] < 4.2


# ------------------------------------------------------------------ noise scale and sweep

EPOCHS = 8
Steps = Iterator[tuple[nn.Module, float, float]]


def training(
    seed: int, batch: int, rate: float, warmup: float = 0.0, calls: int = 1, epochs: int = EPOCHS
) -> Steps:
    """The model, the loss and the rate after each step."""
    model = MLP(64, 128, 128, 10, seed=seed)
    optimizer = SGD(model.parameters(), lr=rate, momentum=0.9, fused=True)
    steps = math.ceil(len(data().train) / batch)
    generator = torch.Generator().manual_seed(seed)
    schedule = WarmupThenDecay(
        optimizer, round(warmup * steps), epochs * steps, start_factor=min(1, 0.05 / rate)
    )
    for _ in range(epochs):
        for each in batches(data().train, batch, generator=generator):
            optimizer.zero_grad()
            loss = loss_mean(model, each)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for _ in range(calls):
                schedule.step()
            yield model, loss.item(), float(optimizer.param_groups[0]["lr"])


def error_of(model: nn.Module) -> float:
    """The test error in percent."""
    images, labels = data().test.tensors
    return 100 * float((model(images).argmax(1) != labels).float().mean())


def base_run(seed: int) -> tuple[list[float], float]:
    """The noise scale in each of the first four epochs, and the test error at the end."""
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    steps = math.ceil(len(data().train) / 32)
    generator = torch.Generator().manual_seed(seed)
    scales: list[list[NoiseScale]] = [[] for _ in range(4)]
    for step, (model, _, _) in enumerate(training(seed, 32, 0.05)):
        if step % (steps // 5) == 40 and step < 4 * steps:
            rows = torch.randint(len(data().train), (32, 32), generator=generator)
            probes = (data().train[each] for each in rows)
            gradients = batch_gradients(model, probes, loss_mean)
            scales[step // steps].append(gradient_noise_scale(gradients, 32, alone))
    return [NoiseScale.mean(each).batch for each in scales], error_of(model)


@pytest.fixture(scope="module")
def base_runs() -> dict[Any, tuple[list[float], float]]:
    """What the base gives, for each seed."""
    return on_two_ranks(base_run, [(seed,) for seed in SEEDS])


@pytest.mark.proof
def test_the_noise_scale_is_tens_to_hundreds_and_grows(base_runs: Any) -> None:
    for scales, _ in base_runs.values():
        assert scales[0] < scales[1] < scales[3]
        assert 25 < scales[0] < 200
        assert 100 < scales[3] < 1000


RATES = {
    "none": lambda batch: 0.05,
    "sqrt": partial(sqrt_scaled_lr, 0.05, 32),
    "linear": partial(linear_scaled_lr, 0.05, 32),
    "warmup": partial(linear_scaled_lr, 0.05, 32),
}


def one_run(rule: str, batch: int, seed: int) -> tuple[float, list[float]]:
    """The test error at the end, and the mean loss of each epoch."""
    steps = list(training(seed, batch, RATES[rule](batch), 3.0 * (rule == "warmup")))
    losses = torch.tensor([loss for _, loss, _ in steps]).unflatten(0, (EPOCHS, -1)).mean(1)
    return error_of(steps[-1][0]), losses.tolist()


@pytest.mark.proof
def test_the_sweep_and_where_each_rule_fails(base_runs: Any) -> None:
    settings = [(rule, batch) for batch in (256, 512, 1024) for rule in RATES]
    ended = on_two_ranks(one_run, [(*each, seed) for each in settings for seed in SEEDS])
    errors = {each: error for each, (error, _) in ended.items()}
    for seed in SEEDS:
        none, root, linear, warmup = (errors[rule, 256, seed] for rule in RATES)
        assert none > root > max(linear, warmup)
        none, root, linear, warmup = (errors[rule, 512, seed] for rule in RATES)
        assert none > root > warmup
        assert linear > warmup
        none, root, linear, warmup = (errors[rule, 1024, seed] for rule in RATES)
        assert root < min(none, linear, warmup)
        losses = {rule: ended[rule, 512, seed][1] for rule in RATES}
        assert losses["none"] == sorted(losses["none"], reverse=True)  # quietly
        assert losses["none"][-1] > max(losses["sqrt"][-1], losses["warmup"][-1])
    middle = {each: median(errors[*each, seed] for seed in SEEDS) for each in settings}
    twice = 2 * median(error for _, error in base_runs.values())
    fails = {each for each, error in middle.items() if error > twice}
    assert {("none", 256), ("linear", 1024), ("warmup", 1024)} <= fails
    assert not {("sqrt", 256), ("linear", 256), ("warmup", 256), ("warmup", 512)} & fails
    assert middle["linear", 1024] > middle["none", 1024] > 2 * middle["sqrt", 1024]


def error_at(batch: int, rate: float, seed: int) -> float:
    *_, (model, _, _) = training(seed, batch, rate, 1.5, epochs=4)
    return error_of(model)


@pytest.mark.proof
def test_above_the_noise_scale_the_best_rate_grows_no_further() -> None:
    rates, sizes = (0.2, 0.4, 0.8), (256, 1024)
    settings = [(batch, rate, seed) for batch in sizes for rate in rates for seed in SEEDS]
    errors = on_two_ranks(error_at, settings)
    middle = {
        batch: [median(errors[batch, rate, seed] for seed in SEEDS) for rate in rates]
        for batch in sizes
    }
    for batch in sizes:
        assert min(middle[batch]) == middle[batch][1]  # 0.4, at four times the batch too
    assert all(large > small for small, large in zip(middle[256], middle[1024], strict=True))


# ------------------------------------------------------------------------------ schedule


def highest_loss(warmup: float, seed: int) -> float:
    steps = zip(range(30), training(seed, 512, 0.8, warmup), strict=False)
    return max(loss for _, (_, loss, _) in steps)


def test_a_warm_up_keeps_the_first_losses_down() -> None:
    highest = on_two_ranks(highest_loss, [(w, seed) for w in (0.0, 3.0) for seed in SEEDS])
    for seed in SEEDS:
        assert highest[0.0, seed] > 1.1 * highest[3.0, seed]


def scheduled(calls: int, seed: int) -> tuple[list[float], float]:
    """The rate after each step, and the test error in %."""
    seen = [(rate, model) for model, _, rate in training(seed, 512, 0.8, 3.0, calls)]
    return [rate for rate, _ in seen], error_of(seen[-1][1])


@pytest.mark.proof
def test_a_scheduler_called_for_every_micro_batch_is_over_early() -> None:
    found = on_two_ranks(scheduled, [(calls, seed) for calls in (1, 4) for seed in SEEDS])
    for seed in SEEDS:
        (right, good), (wrong, bad) = (found[calls, seed] for calls in (1, 4))
        assert wrong.index(0.0) + 1 == len(wrong) // 4
        assert min(right[:-1]) > 0
        assert bad > 1.5 * good
