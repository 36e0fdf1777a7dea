"""The right answers of Level I of unit 02 are what PyTorch does on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import dtlab
from dtlab.checks import find_part
from dtlab.checks.questions.answers import Questions
from dtlab.trace import Event, Trace
from dtlab.units.unit02.all_reduces import buckets_of
from tests.known_answers import answers_of
from tests.staying import on_ranks

LEARNERS = [f"learner{number}" for number in range(4)]
SCALE = 64  # layers and buckets are so many times smaller than what is given, to be quick


def drawn(symbol: str, learner: str) -> tuple[Any, dict[str, Any]]:
    """What a learner is given, and the right answers."""
    part = find_part(f"02/{symbol}")
    answers = answers_of(part)
    assert isinstance(part.check, Questions)
    assert answers is not None
    given = part.check.given(symbol, learner)
    return given, answers.right[0](given)


def within(trace: Trace, name: str) -> list[list[Event]]:
    """The all-reduces of rank 0 inside each of its spans of this name."""
    own = [event for event in trace.events if event.rank == 0]
    reduced = [event for event in own if event.name == "all_reduce"]
    spans = [event for event in own if event.name == name]
    return [[e for e in reduced if span.start <= e.start <= span.end] for span in spans]


# 02/all_reduces --------------------------------------------------------------------------------


class Layers(nn.Module):
    """Layers of so many KiB, one after the other in backward."""

    def __init__(self, kib: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 32 * size, bias=False) for size in kib)

    def forward(self, x: Tensor) -> Any:
        total: Any = 0.0
        for layer in self.layers:
            total = total + layer(x + 0 * total).mean()
        return total


def steps_under_ddp(kib: list[int], cap: float | None, micro: int) -> None:
    model = DistributedDataParallel(Layers(kib), bucket_cap_mb=cap)
    for _ in range(3):
        with dtlab.span("step"):
            model(torch.ones(2, 8)).backward()
    with dtlab.span("micro"):
        for _ in range(micro):
            model(torch.ones(2, 8)).backward()
    with dtlab.span("no_sync"):
        with model.no_sync():
            for _ in range(micro - 1):
                model(torch.ones(2, 8)).backward()
        model(torch.ones(2, 8)).backward()


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_ddp_makes_as_many_all_reduces_as_the_answers_say(learner: str) -> None:
    given, right = drawn("all_reduces", learner)
    kib = [size * 1024 // SCALE for size in given["layers"]]
    cap = given["bucket_cap_mb"] / SCALE
    trace = on_ranks(steps_under_ddp, kib, cap, given["micro"], world_size=2).trace
    assert trace is not None
    first, *later = within(trace, "step")
    assert len(first) == right["first_step"]
    assert [len(each) for each in later] == [right["second_step"]] * 2
    sizes = {str(number): kib[number - 1] for number in range(1, 7)}
    assert later[0][0].bytes == 1024 * sum(sizes[name] for name in right["first_bucket"])
    assert [len(each) for each in within(trace, "micro")] == [right["micro"]]
    assert [len(each) for each in within(trace, "no_sync")] == [right["no_sync"]]


@pytest.mark.slow
def test_ddps_own_limits_are_as_the_answers_say() -> None:
    given, right = drawn("all_reduces", "ada")
    kib = [size * 1024 for size in given["layers"]]
    trace = on_ranks(steps_under_ddp, kib, None, 2, world_size=2).trace
    assert trace is not None
    assert len(within(trace, "step")[2]) == right["default"]


def test_buckets_of_ddp_are_drawn_by_hand() -> None:
    assert buckets_of([4, 9, 2, 3], 5, 5) == [[3, 2], [1], [0]]
    assert buckets_of([4, 9, 2, 3], 1, 25) == [[3], [2, 1, 0]]
    assert buckets_of([5, 5], 5, 5) == [[1], [0]]


# 02/ddp_step -----------------------------------------------------------------------------------


def one_script(first: int, last: int, channels: int) -> None:
    """Run the script of the part with parameters of whole thousands of bytes."""
    torch.manual_seed(0)
    early = nn.Linear(first // channels, channels, bias=False)
    late = nn.Linear(channels, last // channels, bias=False)
    net = nn.Sequential(early, nn.BatchNorm1d(channels, affine=False), late)
    with dtlab.span("constructor"):
        model = DistributedDataParallel(net, bucket_cap_mb=4 * last / 2**20)
    for _ in range(2):
        with dtlab.span("step of training"):
            inputs = torch.randn(4, first // channels)
            loss = model(inputs).square().mean()
            with dtlab.span("backward"):
                loss.backward()
            with torch.no_grad(), dtlab.span("step"):
                for parameter in net.parameters():
                    parameter -= 0.1 * parameter.grad
            loss = loss.detach()
            dist.all_reduce(loss)


@pytest.mark.slow
def test_a_step_under_ddp_leaves_the_events_of_the_answers_in_their_order() -> None:
    first, last, channels = 32 * 100, 32 * 150, 32
    trace = on_ranks(one_script, first, last, channels, world_size=2).trace
    assert trace is not None
    own = [event for event in trace.events if event.rank == 0]
    made = next(event for event in own if event.name == "constructor")
    step = [event for event in own if event.name == "step of training"][-1]
    sent = [
        event.bytes
        for event in own
        if event.kind == "comm" and made.start <= event.start <= made.end
    ]
    assert 4 * (first + last) + 8 * channels in sent
    in_step = [e for e in own if e.kind == "comm" and step.start <= e.start <= step.end]
    buffers = [e.bytes for e in in_step if e.name == "broadcast"]
    assert 8 * channels in buffers
    reduced = [e for e in in_step if e.name == "all_reduce"]
    assert [e.bytes for e in reduced] == [4 * last, 4 * first, 4]
    names = ("backward", "step")
    backward, update = ([e for e in own if e.name == name][-1] for name in names)
    assert backward.start < reduced[0].start < reduced[1].start < backward.end
    assert backward.end <= update.start <= reduced[2].start


# 02/samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_distributed_sampler_deals_as_the_answers_say(learner: str) -> None:
    given, right = drawn("samples", learner)
    n, ranks, rank = given["samples"], given["ranks"], given["rank"]

    def sampler(**keywords: Any) -> DistributedSampler[int]:
        return DistributedSampler(range(n), num_replicas=ranks, rank=rank, **keywords)

    own = list(sampler(shuffle=False))
    assert (len(own), own[:3]) == (right["per_rank"], right["first_three"])
    everyone = [
        one
        for each in range(ranks)
        for one in DistributedSampler(range(n), num_replicas=ranks, rank=each, shuffle=False)
    ]
    assert len(everyone) - len(set(everyone)) == right["repeated"]
    assert len(list(torch.tensor(own).split(given["batch"]))) == right["steps"]
    assert n - len(sampler(drop_last=True)) * ranks == right["dropped"]
    shuffled = sampler(shuffle=True)
    first_epoch = list(shuffled)
    assert list(shuffled) == first_epoch
    shuffled.set_epoch(1)
    assert list(shuffled) != first_epoch
    assert right["forgotten"] == "the same"


# 02/uneven -------------------------------------------------------------------------------------


def gradient_under_ddp(sizes: list[int], gradients: list[int], factors: list[float]) -> float:
    """A model of one weight, whose gradient is the mean of what comes in."""
    rank = dist.get_rank()
    layer = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(layer)
    inputs = torch.full((sizes[rank], 1), float(gradients[rank]))
    (factors[rank] * model(inputs).mean()).backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS[:2])
def test_ddp_averages_uneven_batches_as_the_answers_say(learner: str) -> None:
    given, right = drawn("uneven", learner)
    sizes, gradients = given["sizes"], given["gradients"]
    factors = [3 * size / sum(sizes) for size in sizes]
    assert factors[2] == right["factor"]
    for chosen, wanted in (([1.0] * 3, right["ddp"]), (factors, right["true"])):
        run = on_ranks(gradient_under_ddp, sizes, gradients, chosen, world_size=3)
        assert run.values == pytest.approx([wanted] * 3)
