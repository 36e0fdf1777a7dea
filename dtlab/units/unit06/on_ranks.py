"""Code that the checks of Level II and of 06/shard_plan run on ranks. Imports torch."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    full_state_dict,
    vocab_parallel_cross_entropy,
)
from dtlab.trace import span
from dtlab.units.unit06.passes import BACKWARD, FORWARD, GRADIENT, PRODUCT

__all__ = [
    "Net",
    "build",
    "build_from_dense",
    "forward_and_backward",
    "gradients_of",
    "linear",
    "mark_products",
    "measure",
    "share",
]


def forward_and_backward(forward: Callable[[], Any], back: Tensor, addend: Any = 0) -> Any:
    """Call `forward`, then run backward from its output, each within a marked span.

    `back` is the gradient of the output. `addend` is added to the output, and gets the same tensor
    as its gradient. Returns a copy of the output.
    """
    with span(FORWARD):
        y = forward()
    if not isinstance(y, Tensor):
        return y
    out = y.detach().clone()
    with span(BACKWARD):
        if y.requires_grad and y.shape == back.shape:
            mark_products(y)
            # Not y.backward(back), which imports a part of PyTorch's compiler: seconds.
            ((y + addend) * back).sum().backward()
    return out


def gradients_of(leaves: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """The gradients of the leaves, by the names that the checks use."""
    return {GRADIENT + name: None if t is None else t.grad for name, t in leaves.items()}


# Modules made from dense layers -----------------------------------------------------------------


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A linear layer with copies of this weight and bias."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def build_from_dense(
    fn: Callable[..., Any], layers: list[Any], given: Mapping[str, Any], group: Any
) -> tuple[Any, list[Tensor]]:
    """The module that `fn` makes from `layers`, and the parameters of `layers` still alive.

    Empties the list `layers`, so that the caller does not keep them alive.
    """
    refs = [weakref.ref(parameter) for layer in layers for parameter in layer.parameters()]
    if given["packed"]:
        layers[:] = [nn.Sequential(layers[0], nn.GELU(), *layers[1:])]
    module = fn(*layers, *given["numbers"], group)
    layers.clear()
    if any(ref() is not None for ref in refs):
        gc.collect()  # reference cycles may keep them alive
    return module, [parameter for ref in refs if (parameter := ref()) is not None]


# Marks of matrix products -----------------------------------------------------------------------

_ADDING = frozenset(("addmm", "addbmm", "baddbmm"))  # their first argument is the summand
_NAMES = _ADDING | {"matmul", "mm", "bmm", "linear", "einsum", "tensordot", "outer"}


def mark_products(y: Tensor) -> None:
    """Record a span after every matrix product that Python code computes in backward from `y`.

    The span's `work` is the number of multiplications. Autograd does not enter the caller's
    modes, so a hook on `y` enters the mode; autograd leaves it when backward ends. A
    TorchDispatchMode would also see the products of PyTorch's own backward, but it imports the
    compiler, which takes seconds.
    """
    y.register_hook(_enter)  # type: ignore[no-untyped-call]


def _enter(_: Tensor) -> None:
    _Marking().__enter__()  # type: ignore[no-untyped-call]


class _Marking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        if name in _NAMES and isinstance(result, Tensor):
            factors = [*_tensors((args, kwargs or {}))][name in _ADDING :]
            # [m, k] times [k, n] takes mkn multiplications, the root of (mk)(kn)(mn).
            sizes = [tensor.numel() for tensor in (*factors[:2], result)]
            with span(PRODUCT, work=math.isqrt(math.prod(sizes))):
                pass
        return result


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in (nested) arguments, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple | dict):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


# Runs a plan of 06/shard_plan on ranks, and compares it with the dense model ---------------------

_SEQUENCES = 4  # in a batch


class Block(nn.Module):
    """A transformer block: attention and an MLP, each with a norm before it and a residual."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.size, self.groups = hidden // heads, (heads, kv_heads, kv_heads)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, sum(self.groups) * self.size)
        self.projection = nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, s, hidden] to [b, s, hidden]."""
        x = x + self.projection(self.attend(self.qkv(self.attention_norm(x))))
        added: Tensor = self.narrow(F.gelu(self.wide(self.mlp_norm(x))))
        return x + added

    def attend(self, features: Tensor) -> Tensor:
        """Causal attention with the heads in `features`: all heads, or a rank's part of them."""
        heads = features.view(*features.shape[:-1], -1, self.size).transpose(1, 2)
        counts = [count * heads.shape[1] // sum(self.groups) for count in self.groups]
        q, k, v = torch.split(heads, counts, 1)
        k, v = (t.repeat_interleave(counts[0] // counts[1], 1) for t in (k, v))
        gathered = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return gathered.transpose(1, 2).flatten(2)


class Net(nn.Module):
    """A small GPT without positions: tokens [b, s] to logits [b, s, vocabulary]."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        vocabulary, hidden = given["vocabulary"], given["hidden"]
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, given["heads"], b["kv_heads"], b["inner"]) for b in given["blocks"]
        )
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        if given["tied"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; only a rank's part of the vocabulary if the head is column parallel."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build(given: Mapping[str, Any]) -> Net:
    """The dense model, the same on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given["hidden"])
        return Net(given)


def share(dense: Net, plan: Mapping[str, str]) -> Net:
    """The same model with its layers sharded over all ranks according to the plan."""
    net = deepcopy(dense)
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        pieces = tuple(count * block.size for count in block.groups)
        for pair in (("qkv", "projection"), ("wide", "narrow")):
            input_is_cut = False
            for name in pair:
                kind = plan[f"{number}.{name}"]
                layer = _shared(getattr(block, name), kind, input_is_cut, pieces)
                setattr(block, name, layer)
                input_is_cut, pieces = kind == "column", ()
    tied = net.head.weight is net.embedding.weight
    net.head = _shared(net.head, plan["head"])
    if plan["embedding"] == "vocabulary":
        net.embedding = VocabParallelEmbedding.from_dense(net.embedding)  # type: ignore[assignment]
    if tied:
        net.head.weight = net.embedding.weight
    return net


def _shared(
    dense: nn.Linear, kind: str, input_is_cut: bool = False, pieces: tuple[int, ...] = ()
) -> Any:
    if kind == "row":
        return RowParallelLinear.from_dense(dense, input_is_parallel=input_is_cut)
    if kind == "column":
        return ColumnParallelLinear.from_dense(dense, pieces=pieces or None)
    if kind == "column+gather":
        return ColumnParallelLinear.from_dense(dense, gather_output=True)
    return dense


def measure(given: Mapping[str, Any], plan: Mapping[str, str]) -> dict[str, float]:
    """Run a step of the sharded model and one of the dense model on a rank.

    Returns `weights`, the bytes of this rank's parameters, and `off`, the largest relative error
    of the loss or of a gradient. The trace has the calls within the spans "forward" and
    "backward".
    """
    dense = build(given)
    net = share(dense, plan)
    draw = torch.Generator().manual_seed(0)
    shape = _SEQUENCES, given["tokens"] // _SEQUENCES
    tokens, targets = torch.randint(given["vocabulary"], (2, *shape), generator=draw)
    wanted = F.cross_entropy(dense(tokens).flatten(0, 1), targets.flatten())
    wanted.backward()  # type: ignore[no-untyped-call]
    with span("forward"):
        logits = net(tokens)
        if plan["head"] == "column":
            loss = vocab_parallel_cross_entropy(logits, targets)
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    with span("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    weights = sum(4 * parameter.numel() for parameter in net.parameters())
    off = abs(float(loss.detach()) / float(wanted.detach()) - 1)
    return {"weights": weights, "off": max(off, _apart(net, dense))}


@torch.no_grad()
def _apart(net: Net, dense: Net) -> float:
    """The largest error of a gradient, relative to the largest element of that gradient."""
    for parameter in (*net.parameters(), *dense.parameters()):
        assert parameter.grad is not None
        parameter.copy_(parameter.grad)
    whole, wanted = full_state_dict(net), dense.state_dict()
    return max(
        float((whole[name] - grad).abs().max() / grad.abs().max()) for name, grad in wanted.items()
    )
