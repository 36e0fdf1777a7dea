"""Pipelines against one process, and against PyTorch's own with the same schedule."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from dtlab.parallel.data import DataParallel, NaiveDataParallel
from dtlab.parallel.pipeline import (
    PipelineStage,
    measure_costs,
    run_schedule,
    run_stand_ins,
)
from dtlab.parallel.pipeline.split_backward import Halves, NaiveHalves
from dtlab.predict import Costs, balance_stages, peak_in_flight
from dtlab.schedules import (
    Action,
    Schedule,
    ScheduleError,
    as_schedule,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    stage_ranks,
    validate,
    zb_h1,
    zb_h2,
)
from dtlab.schedules.actions import needs
from dtlab.training.models import Block, GPTConfig
from tests.benchmarks.pipeline import bubbles
from tests.staying import on_ranks

EXACT = {"rtol": 1e-9, "atol": 1e-11}  # float64, so that errors larger than rounding show
STEPS = 2
Grads = dict[str, Tensor]


def six(ranks: int, microbatches: int) -> dict[str, Schedule]:
    made = {
        make.__name__: make(ranks, microbatches)
        for make in (naive, gpipe, one_f_one_b, zb_h1, zb_h2)
    }
    return made | {"interleaved": interleaved(ranks, microbatches, 2)}


def num_stages(schedule: Schedule) -> int:
    return len(stage_ranks(schedule))


# ------------------------------------------------------------- any order, against one process


class Wider(nn.Module):
    """Shapes change from stage to stage; the first dim of the weight is not trained everywhere."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 + index, 4 + index, dtype=torch.float64)
        self.norm = nn.LayerNorm(4 + index, dtype=torch.float64)
        with torch.no_grad():
            draw = torch.Generator().manual_seed(index)
            self.linear.weight.normal_(generator=draw)
            self.linear.bias.normal_(generator=draw)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(inputs)))


def chain(count: int) -> list[nn.Module]:
    return [Wider(index) for index in range(count)]


