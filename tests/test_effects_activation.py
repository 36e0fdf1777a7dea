"""The sign of each effect in the lesson on activation memory: bytes, operations and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dtlab.training.activation import checkpoint_every, peak_bytes, saved_bytes
from dtlab.training.transformer_layer import TransformerLayer
from tests.marks import first

pytestmark = [pytest.mark.slow, pytest.mark.unit("04")]
SEEDS = range(5)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are small: a second thread would only wait for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layers_of(seed: int, count: int = 4, **switches: Any) -> tuple[nn.Sequential, Tensor]:
    """A transformer of random sizes, and a batch."""
    draw = torch.Generator().manual_seed(seed)
    heads, samples = (int(torch.randint(1, 4, (), generator=draw)) for _ in range(2))
    tokens = int(torch.randint(20, 40, (), generator=draw))
    torch.manual_seed(seed)
    layers = [TransformerLayer(16 * heads, heads, **switches) for _ in range(count)]
    return nn.Sequential(*layers), torch.randn(samples, tokens, 16 * heads, requires_grad=True)


def operations(fn: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """FLOPs of forward and backward: two for each multiplication and addition of matrices."""
    with FlopCounterMode(display=False) as counter:
        fn(x).sum().backward()
    return counter.get_total_flops()


def seconds(fn: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    fn()
    return time.perf_counter() - begin


# Bytes against operations -------------------------------------------------------------


@pytest.mark.parametrize("seed", first(SEEDS))
def test_a_checkpoint_per_layer_saves_bytes_and_costs_a_forward_but_for_the_last(
    seed: int,
) -> None:
    layers, x = layers_of(seed)
    model = checkpoint_every(layers, 1)
    assert saved_bytes(model, x).total < 0.4 * saved_bytes(layers, x).total
    assert peak_bytes(model, x) < 0.6 * peak_bytes(layers, x)
    # A step is three forwards' worth; three of four layers run forward again.
    assert operations(model, x) / operations(layers, x) == pytest.approx(1 + 3 / 4 / 3)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_without_dropout_the_last_matrix_is_not_multiplied_again(seed: int) -> None:
    """Nothing after it is saved, so the second run ends there: a third of a wide layer's work."""
    layers, x = layers_of(seed, count=3, dropout=0.0)
    plain, once_more = (operations(checkpoint_every(layers, k), x) for k in (3, 1))
    samples, tokens, width = x.shape
    per_layer = 24 * samples * tokens * width**2 + 4 * samples * tokens**2 * width
    assert plain == 3 * 3 * per_layer
    assert once_more == plain + 2 * (per_layer - 8 * samples * tokens * width**2)


@pytest.mark.parametrize("seed", first(SEEDS))
def test_fewer_checkpoints_cost_fewer_operations_and_more_memory(seed: int) -> None:
    layers, x = layers_of(seed)
    models = [checkpoint_every(layers, k) for k in (1, 2, 4)]
    work = [operations(model, x) for model in models]
    peaks = [peak_bytes(model, x) for model in models]
    assert work == sorted(work, reverse=True)
    assert peaks == sorted(peaks)


def test_sizes_without_data_are_those_of_real_runs() -> None:
    """This is why a layer too large for this machine can be measured on the meta device."""
    layers, x = layers_of(0, count=2)
    model = checkpoint_every(layers, 1)
    real = [peak_bytes(model, x), operations(model, x), saved_bytes(model, x).by_module]
    model, x = model.to("meta"), x.detach().to("meta").requires_grad_()
    assert real == [peak_bytes(model, x), operations(model, x), saved_bytes(model, x).by_module]


