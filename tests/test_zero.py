"""What is particular to ZeRO's stages 1 and 2; test_parity.py compares their training."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

import dtlab
from dtlab import collectives
from dtlab.parallel.data import DataParallel
from dtlab.parallel.zero import Zero1, Zero2
from dtlab.training.accumulation import accumulate
from dtlab.training.held import digest
from tests import parity
from tests.marks import retried, slow
from tests.parity import CLOSE, OPTIMIZERS, batch, loss_of, share_of
from tests.staying import on_ranks

STEPS, LOCAL_BATCH = 10, 6
TINY = 0.0003  # MiB: some parameters a bucket
STAGES: dict[int, Any] = {1: Zero1, 2: Zero2}
Params = list[Tensor]
Wrap = Callable[[Any, Any, dict[str, Any]], Any]


def made(name: str, seed: int = 0) -> nn.Module:
    """A model of tests/parity.py in single precision."""
    return parity.made(name, torch.float32, seed)


def in_stage(stage: int, **more: Any) -> Wrap:
    more = {"bucket_cap_mb": TINY, **more}
    return lambda params, cls, arguments: STAGES[stage](params, cls, **arguments, **more)


def plain(params: Any, cls: Any, arguments: dict[str, Any]) -> Any:
    return cls(params, **arguments)


# Unused parameters ---------------------------------------------------------------


def branches(wrap: Wrap, whole: bool, ranks: int) -> Params:
    """Ranks take turns with two branches; the third is used in no step, and one step only one."""
    torch.manual_seed(3)
    model = parity.Branches()
    optimizer = wrap(model.parameters(), torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1})
    for step in range(4):
        if step == 3 and not whole:  # some have been stepped more often than others in a bucket
            states = model.state_dict(), optimizer.full_state_dict()
            model = parity.Branches()
            optimizer = wrap(model.parameters(), torch.optim.Adam, {"lr": 0.01})
            model.load_state_dict(states[0])
            optimizer.load_full_state_dict(states[1])
        for rank in range(ranks) if whole else [dist.get_rank()]:
            left = step == 2 or (rank + step) % 2 == 1
            x = torch.full((2, 7), float(rank + 1))
            loss = model(x if left else -x).square().sum()
            (loss / ranks if whole else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("cap", [TINY / 10, slow(None)])
def test_what_no_rank_uses_is_not_stepped(stage: int, cap: float | None) -> None:
    wanted = branches(plain, True, 3)
    wrap = in_stage(stage, bucket_cap_mb=cap)
    for values in on_ranks(branches, wrap, False, 3, world_size=3).values:
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


def without_a_gradient(stage: int) -> Params:
    """The last rank has no batch at all in one of the steps."""
    model = made("mlp")
    optimizer = in_stage(stage)(model.parameters(), torch.optim.SGD, {"lr": 0.1})
    for step in range(2):
        if step or dist.get_rank() < dist.get_world_size() - 1:
            inputs, labels = batch(step, 4)
            cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_without_a_gradient_counts_as_zero(stage: int) -> None:
    model = made("mlp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, share in enumerate((2 / 3, 1.0)):
        inputs, labels = batch(step, 4)
        optimizer.zero_grad()
        (share * cross_entropy(model(inputs), labels)).backward()
        optimizer.step()
    for values in on_ranks(without_a_gradient, stage, world_size=3).values:
        torch.testing.assert_close(values, [*model.parameters()], rtol=1e-4, atol=1e-5)


# Schedules, clipping, accumulation -----------------------------------------------------------


def scheduled(wrap: Wrap, share: bool, ranks: int, norm: float) -> tuple[Params, list[float]]:
    """A schedule for rate and momentum, clipping, and a group that joins in the middle."""
    model: Any = made("mlp")
    groups = [{"params": [*model[0].parameters()]}, {"params": [model[2].bias], "lr": 0.05}]
    optimizer = wrap(groups, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    schedule = OneCycleLR(optimizer, [0.2, 0.4], total_steps=STEPS)
    norms = []
    for step in range(STEPS):
        if step == 6:
            optimizer.add_param_group({"params": model[4].weight, "lr": 0.03, "momentum": 0.5})
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        whole = batch(step, LOCAL_BATCH * ranks)
        inputs, labels = share_of(whole) if share else whole
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        if share:
            total = optimizer.clip_grad_norm_(0.1, norm)
        else:
            own = [one for group in optimizer.param_groups for one in group["params"]]
            total = nn.utils.clip_grad_norm_(own, 0.1, norm)
        norms.append(float(total))
        optimizer.step()
        schedule.step()
    return [one.detach().clone() for one in model.parameters()], norms


@pytest.mark.slow
@pytest.mark.parametrize("norm", [2.0, slow(float("inf"))])
@pytest.mark.parametrize("stage", STAGES)
def test_schedules_groups_and_clipping(stage: int, norm: float) -> None:
    wanted, norms = scheduled(plain, False, 3, norm)
    for values, seen in on_ranks(scheduled, in_stage(stage), True, 3, norm, world_size=3).values:
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)
        assert seen == pytest.approx(norms, rel=1e-4)


def clips_beside(stage: int) -> float:
    inner = made("mlp")
    model = DataParallel(inner)
    optimizer = Zero1(inner.parameters(), torch.optim.SGD, reduces=False, lr=0.1)
    inputs, labels = share_of(batch(0, 12))
    cross_entropy(model(inputs), labels).backward()
    return float(optimizer.clip_grad_norm_(0.1))


@pytest.mark.slow
def test_clips_gradients_that_are_averaged_already() -> None:
    model = made("mlp")
    inputs, labels = batch(0, 12)
    cross_entropy(model(inputs), labels).backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    assert on_ranks(clips_beside, 1, world_size=2).values == pytest.approx([norm, norm])


MICROBATCHES = 3


def accumulated(stage: int, how: str) -> tuple[Params, int]:
    model = made("mlp")
    optimizer = in_stage(stage)(model.parameters(), torch.optim.SGD, {"lr": 0.1})
    parts = [share_of(batch(step, 4 * dist.get_world_size())) for step in range(3)]
    if how == "accumulate":
        accumulate(model, parts, lambda m, b: cross_entropy(m(b[0]), b[1], reduction="sum"))
    for number, (inputs, labels) in enumerate(parts if how != "accumulate" else []):
        silent = how == "all silent" or (how == "silent" and number < 2)
        with optimizer.no_sync() if silent else nullcontext():
            (cross_entropy(model(inputs), labels) / 3).backward()
    held = dtlab.held_bytes(optimizer.gradients, [one.grad for one in model.parameters()])
    optimizer.step()
    return [one.detach().clone() for one in model.parameters()], held


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["each", "silent", slow("all silent"), slow("accumulate")])
def test_microbatches_add_up(stage: int, how: str) -> None:
    model = made("mlp")
    for step in range(MICROBATCHES):
        inputs, labels = batch(step, 12)
        (cross_entropy(model(inputs), labels) / 3).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    run = on_ranks(accumulated, stage, how, world_size=3)
    for values, _ in run.values:
        torch.testing.assert_close(values, [*model.parameters()], rtol=1e-4, atol=1e-6)
    buckets = 3
    rounds = 3 if stage == 2 and how in ("each", "accumulate") else 1
    assert run.trace.ops(0)["all_to_all"] == rounds * buckets


def with_closure(stage: int) -> tuple[float, bool, bool]:
    model = made("mlp")
    optimizer = in_stage(stage)(model.parameters(), torch.optim.SGD, {"lr": 0.1})
    inputs, labels = batch(0, 4)

    def closure() -> Tensor:
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    before = [one.detach().clone() for one in model.parameters()]
    loss = float(optimizer.step(closure).detach())
    after = [one.detach().clone() for one in model.parameters()]
    optimizer.step()  # the gradients are used up
    moved = not torch.equal(before[0], after[0])
    return loss, moved, torch.equal(after[0], next(model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_closure_is_run_and_a_step_uses_gradients_up(stage: int) -> None:
    inputs, labels = batch(0, 4)
    loss = float(cross_entropy(made("mlp")(inputs), labels).detach())
    for got, moved, rests in on_ranks(with_closure, stage, world_size=2).values:
        assert got == pytest.approx(loss)
        assert moved and rests


# Sixteen bits, and master weights ------------------------------------------------------------


def rounded(ranks: int, share: bool) -> Params:
    """Ten steps of a bfloat16 model whose fp32 master weights Adam steps."""
    model = made("mlp").bfloat16()
    own = [*model.parameters()]
    arguments: dict[str, Any] = {"lr": 1e-3}
    masters = [nn.Parameter(one.detach().float()) for one in own]
    plain_adam = torch.optim.Adam(masters, **arguments)
    sharded = (
        Zero2(own, torch.optim.Adam, master_dtype=torch.float, **arguments) if share else None
    )
    for step in range(10):
        inputs, labels = batch(step, 4 * ranks)
        parts = [(x.bfloat16(), y) for x, y in zip(inputs.split(4), labels.split(4), strict=True)]
        gradients = []
        for x, y in [parts[dist.get_rank()]] if sharded else parts:
            cross_entropy(model(x), y).backward()
            if not sharded:
                gradients.append([one.grad * (1 / ranks) for one in own])
                model.zero_grad()
        if sharded:
            sharded.step()
            continue
        for one, *each in zip(masters, *gradients, strict=True):
            one.grad = torch.stack(each).float().sum(0).bfloat16().float()
        plain_adam.step()
        for one, master in zip(own, masters, strict=True):
            one.data.copy_(master)
    return [one.detach().clone() for one in own]


@pytest.mark.slow
def test_master_weights_are_stepped_and_rounded() -> None:
    """Bit by bit: gradients are divided in bfloat16, and rounded again after their sum."""
    wanted = rounded(2, share=False)
    for values in on_ranks(rounded, 2, True, world_size=2).values:
        assert all(map(torch.equal, values, wanted))


def taken_over() -> tuple[bool, bool]:
    model = made("mlp").bfloat16()
    optimizer = Zero1(model.parameters(), torch.optim.SGD, master_dtype=torch.float, lr=0.0)
    other = {name: one + 1 for name, one in model.state_dict().items()}
    fine = [one.clone() for one in optimizer.state["masters"]]
    optimizer.step()
    kept = all(map(torch.equal, fine, optimizer.state["masters"]))
    model.load_state_dict(other)
    optimizer.step()
    return kept, all(torch.equal(one, other[name]) for name, one in model.state_dict().items())


@pytest.mark.slow
def test_parameters_that_are_loaded_become_the_masters() -> None:
    assert on_ranks(taken_over, world_size=2).values == [(True, True)] * 2


# What it costs -------------------------------------------------------------------------------


def big() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(211, 601), nn.ReLU(), nn.Linear(601, 197))


PSI = 211 * 601 + 601 + 601 * 197 + 197


def steps(wrap: Wrap, count: int, microbatches: int, data_parallel: Any = None) -> None:
    inner = big()
    model = data_parallel(inner) if data_parallel else inner
    optimizer = wrap(inner.parameters(), torch.optim.Adam, {"lr": 1e-3})
    for _ in range(count):
        for _ in range(microbatches):
            model(torch.ones(2, 211)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def sent(ranks: int, *arguments: Any) -> float:
    """Elements in one step of a rank, over Psi (N-1)/N, as the operating system counted bytes."""
    few, many = (
        on_ranks(steps, arguments[0], count, *arguments[1:], world_size=ranks).trace
        for count in (2, 6)
    )
    each = [(b - a) / 4 for a, b in zip(few.bytes_wire(), many.bytes_wire(), strict=True)]
    assert max(each) <= 1.02 * min(each)
    return max(each) / 4 / (PSI * (ranks - 1) / ranks)


RING = {"all_gather": collectives.ring_all_gather,
        "reduce_scatter": collectives.ring_reduce_scatter}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [slow(2), slow(3), 4])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("more", [{}, slow(RING)])
def test_two_psi_on_the_wire(stage: int, ranks: int, more: dict[str, Any]) -> None:
    """There are 5 buckets, each padded to N: fewer than 4 N elements more."""
    padded = 1 + 4 * ranks / PSI
    wrap = in_stage(stage, bucket_cap_mb=0.3, **more)
    assert sent(ranks, wrap, 1) == pytest.approx(2 * padded, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3])
def test_with_k_microbatches_stage_2_sends_k_plus_one_psi(k: int) -> None:
    assert sent(2, in_stage(2), k) == pytest.approx(k + 1, rel=0.01)
    assert sent(2, in_stage(1), k) == pytest.approx(2, rel=0.01)


@pytest.mark.slow
def test_beside_data_parallelism_stage_1_sends_three_psi() -> None:
    wrap = in_stage(1, reduces=False)
    assert sent(2, wrap, 1, DataParallel) == pytest.approx(3, rel=0.01)


def held(stage: int, master: bool) -> dict[str, int]:
    """Bytes on this rank after backward of the second step."""
    model = big().bfloat16() if master else big()
    dtype = torch.float32 if master else None
    wrap = in_stage(stage, bucket_cap_mb=0.3, master_dtype=dtype)
    optimizer = wrap(model.parameters(), torch.optim.Adam, {"lr": 1e-3})
    inputs = torch.ones(2, 211).to(next(model.parameters()).dtype)
    model(inputs).square().sum().backward()
    optimizer.step()
    model(inputs).square().sum().backward()
    gradients = [one.grad for one in model.parameters()]
    return {
        "parameters": dtlab.held_bytes([one.data for one in model.parameters()]),
        "gradients": dtlab.held_bytes(gradients, optimizer.gradients),
        "optimizer": dtlab.held_bytes(optimizer),
        "everything": dtlab.held_bytes(model, optimizer, optimizer.gradients),
    }


@pytest.mark.covering(1)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [slow(1), slow(2), slow(3), 4])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("master", [False, slow(True)])
def test_holds_what_the_formula_says(stage: int, ranks: int, master: bool) -> None:
    """Rajbhandari et al. 2020, section 5: in fp32, K = 8; mixed, K = 12."""
    width, k = (2, 12) if master else (4, 8)
    wanted = {
        "parameters": width * PSI,
        "gradients": width * PSI / (ranks if stage == 2 else 1),
        "optimizer": k * PSI / ranks,
    }
    wanted["everything"] = sum(wanted.values())
    for values in on_ranks(held, stage, master, world_size=ranks).values:
        assert values == pytest.approx(wanted, rel=0.02)


def slow_backward() -> None:
    """Layers whose backward takes 20 ms each, without a core; weights and biases in groups."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            dtlab.compute(0.02)
            return gradient

    class Layer(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(Slow.apply(x))

    model = nn.Sequential(*(Layer(64, 64) for _ in range(6)))
    groups = [{"params": [one.bias for one in model]}, {"params": [one.weight for one in model]}]
    optimizer = Zero2(groups, torch.optim.SGD, lr=0.1, bucket_cap_mb=64 * 64 * 4 / 2**20)
    for _ in range(2):
        loss = model(torch.ones(2, 64)).sum()
        with dtlab.span("backward"):
            loss.backward()
        optimizer.step()


@retried
@pytest.mark.slow
def test_buckets_are_sent_while_backward_continues() -> None:
    """From the second step on this holds for groups too, of which the first is full last."""
    wire = dtlab.Cluster(gpus_per_node=2, intra=dtlab.Link(1e-3, 2e6))
    trace = on_ranks(slow_backward, world_size=2, cluster=wire).trace
    for rank in (0, 1):
        passes = [e for e in trace.events if e.rank == rank and e.name == "backward"]
        reduced = [e for e in trace.events if e.rank == rank and e.name == "all_to_all"]
        assert len(passes) == 2 and len(reduced) == 14
        inside = [e for e in reduced if passes[1].start <= e.start <= passes[1].end]
        assert inside[0].start < passes[1].start + 0.06
        assert passes[1].end - passes[1].start < 6 * 0.02 + 0.06


# Saved and loaded ----------------------------------------------------------------------------


def half_way(
    stage: int, ranks: int, key: str, name: str, state: Any, steps: tuple[int, int]
) -> Any:
    """Train from one step to another, after loading; the states of model and optimizer."""
    params, cls, arguments = OPTIMIZERS[key]
    model = made(name)
    optimizer = in_stage(stage)(params(model), cls, arguments)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_full_state_dict(state["optimizer"])
    for step in range(*steps):
        inputs, labels = share_of(batch(step, 12, name == "tied"))
        loss_of(model, inputs, labels).backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.full_state_dict()}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("key", "name"), [("AdamW", "frozen"), slow("SGD", "few"), slow("Adam", "few")]
)
def test_saved_by_three_ranks_and_loaded_by_two(stage: int, key: str, name: str) -> None:
    """One process can load it too: the whole state has the form of the optimizer's own."""
    arguments = (key, name)
    saved = on_ranks(half_way, stage, 3, *arguments, None, (0, 4), world_size=3).values[2]
    loaded = on_ranks(half_way, stage, 2, *arguments, saved, (4, 8), world_size=2).values[1]
    params, cls, options = OPTIMIZERS[key]
    model = made(name)
    model.load_state_dict(saved["model"])
    optimizer = cls(params(model), **options)
    optimizer.load_state_dict(saved["optimizer"])
    for step in range(4, 8):
        inputs, labels = batch(step, 12)
        optimizer.zero_grad()
        loss_of(model, inputs, labels).backward()
        optimizer.step()
    torch.testing.assert_close(
        [*loaded["model"].values()], [*model.state_dict().values()], **CLOSE
    )
    wanted = optimizer.state_dict()
    got = loaded["optimizer"]
    assert [group["params"] for group in got["param_groups"]] == [
        group["params"] for group in wanted["param_groups"]
    ]
    assert got["state"].keys() == wanted["state"].keys()
    for number, values in wanted["state"].items():
        assert values.keys() == got["state"][number].keys()
        for name_, value in values.items():
            torch.testing.assert_close(got["state"][number][name_], value, **CLOSE)