def batch(step: int, samples: int, stages: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(samples, 3, generator=draw, dtype=torch.float64)
    return inputs, torch.randn(samples, 3 + stages, generator=draw, dtype=torch.float64)


def grads(modules: dict[int, nn.Module]) -> Grads:
    return {
        f"{number}.{name}": one.grad.clone()
        for number, module in modules.items()
        for name, one in module.named_parameters()
        if one.grad is not None
    }


def trained(modules: dict[int, nn.Module], do: Callable[[int], Any], steps: int) -> list[Any]:
    """Gradients and loss of each step of SGD."""
    parameters = [one for module in modules.values() for one in module.parameters()]
    seen = []
    for step in range(steps):
        loss = do(step)
        seen.append((grads(modules), loss))
        with torch.no_grad():
            for one in parameters:
                if one.grad is not None:
                    one -= 0.05 * one.grad
                    one.grad = None
    return seen


def piped(schedules: Sequence[Schedule], samples: Sequence[int], steps: int) -> list[Any]:
    """Runs on a rank: each schedule for some steps."""
    found = []
    for schedule, size in zip(schedules, samples, strict=True):
        count = num_stages(schedule)
        own = {one.stage for one in schedule[dist.get_rank()]}
        modules = {i: module for i, module in enumerate(chain(count)) if i in own}
        stages = [PipelineStage(module, i) for i, module in modules.items()]
        peaks = set()

        def do(step: int, schedule=schedule, stages=stages, size=size, count=count, peaks=peaks):
            inputs, targets = batch(step, size, count)
            result = run_schedule(schedule, stages, inputs, targets, F.mse_loss)
            peaks.add(result.peak_in_flight)
            return result.loss

        found.append((trained(modules, do, steps), peaks))
    return found


def alone(count: int, samples: int, steps: int) -> list[Any]:
    modules = chain(count)
    model = nn.Sequential(*modules)

    def do(step: int) -> Tensor:
        inputs, targets = batch(step, samples, count)
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        return loss.detach()

    return trained(dict(enumerate(modules)), do, steps)


def compare(schedules: Sequence[Schedule], samples: Sequence[int], steps: int = STEPS) -> None:
    """Gradients of all parameters and losses, step by step, as in one process; and the peaks."""
    ranks = len(schedules[0])
    run = on_ranks(piped, schedules, samples, steps, world_size=ranks, trace=False, timeout=60)
    for number, (schedule, size) in enumerate(zip(schedules, samples, strict=True)):
        wanted = alone(num_stages(schedule), size, steps)
        for step in range(steps):
            got: Grads = {}
            losses = []
            for value in run.values:
                each, loss = value[number][0][step]
                got |= each
                losses += [loss] if loss is not None else []
            torch.testing.assert_close(
                got, wanted[step][0], **EXACT, msg=f"in step {step} of\n{schedule}"
            )
            torch.testing.assert_close(losses, [wanted[step][1]], **EXACT)
        peaks = [value[number][1] or {0} for value in run.values]
        assert peaks == [
            {0} if not row else {most}
            for row, most in zip(schedule, peak_in_flight(schedule), strict=True)
        ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_six_are_as_one_process(ranks: int) -> None:
    schedules = [*six(ranks, 5).values(), one_f_one_b(ranks, 1), zb_h2(ranks, 1)]
    compare(schedules, [11] * 6 + [3] * 2)  # 11 samples in 5: 3, 2, 2, 2, 2


def some_order(seed: int, ranks: int) -> Schedule:
    """Any order: stages anywhere, each backward in one piece or two, any action that is ready."""
    draw = random.Random(seed)
    stages, microbatches = draw.randint(1, 5), draw.randint(1, 4)
    homes = [draw.randrange(ranks) for _ in range(stages)]
    left = []
    for stage in range(stages):
        for k in range(microbatches):
            split = draw.random() < 0.5
            left += [Action(stage, kind, k) for kind in ("FIW" if split else "FB")]
    made = Schedule([] for _ in range(ranks))
    done: set[Action] = set()
    greed = draw.choice("FBIW")  # what is done first where there is a choice, as often as not
    while left:
        ready = [
            one for one in left
            if (need := needs(one, stages - 1)) is None or need in done
        ]  # fmt: skip
        ready = [one for one in ready if one.kind == greed and draw.random() < 0.7] or ready
        action = draw.choice(ready)
        left.remove(action)
        made[homes[action.stage]].append(action)
        done.add(action._replace(kind="B") if action.kind == "I" else action)
    return made


ORDERS = 45


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=5)
@given(
    st.lists(st.integers(0, 2**32), min_size=ORDERS, max_size=ORDERS, unique=True),
    st.integers(2, 4),
)
def test_no_valid_order_hangs(seeds: list[int], ranks: int) -> None:
    schedules = [some_order(seed, ranks) for seed in seeds]
    known = {str(one) for m in range(1, 5) for one in six(ranks, m).values()}
    schedules = [one for one in schedules if str(one) not in known]
    for one in schedules:
        validate(one)
    compare(schedules, [1 + max(a.microbatch for row in s for a in row) + 3 for s in schedules], 2)


def posted(schedules: Sequence[Schedule]) -> list[dict[int, list[str]]]:
    """The messages that this rank posts to each peer, in order."""
    seen: dict[int, list[str]] = {}

    def listening(name: str) -> Callable[..., Any]:
        do, way = getattr(dist, name), "out" if name == "isend" else "in"

        def post(tensor: Tensor, **keywords: Any) -> Any:
            peer = keywords.get("group_dst", keywords.get("group_src"))
            seen.setdefault(peer, []).append(f"{way} {tensor.numel()}")
            return do(tensor, **keywords)

        return post

    for name in ("isend", "irecv", "recv"):
        setattr(dist, name, listening(name))
    found = []
    for schedule in schedules:
        seen.clear()
        piped([schedule], [9], 2)
        found.append({peer: list(each) for peer, each in seen.items()})
    return found


def test_both_ends_post_in_the_same_order() -> None:
    """Then messages also match on a backend that has no tags and takes them in order."""
    schedules = [*six(3, 4).values(), *(some_order(seed, 3) for seed in range(14))]
    values = on_ranks(posted, schedules, world_size=3, trace=False, timeout=60).values
    for number in range(len(schedules)):
        for rank in range(3):
            for peer, own in values[rank][number].items():
                other = values[peer][number][rank]
                turned = [one.replace("out", "IN").replace("in", "out").lower() for one in other]
                assert own == turned


# ------------------------------------------------------------------ PyTorch's own


def both(texts: Sequence[list[list[str]]]) -> list[Any]:
    """Ours and PyTorch's, each with the same schedule."""
    from torch.distributed.pipelining import PipelineStage as TorchStage
    from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

    found = []
    for text in texts:
        schedule = as_schedule(text)
        count, rank = num_stages(schedule), dist.get_rank()
        microbatches = 1 + max(one.microbatch for row in schedule for one in row)
        own = sorted({one.stage for one in schedule[rank]})
        inputs, targets = batch(0, 2 * microbatches, count)
        ours, theirs = ({i: chain(count)[i] for i in own} for _ in range(2))
        result = run_schedule(
            schedule, [PipelineStage(ours[i], i) for i in own], inputs, targets, F.mse_loss
        )
        stages = [TorchStage(theirs[i], i, count, torch.device("cpu")) for i in own]
        peer = _PipelineScheduleRuntime(stages, microbatches, loss_fn=F.mse_loss)
        actions = {r: [_Action.from_str(str(a)) for a in row] for r, row in enumerate(schedule)}
        peer._prepare_schedule_with_comms(actions, format="compute_only")
        losses: list[Tensor] = []
        args = [inputs] if 0 in own else []
        if count - 1 in own:
            peer.step(*args, target=targets, losses=losses)
        else:
            peer.step(*args)
        found.append((grads(ours), grads(theirs), result.losses, losses))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_as_pytorch_with_the_same_schedule(ranks: int) -> None:
    schedules = list(six(ranks, 6).values())
    for value in on_ranks(both, schedules, world_size=ranks, trace=False, timeout=90).values:
        for ours, theirs, losses, peers in value:
            torch.testing.assert_close(ours, theirs, **EXACT)
            if losses is not None:
                torch.testing.assert_close(losses, [one.detach() for one in peers], **EXACT)


# ------------------------------------------------------------------ tied, uneven, replicated


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, dtype=torch.float64)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.table(tokens), tokens >= 3  # a mask goes with it, which has no gradient


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return hidden + torch.tanh(self.linear(hidden)) * mask[..., None], mask


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(11, 8, dtype=torch.float64))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return (hidden * mask[..., None]) @ self.weight.t()


