"""Memory, parameters, operations and traffic against the papers' tables, and against PyTorch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from dtlab import predict
from dtlab.predict import memory
from dtlab.predict.memory import (
    POLICIES,
    PrecisionPolicy,
    activation_bytes,
    first_stage_activation_bytes,
    floor_bytes,
    gpt_flops,
    gpt_parameters,
    in_gb,
    in_gib,
    model_states,
    precision_policy,
    smallest_world_size,
    zero_traffic,
)
from dtlab.training.live import held_bytes
from dtlab.training.models import GPT, GPTConfig

GB = 1e9
PRESETS = ["fp32", "mixed", "mixed_fp32_grads", "mixed_fp32_accumulation", "half_only"]


# ----------------------------------------------------------------------------- bytes per parameter


@pytest.mark.parametrize(
    ("name", "weights", "gradients", "master", "moments", "total", "seven_billion"),
    [
        ("fp32", 4, 4, 0, 8, 16, "112 GB"),
        ("mixed", 2, 2, 4, 8, 16, "112 GB"),
        ("mixed_fp32_grads", 2, 4, 4, 8, 18, "126 GB"),
        ("mixed_fp32_accumulation", 2, 2 + 4, 4, 8, 20, "140 GB"),
        ("half_only", 2, 2, 0, 4, 8, "56 GB"),
    ],
)
def test_bytes_per_parameter(
    name: str, weights: int, gradients: int, master: int, moments: int, total: int,
    seven_billion: str,
) -> None:  # fmt: skip
    policy = precision_policy(name)
    assert policy.name == name and policy.source
    assert (policy.weights, policy.gradients + policy.accumulation) == (weights, gradients)
    assert (policy.master, policy.moments, policy.total) == (master, moments, total)
    states = model_states(7e9, 0, 1, name)
    assert in_gb(states.total) == seven_billion
    assert states.parameters == weights * 7e9 and states.gradients == gradients * 7e9
    assert states.optimizer == (master + moments) * 7e9


def test_the_presets_are_those_of_the_table() -> None:
    assert list(POLICIES) == PRESETS


def test_a_users_policy() -> None:
    eight_bit = PrecisionPolicy("8-bit Adam", 2, 2, master=4, moments=2, source="Dettmers 2021")
    assert model_states(1e9, 1, 4, eight_bit).total == 5.5e9
    assert precision_policy(eight_bit) is eight_bit


@pytest.mark.slow
def test_fp32_is_what_a_model_holds_under_adam() -> None:
    model = nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    num_params = sum(one.numel() for one in parameters)
    states = model_states(num_params, 0, 1, "fp32")
    assert held_bytes(parameters) == states.parameters + states.gradients  # .grad is held too
    counters = 4 * len(parameters)  # Adam counts steps, once for each tensor
    assert held_bytes(optimizer) == states.optimizer + counters


# ----------------------------------------------------------------------------- ZeRO

ZERO_TABLE = """
    1     120   120   120    2048 2048 2048
    4     52.5  41.3  30     896  704  512
    16    35.6  21.6  7.5    608  368  128
    64    31.4  16.6  1.88   536  284  32
    256   30.4  15.4  0.47   518  263  8
    1024  30.1  15.1  0.12   513  257  2
