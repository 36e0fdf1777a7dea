"""The right answers of Level I of unit 03 are what PyTorch does, and its arguments are true."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DistributedSampler

import dtlab
from dtlab.checks import find_part
from dtlab.checks.questions.answers import Choices, Questions
from dtlab.training.accumulation import accumulate, naive_accumulate, per_step
from dtlab.training.learning_rate import (
    WarmupThenDecay,
    linear_scaled_lr,
    noise_scale_from_norms,
    sqrt_scaled_lr,
)
from tests.known_answers import answers_of
from tests.staying import on_ranks

SYMBOLS = ["effective_batch", "micro_gradients", "scaled_rate", "noise_scale"]
LEARNERS = [f"learner{number}" for number in range(4)]
MANY_LEARNERS = [f"somebody {number}" for number in range(100)]


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    part = find_part(f"03/{symbol}")
    answers = answers_of(part)
    assert isinstance(part.check, Questions)
    assert answers is not None
    given = part.check.given(symbol, learner)
    return given, answers.right[0](given)


def one_weight() -> nn.Linear:
    """A model whose gradient is the input."""
    return nn.Linear(1, 1, bias=False)


def gradient_of(layer: nn.Linear) -> float:
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


# 03/effective_batch ----------------------------------------------------------------------------


def an_epoch(samples: int, degree: int, micro: int, count: int, skip: bool) -> list[list[int]]:
    """One epoch on a mesh of copies and tensor-parallel ranks: this rank's samples, by steps."""
    copies = dist.get_world_size() // degree
    mesh = init_device_mesh("cpu", (copies, degree), mesh_dim_names=("copies", "parts"))
    sampler = DistributedSampler(
        range(samples), num_replicas=copies, rank=mesh.get_local_rank("copies"), shuffle=False
    )
    model = DistributedDataParallel(one_weight(), process_group=mesh.get_group("copies"))
    steps = []
    for micro_batches in per_step(torch.tensor(list(sampler)).split(micro), count):
        for number, batch in enumerate(micro_batches, 1):
            waits = skip and number < len(micro_batches)
            with model.no_sync() if waits else contextlib.nullcontext():
                inputs = batch.float()[:, None]
                with dtlab.span("pass"):
                    model(inputs).mean().backward()
        steps.append(torch.cat(micro_batches).tolist())
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True], ids=["every pass", "no_sync"])
def test_an_epoch_on_real_ranks_is_as_the_answers_say(skip: bool) -> None:
    c = {"gpus": 4, "degree": 2, "micro": 2, "count": 3}
    right = answers_of(find_part("03/effective_batch")).right[0](  # type: ignore[union-attr]
        {"a": c, "b": c, "c": c, "samples": 2 * 2 * (5 * 3 + 2), "wanted": 24}
    )
    run = on_ranks(an_epoch, 68, 2, 2, 3, skip, world_size=4)
    first_steps = [steps[0] for steps in run.values]
    seen = {sample for samples in first_steps for sample in samples}
    assert len(seen) == right["tensor_parallel"] == 12  # not 24: two ranks see the same
    assert first_steps[0] == first_steps[1] != first_steps[2] == first_steps[3]
    assert {len(steps) for steps in run.values} == {right["steps"]} == {6}
    trace = run.trace
    assert trace is not None
    for rank in range(4):
        own = [event for event in trace.events if event.rank == rank]
        passes = [event for event in own if event.name == "pass"]
        reduced = [
            event
            for event in own
            if event.name == "all_reduce" and any(p.start <= event.start <= p.end for p in passes)
        ]
        assert len(passes) == right["all_reduces"] == 17
        assert len(reduced) == right["no_sync" if skip else "all_reduces"]


@pytest.mark.slow
def test_what_is_given_of_run_c_divides_and_ends_with_a_short_step() -> None:
    for given, right in (drawn("effective_batch", learner) for learner in MANY_LEARNERS):
        copies, of_a_group = divmod(given["c"]["gpus"], given["c"]["degree"])
        assert copies > 1
        assert (of_a_group, given["samples"] % (copies * given["c"]["micro"])) == (0, 0)
        assert right["all_reduces"] % given["c"]["count"]
        effective = right["micro_batches"] * copies * given["c"]["micro"]
        assert effective == given["wanted"] > right["tensor_parallel"]


# 03/micro_gradients ----------------------------------------------------------------------------


def mean_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).mean()  # type: ignore[no-any-return]


def sum_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).sum()  # type: ignore[no-any-return]


