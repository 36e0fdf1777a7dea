"""The sign of each effect in the lesson on data parallelism: on real ranks or emulated links.

Each effect is measured over several seeds, or over several runs if it does not depend on a seed.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

import dtlab
from dtlab import predict
from dtlab.parallel.data import (
    DataParallel,
    NaiveDataParallel,
    assert_replicas_equal,
)
from dtlab.parallel.data.local_sgd import LocalSGD
from dtlab.parallel.server import ParameterServer, ParameterWorker
from dtlab.training.datasets import digits
from dtlab.training.models import MLP
from tests.marks import first, retried

pytestmark = [pytest.mark.slow, pytest.mark.unit("02"), retried]
SEEDS = range(5)
HDR = predict.Link(5e-6, 25e9)
Wrap = Callable[..., nn.Module]


def shuffled(seed: int) -> tuple[Tensor, ...]:
    data = digits().train
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data[order]


def share_of(batch: Tensor) -> Tensor:
    return batch.tensor_split(dist.get_world_size())[dist.get_rank()]


def parameters_of(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# ----------------------------------------------------------------- four ranks, one process


def trained(wrap: Wrap, seed: int, steps: int = 50) -> Tensor:
    images, labels = shuffled(seed)
    model = wrap(MLP(64, 128, 10, seed=seed))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    history = []
    for step in range(steps):
        batch = slice(64 * step, 64 * (step + 1))
        optimizer.zero_grad()
        cross_entropy(model(share_of(images[batch])), share_of(labels[batch])).backward()
        optimizer.step()
        history.append(parameters_of(model))
    return torch.stack(history)


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_four_ranks_train_as_one_process_does_and_agree_in_every_bit(seed: int) -> None:
    alone = dtlab.launch(trained, lambda model: model, seed, world_size=1).values[0]
    wrap = (NaiveDataParallel, DataParallel, DDP)[seed % 3]
    ranks = dtlab.launch(trained, wrap, seed, world_size=4).values
    assert all(other.equal(ranks[0]) for other in ranks)
    torch.testing.assert_close(ranks[0], alone, rtol=1e-4, atol=1e-5)
    assert not ranks[0].equal(alone)  # only up to rounding


# --------------------------------------------------------------------------------- overlap


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with dtlab.span("backward"):
            dtlab.compute(1e-4)
        return gradient


class Layer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Kernel.apply(super().forward(x))


def two_steps(wrap: Wrap, cap: float) -> None:
    model = wrap(nn.Sequential(*[Layer(256, 256) for _ in range(6)]), bucket_cap_mb=cap)
    for _ in range(2):
        dist.barrier()
        model(torch.ones(8, 256)).sum().backward()


def steps_of(trace: dtlab.Trace) -> list[list[dtlab.Event]]:
    """What rank 0 did after each barrier."""
    steps: list[list[dtlab.Event]] = []
    for event in trace.events:
        if event.rank == 0 and event.name == "barrier":
            steps.append([])
        elif event.rank == 0 and steps and event.name in ("all_reduce", "backward"):
            steps[-1].append(event)
    return steps


def ends(step: list[dtlab.Event]) -> tuple[float, float, float]:
    """When the first all-reduce starts, when backward ends, and when the last all-reduce ends."""
    reduces = [event for event in step if event.name == "all_reduce"]
    over = max(event.end for event in step if event.name == "backward")
    return reduces[0].start, over, reduces[-1].end


@pytest.mark.parametrize("repeat", first(range(3)))
def test_ddp_overlaps_from_its_second_step_on(repeat: int) -> None:
    cluster = dtlab.Cluster(nodes=4, gpus_per_node=1, inter=HDR, slowdown=300)
    first, second = steps_of(dtlab.launch(two_steps, DDP, 0.25, cluster=cluster).trace)
    began, over, _ = ends(first)
    assert began >= over
    began, over, _ = ends(second)
    assert began < over


@pytest.mark.proof
@pytest.mark.parametrize("repeat", first(range(3)))
def test_buckets_hide_what_one_bucket_exposes_as_predicted(repeat: int) -> None:
    cluster = dtlab.Cluster(nodes=4, gpus_per_node=1, inter=HDR, slowdown=400)
    exposed = {}
    for cap in (0.25, 100):
        _, second = steps_of(dtlab.launch(two_steps, DataParallel, cap, cluster=cluster).trace)
        _, over, there = ends(second)
        exposed[cap] = (there - over) / cluster.slowdown
        layers = [predict.Gradient(1e-4, 4 * (256 * 256 + 256))] * 6
        predicted = predict.exposed_seconds(layers, cap * 2**20, 4, HDR)
        assert exposed[cap] > 0.9 * predicted  # a busy machine adds to it
    assert exposed[0.25] < exposed[100]


def reduced(wrap: Wrap) -> None:
    model = wrap(nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)]))
    model(torch.ones(4, 64)).sum().backward()


@pytest.mark.proof
@pytest.mark.parametrize("repeat", first(range(3)))
def test_one_bucket_is_faster_than_an_all_reduce_for_each_parameter(repeat: int) -> None:
    cluster = dtlab.Cluster(nodes=4, gpus_per_node=1, inter=HDR, slowdown=500)
    took = {}
    for wrap in (NaiveDataParallel, DataParallel):
        events = dtlab.launch(reduced, wrap, cluster=cluster).trace.events
        mine = [e for e in events if e.rank == 0 and e.name == "all_reduce"]
        took[wrap] = sum(event.end - event.start for event in mine)
    assert took[NaiveDataParallel] > 5 * took[DataParallel]


# ------------------------------------------------------------------------------ the bugs


def five_steps(forward: str, optimizer_from: str, seed: int) -> Tensor:
    images, labels = shuffled(seed)
    models: dict[str, nn.Module] = {"raw": MLP(64, 32, 10, seed=seed)}
    models["wrapped"] = DDP(models["raw"])
    optimizer = SGD(models[optimizer_from].parameters(), lr=0.1, fused=True)
    for step in range(5):
        optimizer.zero_grad()
        batch = slice(64 * step, 64 * (step + 1))
        logits = models[forward](share_of(images[batch]))
        cross_entropy(logits, share_of(labels[batch])).backward()
        optimizer.step()
    return parameters_of(models["raw"])


@pytest.mark.parametrize("seed", first(SEEDS))
def test_it_is_the_raw_forward_that_skips_the_all_reduce(seed: int) -> None:
    for forward, optimizer_from in (("wrapped", "raw"), ("raw", "wrapped")):
        run = dtlab.launch(five_steps, forward, optimizer_from, seed, world_size=2)
        averaged = forward == "wrapped"
        assert run.trace.ops(0)["all_reduce"] == (5 if averaged else 0)
        assert run.values[0].equal(run.values[1]) is averaged


def with_hooks(seed: int) -> Tensor:
    images, labels = shuffled(seed)
    model = MLP(64, 32, 10, seed=seed)

    def average(parameter: Tensor) -> None:
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    for step in range(3):
        optimizer.zero_grad()
        batch = slice(64 * step, 64 * (step + 1))
        cross_entropy(model(share_of(images[batch])), share_of(labels[batch])).backward()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_a_hook_that_averages_parameters_leaves_copies_that_differ(seed: int) -> None:
    first, second = dtlab.launch(with_hooks, seed, world_size=2).values
    assert 1e-4 < (first - second).abs().max() < 0.1


def micro_batches(quiet_in: str, seed: int) -> Tensor:
    images, labels = shuffled(seed)
    model = DDP(MLP(64, 128, 10, seed=seed))
    optimizer = SGD(model.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        for k in range(4):
            inputs, targets = (share_of(each[64 * k :][:64]) for each in (images, labels))
            quiet = quiet_in == "all" or (quiet_in != "none" and k < 3)
            context = model.no_sync() if quiet else contextlib.nullcontext()
            if quiet_in == "backward":
                loss = cross_entropy(model(inputs), targets)
                with context:
                    loss.backward()
            else:
                with context:
                    cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return parameters_of(model)


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_no_sync_saves_messages_only_around_the_right_passes(seed: int) -> None:
    runs = {
        quiet_in: dtlab.launch(micro_batches, quiet_in, seed, world_size=2)
        for quiet_in in ("none", "three", "backward", "all")
    }
    counts = {name: run.trace.ops(0)["all_reduce"] for name, run in runs.items()}
    assert counts == {"none": 8, "three": 2, "backward": 8, "all": 0}
    wire = {name: run.trace.bytes_wire(0) for name, run in runs.items()}
    assert wire["all"] < wire["three"] < 0.5 * wire["none"]
    equal = {name: run.values[0].equal(run.values[1]) for name, run in runs.items()}
    assert equal == {"none": True, "three": True, "backward": True, "all": False}
    torch.testing.assert_close(runs["three"].values[0], runs["none"].values[0])


def without_zero_grad(clear: bool, seed: int) -> list[float]:
    images, labels = shuffled(seed)
    model = DataParallel(MLP(64, 64, 10, seed=seed))
    optimizer = SGD(model.parameters(), lr=0.3, fused=True)
    seen = []
    for step in range(60):
        if clear:
            optimizer.zero_grad()
        batch = slice(64 * step, 64 * (step + 1))
        loss = cross_entropy(model(share_of(images[batch])), share_of(labels[batch]))
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert_replicas_equal(model)
    return seen


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_a_missing_zero_grad_makes_the_loss_wild_and_no_copies_differ(seed: int) -> None:
    good, bad = (
        dtlab.launch(without_zero_grad, clear, seed, world_size=2).values[0]
        for clear in (True, False)
    )
    assert largest_rise(bad) > 2 * largest_rise(good)


def largest_rise(losses: list[float]) -> float:
    """How far a loss climbs from its lowest so far, at most."""
    lowest, rise = math.inf, 0.0
    for loss in losses:
        lowest = min(lowest, loss)
        rise = max(rise, loss - lowest)
    return rise


# ---------------------------------------------------------------------------- local steps


def locally(every: int, seed: int) -> float:
    images, labels = shuffled(seed)
    model = MLP(64, 64, 10, seed=seed)
    optimizer, local = SGD(model.parameters(), lr=0.5, fused=True), LocalSGD(model, every)
    drift = 0.0
    for step in range(48):
        optimizer.zero_grad()
        batch = slice(64 * step, 64 * (step + 1))
        cross_entropy(model(share_of(images[batch])), share_of(labels[batch])).backward()
        optimizer.step()
        before = parameters_of(model)
        if local.step():
            drift = max(drift, float((before - parameters_of(model)).norm()))
    return drift


@pytest.mark.proof
@pytest.mark.parametrize("seed", first(SEEDS))
def test_local_steps_send_less_and_drift_more(seed: int) -> None:
    often, seldom = (dtlab.launch(locally, every, seed, world_size=2) for every in (1, 16))
    assert (often.trace.ops(0)["all_reduce"], seldom.trace.ops(0)["all_reduce"]) == (48, 3)
    assert seldom.trace.bytes_wire(0) < 0.2 * often.trace.bytes_wire(0)
    assert max(seldom.values) > max(often.values)


# -------------------------------------------------------------------- waiting, and not


def late_step(repeat: int) -> None:
    gradient = torch.ones(500_000)
    dist.barrier()
    with dtlab.span("backward"):
        dtlab.compute(3e-3 if dist.get_rank() == 3 else 1e-3)
    dist.all_reduce(gradient)


@pytest.mark.proof
@pytest.mark.parametrize("repeat", first(range(3)))
def test_a_straggler_costs_its_delay_and_a_faster_link_hardly_helps(repeat: int) -> None:
    took = []
    for bandwidth in (5e9, 50e9):
        link = predict.Link(5e-6, bandwidth)
        cluster = dtlab.Cluster(nodes=4, gpus_per_node=1, inter=link, slowdown=100)
        events = dtlab.launch(late_step, repeat, cluster=cluster).trace.events
        mine = [e for e in events if e.rank == 0 and e.name in ("backward", "all_reduce")]
        took.append((mine[-1].end - mine[0].start) / cluster.slowdown)
    assert min(took) > 2.9e-3
    assert took[1] > 0.7 * took[0]


def serve_or_work(consistency: str, bound: int | None) -> Any:
    model = MLP(64, 32, 10)
    if dist.get_rank() == 0:
        make = partial(SGD, lr=0.05, fused=True)
        return ParameterServer(model, make, 1, consistency, bound).serve()  # type: ignore[arg-type]
    with ParameterWorker(model) as worker:
        begun = time.perf_counter()
        while time.perf_counter() < begun + 0.4:
            worker.pull()
            cross_entropy(model(torch.ones(8, 64)), torch.zeros(8, dtype=torch.long)).backward()
            dtlab.compute(0.1 if worker.index == 3 else 0.02)
            worker.push()
    return None


@pytest.mark.proof
@pytest.mark.parametrize("repeat", first(range(3)))
def test_async_is_faster_with_a_straggler_and_its_gradients_are_late(repeat: int) -> None:
    speed, delay = {}, {}
    for name, bound in (("sync", None), ("bounded", 2), ("async", None)):
        report = dtlab.launch(serve_or_work, name, bound, world_size=5).values[0]
        speed[name] = sum(report.pushes.values())
        delay[name] = sum(n * count for n, count in report.delays.items()) / speed[name]
    assert speed["async"] > 1.5 * speed["sync"]
    assert speed["sync"] <= speed["bounded"] < speed["async"]
    assert delay["sync"] == 0
    assert 1 < delay["async"] < 6


def late_gradients(rate: float, delay: int, seed: int, steps: int = 300) -> float:
    """Test error in %."""
    images, labels = shuffled(seed)
    model, under_way = MLP(64, 64, 10, seed=seed), deque[Any]()
    parameters = list(model.parameters())
    for step in range(steps):
        batch = slice(32 * step, 32 * (step + 1))
        loss = cross_entropy(model(images[batch]), labels[batch])
        under_way.append(torch.autograd.grad(loss, parameters))
        if len(under_way) > delay:
            with torch.no_grad():
                torch._foreach_add_(parameters, under_way.popleft(), alpha=-rate)
    test_images, test_labels = digits().test.tensors
    return 100 * float((model(test_images).argmax(1) != test_labels).float().mean())


@pytest.mark.proof
def test_staleness_shrinks_the_usable_rate() -> None:
    settings = [(rate, delay) for rate in (0.05, 0.4) for delay in (0, 15)]

    def mine() -> dict[Any, float]:
        every = [(*setting, seed) for setting in settings for seed in SEEDS]
        own = every[dist.get_rank() :: dist.get_world_size()]
        return {setting: late_gradients(*setting) for setting in own}

    first, second = dtlab.launch(mine, world_size=2, timeout=60).values
    errors = first | second
    for seed in SEEDS:
        assert errors[0.4, 0, seed] < errors[0.05, 0, seed]  # the larger rate is the better one
        assert errors[0.05, 15, seed] < 1.5 * errors[0.05, 0, seed]
        assert errors[0.4, 15, seed] > 2 * errors[0.4, 0, seed]
        assert errors[0.4, 15, seed] > errors[0.05, 15, seed]
