"""The loss scaler against PyTorch's: any sequence of gradients, and any order of calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from dtlab.parallel.data import DataParallel
from dtlab.training import loss_scaling
from dtlab.training.accumulation import accumulate
from dtlab.training.loss_scaling import DynamicLossScaler, StaticLossScaler, has_overflowed
from tests.staying import on_ranks

Scaler = Any  # ours or PyTorch's: they are used alike
INF, NAN = math.inf, math.nan


def of_torch(*args: Any, **kwargs: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", *args, **kwargs)


# Beside PyTorch's ---------------------------------------------------------------------


class Training:
    """Two optimizers, of two parameters and one, and a scaler. Gradients are given, in fp16."""

    def __init__(self, scaler: Scaler, dtype: torch.dtype = torch.float32) -> None:
        self.scaler = scaler
        self.parameters = [
            [nn.Parameter(torch.linspace(-1, 1, n).to(dtype)) for n in sizes]
            for sizes in ([3, 2], [4])
        ]
        first, second = self.parameters
        self.optimizers = [torch.optim.SGD(first, lr=0.1, momentum=0.9),
                           torch.optim.Adam(second, lr=0.1)]  # fmt: skip

    def backward(self, which: int, number: float) -> None:
        """Gradients of a scaled loss in fp16: a large number becomes inf at a large scale."""
        for place, parameter in enumerate(self.parameters[which]):
            true = torch.arange(1.0, len(parameter) + 1) * 1e-3
            true[-1] = number if place == 0 else true[-1]
            parameter.grad = self.scaler.scale(true).half().to(parameter.dtype)

    def no_gradients(self, which: int) -> None:
        self.optimizers[which].zero_grad()

    def half_gradients(self, which: int) -> None:
        last = self.parameters[which][-1]
        last.grad_dtype = None
        last.grad = torch.ones_like(last, dtype=torch.half)

    def unscale(self, which: int) -> None:
        self.scaler.unscale_(self.optimizers[which])

    def clip(self, which: int) -> None:
        clip_grad_norm_(self.parameters[which], 0.01)

    def step(self, which: int) -> None:
        self.scaler.step(self.optimizers[which])

    def closure(self, which: int) -> None:
        self.scaler.step(self.optimizers[which], closure=lambda: 0.0)

    def update(self, scale: float | None = None) -> None:
        self.scaler.update(scale)

    def reload(self) -> None:
        """Continue from the state of the other one, which must give the same results."""

    def seen(self) -> str:
        """Everything that a scaler changes, to the last bit; as text, where NaN is NaN."""
        both = [each for group in self.parameters for each in group]
        gradients = [None if each.grad is None else each.grad.tolist() for each in both]
        values = [each.tolist() for each in both]
        return f"{self.scaler.state_dict()} {self.scaler.get_scale()} {values} {gradients}"


KINDS = {AssertionError: "order", RuntimeError: "order", ValueError: "value"}


def happens(training: Training, event: tuple[Any, ...]) -> str:
    """Do it, and say which kind of error came of it."""
    name, *arguments = event
    try:
        getattr(training, name)(*arguments)
    except tuple(KINDS) as error:
        return KINDS[type(error)]  # type: ignore[index]
    return ""


def alike(ours: Training, theirs: Training, events: list[tuple[Any, ...]]) -> None:
    """Check that both are equal to the last bit after each event."""
    for number, event in enumerate(events):
        outcomes = happens(ours, event), happens(theirs, event)
        assert outcomes[0] == outcomes[1], (number, event, outcomes)
        assert ours.seen() == theirs.seen(), (number, event)
        if event == ("reload",):
            states = ours.scaler.state_dict(), theirs.scaler.state_dict()
            ours.scaler.load_state_dict(states[1])
            theirs.scaler.load_state_dict(states[0])


which = st.integers(0, 1)
numbers = st.one_of(
    st.sampled_from([0.0, 1e-9, 1.0, INF, -INF, NAN]),
    st.floats(-3, 4).map(lambda power: 10.0**power),
)
constants = {
    "init_scale": st.sampled_from([1.0, 3.25, 2.0**8, 2.0**16, 2.0**24, 2.0**127]),
    "growth_factor": st.one_of(st.just(2.0), st.floats(1.01, 1e3)),
    "backoff_factor": st.one_of(st.just(0.5), st.floats(1e-3, 0.99)),
    "growth_interval": st.integers(1, 4),
}


@st.composite
def iterations(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Steps as they should be: both optimizers or one, with clipping or without."""
    events: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 12))):
        used = draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
        events += [("backward", each, draw(numbers)) for each in used]
        clipped = [each for each in used if draw(st.booleans())]
        events += [event for each in clipped for event in (("unscale", each), ("clip", each))]
        events += [("step", each) for each in used]
        events += [("update",), *draw(st.sampled_from([[], [], [("reload",)]]))]
    return events