def parts(stage: int, key: str, name: str) -> tuple[Any, Any]:
    """After four steps: this rank's part of the optimizer's state, and the whole state."""
    params, cls, arguments = OPTIMIZERS[key]
    model = made(name)
    optimizer = in_stage(stage)(params(model), cls, arguments)
    for step in range(4):
        inputs, labels = share_of(batch(step, 12, name == "tied"))
        loss_of(model, inputs, labels).backward()
        optimizer.step()
    part = torch.load(_stored(optimizer.state_dict()), weights_only=True)
    return part, optimizer.full_state_dict()


def of_parts(stage: int, key: str, name: str, states: list[Any]) -> tuple[Any, str]:
    """The whole state, loaded from these parts into other buckets; and why too few are refused."""
    params, cls, arguments = OPTIMIZERS[key]
    optimizer = in_stage(stage, bucket_cap_mb=1.0)(params(made(name)), cls, arguments)
    refusal = ""
    try:
        optimizer.load_state_dict([*states[1:], *states[1:]])  # twice, which covers no gap
    except ValueError as error:
        refusal = str(error)
    optimizer.load_state_dict(reversed(states))
    return optimizer.full_state_dict(), refusal


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("saved", "read"), [(3, 2), slow(2, 3), slow(4, 1)])
@pytest.mark.parametrize(("key", "name"), [("AdamW", "frozen"), slow("Adam", "tied")])
def test_parts_of_some_ranks_are_loaded_by_others(
    stage: int, saved: int, read: int, key: str, name: str
) -> None:
    runs = on_ranks(parts, stage, key, name, world_size=saved).values
    states = [part for part, _ in runs]
    loaded = on_ranks(of_parts, stage, key, name, states, world_size=read).values
    assert {digest(whole) for whole, _ in loaded} == {digest(runs[0][1])}
    assert "Pass the states of all ranks." in loaded[0][1]


