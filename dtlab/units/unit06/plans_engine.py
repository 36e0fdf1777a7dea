"""Carries out a plan of 06/shard_plan on ranks, beside the dense model. This file loads torch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtlab.parallel.tensor import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    full_state_dict,
    vocab_parallel_cross_entropy,
)
from dtlab.trace import span

__all__ = ["Net", "build", "measure", "share"]

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