any_event = st.one_of(
    st.tuples(st.just("backward"), which, numbers),
    st.tuples(st.sampled_from(["unscale", "step", "clip"]), which),
    st.tuples(st.sampled_from(["no_gradients", "half_gradients", "closure"]), which),
    st.sampled_from([("update",), ("update",), ("update", 7.3), ("reload",)]),
)


@pytest.mark.slow
@settings(max_examples=100)
@given(iterations(), st.fixed_dictionaries(constants),
       st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))  # fmt: skip
def test_good_and_overflowing_gradients(
    events: list[tuple[Any, ...]], given_constants: dict[str, Any], dtype: torch.dtype
) -> None:
    ours = Training(DynamicLossScaler(**given_constants), dtype)
    alike(ours, Training(of_torch(**given_constants), dtype), events)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(any_event, max_size=25), st.fixed_dictionaries(constants))
def test_any_order_of_calls(
    events: list[tuple[Any, ...]], given_constants: dict[str, Any]
) -> None:
    ours = Training(DynamicLossScaler(**given_constants))
    alike(ours, Training(of_torch(**given_constants)), events)


def test_the_constants_are_pytorchs() -> None:
    ours, theirs = Training(DynamicLossScaler()), Training(of_torch())
    state = ours.scaler.state_dict()
    assert state == theirs.scaler.state_dict()
    for training in (ours, theirs):
        training.scaler.load_state_dict({**state, "_growth_tracker": 1997})
    alike(ours, theirs, [("backward", 0, 0.1), ("step", 0), ("update",)] * 5)
    assert ours.scaler.get_scale() == 2**17


def test_a_run_that_is_nan_throughout_ends_at_a_scale_of_zero() -> None:
    ours, theirs = Training(DynamicLossScaler()), Training(of_torch())
    alike(ours, theirs, [("backward", 1, NAN), ("step", 1), ("update",)] * 170)
    assert ours.scaler.get_scale() == 0


def test_the_table_at_the_top_is_right() -> None:
    lines = (loss_scaling.__doc__ or "").splitlines()
    rows = {name: next(line for line in lines if line.startswith(f"    {name} ")).split()
            for name in ("scale", "gradients", "good")}  # fmt: skip
    training = Training(DynamicLossScaler(8.0, growth_interval=2))
    seen: dict[str, list[str]] = {"scale": ["scale"], "gradients": ["gradients"],
                                  "good": ["good", "in", "a", "row"]}  # fmt: skip
    for _ in range(8):
        scale = training.scaler.get_scale()
        training.backward(1, 65504 / 12)
        last = training.parameters[1][0].grad
        assert last is not None
        seen["scale"].append(f"{scale:g}")
        seen["gradients"].append("ok" if torch.isfinite(last).all() else "inf")
        training.step(1)
        training.update()
        seen["good"].append(str(training.scaler.state_dict()["_growth_tracker"]))
    assert seen["scale"] == rows["scale"]
    assert seen["gradients"] == rows["gradients"]
    assert seen["good"] == rows["good"][: len(seen["good"])]