"""  # Table 1 of the paper: ranks; GB at 7.5 billion parameters, stage 1, 2, 3; at 128 billion
CELLS = [
    (float(size), stage, int(line.split()[0]), printed)
    for line in ZERO_TABLE.strip().splitlines()
    for (size, stage), printed in zip(
        [(7.5e9, 1), (7.5e9, 2), (7.5e9, 3), (128e9, 1), (128e9, 2), (128e9, 3)],
        line.split()[1:],
        strict=True,
    )
]


@pytest.mark.parametrize(("num_params", "stage", "world_size", "printed"), CELLS)
def test_every_cell_of_zero(num_params: float, stage: int, world_size: int, printed: str) -> None:
    total = Decimal(model_states(num_params, stage, world_size, "mixed").total) / 10**9
    places = Decimal(printed)  # halves up; the integers of the large model are cut off
    rounding = ROUND_DOWN if num_params == 128e9 else ROUND_HALF_UP
    assert total.quantize(places, rounding) == places


def test_the_picture_of_the_stages_is_right() -> None:
    rows = re.findall(r"stage (\d) .*?(\d[\d. ]+)\n", memory.__doc__ or "")
    assert [int(stage) for stage, _ in rows] == [0, 1, 2, 3]
    for stage, numbers in rows:
        states = model_states(1e9, int(stage), 4, "mixed")
        held = (states.parameters, states.gradients, states.optimizer, states.total)
        assert [each / 1e9 for each in held] == [float(number) for number in numbers.split()]


STATES = {
    "num_params": st.integers(1, 10**13),
    "world_size": st.integers(1, 10**5),
    "policy": st.sampled_from(PRESETS),
}


@given(**STATES)
def test_later_stages_and_more_ranks_hold_less(
    num_params: int, world_size: int, policy: str
) -> None:
    stages = [model_states(num_params, stage, world_size, policy) for stage in range(4)]
    totals = [each.total for each in stages]
    assert totals == sorted(totals, reverse=True)
    assert stages[0] == model_states(num_params, 0, 1, policy)
    for stage, states in enumerate(stages):
        more = model_states(num_params, stage, world_size + 1, policy)
        for part in ("parameters", "gradients", "optimizer", "total"):
            assert getattr(more, part) <= getattr(states, part)
        assert states.total == pytest.approx(
            states.parameters + states.gradients + states.optimizer, rel=1e-15
        )
        assert states.total >= floor_bytes(num_params, stage, policy)


@given(**STATES)
def test_all_shards_together_are_the_whole(num_params: int, world_size: int, policy: str) -> None:
    whole = model_states(num_params, 0, 1, policy)
    shard = model_states(num_params, 3, world_size, policy)
    assert shard.total * world_size == pytest.approx(whole.total, rel=1e-15)
    for stage, parts in enumerate([(), ("optimizer",), ("optimizer", "gradients")]):
        states = model_states(num_params, stage, world_size, policy)
        for part in ("parameters", "gradients", "optimizer"):
            shards = world_size if part in parts else 1
            held = getattr(states, part) * shards
            assert held == pytest.approx(getattr(whole, part), rel=1e-15)


def test_an_accumulation_buffer_is_sharded_with_the_gradients() -> None:
    for stage, gradients in enumerate([6e9, 6e9, 1.5e9, 1.5e9]):
        assert model_states(1e9, stage, 4, "mixed_fp32_accumulation").gradients == gradients


# ----------------------------------------------------------------------------- how many ranks


@given(
    **STATES,
    stage=st.integers(0, 3),
    budget=st.integers(1, 10**12),
    kept=st.integers(0, 10**11),
)
def test_the_smallest_world_size_fits_and_one_less_does_not(
    num_params: int, world_size: int, policy: str, stage: int, budget: int, kept: int
) -> None:
    found = smallest_world_size(num_params, stage, budget, policy, activation_bytes=kept)
    parts = precision_policy(policy).parts
    shared = (stage >= 3, stage >= 2, stage >= 1)

    def fits(ranks: int) -> bool:  # exactly
        held = sum(
            Fraction(int(part) * num_params, ranks if sharded else 1)
            for part, sharded in zip(parts, shared, strict=True)
        )
        return held + kept <= budget

    if found is None:
        assert not fits(10**30)
    else:
        assert fits(found)
        assert found == 1 or not fits(found - 1)
        assert model_states(num_params, stage, found, policy).total + kept <= budget
        assert fits(world_size) == (world_size >= found or stage == 0)


def test_one_byte_more_needs_another_rank() -> None:
    assert smallest_world_size(175e9, 3, 80e9, "mixed") == 35
    assert model_states(175e9, 3, 35, "mixed").total == 80e9  # exactly full
    assert smallest_world_size(175e9, 3, 80e9 - 1, "mixed") == 36
    assert smallest_world_size(175e9, 3, 80e9, "mixed", activation_bytes=1) == 36
    assert smallest_world_size(5e9, 0, 80e9, "mixed") == 1
    assert smallest_world_size(5e9, 0, 80e9 - 1, "mixed") is None


def test_a_stage_whose_floor_is_too_high_never_fits() -> None:
    assert floor_bytes(20e9, 1, "mixed") == 80e9
    assert smallest_world_size(20e9, 1, 80e9, "mixed") is None  # nothing left for the shards
    assert smallest_world_size(20e9, 1, 80e9 + 1, "mixed") == 240_000_000_000
    assert smallest_world_size(20e9, 2, 80e9, "mixed") == 7
    assert smallest_world_size(20e9, 3, 80e9, "mixed", activation_bytes=81e9) is None


# ----------------------------------------------------------------------------- activations


def layer(recompute: str = "none", t: int = 1, sp: bool = False, **switches: bool) -> float:
    """Bytes for one of the sbh elements of GPT-3's layer: s 2048, h 12288, a 96, so as/h = 16."""
    total = activation_bytes(2048, 3, 12288, 96, t, sp, recompute, **switches)  # type: ignore[arg-type]
    return total / (2048 * 3 * 12288)


