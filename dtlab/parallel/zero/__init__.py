"""ZeRO: optimizer state, gradients and parameters are divided among the ranks.

optimizers.py           `Zero1`, `Zero2`: each rank steps its shard of the parameters
  sharded_optimizer.py    parameter groups, the step, and the test that an optimizer can be sharded
  buckets.py              full parameters on every rank, and a shard of their optimizer state
  optimizer_state.py      their optimizer state, saved and loaded
fully_sharded.py        `Zero3`: also divides parameters, and gathers them block by block
  sharded_block.py        gathers and frees the parameters of a block, and reduces its gradients
  sharded_module.py       a module made of blocks: optimizers, clipping
  module_state.py         its parameters and optimizer state, saved and loaded
  wrap_policy.py          which submodules become blocks
state.py                the format of saved state: saved by N ranks, loaded by M ranks
shards.py               flat tensors divided evenly among ranks, and the collectives on them
"""

from dtlab.parallel.zero.fully_sharded import Zero3 as Zero3
from dtlab.parallel.zero.optimizers import Zero1 as Zero1
from dtlab.parallel.zero.optimizers import Zero2 as Zero2

__all__ = ["Zero1", "Zero2", "Zero3"]
