"""Ring attention: keys and values travel around a ring, and each rank attends with its queries.

    round      0          1          2          3          4 ranks; rank r has queries q_r
    rank 0     k0 v0      k3 v3      k2 v2      k1 v1
    rank 1     k1 v1      k0 v0      k3 v3      k2 v2      after each round a rank sends its
    rank 2     k2 v2      k1 v1      k0 v0      k3 v3      block to its right neighbour
    rank 3     k3 v3      k2 v2      k1 v1      k0 v0

No rank ever has all keys and values, or a tokens x tokens matrix. The softmax over all tokens is
computed block by block. For each query a rank keeps the output o over the blocks seen so far and
l = log(sum(exp(scores))). A new block with o' and l' gives

    L = log(exp(l) + exp(l')),    O = o exp(l - L) + o' exp(l' - L)

The code writes o' exp(l' - L) as exp(scores - L) @ v. The next block arrives while one is used.
With c tokens per rank and hidden size h, a round computes 4 c^2 h operations and sends 2 c h
elements, which is hidden if c is large (`dtlab.predict.context`). In backward blocks and gradients
travel: each rank adds its part, and after the last round each rank has its block's gradient.

`dtlab/simple.py` has the rounds of a forward pass without a mask. The functions here add the mask,
the backward pass, blocks that arrive while the rank computes, grouped heads and 16-bit inputs.

With a causal mask, a rank skips the blocks after its own tokens. In contiguous order this leaves
the first rank almost idle while the last one works in every round. In zig-zag order (`order.py`)
each rank works the same in every round.

Liu, Zaharia, Abbeel 2023, "Ring attention with blockwise transformers"; the online softmax is of
Milakov and Gimelshein 2018; the backward pass of a block is algorithm 4 of Dao et al. 2022,
"FlashAttention".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.context.order import tokens_of

__all__ = ["check_inputs", "gathered_attention", "ring_attention"]


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    *,
    causal: bool = True,
    zigzag: bool = False,
) -> Tensor:
    """Return attention over the tokens of all ranks, for this rank's tokens.

    Args:
        q: [b, heads, tokens / ranks, head_size]: this rank's tokens, see `shard_sequence`.
        k, v: [b, kv_heads, tokens / ranks, head_size]; `heads` is a multiple of `kv_heads`.
        causal: a token attends only to itself and to earlier tokens.
        zigzag: whether the tokens are in zig-zag order; without a mask it makes no difference.

    The result has the shape of q. Scores, softmax and sums are computed in fp32 for 16-bit
    inputs. All ranks must have the same number of tokens, as `shard_sequence` gives them: that is
    not checked here, because it would cost a collective for each call; `dtlab.launch` reports it.
    Raises: ValueError for shapes or dtypes that do not fit, or an odd number of tokens in zig-zag
    order.
    """
    check_inputs("ring_attention", q, k, v, zigzag)
    return _RingAttention.apply(q, k, v, group, causal, zigzag)  # type: ignore[no-any-return, no-untyped-call]


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group = None,
    *,
    causal: bool = True,
    zigzag: bool = False,
) -> Tensor:
    """Return what `ring_attention` does, from the keys and values of all ranks.

    One all-gather replaces the rounds, as in the training of Llama 3 (Grattafiori et al. 2024,
    section 3.3.2): simpler, but each rank holds all keys and values, and nothing overlaps. With
    grouped heads these are small.
    """
    check_inputs("gathered_attention", q, k, v, zigzag)
    k, v = _GatherTokens.apply(torch.stack([k, v]), group)  # type: ignore[no-untyped-call]
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    mask = None
    if causal:
        order = [tokens_of(r, ranks, k.shape[-2], zigzag=zigzag) for r in range(ranks)]
        mask = (order[rank].unsqueeze(1) >= torch.cat(order)).to(q.device)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=grouped)


class _GatherTokens(torch.autograd.Function):
    """All-gather of [2, b, kv_heads, tokens / ranks, d]; its gradient is summed and scattered."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, group: Group) -> Tensor:
        ctx.group = group
        parts = block.new_empty(dist.get_world_size(group), *block.shape)
        dist.all_gather_single(parts.view(-1), block.contiguous().view(-1), group=group)
        return parts.movedim(0, -3).flatten(-3, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ranks = dist.get_world_size(ctx.group)
        rows = torch.unflatten(gradient, -2, (ranks, -1)).movedim(-3, 0).contiguous()
        part = torch.empty_like(rows[0])
        dist.reduce_scatter_single(part.view(-1), rows.view(-1), group=ctx.group)
        return part, None


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Group, causal: bool, zigzag: bool
    ) -> Tensor:
        grouped = _grouped(q, k)
        mixed = torch.zeros_like(grouped, dtype=_at_least_fp32(q))
        lse = mixed.new_full(mixed.shape[:-1], -math.inf)
        for source, (k_block, v_block) in _travelling_blocks(torch.stack([k, v]), group):
            for rows, columns, position in _visible(q.shape[-2], source, group, causal, zigzag):
                scores = _scores(grouped[..., rows, :], k_block[..., columns, :], position)
                before, here = lse[..., rows], scores.logsumexp(-1)
                after = torch.logaddexp(before, here)
                weights = scores.sub_(after.unsqueeze(-1)).exp_()
                mixed[..., rows, :] *= (before - after).exp_().unsqueeze(-1)
                mixed[..., rows, :] += weights @ _per_head(v_block[..., columns, :], weights)
                lse[..., rows] = after
        out = mixed.to(q.dtype).view_as(q)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.group, ctx.causal, ctx.zigzag = group, causal, zigzag
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        grouped, d_mixed = _grouped(q, k), _grouped(d_out, k).to(lse.dtype)
        # The gradient of a softmax needs sum(weights * d_weights), which is sum(out * d_out).
        delta = (d_mixed * _grouped(out, k)).sum(-1, keepdim=True)
        dq = torch.zeros_like(d_mixed)
        gradients = _TravellingGradient(ctx.group)
        for source, (k_block, v_block) in _travelling_blocks(torch.stack([k, v]), ctx.group):
            part = torch.zeros(2, *k.shape, dtype=lse.dtype, device=k.device)
            visible = _visible(q.shape[-2], source, ctx.group, ctx.causal, ctx.zigzag)
            for rows, columns, position in visible:
                q_here, k_here = grouped[..., rows, :], k_block[..., columns, :]
                weights = _scores(q_here, k_here, position)
                weights.sub_(lse[..., rows].unsqueeze(-1)).exp_()
                d_here = d_mixed[..., rows, :]
                d_v = (weights.transpose(-2, -1) @ d_here).sum(2)
                d_weights = d_here @ _per_head(v_block[..., columns, :], weights).transpose(-2, -1)
                d_scores = d_weights.sub_(delta[..., rows, :]).mul_(weights)
                d_scores /= math.sqrt(q.shape[-1])
                dq[..., rows, :] += d_scores @ _per_head(k_here, weights)
                d_k = (d_scores.transpose(-2, -1) @ q_here.to(weights.dtype)).sum(2)
                part[0][..., columns, :] += d_k
                part[1][..., columns, :] += d_v
            gradients.add(part)
        dk, dv = gradients.receive().to(k.dtype)
        return dq.to(q.dtype).view_as(q), dk, dv, None, None, None