def filled(count: int, gradient: float) -> Tensor:
    return torch.full((count, 1), float(gradient))


@pytest.mark.parametrize("learner", LEARNERS)
def test_backward_adds_up_what_the_answers_say(learner: str) -> None:
    given, right = drawn("micro_gradients", learner)
    micro_batches = [filled(8, gradient) for gradient in given["gradients"]]
    layer = one_weight()
    for batch in micro_batches:
        mean_of(layer, batch).backward()
    assert gradient_of(layer) == pytest.approx(right["undivided"])
    layer.zero_grad()
    naive_accumulate(layer, micro_batches, mean_of)
    assert gradient_of(layer) == pytest.approx(right["mean"])


def moved(optimizer: type[Optimizer], rate: float, gradients: list[float]) -> float:
    """How far steps with these gradients take a weight, without epsilon."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    more = {"eps": 0.0} if optimizer is Adam else {}
    steps = optimizer([weight], lr=rate, **more)  # type: ignore[call-arg]
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        steps.step()
    return weight.item()


@pytest.mark.parametrize("learner", LEARNERS)
def test_sgd_and_adam_step_with_undivided_losses_as_the_answers_say(learner: str) -> None:
    given, right = drawn("micro_gradients", learner)
    divided = [1.0, 3.0, -2.0, 5.0, 0.5]
    undivided = [4 * one for one in divided]
    assert moved(SGD, given["rate"], undivided) == pytest.approx(
        moved(SGD, right["rate"], divided)
    )
    times = moved(Adam, 0.1, undivided) / moved(Adam, 0.1, divided)
    assert times == pytest.approx(right["adam"])


def on_two_ranks(tokens: Any, gradients: Any, factor: float) -> tuple[float, float, float]:
    """The gradient by means of means, by sums times the factor, and by the library."""
    layer = one_weight()
    model = DistributedDataParallel(layer)
    rank, found = dist.get_rank(), []
    micro_batches = list(map(filled, tokens[rank], gradients[rank]))

    def scaled(model: nn.Module, batch: Tensor) -> Tensor:
        return 2 * factor * sum_of(model, batch)  # naive_accumulate divides by two microbatches

    for loss in (mean_of, scaled):
        layer.zero_grad()
        naive_accumulate(model, micro_batches, loss)
        found.append(gradient_of(layer))
    layer.zero_grad()
    accumulate(model, micro_batches, sum_of)
    return found[0], found[1], gradient_of(layer)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS[:2])
def test_ddp_leaves_what_the_answers_say(learner: str) -> None:
    given, right = drawn("micro_gradients", learner)
    run = on_ranks(
        on_two_ranks, given["tokens"], given["token_gradients"], right["factor"], world_size=2
    )
    wanted = right["mean_of_means"], right["true"], right["true"]
    assert run.values == [pytest.approx(wanted, rel=1e-4)] * 2  # float32, over many tokens


# 03/scaled_rate --------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_library_scales_and_warms_up_as_the_answers_say(learner: str) -> None:
    given, right = drawn("scaled_rate", learner)
    batches = given["base_batch"], given["batch"]
    assert linear_scaled_lr(given["sgd_rate"], *batches) == pytest.approx(right["sgd"])
    assert sqrt_scaled_lr(given["adam_rate"], *batches) == pytest.approx(right["adam"])
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=right["sgd"])
    schedule = WarmupThenDecay(
        optimizer, right["warmup_steps"], 10**4, start_factor=batches[0] / batches[1]
    )
    rates = []
    for _ in range(right["warmup_steps"] + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(given["sgd_rate"])
    assert rates[given["step"]] == pytest.approx(right["rate_at"])
    assert rates[-1] == pytest.approx(right["sgd"])


@pytest.mark.slow
def test_an_epoch_of_images_divides_by_both_batches() -> None:
    for given, right in (drawn("scaled_rate", learner) for learner in MANY_LEARNERS):
        assert given["images"] % given["batch"] == given["batch"] % given["base_batch"] == 0
        assert math.sqrt(given["batch"] / given["base_batch"]).is_integer()
        assert 0 < given["step"] < right["warmup_steps"]


SLOPE, NOISE, K = 0.02, 1.0, 4  # on each of many weights: mostly noise, as far below the scale
SMALL_STEPS = 400


def walked(optimizer: type[Optimizer], rate: float, k: int) -> tuple[float, float]:
    """How far an epoch with k times the batch moves weights on average, and a step's noise."""
    drawn_by = torch.Generator().manual_seed(k)
    weights = nn.Parameter(torch.zeros(20_000))
    steps, noise = optimizer([weights], lr=rate), 0.0  # type: ignore[call-arg]
    for _ in range(SMALL_STEPS // k):
        before = weights.detach().clone()
        weights.grad = SLOPE + NOISE / math.sqrt(k) * torch.randn(20_000, generator=drawn_by)
        steps.step()
        noise += (weights.detach() - before).std().item()
    return -weights.mean().item(), noise / (SMALL_STEPS // k)


def test_the_linear_rule_takes_sgd_as_far_and_the_root_keeps_its_noise() -> None:
    """The arguments of `linear_because` and `sqrt_because`."""
    way, noise = walked(SGD, 0.1, 1)
    linear_way, linear_noise = walked(SGD, 0.1 * K, K)
    root_way, root_noise = walked(SGD, 0.1 * math.sqrt(K), K)
    assert linear_way == pytest.approx(way, rel=0.05)
    assert root_way == pytest.approx(way / math.sqrt(K), rel=0.05)
    assert root_noise == pytest.approx(noise, rel=0.05)
    assert linear_noise == pytest.approx(math.sqrt(K) * noise, rel=0.05)


def test_the_root_takes_adam_as_far() -> None:
    """The hints say why: noisy gradients are shorter, and Adam divides by their length."""
    way, _ = walked(Adam, 0.001, 1)
    root_way, _ = walked(Adam, 0.001 * math.sqrt(K), K)
    linear_way, _ = walked(Adam, 0.001 * K, K)
    assert root_way == pytest.approx(way, rel=0.1)
    assert linear_way == pytest.approx(math.sqrt(K) * way, rel=0.1)


# 03/noise_scale --------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_library_finds_the_noise_scale_of_the_answers(learner: str) -> None:
    given, right = drawn("noise_scale", learner)
    found = noise_scale_from_norms(*given["norms"], *given["batches"])
    assert found.variance == pytest.approx(right["variance"])
    assert found.gradient_squared == pytest.approx(right["signal"])
    assert found.batch == pytest.approx(right["noise_scale"])


@pytest.mark.parametrize("learner", LEARNERS[:2])
def test_means_over_samples_have_the_norms_that_are_given(learner: str) -> None:
    given, right = drawn("noise_scale", learner)
    size, draws = 50, torch.Generator().manual_seed(0)
    slope = math.sqrt(right["signal"] / size)
    noise = math.sqrt(right["variance"] / size)
    for batch, norm in zip(given["batches"], given["norms"], strict=True):
        samples = slope + noise * torch.randn(1000, batch, size, generator=draws)
        assert samples.mean(1).square().sum(1).mean().item() == pytest.approx(norm, rel=0.05)


def fall_of_the_loss(given: Any, right: Any, batch: float) -> float:
    """The most that one step takes from a loss of equal curvature 1, on average, at the best rate.

    A step of rate r takes r |G|^2, and gives back r^2 E|G_B|^2 / 2.
    """
    squared = right["signal"] + right["variance"] / batch
    rates = torch.linspace(0, 1, 100_001, dtype=torch.float64)
    return float((rates * right["signal"] - rates**2 * squared / 2).max())


@pytest.mark.parametrize("learner", LEARNERS)
def test_batches_cost_the_steps_that_the_answers_say(learner: str) -> None:
    given, right = drawn("noise_scale", learner)

    def steps(batch: float) -> float:
        """Steps with this batch: those with the small batch, times the ratio of their falls."""
        falls = (fall_of_the_loss(given, right, one) for one in (given["batches"][0], batch))
        return float(given["steps"] * next(falls) / next(falls))

    assert steps(1e12) == pytest.approx(right["fewest"], rel=1e-3)
    before, after = steps(given["above"]), steps(2 * given["above"])
    assert 100 * (1 - after / before) == pytest.approx(right["saved"], rel=1e-2)
    assert 2 * after / before == pytest.approx(right["samples"], rel=1e-3)


@pytest.mark.slow
def test_some_batch_is_below_the_noise_scale_but_not_well_below() -> None:
    part = find_part("03/noise_scale").check
    assert isinstance(part, Questions)
    (kind,) = (one.answer for one in part.questions if one.name == "well_below")
    assert isinstance(kind, Choices)
    for _, right in (drawn("noise_scale", learner) for learner in MANY_LEARNERS):
        below = {name for name in kind.options if int(name) < right["noise_scale"]}
        assert right["well_below"] < below < set(kind.options)
        assert float(right["fewest"]).is_integer()
        assert float(right["noise_scale"]).is_integer()