def test_sparse_gradients_are_unscaled_too() -> None:
    def trained(scaler: Scaler) -> Tensor:
        table = nn.Embedding(5, 3, sparse=True)
        nn.init.ones_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for bad in (1.0, INF, 2.0):
            optimizer.zero_grad()
            scaler.scale(table(torch.tensor([1, 3, 3])).sum() * bad).backward()
            scaler.step(optimizer)
            scaler.update()
        return table.weight.detach()

    found = trained(DynamicLossScaler(8.0))
    torch.testing.assert_close(found, trained(of_torch(8.0)), rtol=0, atol=0)
    assert found[3].tolist() == pytest.approx([0.4] * 3)  # 1 - 2 x .1 x (1 + 2)


def test_a_fused_optimizer_skips_too() -> None:
    def trained(scaler: Scaler) -> Tensor:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
        for number in (1.0, 2.0, INF, 3.0, NAN, 1.0):
            optimizer.zero_grad()
            scaler.scale((parameter * torch.arange(3.0)).sum() * number).backward()
            scaler.step(optimizer)
            scaler.update()
        return parameter.detach()

    torch.testing.assert_close(trained(DynamicLossScaler(8.0)), trained(of_torch(8.0)))


def test_several_losses_and_what_step_returns() -> None:
    scaler, parameter = DynamicLossScaler(4.0), nn.Parameter(torch.ones(2))
    losses = [parameter.sum(), (parameter**2).sum()]
    assert [each.item() for each in scaler.scale(losses)] == [8, 8]
    assert isinstance(scaler.scale(tuple(losses)), tuple)
    # A loss in fp16 of 3 times 65536 is no number of fp16: PyTorch then uses fp32, and so do we.
    assert DynamicLossScaler().scale(torch.tensor(3.0).half()).item() == 3 * 65536

    class Answers(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return "stepped"

    optimizer = Answers([parameter], lr=1.0)
    for bad, answer in ((1.0, "stepped"), (INF, None)):
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * bad).backward()
        assert scaler.step(optimizer) == answer
        scaler.update()


def test_accumulation_scales_each_micro_batch() -> None:
    def of(scaled: bool) -> Tensor:
        layer = nn.Linear(3, 1)
        nn.init.ones_(layer.weight)
        scaler = DynamicLossScaler(2.0**10)
        batches = list(torch.arange(15.0).view(5, 3).split([2, 3]))
        how = {"backward": lambda loss: scaler.scale(loss).backward()} if scaled else {}
        accumulate(layer, batches, lambda model, batch: model(batch).sum(), **how)
        if scaled:
            scaler.unscale_(torch.optim.SGD(layer.parameters(), lr=1.0))
        assert layer.weight.grad is not None
        return layer.weight.grad

    torch.testing.assert_close(of(True), of(False))


# Overflow -----------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, -3e38, 3e38, INF, -INF, NAN]), max_size=40)),
       st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))  # fmt: skip
def test_overflow_is_found_also_if_a_sum_overflows(
    rows: list[list[float]], dtype: torch.dtype
) -> None:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    assert has_overflowed(tensors) == any(not math.isfinite(x) for row in rows for x in row)


# Static -------------------------------------------------------------------------------