def _travelling_blocks(block: Tensor, group: Group) -> Iterator[tuple[int, Tensor]]:
    """Yield each rank and its block, this rank's first; the next arrives while one is used."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for step in range(ranks):
        arriving, works = block, []
        if step < ranks - 1:
            arriving = torch.empty_like(block)
            works = _pass_on(block, arriving, group)
        yield (rank - step) % ranks, block
        for work in works:
            work.wait()
        block = arriving


class _TravellingGradient:
    """The gradient of the block in use: it comes from the left rank and is sent to the right.

    `add` adds this rank's part to the gradient of this round's block and sends it. `receive`
    returns the gradient from the left: after the last round, that of this rank's own block.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.arriving: Tensor | None = None
        self.sent: Tensor | None = None  # in memory until it is sent
        self.works: list[Any] = []

    def add(self, part: Tensor) -> None:
        if self.arriving is not None:
            part += self.receive()
        self.sent = part
        self.arriving = torch.empty_like(part)
        self.works = _pass_on(part, self.arriving, self.group)

    def receive(self) -> Tensor:
        for work in self.works:
            work.wait()
        assert self.arriving is not None
        return self.arriving


def _pass_on(sent: Tensor, arriving: Tensor, group: Group) -> list[Any]:
    """Start to send to the right neighbour and to receive from the left one."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        arriving.copy_(sent)
        return []
    return dist.batch_isend_irecv([
        dist.P2POp(dist.isend, sent, None, group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, arriving, None, group, group_peer=(rank - 1) % ranks),
    ])  # fmt: skip


_STRIP = 128  # queries at a time: a strip of scores instead of a whole block saves memory


def _visible(
    tokens: int, source: int, group: Group, causal: bool, zigzag: bool
) -> Iterator[tuple[slice, slice, int | None]]:
    """Yield (rows, columns, position): these queries attend to these keys of rank `source`.

    With a causal mask: in this rank's block, the keys up to each query. From an earlier rank, all
    keys; in zig-zag order only those of its early run, because its late run is after all tokens of
    this rank. From a later rank, none; in zig-zag order all keys, for the queries of the late run.
    In this rank's block, `position` is that of the first query of the strip, for the mask; else it
    is None.
    """
    rank, half = dist.get_rank(group), tokens // 2
    own = causal and source == rank
    begin, keys = 0, tokens
    if causal and source < rank and zigzag:
        keys = half
    elif causal and source > rank:
        begin = half if zigzag else tokens
    for first in range(begin, tokens, _STRIP):
        last = min(first + _STRIP, tokens)
        yield slice(first, last), slice(last if own else keys), first if own else None


def _grouped(q: Tensor, k: Tensor) -> Tensor:
    """View [b, heads, s, d] as [b, kv_heads, heads per kv_head, s, d]."""
    return torch.unflatten(q, 1, (k.shape[1], -1))


def _scores(q: Tensor, k: Tensor, position: int | None) -> Tensor:
    """Return q k^T / sqrt(d), in at least fp32.

    With the `position` of the first query among the keys, each query has only the keys up to its
    own position.
    """
    wide = _at_least_fp32(q)  # before the product: a large score in bf16 is off by whole units
    scores = q.to(wide) @ k.unsqueeze(2).to(wide).transpose(-2, -1)
    scores /= math.sqrt(q.shape[-1])
    if position is not None:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores.masked_fill_(later.triu_(position + 1), -math.inf)
    return scores


def _per_head(block: Tensor, weights: Tensor) -> Tensor:
    """View keys or values so that they broadcast over all query heads of their group."""
    return block.unsqueeze(2).to(weights.dtype)


def _at_least_fp32(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def check_inputs(name: str, q: Tensor, k: Tensor, v: Tensor, zigzag: bool = False) -> None:
    """Raise ValueError, before communication, for inputs that do not fit each other."""
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"{name}: queries are {q.dtype}, keys {k.dtype} and values {v.dtype}. Convert them to "
            "one dtype."
        )
    four = q.dim() == k.dim() == v.dim() == 4
    same = four and q.shape[0] == k.shape[0] and q.shape[2:] == k.shape[2:] and k.shape == v.shape
    if not same or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{name}: queries {tuple(q.shape)}, keys {tuple(k.shape)} and values "
            f"{tuple(v.shape)} do not fit. Pass [b, heads, tokens, head_size], where only the "
            "heads of the queries may be more, by a whole factor."
        )
    if zigzag and q.shape[-2] % 2:
        raise ValueError(
            f"{name}: in zig-zag order a rank has two runs of tokens of the same length, so an "
            f"even number of tokens, not {q.shape[-2]}. See shard_sequence(..., zigzag=True)."
        )