@pytest.mark.proof
def test_a_checkpointed_step_takes_longer() -> None:
    """The least of several times, plain and checkpointed in turn: others use this machine too."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(TransformerLayer(128, 4) for _ in range(6)))
    model, x = checkpoint_every(layers, 1), torch.randn(4, 64, 128)
    steps = [lambda net=net: net(x).sum().backward() for net in (layers, model)]
    taken = [[seconds(step) for step in steps] for _ in range(9)]
    plain, checkpointed = (min(each) for each in zip(*taken, strict=True))
    assert checkpointed > 1.05 * plain


# Against the formula ------------------------------------------------------------------

B, S, A, H = 1, 256, 4, 128
UNIT = S * B * H
PER_HEAD = A * S // H  # "as/h" of the formula
EXTRA = 2 * 2 * S * B  # of each norm: a mean and a deviation per token, in 16 bits


def formula(dropout: bool = True, fused: bool = False, recompute: str = "none") -> float:
    """Korthikanti et al. 2022, equation 2 and table 2, in units of sbh, with two switches more."""
    if recompute == "full":
        return 2
    core = 0 if fused or recompute == "selective" else (5 if dropout else 2) * PER_HEAD
    return (34 if dropout else 32) + core


def measured(**switches: Any) -> dict[str, float]:
    torch.manual_seed(0)
    layer = TransformerLayer(H, A, **switches).bfloat16()
    x = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    return {name: count / UNIT for name, count in saved_bytes(layer, x).by_module.items()}


COMMON = {
    "attention_norm": 2 + EXTRA / UNIT,
    "attention.queries_keys_values": 2,
    "mlp_norm": 2 + EXTRA / UNIT,
    "mlp.0": 2,
    "mlp.1": 8,
    "mlp.2": 8,
}


def test_with_dropout_84_are_kept_where_the_formula_has_74() -> None:
    """A mask of the CPU takes two bytes: one more for as/h + 2 numbers of each."""
    assert formula() == 74
    kept = measured()
    assert kept == COMMON | {
        # q, k, v; softmax; what goes from dropout into the product with v
        "attention": 6 + 2 * PER_HEAD + 2 * PER_HEAD,
        "attention.dropout": 2 * PER_HEAD,  # its mask: 1 in the formula
        "attention.projection": 2,
        "attention_dropout": 2,  # 1 in the formula
        "mlp_dropout": 2,  # 1 in the formula
    }
    assert round(sum(kept.values())) == 84 == formula() + PER_HEAD + 2


def test_without_dropout_48_are_kept_as_the_formula_has_it() -> None:
    kept = measured(dropout=0.0)
    assert kept == COMMON | {"attention": 6 + 2 * PER_HEAD, "attention.projection": 2}
    assert round(sum(kept.values())) == 48 == formula(dropout=False)


def test_fused_32_are_kept_as_the_formula_has_it() -> None:
    """Softmax is computed again, from one number per token and head: fp32."""
    kept = measured(dropout=0.0, fused_attention=True)
    assert kept == COMMON | {"attention": 6 + 2 + 4 * A * S * B / UNIT}
    assert round(sum(kept.values())) == 32 == formula(dropout=False, fused=True)


def test_selective_recomputation_keeps_what_fusing_keeps() -> None:
    assert formula(recompute="selective") == 34
    assert round(sum(measured(recompute="selective").values())) == 36  # two masks of two bytes
    assert round(sum(measured(recompute="selective", dropout=0.0).values())) == 32
    assert measured(recompute="full") == {"": 2} == {"": formula(recompute="full")}


def test_a_layer_of_gpt_3_without_its_memory() -> None:
    """175B: a 96, h 12288, s 2048. On the meta device, where tensors have a size and no data."""
    samples, tokens, width, heads = 1, 2048, 12288, 96

    def layer(recompute: str, dropout: float = 0.1) -> tuple[float, int]:
        with torch.device("meta"):
            net = TransformerLayer(width, heads, dropout=dropout, recompute=recompute).bfloat16()
            x = torch.empty(samples, tokens, width, dtype=torch.bfloat16, requires_grad=True)
        return saved_bytes(net, x).total / x.numel(), operations(net, x)

    (kept, plain), (selective, core), (full, all_of_it) = map(layer, ("none", "selective", "full"))
    assert [round(each) for each in (kept, selective, full)] == [34 + 2 + 6 * 16, 36, 2]
    assert all_of_it / plain == pytest.approx(4 / 3)
    # The core is two products of 2 b s^2 h. Of the second one only what goes in is needed again.
    assert core - plain == 2 * samples * tokens**2 * width
    assert core / plain == pytest.approx(1.0045, abs=1e-4)


def test_the_layer_is_the_same_whatever_is_recomputed() -> None:
    x = torch.randn(2, 9, 24, requires_grad=True)

    def gradients(**switches: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        layer = TransformerLayer(24, 3, **switches)
        return torch.autograd.grad(layer(x).exp().sum(), [x, *layer.parameters()])

    plain = gradients()
    for recompute in "selective", "full":
        for one, other in zip(gradients(recompute=recompute), plain, strict=True):
            assert torch.equal(one, other)
    fused, core = gradients(dropout=0.0, fused_attention=True), gradients(dropout=0.0)
    torch.testing.assert_close(fused, core, rtol=1e-4, atol=1e-4)


def test_the_layer_refuses_wrong_arguments() -> None:
    with pytest.raises(ValueError, match='"none", "selective" or "full", not \'some\''):
        TransformerLayer(8, 2, recompute="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="3 heads do not divide a hidden size of 8"):
        TransformerLayer(8, 3)