def test_a_static_scale_skips_steps_and_does_not_change() -> None:
    ours, theirs = (Training(scaler) for scaler in (StaticLossScaler(64.0), of_torch(64.0)))
    for number, stepped in ((1.0, True), (INF, False), (1e4, False), (3.0, True)):
        ours.backward(0, number)
        theirs.backward(0, number)
        assert ours.scaler.step(ours.optimizers[0]) is stepped
        theirs.step(0)
        theirs.update(64.0)
        for one, other in zip(ours.parameters[0], theirs.parameters[0], strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(ValueError, match="a number above 0, not 0"):
        StaticLossScaler(0)


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"init_scale": 0.0}, "a number above 0, not 0.0"),
        ({"init_scale": INF}, "a number above 0, not inf"),
        ({"growth_factor": 1.0}, "above 1, not 1.0"),
        ({"growth_factor": NAN}, "above 1, not nan"),
        ({"backoff_factor": 1.0}, "between 0 and 1, not 1.0"),
        ({"backoff_factor": 0.0}, "between 0 and 1, not 0.0"),
        ({"growth_interval": 0}, "1 step or more, not 0"),
    ],
)
def test_constants_that_make_no_sense(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicLossScaler(**constants)


def test_errors_say_what_to_do() -> None:
    training = Training(scaler := DynamicLossScaler())
    says: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (RuntimeError, r"update was called before a loss .*scaler.scale\(loss\)", scaler.update),
        (TypeError, "list or tuple of tensors, not float", lambda: scaler.scale(1.0)),  # type: ignore[type-var]
        (RuntimeError, "update was called before any gradients", scaler.update),
        (RuntimeError, "closure", lambda: training.closure(0)),
        (RuntimeError, "closure", lambda: scaler.step(training.optimizers[0], lambda: 0.0)),
        (RuntimeError, "No parameter of this optimizer has a grad", lambda: training.step(1)),
        (ValueError, "not 0.0", lambda: scaler.update(0.0)),
        (ValueError, "lacks .*'scale'", lambda: scaler.load_state_dict({})),
        (ValueError, "1 step or more, not 0",
         lambda: scaler.load_state_dict({**scaler.state_dict(), "growth_interval": 0})),
    ]  # fmt: skip
    for error, message, call in says:
        with pytest.raises(error, match=message):
            call()
    training.backward(0, 1.0)
    training.unscale(0)
    with pytest.raises(RuntimeError, match="unscaled already.*Call update"):
        training.unscale(0)
    training.step(0)
    with pytest.raises(RuntimeError, match="unscale_ was called after step"):
        training.unscale(0)
    with pytest.raises(RuntimeError, match="stepped already. Call update"):
        training.step(0)
    training.update(torch.tensor(32.0))
    assert scaler.get_scale() == 32
    training.half_gradients(0)
    with pytest.raises(ValueError, match="1 gradients are fp16.*autocast, or use MasterWeights"):
        training.unscale(0)


# Ranks --------------------------------------------------------------------------------


def batch_of(rank: int, step: int) -> Tensor:
    """Samples of a rank. In step 1 rank 1 overflows, in step 3 rank 0 has NaN, whatever the scale.

    In step 4 a large gradient overflows at a scale of 1024, and in fp16 only.
    """
    samples = torch.arange(6.0).view(2, 3) / 10 + rank - step / 4
    if (rank, step) in ((1, 1), (0, 3)):
        samples[0, 0] = INF if step == 1 else NAN
    return samples


