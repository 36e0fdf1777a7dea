"""Data parallelism: each rank has the whole model, and all average their gradients in each step.

data_parallel.py    `NaiveDataParallel`, then `DataParallel`, which averages while backward goes on
buckets.py          gradients that are sent together
replicas.py         handing rank 0's parameters to all, and comparing those of all ranks
local_sgd.py        `LocalSGD`: ranks average their parameters every few steps
"""

from dtlab.parallel.data.data_parallel import DataParallel as DataParallel
from dtlab.parallel.data.data_parallel import NaiveDataParallel as NaiveDataParallel
from dtlab.parallel.data.local_sgd import LocalSGD as LocalSGD
from dtlab.parallel.data.replicas import assert_replicas_equal as assert_replicas_equal

__all__ = ["DataParallel", "LocalSGD", "NaiveDataParallel", "assert_replicas_equal"]
