"""Master weights against the same steps by hand, in fp32, and on ranks."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Optimizer

from dtlab.parallel.data import DataParallel
from dtlab.training import master_weights
from dtlab.training.learning_rate import WarmupThenDecay
from dtlab.training.live import held_bytes
from dtlab.training.loss_scaling import DynamicLossScaler
from dtlab.training.master_weights import MasterWeights, naive_master_step
from dtlab.training.models import GPT, MLP, GPTConfig
from tests.staying import on_ranks

BF16, FP16 = torch.bfloat16, torch.float16
EXACT = {"rtol": 0, "atol": 0}
OPTIMIZERS: dict[str, partial[Optimizer]] = {
    "SGD": partial(SGD, lr=1e-2, momentum=0.9, weight_decay=1e-2),
    "AdamW": partial(AdamW, lr=1e-3),
    "AdamW, fused": partial(AdamW, lr=1e-3, fused=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, centered=True),
    "NAdam": partial(torch.optim.NAdam, lr=1e-3),
    "Adafactor": partial(torch.optim.Adafactor, lr=1e-2),
}


def mlp() -> MLP:
    return MLP(6, 5, 3, seed=1)


def tokens() -> Tensor:
    return torch.arange(15).view(3, 5) % 11


def gpt() -> GPT:
    return GPT(GPTConfig(vocab_size=11, context=5, num_layers=1, num_heads=2, width=8), seed=1)


def loss_of(model: nn.Module, step: int) -> Tensor:
    if any(isinstance(part, nn.Embedding) for part in model.modules()):
        logits = model(tokens()).flatten(0, 1).float()
        return F.cross_entropy(logits, tokens().roll(step).flatten())
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(7, 6, generator=generator).to(next(model.parameters()).dtype)
    loss: Tensor = model(inputs).float().square().mean()
    return loss


def masters_by_hand(
    model: nn.Module, make: Callable[[list[nn.Parameter]], Optimizer], steps: int
) -> Iterator[list[Tensor]]:
    """Training in fp32, with the gradients of the rounded model: the masters after each step."""
    names = dict(model.named_parameters())  # a tied parameter comes once
    half = {name: each.detach().clone() for name, each in names.items()}
    full = {name: nn.Parameter(each.float()) for name, each in half.items()}
    optimizer = make(list(full.values()))
    for step in range(steps):
        model.load_state_dict(half, strict=False)
        model.zero_grad()
        loss_of(model, step).backward()
        for name, each in full.items():
            gradient = names[name].grad
            assert gradient is not None
            each.grad = gradient.float()
        optimizer.step()
        half = {name: full[name].detach().to(each.dtype) for name, each in half.items()}
        yield [each.detach().clone() for each in full.values()]


def train(model: nn.Module, optimizer: Optimizer, steps: Any) -> None:
    for step in steps:
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()


# Beside fp32 --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "make", "name"),
    [
        *((BF16, make, name) for make in (mlp, gpt) for name in OPTIMIZERS),
        *((FP16, mlp, name) for name in ("SGD", "AdamW")),
    ],
)
def test_the_masters_train_in_fp32_on_the_rounded_models_gradients(
    dtype: torch.dtype, make: Callable[[], nn.Module], name: str
) -> None:
    of = OPTIMIZERS[name]
    model = make().to(dtype)
    optimizer = MasterWeights(model.parameters(), of.func, **of.keywords)
    for step, expected in enumerate(masters_by_hand(make().to(dtype), of, steps=4)):
        train(model, optimizer, [step])
        torch.testing.assert_close([m.detach() for m in optimizer.masters], expected, **EXACT)
        rounded = [each.to(dtype) for each in expected]
        torch.testing.assert_close([p.detach() for p in model.parameters()], rounded, **EXACT)


def test_where_gradients_are_the_same_they_train_as_fp32_does() -> None:
    """A loss that is linear: rounding the parameters does not change its gradients."""
    slopes = torch.tensor([1.0, -0.5, 2.0**-10])
    half, full = nn.Parameter(torch.ones(3, dtype=BF16)), nn.Parameter(torch.ones(3))
    ours, alone = MasterWeights([half], AdamW, lr=1e-4), AdamW([full], lr=1e-4)
    for _ in range(60):
        for parameter, optimizer in ((half, ours), (full, alone)):
            optimizer.zero_grad()
            (parameter.float() @ slopes).backward()
            optimizer.step()
    torch.testing.assert_close(ours.masters[0], full, **EXACT)
    assert (half != 1).all()  # it moved, and in bf16 alone it would not
    stuck = nn.Parameter(torch.ones(3, dtype=BF16))
    naive = AdamW([stuck], lr=1e-4, weight_decay=0)
    for _ in range(60):
        naive.zero_grad()
        (stuck.float() @ slopes).backward()
        naive.step()
    assert (stuck == 1).all()


def test_the_naive_step_is_the_same() -> None:
    model, other = mlp().to(BF16), mlp().to(BF16)
    parameters = list(model.parameters())
    masters = [nn.Parameter(each.detach().float()) for each in parameters]
    naive, ours = SGD(masters, lr=0.1), MasterWeights(other.parameters(), SGD, lr=0.1)
    for step in range(3):
        model.zero_grad()
        loss_of(model, step).backward()
        naive_master_step(naive, parameters, masters)
        train(other, ours, [step])
    for one, two in zip(masters, ours.masters, strict=True):
        torch.testing.assert_close(one, two, **EXACT)


def test_the_table_at_the_top_is_right() -> None:
    alone, half = (nn.Parameter(torch.ones(1, dtype=BF16)) for _ in range(2))
    optimizers = [SGD([alone], lr=0.001), MasterWeights([half], SGD, lr=0.001)]
    names = ("bf16 alone", "master, in fp32", "its copy in bf16")
    rows: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(3):
        for parameter, optimizer in zip((alone, half), optimizers, strict=True):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        for row, now in zip(rows.values(), (alone, optimizers[1].masters[0], half), strict=True):  # type: ignore[attr-defined]
            row.append(now.item())
    for name, row in rows.items():
        line = next(each for each in (master_weights.__doc__ or "").splitlines() if name in each)
        numbers = re.findall(r"= (\d\.\d+)" if "=" in line else r"(\d\.\d+)", line)
        assert [f"{each:.3f}" for each in row] == numbers


# Parameters of all kinds --------------------------------------------------------------


def test_tied_parameters_have_one_master() -> None:
    model = gpt().to(BF16)
    both = [model.head.weight, *model.parameters()]  # given twice
    optimizer = MasterWeights(both, AdamW, lr=1e-3)
    assert len(optimizer.masters) == len(list(model.parameters()))
    train(model, optimizer, range(2))
    assert model.head.weight is model.token_embedding.weight
    torch.testing.assert_close(model.head.weight.float(), optimizer.masters[0], rtol=1e-2, atol=0)


def test_other_formats_frozen_and_unused_parameters() -> None:
    model = mlp().to(BF16)
    norm, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, dtype=BF16))
    model.layers[0].weight.requires_grad_(False)
    frozen = model.layers[0].weight.clone()
    optimizer = MasterWeights([*model.parameters(), norm, unused], SGD, lr=0.1)
    assert any(each is norm for each in optimizer.masters)  # fp32 needs no copy
    (loss_of(model, 0) + norm.sum()).backward()
    optimizer.step()
    assert norm.tolist() == pytest.approx([0.9] * 3)
    assert model.layers[0].weight.equal(frozen)
    assert unused.tolist() == [1, 1]
    assert norm.grad is not None
    optimizer.zero_grad()
    assert all(each.grad is None for each in [*model.parameters(), *optimizer.masters])


def test_groups_names_and_a_schedule() -> None:
    model, later = mlp().to(BF16), nn.Parameter(torch.ones(2, dtype=BF16))
    weights = [each for each in model.named_parameters() if each[1].ndim == 2]
    biases = [each for each in model.named_parameters() if each[1].ndim == 1]
    groups = [{"params": weights, "lr": 0.1}, {"params": biases}]
    optimizer = MasterWeights(groups, SGD, lr=0.2)
    schedule = WarmupThenDecay(optimizer, 2, 4, start_factor=0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]
    before = [each.detach().clone() for each in optimizer.masters]
    loss_of(model, 0).backward()
    gradients = [each.grad for _, each in (*weights, *biases)]
    optimizer.step()
    schedule.step()
    for was, now, gradient, rate in zip(
        before, optimizer.masters, gradients, [0.05, 0.05, 0.1, 0.1], strict=True
    ):
        torch.testing.assert_close(now, was - rate * gradient.float())
    inner = [group["lr"] for group in optimizer.optimizer.param_groups]
    assert inner == pytest.approx([0.075, 0.15])
    with pytest.raises(ValueError, match="param"):  # torch's: names for all, or for none
        optimizer.add_param_group({"params": later})
    optimizer.add_param_group({"params": [("later", later)], "lr": 0.25})
    later.grad = torch.ones_like(later)
    optimizer.zero_grad(set_to_none=False)
    assert later.grad.tolist() == [0, 0]
    later.grad += 1
    optimizer.step()
    assert later.tolist() == [0.75, 0.75]
    assert optimizer.masters[-1].dtype == torch.float32
    assert len(optimizer.param_groups) == 3


def test_a_closure_computes_where_the_masters_are() -> None:
    """LBFGS calls it several times within a step."""
    target = torch.tensor([0.3, -0.7])
    half = nn.Parameter(torch.zeros(2, dtype=BF16))
    optimizer = MasterWeights([half], torch.optim.LBFGS, lr=1.0, max_iter=5)
    seen = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (half.float() - target).square().sum()
        loss.backward()
        seen.append(loss.item())
        return loss

    first = optimizer.step(closure)
    assert first.item() == seen[0] == pytest.approx(0.58)
    assert len(seen) > 1
    assert seen[-1] < 1e-5
    torch.testing.assert_close(half.float(), target, rtol=1e-2, atol=0)


def test_adam_holds_sixteen_bytes_per_parameter_in_a_step() -> None:
    """ZeRO's count: weights 2, gradients 2, master 4, Adam's two moments 8."""
    model = MLP(64, 128, 10).to(BF16)
    optimizer = MasterWeights(model.parameters(), Adam, lr=1e-3, fused=True)
    loss = model(torch.ones(2, 64, dtype=BF16)).sum()
    loss.backward()
    optimizer.step()
    num = sum(each.numel() for each in model.parameters())
    counters = 4 * len(list(model.parameters()))  # Adam's numbers of steps
    assert held_bytes(model, optimizer.masters, optimizer) == 16 * num + counters


# State --------------------------------------------------------------------------------


def test_a_resumed_run_continues_from_the_saved_state() -> None:
    def fresh() -> tuple[nn.Module, MasterWeights]:
        model = mlp().to(BF16)
        return model, MasterWeights(model.parameters(), AdamW, lr=1e-4)

    model, optimizer = fresh()
    train(model, optimizer, range(5))
    saved = torch.load(_file_of(optimizer.state_dict()))
    train(model, optimizer, range(5, 9))

    again, resumed = fresh()
    resumed.load_state_dict(saved)
    train(again, resumed, range(5, 9))
    for one, two in zip(optimizer.masters, resumed.masters, strict=True):
        torch.testing.assert_close(one, two, **EXACT)
    for old, new in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(old, new, **EXACT)
    assert resumed.state is resumed.optimizer.state


def _file_of(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_parameters_that_something_else_has_changed() -> None:
    model = mlp().to(BF16)
    optimizer = MasterWeights(model.parameters(), SGD, lr=0.0)
    changed = [torch.full_like(each, 0.25) for each in model.parameters()]
    for reads in (False, True):
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), changed, strict=True):
                parameter.copy_(value)
        if reads:
            optimizer.read_parameters()
        train(model, optimizer, [0])
        kept = all(p.equal(c) for p, c in zip(model.parameters(), changed, strict=True))
        assert kept == reads


def test_errors_say_what_is_wrong() -> None:
    optimizer = MasterWeights(mlp().to(BF16).parameters(), SGD, lr=0.1)
    other = MasterWeights(MLP(6, 4, 3).to(BF16).parameters(), SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"4 16-bit parameters, of shapes \[\(5, 6\)"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="has 0 masters"):
        optimizer.load_state_dict(SGD(mlp().parameters(), lr=0.1).state_dict())
    with pytest.raises(TypeError, match="class of torch.optim and its arguments, not SGD"):
        MasterWeights(mlp().parameters(), SGD(mlp().parameters(), lr=0.1))
    with pytest.raises(TypeError, match="a list of parameters.* not one tensor"):
        MasterWeights(nn.Parameter(torch.ones(2, dtype=BF16)), SGD, lr=0.1)
    with pytest.raises(TypeError, match="sets"):  # torch's own, as are all of these
        MasterWeights([{"params": set(mlp().to(BF16).parameters())}], SGD, lr=0.1)
    with pytest.raises(ValueError, match="empty parameter list"):
        MasterWeights([], SGD, lr=0.1)


# With a loss scaler -------------------------------------------------------------------


@pytest.mark.parametrize("scaler_of", [DynamicLossScaler, partial(torch.amp.GradScaler, "cpu")])
def test_gradients_in_fp16_are_unscaled_and_clipped_in_fp32(scaler_of: Any) -> None:
    """Masters as by hand: gradients times 2^12 in fp16, cast, divided, clipped."""
    scaler = scaler_of(init_scale=2.0**12)
    model, hand = mlp().to(FP16), mlp().to(FP16)
    optimizer = MasterWeights(model.parameters(), SGD, lr=0.5)
    masters = [nn.Parameter(each.detach().float()) for each in hand.parameters()]
    by_hand = SGD(masters, lr=0.5)
    for step in range(4):
        bad = float("inf") if step == 1 else 1.0
        scaler.scale(loss_of(model, step) * bad).backward()
        optimizer.cast_gradients()
        scaler.unscale_(optimizer)
        clip_grad_norm_(optimizer.masters, 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        hand.zero_grad()
        (loss_of(hand, step) * (2.0**12 if step < 1 else 2.0**11)).backward()
        for master, parameter in zip(masters, hand.parameters(), strict=True):
            master.grad = parameter.grad.float() / (2.0**12 if step < 1 else 2.0**11)
        clip_grad_norm_(masters, 0.1)
        if step != 1:
            by_hand.step()
        for master, parameter in zip(masters, hand.parameters(), strict=True):
            parameter.data.copy_(master)
    for one, two in zip(optimizer.masters, masters, strict=True):
        torch.testing.assert_close(one, two)


def test_a_scaler_says_where_gradients_were_not_cast() -> None:
    scaler, model = DynamicLossScaler(), mlp().to(FP16)
    optimizer = MasterWeights(model.parameters(), SGD, lr=0.1)
    scaler.scale(loss_of(model, 0)).backward()
    with pytest.raises(RuntimeError, match="MasterWeights, also call cast_gradients"):
        scaler.step(optimizer)


# Ranks --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_replicas_stay_equal_and_near_one_process(n: int) -> None:
    def inputs(rank: int, step: int) -> Tensor:
        return torch.linspace(-1, 1, 12).view(2, 6).roll(rank + 2 * step).to(BF16)

    def ranks() -> tuple[list[Tensor], list[Tensor]]:
        model = DataParallel(mlp().to(BF16))
        optimizer = MasterWeights(model.parameters(), AdamW, lr=1e-3)
        for step in range(5):
            model(inputs(dist.get_rank(), step)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        masters = [each.detach() for each in optimizer.masters]
        return masters, [each.detach() for each in model.parameters()]

    model = mlp().to(BF16)
    alone = MasterWeights(model.parameters(), AdamW, lr=1e-3)
    for step in range(5):
        batch = torch.cat([inputs(rank, step) for rank in range(n)])
        model(batch).float().square().mean().backward()
        alone.step()
        alone.zero_grad()
    first, *others = on_ranks(ranks, world_size=n).values
    for each in others:
        torch.testing.assert_close(each, first, **EXACT)
    expected = [each.detach() for each in alone.masters]
    torch.testing.assert_close(first[0], expected, rtol=0, atol=2e-3)  # of five steps of 1e-3
    assert any(not torch.equal(one, two.float()) for one, two in zip(*first, strict=True))
