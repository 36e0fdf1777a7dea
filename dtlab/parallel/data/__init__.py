"""Data parallelism: each rank has the whole model, and the ranks average gradients in each step.

data_parallel.py    `NaiveDataParallel`, then `DataParallel`, which averages during backward
buckets.py          buckets of gradients that share one all-reduce
replicas.py         broadcasts the first rank's parameters, and compares those of all ranks
local_sgd.py        `LocalSGD`: ranks average their parameters every few steps
"""

from dtlab.parallel.data.data_parallel import DataParallel as DataParallel
from dtlab.parallel.data.data_parallel import NaiveDataParallel as NaiveDataParallel
from dtlab.parallel.data.local_sgd import LocalSGD as LocalSGD
from dtlab.parallel.data.replicas import assert_replicas_equal as assert_replicas_equal

__all__ = ["DataParallel", "LocalSGD", "NaiveDataParallel", "assert_replicas_equal"]
