"""Finished code that does what this unit's learners write."""

from __future__ import annotations

__all__ = ["FINISHED"]

FINISHED = (
    "dtlab.parallel.data",
    "dtlab.parallel.zero",
    "dtlab.parallel.fully_sharded",
    "dtlab.parallel.flat_shard",
    "dtlab.parallel.sharded_block",
    "dtlab.parallel.sharded_gradients",
    "dtlab.parallel.sharded_optimizer",
    "dtlab.parallel.shards",
    "torch.nn.parallel.distributed",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp._fully_shard._fully_shard",
)
