"""Forms of parallel training, built on torch.distributed alone: they run under torchrun too.

data.py                 DataParallel: all ranks average their gradients in each step
  buckets.py              gradients that travel together
  replicas.py             whether all ranks have the same parameters
zero.py                 Zero1, Zero2: each rank steps a shard of the parameters
  sharded_optimizer.py    parameter groups, the step, and state of a shard
  zero_buckets.py         the values of some parameters, and this rank's shard of the rest
  zero_state.py           state saved by some ranks and loaded by others
  elementwise.py          which optimizers can step a part of a parameter
  shards.py               flat tensors that ranks share evenly, and how they move
fully_sharded.py        Zero3: parameters too, gathered block by block for as long as they are used
  wrap_policy.py          which modules are the blocks
  flat_shard.py           this rank's shard of a block, and the pieces of parameters in it
  sharded_block.py        a block: gathered, used, freed, its gradients reduced
  sharded_gradients.py    gradients on their way to their owners
  sharded_module.py       a module whose parameters are shards: groups, clipping, state
  call_order.py           which block comes next
  module_hooks.py         around a module's forward and backward
  sharded_state.py        state of shards, saved and put together
  sharded_loading.py      and loaded, at any number of ranks
mesh.py                 axes of ranks, and who stands where
tensor.py               ParallelMLP, ParallelBlock: each rank has a part of each layer's weights
  parallel_attention.py   attention: some heads each
  parallel_linear.py      linear layers: column and row parallel
  vocabulary.py           embedding and loss of a vocabulary that ranks share
  sequence.py             sequence parallelism: some tokens each, between the sharded regions
  regions.py              the collectives of forward, and those of backward that belong to them
  rank_dropout.py         random numbers that differ by rank, and those that do not
  sharded_layer.py        which part of a dense layer's parameters a rank has
  tensor_state.py         dense states, and the norm of all gradients
  tensor_moves.py         collectives along a dim, started and finished
pipeline.py             PipelineStage, run_schedule: stages on ranks, and any schedule run
  pipeline_plan.py        what travels, and in which order
  pipeline_messages.py    sending and receiving in that order
  pipeline_data.py        microbatches and their losses
  split_backward.py       the input gradient first, the weight gradient later
  pipeline_tied.py        parameters that several stages share
  pipeline_costs.py       what layers cost; stages that only take time
local_sgd.py            LocalSGD: all ranks average their parameters every few steps
parameter_server.py     ParameterServer: some ranks keep the parameters, the others compute
  parameter_worker.py     the side of those that compute
  parameter_shards.py     which server keeps what, and what is sent how
"""
