"""`saved_bytes`, compared with counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.training.models import GPT, Block, GPTConfig
from dtlab.training.saved import saved_bytes

N, WIDTH = 10, 8
X = 4 * N * WIDTH  # bytes of the inputs, float32


def inputs(grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(N, WIDTH).to(dtype).requires_grad_(grad)


BY_HAND: dict[str, tuple[nn.Module, int, int]] = {  # module, bytes of it, of parameters saved
    "linear": (nn.Linear(WIDTH, 3), X, 4 * 3 * WIDTH),  # its input, and the weight
    "gelu": (nn.GELU(), X, 0),  # its input
    "relu": (nn.ReLU(), X, 0),  # its output
    "sigmoid": (nn.Sigmoid(), X, 0),
    "dropout": (nn.Dropout(0.5), X, 0),  # a mask: on the CPU of the inputs' own dtype
    "no dropout": (nn.Dropout(0.5).eval(), 0, 0),
    "layer norm": (nn.LayerNorm(WIDTH), X + 2 * 4 * N, 2 * 4 * WIDTH),  # input, mean, deviation
    "softmax": (nn.Softmax(1), X, 0),  # its output
    "flatten": (nn.Flatten(), 0, 0),
    "one after another": (
        nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Linear(3, 5), nn.Tanh()),
        X + 4 * N * (3 + 5),  # ReLU's output is what goes into the next: one storage
        4 * (3 * 5),  # and no gradient needs the first weight: see below
    ),
}


@pytest.mark.parametrize(("module", "own", "parameters"), BY_HAND.values(), ids=list(BY_HAND))
def test_counted_by_hand(module: nn.Module, own: int, parameters: int) -> None:
    if isinstance(module, nn.Sequential):  # for the inputs' gradient the first weight is saved
        assert saved_bytes(module, inputs()).parameters == parameters + 4 * 3 * WIDTH
    saved = saved_bytes(module, inputs(grad=not isinstance(module, nn.Sequential)))
    assert (saved.total, saved.parameters) == (own, parameters)
    assert saved.total == sum(saved.by_module.values()) == saved.within("")


def test_a_dtype_of_two_bytes_halves_it_but_for_what_stays_in_fp32() -> None:
    x = inputs(dtype=torch.bfloat16)
    assert saved_bytes(nn.GELU(), x).total == X // 2
    norm = saved_bytes(nn.LayerNorm(WIDTH).bfloat16(), x)
    assert {each.dtype for each in norm.tensors} >= {torch.bfloat16}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = saved_bytes(nn.Linear(WIDTH, 3), inputs())
    assert linear.total == X // 2 + 2 * 3 * WIDTH  # the cast of the input, and of the weight


def test_a_block_by_module() -> None:
    """b s h float32 numbers are a unit: a block without dropout and attention matrices keeps 32.

    Korthikanti et al. 2022: 34 bytes with dropout's two masks, in 16 bits.
    """
    config = GPTConfig(width=64, num_heads=4)
    samples, tokens = 2, 16
    saved = saved_bytes(Block(config), torch.randn(samples, tokens, 64, requires_grad=True))
    unit, per_token = 4 * samples * tokens * 64, 4 * samples * tokens
    assert saved.by_module == {
        "attention_norm": unit + 2 * per_token,  # the block's input; mean and deviation
        "attention.queries_keys_values": unit,  # the norm's output
        "attention": 4 * unit + 4 * per_token,  # q, k, v; what is gathered; a sum for each head
        "mlp_norm": unit + 2 * per_token,
        "mlp.0": unit,
        "mlp.1": 4 * unit,
        "mlp.2": 4 * unit,
    }
    assert saved.within("mlp") == 9 * unit
    assert saved.within("attention") == 5 * unit + 4 * per_token  # and not attention_norm
    assert saved.total == 16 * unit + 8 * per_token
    weights = 12 * 64 * 64 + 4 * 64  # the projections' biases are not needed
    assert saved.parameters == 4 * weights


def test_a_model_has_dotted_names_and_tied_weights_are_parameters() -> None:
    model = GPT(GPTConfig(vocab_size=11, context=8, num_layers=2, num_heads=2, width=8))
    saved = saved_bytes(model, torch.randint(11, (3, 8)))
    assert list(saved.by_module)[:2] == ["token_embedding", "position_embedding"]
    assert saved.within("blocks.0") == saved.within("blocks.1") > 0
    assert saved.within("blocks") == 2 * saved.within("blocks.0")
    assert saved.by_module["head"] == 4 * 3 * 8 * 8


def test_a_function_names_the_modules_that_it_calls_by_their_class() -> None:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, 3), nn.GELU())
    other = nn.Linear(3, 3)

    def fn(x: Tensor) -> Tensor:
        return other(second(first(x))).exp().sum()

    assert saved_bytes(fn, inputs()).by_module == {
        "Linear": X, "Sequential.0": X, "Sequential.1": 4 * N * 3, "Linear_2": 4 * N * 3,
        "": 4 * N * 3,
    }  # fmt: skip


def test_parameters_without_a_module_are_known_too_and_so_are_buffers() -> None:
    weight = nn.Parameter(torch.randn(3, WIDTH))
    saved = saved_bytes(lambda x: x @ weight.t(), inputs())
    assert (saved.total, saved.parameters) == (X, weight.nbytes)
    norm = nn.BatchNorm1d(WIDTH).eval()
    saved = saved_bytes(norm, inputs())
    assert (saved.total, saved.parameters) == (X, 3 * 4 * WIDTH)  # weight, mean, variance


def test_keywords_several_outputs_and_what_hangs_on_no_output() -> None:
    def fn(x: Tensor, *, scale: Tensor) -> dict[str, Any]:
        x.exp().sin()  # comes to nothing
        return {"scaled": (x * scale).sigmoid(), "cut": x.detach().exp()}

    assert saved_bytes(fn, inputs(), scale=torch.ones(WIDTH)).total == X + 4 * WIDTH
    assert saved_bytes(fn, inputs(), scale=inputs()).total == 3 * X
    assert saved_bytes(lambda x: x.exp().detach(), inputs()).total == 0


def test_a_view_keeps_the_whole_storage() -> None:
    whole = torch.randn(100, requires_grad=True)
    assert saved_bytes(lambda: whole[:3].sin()).total == 400


def test_it_works_within_no_grad_and_leaves_no_hook_when_the_function_fails() -> None:
    with torch.no_grad():
        assert saved_bytes(nn.GELU(), inputs()).total == X

    def fails(x: Tensor) -> Tensor:
        nn.GELU()(x)
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        saved_bytes(nn.Sequential(nn.Tanh(), Calls(fails)), inputs())
    module = torch.nn.modules.module
    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    assert saved_bytes(nn.GELU(), inputs()).total == X


class Calls(nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


def test_unregistered_modules_are_named_after_their_caller() -> None:
    inner = nn.GELU()
    saved = saved_bytes(nn.Sequential(Calls(lambda x: inner(x))), inputs())
    assert saved.by_module == {"0.GELU": X}


def test_sizes_can_be_tried_without_memory() -> None:
    """The MLP of a layer of GPT-3 175B, on the meta device: 2 + 8 + 8 bytes of the 34."""
    with torch.device("meta"):
        mlp = nn.Sequential(nn.Linear(12288, 49152), nn.GELU(), nn.Linear(49152, 12288)).bfloat16()
        x = torch.empty(1, 2048, 12288, dtype=torch.bfloat16, requires_grad=True)
    unit = 2048 * 12288
    assert saved_bytes(mlp, x).by_module == {"0": 2 * unit, "1": 8 * unit, "2": 8 * unit}


def test_it_reads_well() -> None:
    saved = saved_bytes(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)), inputs())
    assert str(saved) == (
        "640 bytes kept for backward\n"
        "  0  320   50.0%\n"
        "  1  320   50.0%\n"
        "  and 352 bytes of parameters and buffers, which exist anyway"
    )
    nothing = saved_bytes(partial(F.relu, torch.ones(3)))
    assert str(nothing).startswith("0 bytes kept for backward\n  and 0 bytes")
    page = saved._repr_html_()
    assert page.count("<tr") == 2
    assert "<b>640 bytes kept for backward</b>" in page
    assert "&lt;" in saved_bytes(nn.Sequential(Calls(lambda x: odd(x))), inputs())._repr_html_()


class _Odd(nn.GELU):
    pass


_Odd.__name__ = "<odd>"
odd = _Odd()
