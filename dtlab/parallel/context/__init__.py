"""Context parallelism: the tokens of one sequence are split over the ranks, in attention too."""

from dtlab.parallel.context.order import join_sequence as join_sequence
from dtlab.parallel.context.order import shard_sequence as shard_sequence
from dtlab.parallel.context.order import tokens_of as tokens_of
from dtlab.parallel.context.order import work_of as work_of
from dtlab.parallel.context.ring import gathered_attention as gathered_attention
from dtlab.parallel.context.ring import ring_attention as ring_attention
from dtlab.parallel.context.ulysses import ulysses_attention as ulysses_attention

__all__ = [
    "gathered_attention",
    "join_sequence",
    "ring_attention",
    "shard_sequence",
    "tokens_of",
    "ulysses_attention",
    "work_of",
]