def of_one_shard(stage: int) -> tuple[bool, bool, str]:
    def run(optimizer: Any, model: nn.Module, begin: int, end: int) -> None:
        for step in range(begin, end):
            inputs, labels = share_of(batch(step, 12))
            cross_entropy(model(inputs.bfloat16()), labels).backward()
            optimizer.step()

    def new() -> tuple[nn.Module, Any]:
        model = made("mlp").bfloat16()
        return model, in_stage(stage, master_dtype=torch.float)(
            model.parameters(), torch.optim.Adam, {"lr": 0.01}
        )

    model, optimizer = new()
    run(optimizer, model, 0, 3)
    saved = [dict(model.state_dict()), optimizer.state_dict()]
    saved = torch.load(_stored(saved), weights_only=True)
    whole = [dict(model.state_dict()), optimizer.full_state_dict()]
    whole = torch.load(_stored(whole), weights_only=True)
    run(optimizer, model, 3, 6)
    same_bits = []
    for state, load in (
        (saved, "load_state_dict"), (whole, "load_full_state_dict"), (whole, "load_state_dict")
    ):  # fmt: skip
        again, other = new()
        again.load_state_dict(state[0])
        getattr(other, load)(state[1])
        run(other, again, 3, 6)
        same_bits.append(all(map(torch.equal, again.parameters(), model.parameters())))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, saved[1])
    try:
        other.load_state_dict(every[dist.get_rank() - 1])
    except ValueError as error:
        return same_bits[0], all(same_bits[1:]), str(error)
    return same_bits[0], all(same_bits[1:]), ""