@pytest.mark.parametrize("t", [1, 2, 8])
def test_every_row_of_the_table_of_activations(t: int) -> None:
    assert layer() == 34 + 80
    assert layer(t=t) == 10 + 24 / t + 80 / t
    assert layer(t=t, sp=True) == (34 + 80) / t
    assert layer("selective", t) == 10 + 24 / t
    assert layer("selective", t, sp=True) == 34 / t
    assert layer("full", t) == 2
    assert layer("full", t, sp=True) == 2 / t  # a count: `test_tensor_parallel.py`


def test_switches_of_the_formula() -> None:
    assert layer(dropout=False) == 32 + 2 * 16
    assert layer(fused_attention=True) == layer("selective") == 34
    assert layer(dropout=False, fused_attention=True) == layer("selective", dropout=False) == 32
    assert layer(t=4, dropout=False) == 8 + 24 / 4 + 2 * 16 / 4
    assert layer(t=4, sp=True, dropout=False) == (32 + 2 * 16) / 4
    assert layer("full", dropout=False, fused_attention=True) == 2
    small = activation_bytes(64, 2, 32, 4)  # a block where the formula gives 74
    assert small == 74 * 64 * 2 * 32


def test_a_rank_keeps_whole_bytes() -> None:
    assert activation_bytes(7, 3, 15, 5) == 7 * 3 * 15 * 34 + 5 * 5 * 7 * 7 * 3
    assert isinstance(activation_bytes(10, 1, 15, 5, 5, True), int)


@given(
    s=st.integers(1, 64), b=st.integers(1, 8), a=st.integers(1, 8), t=st.integers(1, 8),
    head=st.integers(1, 64), sp=st.booleans(), dropout=st.booleans(), fused=st.booleans(),
)  # fmt: skip
def test_less_is_kept_by_each_switch(
    s: int, b: int, a: int, t: int, head: int, sp: bool, dropout: bool, fused: bool
) -> None:
    def kept(ranks: int, sp: bool, recompute: str, dropout: bool, fused: bool) -> int:
        return activation_bytes(
            s * t, b, a * t * head, a * t, ranks, sp, recompute, dropout, fused  # type: ignore[arg-type]
        )  # fmt: skip

    none, selective = (kept(t, sp, each, dropout, fused) for each in ("none", "selective"))
    assert selective <= none <= kept(t, False, "none", dropout, fused)
    assert none <= kept(1, sp, "none", dropout, fused)
    assert none <= kept(t, sp, "none", True, fused)
    assert none <= kept(t, sp, "none", dropout, False)
    whole = kept(1, False, "none", dropout, fused)
    assert kept(t, True, "none", dropout, fused) * t == whole
    tokens = s if sp else s * t  # whose input a rank has
    assert kept(t, sp, "full", dropout, fused) == 2 * tokens * b * a * t * head
    assert kept(t, sp, "full", dropout, fused) <= selective


def test_what_selective_recomputation_saves_and_costs() -> None:
    sizes = (96, 12288, 51200, 2048, 1)  # 175 billion parameters
    assert layer() - layer("selective") == 80  # 5as/h
    assert round(100 * (1 - layer("selective") / layer())) == 70
    model, counted, printed, full = (
        gpt_flops(*sizes, recompute=each)  # type: ignore[arg-type]
        for each in ("none", "selective", "selective_as_printed", "full")
    )
    assert round(100 * (printed / model - 1), 1) == 2.7
    assert round(100 * (counted / model - 1), 1) == 0.9
    assert 32 < 100 * (full / model - 1) < 34


def test_the_first_stage_of_a_pipeline_keeps_all_layers() -> None:
    one = float(activation_bytes(2048, 1, 12288, 96, 8, True))
    assert {first_stage_activation_bytes(one, 96, p) for p in (1, 2, 8, 96)} == {96 * one}
    for p, m in ((2, 2), (8, 3), (8, 12)):
        factor = 1 + (p - 1) / (p * m)
        assert first_stage_activation_bytes(one, 96, p, m) == pytest.approx(96 * one * factor)


# ----------------------------------------------------------------------------- GPTs

