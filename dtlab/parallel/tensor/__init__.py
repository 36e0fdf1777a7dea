"""Tensor parallelism: each rank has a part of every layer's weights.

layers.py        `ParallelMLP`, `ParallelBlock`: complete transformer layers
linear.py        column- and row-parallel linear layers
attention.py     attention: some heads on each rank
vocabulary.py    embedding and loss of a vocabulary that is divided among ranks
sequence.py      sequence parallelism: some tokens on each rank between the parallel regions
regions.py       f and g, gather and scatter: collectives with the right backward
dropout.py       random numbers that differ by rank, and random numbers that do not
state.py         dense state dicts, and the norm of all gradients
"""

from dtlab.parallel.tensor.attention import ParallelAttention as ParallelAttention
from dtlab.parallel.tensor.dropout import RankDropout as RankDropout
from dtlab.parallel.tensor.layers import ParallelBlock as ParallelBlock
from dtlab.parallel.tensor.layers import ParallelMLP as ParallelMLP
from dtlab.parallel.tensor.linear import ColumnParallelLinear as ColumnParallelLinear
from dtlab.parallel.tensor.linear import RowParallelLinear as RowParallelLinear
from dtlab.parallel.tensor.linear import ShardedLayer as ShardedLayer
from dtlab.parallel.tensor.regions import copy_to_region as copy_to_region
from dtlab.parallel.tensor.regions import gather_from_region as gather_from_region
from dtlab.parallel.tensor.regions import reduce_from_region as reduce_from_region
from dtlab.parallel.tensor.regions import scatter_to_region as scatter_to_region
from dtlab.parallel.tensor.state import clip_grad_norm_ as clip_grad_norm_
from dtlab.parallel.tensor.state import full_state_dict as full_state_dict
from dtlab.parallel.tensor.state import load_full_state_dict as load_full_state_dict
from dtlab.parallel.tensor.vocabulary import VocabParallelEmbedding as VocabParallelEmbedding
from dtlab.parallel.tensor.vocabulary import (
    vocab_parallel_cross_entropy as vocab_parallel_cross_entropy,
)

__all__ = [
    "ColumnParallelLinear",
    "ParallelAttention",
    "ParallelBlock",
    "ParallelMLP",
    "RankDropout",
    "RowParallelLinear",
    "ShardedLayer",
    "VocabParallelEmbedding",
    "clip_grad_norm_",
    "copy_to_region",
    "full_state_dict",
    "gather_from_region",
    "load_full_state_dict",
    "reduce_from_region",
    "scatter_to_region",
    "vocab_parallel_cross_entropy",
]
