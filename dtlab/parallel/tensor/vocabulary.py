"""Embedding and cross-entropy loss for a vocabulary that is divided among ranks.

    table of 7 rows, 3 ranks       tokens 1 4 6      rank 0   row 1  zero   zero
    rank 0  rows 0 1 2                               rank 1   zero   row 4  zero
    rank 1  rows 3 4                                 rank 2   zero   zero   row 6
    rank 2  rows 5 6                                 sum      row 1  row 4  row 6

Each rank looks up the tokens whose rows it has, and an all-reduce sums the results.

The loss of a token t with logits z is log sum exp(z) - z_t. Each rank has a part of the sum, and
one rank has z_t. So only a few numbers per token are sent, never the logits: first the largest
logit (so that exp does not overflow), then the sum together with z_t. Backward does not
communicate.

`vocab_embedding` and `vocab_cross_entropy` in `dtlab/simple.py` are for vocabularies that the
ranks divide evenly. The ones here add parts of other sizes, ignored targets and sequence
parallelism.

Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtlab.messages import Group
from dtlab.parallel.tensor.linear import ShardedLayer, Split
from dtlab.parallel.tensor.regions import reduce_from_region, share
from dtlab.parallel.tensor.sequence import check_tokens, reduce_scatter_to_sequence

__all__ = ["VocabParallelEmbedding", "vocab_parallel_cross_entropy"]

Reduction = Literal["none", "mean", "sum"]


class VocabParallelEmbedding(ShardedLayer):
    """An `nn.Embedding` whose rows are divided among the ranks: ids [...] to [..., embedding_dim].

    Args:
        num_embeddings, embedding_dim, device, dtype: as for the dense `nn.Embedding`. If the
            number of ranks does not divide the rows, the first ranks hold one row more.
        sequence_parallel: whether each rank returns the embeddings of its own tokens only. All
            ranks must pass the same ids [b, s].
        group: the ranks that share the table; None: all.

    Raises: ValueError if there are fewer rows than ranks, or if sequence_parallel is set and the
        number of ranks does not divide the number of tokens; IndexError, on all ranks, for an id
        outside the table.
    """

    weight: Tensor

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        sequence_parallel: bool = False,
        group: Group = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sequence_parallel = sequence_parallel
        self.splits = {"weight": Split(0, (num_embeddings,))}
        self.rows = share(num_embeddings, self.rank, self.ranks)
        self.load_part_of(nn.Embedding(num_embeddings, embedding_dim, device=device, dtype=dtype))

    @classmethod
    def from_dense(cls, dense: nn.Embedding, **options: Any) -> Self:
        """Make this rank's shard of a dense table; `options` are arguments of the class."""
        layer = cls(dense.num_embeddings, dense.embedding_dim, device="meta", **options)
        layer.load_part_of(dense)
        return layer

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the embeddings of all tokens; with `sequence_parallel`, return this rank's."""
        _check_ids(type(self).__name__, tokens, self.num_embeddings)
        if self.sequence_parallel:
            check_tokens(type(self).__name__, tokens, self.group, 1)
        local_ids = tokens - self.rows.start
        missing = (local_ids < 0) | (local_ids >= len(self.rows))
        rows = F.embedding(local_ids.masked_fill(missing, 0), self.weight)
        rows = rows.masked_fill(missing.unsqueeze(-1), 0)
        if self.sequence_parallel:
            return reduce_scatter_to_sequence(rows, self.group)
        return reduce_from_region(rows, self.group)

    def extra_repr(self) -> str:
        """Return the sizes of the dense table, and this rank's rows."""
        rows = f"{self.rows.start} to {self.rows.stop - 1}"
        return f"{self.num_embeddings}, {self.embedding_dim}, rows {rows}"


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: Group = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """Compute `F.cross_entropy` of logits [..., vocabulary / ranks], the same on every rank.

    Args:
        logits: logits of this rank's part of the vocabulary, in the order of the ranks. Parts may
            differ in size.
        target: ids [...] in the whole vocabulary, the same on all ranks.
        ignore_index: the target of tokens that do not count in the loss.
        reduction: "mean" over the counted targets, "sum", or "none".
        group: the ranks that share the vocabulary; None: all.

    It needs two all-reduces: one of a number per token plus one per rank, and one of two numbers
    per token. 16-bit logits are converted to 32 bits.

    Raises: ValueError if shapes do not match, or for an unknown `reduction`; IndexError, on all
        ranks, for a target outside the vocabulary.
    """
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"vocab_parallel_cross_entropy: logits {tuple(logits.shape)} need a target of shape "
            f"{tuple(logits.shape[:-1])}, not {tuple(target.shape)}."
        )
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f'reduction must be "none", "mean" or "sum", not {reduction!r}.')
    counts = target != ignore_index
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
    ids = target.masked_fill(~counts, 0).flatten()
    losses = _CrossEntropy.apply(wide, ids, group)  # type: ignore[no-untyped-call]
    losses = losses.view(target.shape).masked_fill(~counts, 0)
    if reduction != "none":
        losses = losses.sum() / (counts.sum() if reduction == "mean" else 1)
    return losses.to(logits.dtype)  # type: ignore[no-any-return]


class _CrossEntropy(torch.autograd.Function):
    """Computes losses [n] of logits [n, part of the vocabulary] and ids [n]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, group: Group) -> Tensor:
        largest, sizes = _largest(logits, group)
        _check_ids("vocab_parallel_cross_entropy", ids, sum(sizes))
        local_ids = ids - sum(sizes[: dist.get_rank(group)])
        missing = (local_ids < 0) | (local_ids >= logits.shape[1])
        local_ids.masked_fill_(missing, 0)
        shifted = logits - largest.unsqueeze(1)
        picked = shifted.gather(1, local_ids.unsqueeze(1)).squeeze(1).masked_fill(missing, 0)
        softmax = shifted.exp_()
        sums = torch.stack([softmax.sum(1), picked])
        dist.all_reduce(sums, group=group)
        softmax /= sums[0].unsqueeze(1)
        ctx.save_for_backward(softmax, local_ids, missing)
        return sums[0].log() - sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        softmax, local_ids, missing = ctx.saved_tensors
        of_logits = softmax * gradient.unsqueeze(1)
        at_target = gradient.masked_fill(missing, 0).unsqueeze(1)
        of_logits.scatter_add_(1, local_ids.unsqueeze(1), -at_target)
        return of_logits, None, None


def _largest(logits: Tensor, group: Group) -> tuple[Tensor, list[int]]:
    """Return each token's largest logit, and each rank's vocabulary size, with one all-reduce."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes = logits.new_zeros(ranks)
    sizes[rank] = logits.shape[1]
    both = torch.cat([sizes, logits.amax(1)])
    dist.all_reduce(both, dist.ReduceOp.MAX, group)
    return both[ranks:], [int(size) for size in both[:ranks].tolist()]


def _check_ids(name: str, ids: Tensor, size: int) -> None:
    """Raise IndexError for an id outside the vocabulary: no rank has a row or a logit for it."""
    outside = ids[(ids < 0) | (ids >= size)]
    if outside.numel():
        raise IndexError(f"{name}: id {int(outside[0])} is outside of the vocabulary of {size}.")
