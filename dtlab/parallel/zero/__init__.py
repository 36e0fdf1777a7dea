"""ZeRO: optimizer state, gradients and parameters divided among the ranks.

optimizers.py           `Zero1`, `Zero2`: each rank steps its shard of the parameters
  sharded_optimizer.py    parameter groups, the step, and which optimizers can step a part
  buckets.py              the values of some parameters, and this rank's shard of the rest
  state.py                state saved by some ranks and loaded by others
fully_sharded.py        `Zero3`: parameters too, gathered block by block while they are used
  sharded_block.py        a block and its shard: gathered, used, freed, its gradients reduced
  sharded_module.py       a module of such blocks: groups, clipping, state
  wrap_policy.py          which modules are the blocks
shards.py               flat tensors that ranks share evenly, and the collectives on them
"""

from dtlab.parallel.zero.fully_sharded import Zero3 as Zero3
from dtlab.parallel.zero.optimizers import Zero1 as Zero1
from dtlab.parallel.zero.optimizers import Zero2 as Zero2

__all__ = ["Zero1", "Zero2", "Zero3"]