def language_model(count: int, seed: int = 0) -> list[nn.Module]:
    torch.manual_seed(seed)
    made: list[nn.Module] = [Embed(), *(Middle() for _ in range(count - 2)), Head()]
    nn.init.normal_(made[-1].weight)
    return made


def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def token_batches(step: int, replica: int = 0) -> list[Tensor]:
    """Microbatches of 3, 3 and 1 sequences."""
    draw = torch.Generator().manual_seed(100 * step + replica)
    return [torch.randint(11, (size, 5), generator=draw) for size in (3, 3, 1)]


def tied_on_ranks(texts: list[Schedule], steps: int) -> list[Any]:
    found = []
    for schedule in texts:
        count = num_stages(schedule)
        made = language_model(count, seed=dist.get_rank())  # other values, until they are tied
        for number, module in enumerate(made[1:-1], 1):
            module.load_state_dict(language_model(count)[number].state_dict())
        modules = {i: made[i] for i in sorted({one.stage for one in schedule[dist.get_rank()]})}
        names = {0: "table.weight", count - 1: "weight"}
        stages = [
            PipelineStage(m, i, tied={"table": m.get_parameter(names[i])} if i in names else None)
            for i, m in modules.items()
        ]

        def do(step: int, schedule=schedule, stages=stages) -> Tensor | None:
            for half in range(2):  # gradients of two calls add up
                tokens = token_batches(2 * step + half)
                result = run_schedule(schedule, stages, tokens, tokens, token_loss)
            return result.loss

        found.append(trained(modules, do, steps))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_tied_embeddings_uneven_micro_batches_and_several_tensors(ranks: int) -> None:
    schedules = [
        interleaved(ranks, 3, 2),
        *([one_f_one_b(ranks, 3), zb_h1(ranks, 3)] if ranks > 1 else []),
    ]
    run = on_ranks(tied_on_ranks, schedules, 2, world_size=ranks, trace=False, timeout=60)
    for number, schedule in enumerate(schedules):
        count = num_stages(schedule)
        made = language_model(count)
        first = run.values[0][number]
        made[-1].weight = made[0].table.weight

        def do(step: int, made=made) -> Tensor:
            for half in range(2):
                tokens = torch.cat(token_batches(2 * step + half))
                hidden = made[0](tokens)
                for module in made[1:]:
                    hidden = module(*hidden)
                loss = token_loss(hidden, tokens)
                loss.backward()
            return loss.detach()

        wanted = trained(dict(enumerate(made[:-1])), do, 2)
        for step in range(2):
            got = {k: v for value in run.values for k, v in value[number][step][0].items()}
            head = got.pop(f"{count - 1}.weight")
            assert torch.equal(head, got["0.table.weight"])
            torch.testing.assert_close(got, wanted[step][0], **EXACT)
        assert first is not None