def trained(model: nn.Module, scaler: Scaler, ranks: list[int]) -> tuple[Tensor, list[float]]:
    """The parameters after six steps, and the scale after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        batch = torch.cat([batch_of(rank, step) for rank in ranks])
        scaler.scale(model(batch).square().mean()).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return torch.cat([each.detach().flatten() for each in model.parameters()]), scales


def layer() -> nn.Module:
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, 0.3)
    nn.init.zeros_(module.bias)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3])
def test_in_data_parallelism_one_ranks_overflow_is_everyones(n: int) -> None:
    constants = {"init_scale": 1024.0, "growth_interval": 2}

    def ranks() -> list[tuple[Tensor, list[float]]]:
        rank = [dist.get_rank()]
        return [
            trained(DataParallel(layer()), DynamicLossScaler(**constants), rank),
            trained(DistributedDataParallel(layer()), of_torch(**constants), rank),
        ]

    alone = trained(layer(), of_torch(**constants), list(range(n)))
    assert alone[1] == [1024, 512, 512, 256, 256, 512]
    for both in on_ranks(ranks, world_size=n).values:
        for parameters, scales in both:
            torch.testing.assert_close(parameters, alone[0])
            assert scales == alone[1]


@pytest.mark.slow
def test_data_parallelism_needs_no_message_of_the_scaler() -> None:
    def ranks(scaler: Scaler) -> None:
        trained(DataParallel(layer()), scaler, [dist.get_rank()])

    ops = [on_ranks(ranks, one, world_size=2).trace.ops(0) for one in
           (DynamicLossScaler(), of_torch())]  # fmt: skip
    assert ops[0] == ops[1]


class Shard:
    """A parameter of this rank alone, as in sharding; in a step only one rank overflows."""

    def __init__(self, scaler: DynamicLossScaler) -> None:
        self.scaler = scaler
        self.parameter = nn.Parameter(torch.ones(2 + dist.get_rank()))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.5)

    def step(self, number: float) -> tuple[float, float]:
        """The parameter afterwards, and the scale."""
        self.optimizer.zero_grad()
        self.scaler.scale(self.parameter.sum() * number).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.parameter[0].item(), self.scaler.get_scale()


@pytest.mark.slow
def test_shards_skip_together_with_a_group_and_part_without() -> None:
    def ranks(grouped: bool) -> list[tuple[float, float]]:
        group = dist.group.WORLD if grouped else None
        shard = Shard(DynamicLossScaler(8.0, group=group))
        return [shard.step(INF if dist.get_rank() == bad else 1.0) for bad in (9, 1, 9, 0)]

    together = on_ranks(ranks, True, world_size=3)
    assert together.values == [[(0.5, 8), (0.5, 4), (0, 4), (0, 2)]] * 3
    assert together.trace.ops(0)["all_reduce"] == 4
    apart = on_ranks(ranks, False, world_size=3)
    assert apart.values == [
        [(0.5, 8), (0, 8), (-0.5, 8), (-0.5, 4)],
        [(0.5, 8), (0.5, 4), (0, 4), (-0.5, 4)],
        [(0.5, 8), (0, 8), (-0.5, 8), (-1, 8)],
    ]
    assert apart.trace.ops(0)["all_reduce"] == 0


@pytest.mark.slow
def test_a_rank_without_gradients_and_one_with_fp16_ones() -> None:
    """The first takes part in the all-reduce; the second raises an error on every rank."""

    def ranks() -> tuple[float, str]:
        pair = dist.new_group([1, 2])  # the all-reduce is in the group, not in the world
        if dist.get_rank() == 0:
            return 0.0, ""
        shard = Shard(DynamicLossScaler(8.0, group=pair))
        if dist.get_rank() == 2:
            shard.parameter.requires_grad_(False)
            shard.scaler.scale(torch.ones(()))
            shard.scaler.step(shard.optimizer)
            shard.scaler.update()
        else:
            shard.step(NAN)
        scale = shard.scaler.get_scale()
        if dist.get_rank() == 1:
            shard.parameter.grad_dtype = None
            shard.parameter.grad = torch.ones_like(shard.parameter, dtype=torch.half)
        with pytest.raises(ValueError, match="1 gradients are fp16") as caught:
            shard.scaler.unscale_(shard.optimizer)
        return scale, str(caught.value)

    _, one, two = on_ranks(ranks, world_size=3).values
    assert one == two
    assert one[0] == 4


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_a_named_tuple_of_losses() -> None:
    scaled = DynamicLossScaler(8.0).scale(Pair(torch.tensor(1.0), torch.tensor(2.0)))
    assert isinstance(scaled, Pair)
    assert (float(scaled.first), float(scaled.second)) == (8.0, 16.0)


@pytest.mark.parametrize("make", [StaticLossScaler, DynamicLossScaler])
@pytest.mark.parametrize("default", [torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_scaled_loss_is_finite(make: Any, default: torch.dtype, dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert float(make().scale(torch.tensor(2.0, dtype=dtype))) == 2.0**17
    finally:
        torch.set_default_dtype(before)
