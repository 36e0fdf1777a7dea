"""What the cases of Level II run on ranks. This file loads torch."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dtlab.grading.checking.groups import Groups
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
    "forth_and_back",
    "gradients_of",
    "linear",
    "made_of_dense",
    "mark_products",
    "measure",
    "own_group",
    "share",
]


def own_group(groups: Groups) -> Any:
    """The process group of this rank; None for all ranks."""
    made = {group: dist.new_group(list(group)) for group in groups}
    return next((one for group, one in made.items() if dist.get_rank() in group), None)


def forth_and_back(forward: Callable[[], Any], back: Tensor, beside: Any = 0) -> Any:
    """Calls `forward` and goes back from what comes out, between marks. Returns a copy of that.

    `back` is the gradient. What is `beside` is added, and has the same tensor as its gradient.
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
            ((y + beside) * back).sum().backward()
    return out


def gradients_of(leaves: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    """The gradients of these, as they are noted."""
    return {GRADIENT + name: None if one is None else one.grad for name, one in leaves.items()}


# Modules made of dense layers -------------------------------------------------------------------


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A layer with copies of these."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return layer


def made_of_dense(
    fn: Callable[..., Any], layers: list[Any], given: Mapping[str, Any], group: Any
) -> tuple[Any, list[Tensor]]:
    """The module that `fn` makes of `layers`, and which of their tensors outlive that.

    It empties the list, so that the caller has none of them either.
    """
    refs = [weakref.ref(one) for layer in layers for one in layer.parameters()]
    if given["packed"]:
        layers[:] = [nn.Sequential(layers[0], nn.GELU(), *layers[1:])]
    module = fn(*layers, *given["numbers"], group)
    layers.clear()
    if any(ref() is not None for ref in refs):
        gc.collect()  # somebody may have left a circle behind
    return module, [one for ref in refs if (one := ref()) is not None]


# Marks of matrix products -----------------------------------------------------------------------

_ADDING = frozenset(("addmm", "addbmm", "baddbmm"))  # what they add to comes first
_NAMES = _ADDING | {"matmul", "mm", "bmm", "linear", "einsum", "tensordot", "outer"}


def mark_products(y: Tensor) -> None:
    """When backward goes on from `y`, every matrix product in Python has a mark behind it.

    The mark's `work` is how many multiplications it took.
    Autograd enters no mode of the caller's, so a hook does, and autograd leaves it at its end.
    Not a TorchDispatchMode, which would see the products of PyTorch's own backward too: it imports
    the compiler, which takes seconds.
    """
    y.register_hook(_enter)  # type: ignore[no-untyped-call]


def _enter(_: Tensor) -> None:
    _Marking().__enter__()  # type: ignore[no-untyped-call]


class _Marking(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_").removeprefix("r")
        if name in _NAMES and isinstance(made, Tensor):
            factors = [*_tensors((args, kwargs or {}))][name in _ADDING :]
            # Of [m, k] times [k, n], which is [m, n]: mkn, as the root of mk times kn times mn.
            sizes = [one.numel() for one in (*factors[:2], made)]
            with span(PRODUCT, work=math.isqrt(math.prod(sizes))):
                pass
        return made


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors in (nested) arguments, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple | dict):
        for one in values.values() if isinstance(values, dict) else values:
            yield from _tensors(one)


# Carries out a plan of 06/shard_plan on ranks, beside the dense model. This file loads torch -----

_SEQUENCES = 4  # in a batch


class Block(nn.Module):
    """Attention and an MLP, each behind a norm and beside a way round."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.size, self.groups = hidden // heads, (heads, kv_heads, kv_heads)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, sum(self.groups) * self.size)
        self.projection = nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, hidden] to the same."""
        x = x + self.projection(self.attend(self.qkv(self.attention_norm(x))))
        added: Tensor = self.narrow(F.gelu(self.wide(self.mlp_norm(x))))
        return x + added

    def attend(self, own: Tensor) -> Tensor:
        """Causal attention by the heads that are there: all of them, or a rank's part."""
        heads = own.view(*own.shape[:-1], -1, self.size).transpose(1, 2)
        counts = [one * heads.shape[1] // sum(self.groups) for one in self.groups]
        q, k, v = torch.split(heads, counts, 1)
        k, v = (one.repeat_interleave(counts[0] // counts[1], 1) for one in (k, v))
        gathered = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return gathered.transpose(1, 2).flatten(2)


class Net(nn.Module):
    """A small GPT without positions: tokens [b, s] to logits [b, s, vocabulary]."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        vocabulary, hidden = given["vocabulary"], given["hidden"]
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, given["heads"], one["kv_heads"], one["inner"]) for one in given["blocks"]
        )
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        if given["tied"]:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits; a rank's part of the vocabulary where the head is column parallel."""
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
    """The same model with its layers shared by all ranks, as the plan says."""
    net = deepcopy(dense)
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        pieces = tuple(one * block.size for one in block.groups)
        for pair in (("qkv", "projection"), ("wide", "narrow")):
            comes_in_parts = False
            for name in pair:
                kind = plan[f"{number}.{name}"]
                own = _shared(getattr(block, name), kind, comes_in_parts, pieces)
                setattr(block, name, own)
                comes_in_parts, pieces = kind == "column", ()
    tied = net.head.weight is net.embedding.weight
    net.head = _shared(net.head, plan["head"])
    if plan["embedding"] == "vocabulary":
        net.embedding = VocabParallelEmbedding.from_dense(net.embedding)  # type: ignore[assignment]
    if tied:
        net.head.weight = net.embedding.weight
    return net


def _shared(
    dense: nn.Linear, kind: str, comes_in_parts: bool = False, pieces: tuple[int, ...] = ()
) -> Any:
    if kind == "row":
        return RowParallelLinear.from_dense(dense, input_is_parallel=comes_in_parts)
    if kind == "column":
        return ColumnParallelLinear.from_dense(dense, pieces=pieces or None)
    if kind == "column+gather":
        return ColumnParallelLinear.from_dense(dense, gather_output=True)
    return dense


def measure(given: Mapping[str, Any], plan: Mapping[str, str]) -> dict[str, float]:
    """Runs on a rank: a step of the shared model beside one of the dense model.

    `weights` are the bytes of the parameters that this rank has, `off` how far the loss or a
    parameter is from the dense one's after a step, as a part of it. What is called in the spans
    "forward" and "backward" is in the trace.
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
    weights = sum(4 * one.numel() for one in net.parameters())
    off = abs(float(loss.detach()) / float(wanted.detach()) - 1)
    return {"weights": weights, "off": max(off, _apart(net, dense))}


@torch.no_grad()
def _apart(net: Net, dense: Net) -> float:
    """How far gradients are apart: as parts of the largest element of each."""
    for one in (*net.parameters(), *dense.parameters()):
        assert one.grad is not None
        one.copy_(one.grad)
    whole, wanted = full_state_dict(net), dense.state_dict()
    return max(
        float((whole[name] - one).abs().max() / one.abs().max()) for name, one in wanted.items()
    )