def replicated(text: Schedule, wrap: str, steps: int) -> Any:
    """Two pipelines of two ranks: 0-1 and 2-3; replicas of a stage on 0 and 2, 1 and 3."""
    rank = dist.get_rank()
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    wrapper = {"buckets": DataParallel, "naive": NaiveDataParallel}[wrap]
    schedule, count = as_schedule(text), num_stages(as_schedule(text))
    own = sorted({one.stage for one in schedule[rank % 2]})
    modules = {i: chain(count)[i] for i in own}
    stages = [
        PipelineStage(wrapper(module, group=replicas[rank % 2]), i, group=pipelines[rank // 2])
        for i, module in modules.items()
    ]

    def do(step: int) -> Tensor | None:
        inputs, targets = (one[rank // 2 :: 2] for one in batch(step, 12, count))
        return run_schedule(schedule, stages, inputs, targets, F.mse_loss).loss

    dist.barrier()
    return trained(modules, do, steps)


@pytest.mark.parametrize("wrap", ["buckets", "naive"])
@pytest.mark.parametrize(
    "schedule", [zb_h2(2, 4), interleaved(2, 4, 2)], ids=["zb_h2", "interleaved"]
)
def test_replicas_average_once_in_a_step(schedule: Schedule, wrap: str) -> None:
    run = on_ranks(replicated, schedule, wrap, 2, world_size=4, timeout=60)
    wanted = alone(num_stages(schedule), 12, 2)
    for step in range(2):
        for pipeline in (run.values[:2], run.values[2:]):
            got = {k: v for value in pipeline for k, v in value[step][0].items()}
            torch.testing.assert_close(got, wanted[step][0], **EXACT)
    stages = num_stages(schedule) // 2
    for rank in range(4):
        count = 2 * stages * (1 if wrap == "buckets" else 4)  # steps x stages x parameters
        assert run.trace.ops(rank)["all_reduce"] == count


# ------------------------------------------------------------------ what is held


class Kept:
    alive: weakref.WeakSet[Kept]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # an output that knows its node would keep it


def most_alive(text: Schedule) -> tuple[int, int]:
    """Most microbatches for which autograd kept something, and what is left after the step."""
    alive: dict[int, weakref.WeakSet[Kept]] = {}
    most = 0

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.count = 0

        def forward(self, inputs: Tensor) -> Tensor:
            nonlocal most
            kept = alive.setdefault(self.count, weakref.WeakSet())
            self.count += 1

            def keep(tensor: Tensor) -> Kept:
                one = Kept(tensor)
                kept.add(one)
                return one

            with saved_tensors_hooks(keep, lambda one: one.tensor):
                output = torch.tanh(inputs * self.weight)
            most = max(most, sum(bool(one) for one in alive.values()))
            return output

    schedule = as_schedule(text)
    stages = [
        PipelineStage(Watched(), i) for i in sorted({a.stage for a in schedule[dist.get_rank()]})
    ]
    stages = [PipelineStage(stages[0].module, stage.index) for stage in stages]
    inputs = torch.ones(16, 4)
    run_schedule(schedule, stages, inputs, inputs, F.mse_loss)
    return most, sum(bool(one) for one in alive.values())


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_h1", "interleaved"])
def test_activations_are_freed_when_the_schedule_says_so(name: str) -> None:
    schedule = six(2, 8)[name]
    values = on_ranks(most_alive, schedule, world_size=2, trace=False).values
    assert values == [(most, 0) for most in peak_in_flight(schedule)]


# ------------------------------------------------------------------ bubbles


@pytest.mark.proof
@pytest.mark.slow
def test_measured_bubbles_are_near_those_simulated() -> None:
    """The benchmark's goal is 5 points on a machine with nothing else to do; here a guard."""
    nearest: dict[str, float] = {}
    for _ in range(5):
        for name, (measured, predicted) in bubbles().items():
            nearest[name] = min(nearest.get(name, 1.0), abs(measured - predicted))
        if max(nearest.values()) < 0.15:
            break
    assert max(nearest.values()) < 0.15, nearest


# ------------------------------------------------------------------ the two halves of backward


class Twice(nn.Module):
    """A weight that is used twice, and an output that does not depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.bias = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(self.norm(self.linear(self.norm(inputs)))), 2 * self.bias


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(8, 8), nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(inputs), self.bias.exp()


HALVED: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)),
    "blocks": lambda: nn.Sequential(*(Block(GPTConfig(width=8, num_heads=2)) for _ in range(2))),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "lstm": lambda: nn.LSTM(8, 8, batch_first=True),
    "no weights": nn.Tanh,
    "frozen": lambda: nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)),
    "twice": Twice,
    "beside": Beside,
}


@pytest.mark.parametrize("halves", [NaiveHalves, Halves])
@pytest.mark.parametrize("name", HALVED)
def test_both_halves_are_the_whole(name: str, halves: type[NaiveHalves]) -> None:
    torch.manual_seed(0)
    module = HALVED[name]().double()
    for k in range(2):
        inputs = torch.randn(4, 3, 8, dtype=torch.float64)
        found = []
        for how in ("whole", "halves"):
            module.zero_grad()
            given = inputs.clone().requires_grad_()
            outputs = module(given)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            outputs = tuple(one for one in outputs if isinstance(one, Tensor))[:2]
            gradients = [torch.cos(one.detach() + k) for one in outputs]
            if how == "whole":
                torch.autograd.backward(outputs, gradients)
                first = given.grad
            else:
                parts = halves([get_gradient_edge(one) for one in outputs], [given])
                (first,) = parts.inputs(gradients)
                assert all(one.grad is None for one in module.parameters())
                parts.weights()
            found.append([first, *(one.grad for one in module.parameters())])
        torch.testing.assert_close(found[0], found[1], **EXACT)


def test_the_second_half_multiplies_only_once() -> None:
    """In a chain of linear layers, W is one product per layer; the naive way needs two."""
    counts = {}
    for halves in (NaiveHalves, Halves):
        module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
        inputs = torch.ones(2, 4, requires_grad=True)
        parts = halves([get_gradient_edge(module(inputs))], [inputs])
        parts.inputs([torch.ones(2, 4)])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            parts.weights()
        counts[halves] = sum(e.count for e in seen.key_averages() if e.key == "aten::mm")
    assert counts == {NaiveHalves: 10, Halves: 5} or counts == {NaiveHalves: 9, Halves: 5}


# ------------------------------------------------------------------ errors, costs


def misused(case: str) -> str:
    stage = PipelineStage(Wider(dist.get_rank()))
    inputs, targets = batch(0, 4, 2)
    schedule: Any = gpipe(2, 2)
    try:
        if case == "ranks":
            run_schedule(gpipe(3, 2), stage, inputs, targets, F.mse_loss)
        elif case == "broken":
            run_schedule([["0F0", "0B0"], ["1F0", "1F0"]], stage, inputs, targets, F.mse_loss)
        elif case == "other stages":
            run_schedule(interleaved(2, 2, 2), stage, inputs, targets, F.mse_loss)
        elif case == "no stages":
            run_schedule(schedule, [], inputs, targets, F.mse_loss)
        elif case == "few samples":
            run_schedule(gpipe(2, 9), stage, inputs, targets, F.mse_loss)
        elif (case, dist.get_rank()) in (("no loss", 1), ("no inputs", 0)):
            run_schedule(schedule, stage)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("ranks", "has 3 ranks, but the group has 2"),
        ("broken", "ScheduleError: this schedule has"),
        ("other stages", "has stages [0, 2], but the stages passed are [0]"),
        ("no stages", "actions for rank 0"),
        ("few samples", "4 inputs cannot be cut into 9 microbatches"),
        ("no loss", "needs targets= and loss="),
        ("no inputs", "needs inputs"),
    ],
)
def test_misuse_raises_an_error(case: str, words: str) -> None:
    found = on_ranks(misused, case, world_size=2, trace=False).values
    assert words in "".join(found)
    assert issubclass(ScheduleError, ValueError)


def test_costs_of_layers_are_measured() -> None:
    small, large = nn.Linear(64, 64), nn.Linear(64, 4096)
    layers = [small, nn.ReLU(), large]
    costs = measure_costs(layers, torch.randn(256, 64))
    assert [one.held for one in costs] == [4 * (64 * 64 + 64), 0, 4 * (64 * 4096 + 4096)]
    assert costs[2].forward > costs[0].forward and costs[2].backward_weight > 0
    assert costs[0].saved == 4 * 256 * 64
    assert all(one.grad is None for layer in layers for one in layer.parameters())
    assert balance_stages(costs, 2) == [range(2), range(2, 3)]


@pytest.mark.slow
def test_stand_ins_take_the_time_that_the_simulator_says() -> None:
    schedule, unit = one_f_one_b(3, 4), 0.02
    traces, held = run_stand_ins(schedule, Costs(unit, unit, unit), backend="gloo", threads=1)
    assert held == [3, 2, 1]
    for rank, row in enumerate(schedule):
        names = [[e.name for e in t.events if e.rank == rank] for t in traces.values()]
        assert names[0] == names[1]
        assert len(names[1]) == len(row)
    expected, took = (trace.duration for trace in traces.values())
    assert expected == pytest.approx(3 * unit * 6)  # (m + p - 1) t
    assert took >= 0.98 * expected