MEGATRON = """
    1.7    24  2304   24  1  1  32    512   137  44  4.4
    39.1   64  8192   48  8  2  512   1536  138  44  70.8
    145.6  96  12288  80  8  8  1536  2304  148  47  227.1
"""  # Table 1: billions, heads, h, l, t, p, GPUs, batch, TFLOP/s each, % of 312, PFLOP/s
ROWS = [[float(each) for each in line.split()] for line in MEGATRON.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_megatron(row: list[float]) -> None:
    billions, heads, h, layers, t, p, gpus, batch, tflops, percent, pflops = row
    sizes = (int(layers), int(h), 51200, 2048)
    parameters = gpt_parameters(*sizes)
    assert round(parameters / 1e9, 1) == billions
    assert round(100 * tflops / 312) == percent
    low, high = (pflops - 0.05) / gpus * 1e3, (pflops + 0.05) / gpus * 1e3
    assert low < tflops + 0.5 and high > tflops - 0.5  # one is rounded from the other
    assert h % heads == 0 and heads % t == 0 and layers % p == 0 and gpus % (t * p) == 0
    flops = gpt_flops(*sizes, int(batch), recompute="full")
    equation = 96 * batch * 2048 * layers * h**2
    equation *= 1 + 2048 / (6 * h) + 51200 / (16 * layers * h)
    assert flops == pytest.approx(equation, rel=1e-12)
    assert 1 < flops / (8 * parameters * batch * 2048) < 1.2  # four forwards of 2 P per token


def test_parameters_are_those_of_a_real_model() -> None:
    for config in (GPTConfig(), GPTConfig(300, 48, 3, 5, 40)):
        counted = sum(one.numel() for one in GPT(config).parameters())
        size = (config.num_layers, config.width, config.vocab_size, config.context)
        assert counted == gpt_parameters(*size) + 2 * config.width  # the norm before the head


class PlainBlock(nn.Module):
    """The products of a transformer layer, and nothing that is not counted."""

    def __init__(self, width: int, heads: int, recompute: str) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    def layer(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(x).chunk(3, -1)
        )
        again = self.recompute == "selective"
        gathered = _checkpoint(self.attention, q, k, v) if again else self.attention(q, k, v)
        x = x + self.projection(gathered.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return _checkpoint(self.layer, x) if self.recompute == "full" else self.layer(x)


def _checkpoint(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    # Everything is run again, down to the last product, as the equations count it.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        result: Tensor = checkpoint(function, *tensors, use_reentrant=False)
    return result


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_operations_are_those_that_pytorch_counts(recompute: Any) -> None:
    layers, width, vocabulary, length, batch, heads = 3, 24, 50, 20, 2, 4
    embedding = nn.Embedding(vocabulary, width)
    blocks = [PlainBlock(width, heads, recompute) for _ in range(layers)]
    model = nn.Sequential(embedding, *blocks, nn.Linear(width, vocabulary))
    tokens = torch.zeros(batch, length, dtype=torch.long)
    with (
        FlopCounterMode(display=False) as counter,
        torch.utils.checkpoint.set_checkpoint_early_stop(False),
    ):
        model(tokens).sum().backward()
    wanted = gpt_flops(layers, width, vocabulary, length, batch, recompute)
    assert counter.get_total_flops() == wanted


# ----------------------------------------------------------------------------- traffic


def test_the_picture_of_the_traffic_is_right() -> None:
    options: list[tuple[int, dict[str, bool]]] = [
        (0, {}), (1, {}), (1, {"gradients_everywhere": True}), (2, {}), (3, {}),
        (3, {"reshard_after_forward": False}),
    ]  # fmt: skip
    lines = [line for line in (zero_traffic.__doc__ or "").splitlines() if "  stage" in line]
    for line, (stage, option) in zip(lines, options, strict=True):
        columns = re.split(r" {2,}", line.strip())
        for k in (1, 2, 5):
            parameters, gradients, passes = (
                eval(each.replace("k", " k").replace("2 k", "2*k").replace("3 k", "3*k"), {"k": k})
                for each in columns[1:4]
            )
            sent = zero_traffic(1000, stage, 4, k, **option)
            assert (sent.parameter_passes, sent.gradient_passes) == (parameters, gradients)
            assert sent.passes == passes
            assert sent.elements == passes * 750


def test_traffic_of_a_step() -> None:
    for stage, passes in enumerate([2, 2, 2, 3]):
        assert zero_traffic(1e9, stage, 8).elements == passes * 1e9 * 7 / 8
        assert zero_traffic(1e9, stage, 1).elements == 0
    assert zero_traffic(1e9, 1, 8, gradients_everywhere=True).passes == 3
    assert [zero_traffic(1e9, stage, 8, 4).passes for stage in range(4)] == [2, 2, 5, 12]
    assert zero_traffic(1e9, 3, 8, 4, reshard_after_forward=False).passes == 8
    assert zero_traffic(1e9, 3, 2).nbytes(2, 4) == (2 * 2 + 4) * 1e9 / 2
    assert zero_traffic(1e9, 0, 2).nbytes(2, 4) == 2 * 4 * 1e9 / 2  # only gradients are sent


# ----------------------------------------------------------------------------- claims, checked


def test_claim_1_126_gb_are_18_bytes_and_not_16() -> None:
    assert in_gb(model_states(7e9, 0, 1, "mixed").total) == "112 GB"
    assert precision_policy("mixed").total == 16
    assert 126e9 / 7e9 == 18 == precision_policy("mixed_fp32_grads").total


def test_claim_2_four_times_the_fp16_model_leaves_out_what_fp32_holds() -> None:
    claimed, held = (model_states(7e9, 0, 1, each).total for each in ("half_only", "mixed"))
    assert claimed == 4 * (2 * 7e9) == 56e9
    assert held == 112e9
    assert claimed <= 80e9 < held


def test_claim_3_parameters_and_adam_are_not_all() -> None:
    half = precision_policy("half_only")
    assert (half.weights + half.moments) * 175e9 == 1050e9
    assert model_states(175e9, 0, 1, "half_only").total == 1400e9
    assert model_states(175e9, 0, 1, "mixed").total == 2800e9


def test_claim_4_sixteen_cards_are_not_enough() -> None:
    assert model_states(175e9, 3, 16, "half_only").total == 87.5e9 > 80e9
    assert smallest_world_size(175e9, 3, 80e9, "half_only") == 18
    assert smallest_world_size(175e9, 3, 80e9, "mixed") == 35


def test_claim_5_a_stage_1_without_gradients_is_smaller_than_stage_2() -> None:
    ranks, psi = 64, 7.5e9
    without_gradients = 2 * psi + 12 * psi / ranks
    first, second = (model_states(psi, stage, ranks, "mixed").total for stage in (1, 2))
    assert without_gradients < second < first


def test_claim_27_the_states_of_a_1024_gpu_plan() -> None:
    share, activations = 175e9 / (8 * 8), 40e9
    assert in_gb(model_states(share, 0, 16, "mixed").total + activations) == "83.75 GB"
    assert round((model_states(share, 1, 16, "mixed").total + activations) / GB) == 53
    assert round(2 * share / GB, 1) == 5.5  # "5.4" is the weights


def test_claim_29_one_node_holds_320_gb() -> None:
    assert model_states(20e9, 0, 1, "mixed").total == 320e9
    ranks = smallest_world_size(20e9, 3, 80e9, "mixed")
    assert ranks is not None and ranks <= 8
    assert model_states(20e9, 3, 8, "mixed").total == 40e9


# ----------------------------------------------------------------------------- how it is written


def test_gb_and_gib_name_themselves() -> None:
    assert (in_gb(112e9), in_gib(112e9)) == ("112 GB", "104.3 GiB")
    assert (in_gb(80 * 2**30), in_gib(80 * 2**30)) == ("85.9 GB", "80 GiB")
    assert (in_gb(2800e9), in_gib(2800e9)) == ("2,800 GB", "2,608 GiB")
    assert (in_gb(0), in_gib(0)) == ("0 GB", "0 GiB")
    assert in_gb(12_345) == "0.00001234 GB"  # and no power of ten
    assert predict.units.in_units(25e6, "B") == "25 MB"
    assert predict.units.in_units(25 * 2**20, "B", binary=True) == "25 MiB"
    assert predict.units.in_units(1023, "B", binary=True) == "1023 B".replace("1023", "1,023")


@given(st.floats(1, 1e15))
def test_neither_loses_more_than_four_digits(nbytes: float) -> None:
    for words, unit, size in ((in_gb(nbytes), "GB", 1e9), (in_gib(nbytes), "GiB", 2**30)):
        number, name = words.split(" ")
        assert name == unit
        assert float(number.replace(",", "")) * size == pytest.approx(nbytes, rel=5.1e-4)


# ----------------------------------------------------------------------------- what is refused

NAN = float("nan")
HALF = PrecisionPolicy("half", 2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_states(7e9, 4, 8, "mixed"), r"stage must be 0 \(no .*\), 1, 2 or 3, not 4"),
        (lambda: model_states(7e9, -1, 8, "mixed"), "stage must be 0"),
        (lambda: model_states(7e9, "3", 8, "mixed"), "stage must be 0"),  # type: ignore[arg-type]
        (lambda: model_states(7e9, True, 8, "mixed"), "stage must be 0"),
        (lambda: model_states(7e9, NAN, 8, "mixed"), "stage must be 0"),  # type: ignore[arg-type]
        (lambda: model_states(7e9, 3, 0, "mixed"), "world_size must be a whole number"),
        (lambda: model_states(7e9, 3, 1.5, "mixed"), "world_size must"),  # type: ignore[arg-type]
        (lambda: model_states(-7e9, 3, 8, "mixed"), "num_params must be a whole number"),
        (lambda: model_states(0, 3, 8, "mixed"), "num_params must be a whole number"),
        (lambda: model_states(0.5, 3, 8, "mixed"), "num_params must be a whole number"),
        (lambda: model_states(NAN, 3, 8, "mixed"), "such as 7e9, not nan"),
        (lambda: model_states(math.inf, 3, 8, "mixed"), "such as 7e9, not inf"),
        (lambda: model_states("7e9", 3, 8, "mixed"), "num_params"),  # type: ignore[arg-type]
        (lambda: model_states(7e9, 3, 8, "bf16"), "policy must be one of fp32, .* not 'bf16'"),
        (lambda: model_states(7e9, 3, 8, 16), "policy must be one of"),  # type: ignore[arg-type]
        (lambda: PrecisionPolicy("no", 2, -1), "gradients of policy 'no' must be 0 bytes or more"),
        (lambda: PrecisionPolicy("no", 2, NAN), "gradients of policy 'no'"),
        (lambda: PrecisionPolicy("no", 0, 2), "weights of policy 'no' must have more than 0"),
        (lambda: smallest_world_size(7e9, 3, -1, "mixed"), "budget_bytes must be 0 bytes or more"),
        (lambda: smallest_world_size(7e9, 3, NAN, "mixed"), "such as 80e9, not nan"),
        (lambda: smallest_world_size(7e9, 4, 80e9, "mixed"), "stage must be 0"),
        (lambda: smallest_world_size(7e9, 3, 80e9, "mixed", activation_bytes=-1), "activation_by"),
        (lambda: floor_bytes(7e9, 4, "mixed"), "stage must be 0"),
        (lambda: activation_bytes(0, 1, 8, 2), "sequence_length must be a whole number"),
        (lambda: activation_bytes(8, -1, 8, 2), "microbatch_size must"),
        (lambda: activation_bytes(8, 1, 8, 3), "num_heads must divide hidden_size, but 3"),
        (lambda: activation_bytes(8, 1, 8, 2, 4), "tensor_parallel must divide num_heads, but 4"),
        (lambda: activation_bytes(9, 1, 8, 2, 2, True), "must divide sequence_length, but 2"),
        (lambda: activation_bytes(8, 1, 8, 2, recompute="some"), "'selective' or 'full', not"),  # type: ignore[arg-type]
        (lambda: first_stage_activation_bytes(1, 8, 3), "but 3 does not divide 8"),
        (lambda: first_stage_activation_bytes(-1, 8), "layer_bytes must be 0 bytes or more"),
        (lambda: gpt_parameters(0, 8, 8, 8), "num_layers must"),
        (lambda: gpt_flops(1, 8, 8, 8, 0), "batch_size must"),
        (lambda: gpt_flops(1, 8, 8, 8, 1, "half"), "one of none, selective, .* not 'half'"),  # type: ignore[arg-type]
        (lambda: zero_traffic(1, 4, 2), "stage must be 0"),
        (lambda: zero_traffic(1, 2, 2, 0), "num_microbatches must"),
        (lambda: zero_traffic(1, 2, 2, gradients_everywhere=True), "of ZeRO stage 1, not 2"),
        (lambda: zero_traffic(1, 2, 2, reshard_after_forward=False), "of ZeRO stage 3, not 2"),
        (lambda: zero_traffic(1, 2, 2).nbytes(2, NAN), "bytes_per_gradient must"),
    ],
)  # fmt: skip
def test_unknown_names_and_impossible_numbers_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(1, 10**15))
def test_parameters_may_be_written_as_a_float(num_params: int) -> None:
    assume(num_params == float(num_params))
    assert model_states(float(num_params), 3, 7, HALF) == model_states(num_params, 3, 7, HALF)