def _stored(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("stage", [slow(1), 2])
def test_a_shard_is_saved_and_loaded_with_its_master_weights(stage: int) -> None:
    for shard, whole, text in on_ranks(of_one_shard, stage, world_size=3).values:
        assert shard and whole
        assert "elements of parameter" in text and "Pass the states of all ranks." in text


# Which optimizers, and error messages ----------------------------------------------------------


class Signs(torch.optim.Optimizer):
    """A user's class that works element by element."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one -= group["lr"] * self.of(one.grad)

    def of(self, gradient: Tensor) -> Tensor:
        return gradient.sign()


class Normed(Signs):
    """A class that does not: each parameter's step has the same length."""

    def of(self, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()


class Together(Signs):
    """A class that does not either: it uses the norm of all parameters."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        own = [one for group in self.param_groups for one in group["params"]]
        nn.utils.clip_grad_norm_(own, 0.1)
        super().step()

    def of(self, gradient: Tensor) -> Tensor:
        return gradient


def tried(cls: Any, arguments: dict[str, Any]) -> str:
    return refused(lambda: Zero1(made("mlp").parameters(), cls, **arguments))


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def all_tried() -> dict[str, str]:
    optim, rate = torch.optim, {"lr": 0.1}
    right = {optim.SGD: rate, optim.Adam: rate, optim.AdamW: rate, optim.Adagrad: {},
             optim.Adadelta: {}, optim.Adamax: {}, optim.NAdam: {}, optim.RAdam: {},
             optim.RMSprop: {}, optim.Rprop: {}, optim.ASGD: {}, Signs: {}}  # fmt: skip
    wrong = {optim.LBFGS: {}, optim.SparseAdam: {}, optim.Adafactor: {}, optim.Muon: {},
             Normed: {}, Together: {}}  # fmt: skip
    said = {"right " + cls.__name__: tried(cls, own) for cls, own in right.items()}
    said |= {"wrong " + cls.__name__: tried(cls, own) for cls, own in wrong.items()}
    said["right fused"] = tried(optim.Adam, {"fused": True, "lr": 0.0, "amsgrad": True})
    said["right foreach"] = tried(optim.SGD, {"foreach": True, "lr": 0.1, "nesterov": True,
                                              "momentum": 0.9})  # fmt: skip
    said["wrong at rate 0"] = tried(Normed, {"lr": 0.0})
    return said


@pytest.mark.slow
def test_optimizers_that_work_element_by_element() -> None:
    for name, text in on_ranks(all_tried, world_size=1).values[0].items():
        if name.startswith("right"):
            assert text == "", name
        else:
            assert text.startswith("TypeError: "), name
            assert "does not work element by element" in text, name


def sparse(stage: int) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = STAGES[stage](model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.tensor([1])).sum().backward()
    optimizer.step()


def moved() -> None:
    model = made("mlp")
    optimizer = Zero1(model.parameters(), torch.optim.SGD, lr=0.1)
    model.double()
    optimizer.step()


def thawed() -> None:
    model: Any = made("frozen")
    optimizer = Zero1(model.parameters(), torch.optim.SGD, lr=0.1)
    model.requires_grad_(True)
    model(torch.ones(2, 7)).sum().backward()
    optimizer.step()


def late() -> None:
    model = made("mlp")
    optimizer = Zero1(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 7)).sum().backward()
        optimizer.clip_grad_norm_(1.0)
    optimizer.step()


def sharing() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.detach())
    Zero1([*first.parameters(), *second.parameters()], torch.optim.SGD)


def other_model() -> None:
    optimizer = Zero1(made("mlp").parameters(), torch.optim.SGD)
    state = Zero1(made("few").parameters(), torch.optim.SGD).full_state_dict()
    optimizer.load_full_state_dict(state)


def over_data_parallel() -> None:
    Zero2(DataParallel(made("mlp")).parameters(), torch.optim.SGD)


REFUSED: dict[str, Callable[[], object]] = {
    "TypeError: a gradient of shape (5, 3) is sparse, but shards": lambda: sparse(1),
    "TypeError: a gradient of shape (5, 3) is sparse, but": lambda: sparse(2),
    "RuntimeError: a parameter of shape (5,) has moved to other memory": moved,
    "RuntimeError: a parameter of shape (9, 7) was frozen when": thawed,
    "RuntimeError: gradients were computed after clip_grad_norm_": late,
    "ValueError: two parameters, one of shape (3, 3), share memory": sharing,
    "ValueError: the saved state has groups of [2] parameters, but this": other_model,
    "ValueError: the gradient of a parameter of shape (33, 7) is already": over_data_parallel,
    "ValueError: bucket_cap_mb=0 is not above 0. Pass": lambda: in_stage(1, bucket_cap_mb=0)(
        made("mlp").parameters(), torch.optim.SGD, {}
    ),
    "ValueError: no parameter needs a gradient": lambda: Zero1(
        made("mlp").requires_grad_(False).parameters(), torch.optim.SGD
    ),
    "ValueError: Invalid learning rate: -1": lambda: Zero1(
        made("mlp").parameters(), torch.optim.SGD, lr=-1
    ),
    "TypeError: optimizer_class='Adam' is not an optimizer": lambda: tried_as_text(),
    "TypeError: Zero2 reduces gradients itself": lambda: in_stage(2, reduces=False)(
        made("mlp").parameters(), torch.optim.SGD, {}
    ),
}


def tried_as_text() -> None:
    name: Any = "Adam"
    Zero1(made("mlp").parameters(), name)


def all_refused() -> dict[str, str]:
    return {says: refused(call) for says, call in REFUSED.items()}


@pytest.mark.slow
def test_unsupported_arguments_and_optimizers_are_refused() -> None:
    for values in on_ranks(all_refused, world_size=2).values:
        for says, text in values.items():
            assert text.startswith(says)
