"""Forms of parallel training, built on torch.distributed alone: they run under torchrun too.

    data.py                 DataParallel: all ranks average their gradients in each step
      buckets.py              gradients that travel together
      replicas.py             whether all ranks have the same parameters
    local_sgd.py            LocalSGD: all ranks average their parameters every few steps
    parameter_server.py     ParameterServer: some ranks keep the parameters, the others compute
      parameter_worker.py     the side of those that compute
      parameter_shards.py     which server keeps what, and what is sent how
"""
