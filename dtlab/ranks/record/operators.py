"""The c10d operators as data: their names, and the positions of their arguments.

Everything that communicates in torch.distributed ends in one of these, whoever asked for it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPERATORS", "Operator"]


class Operator(NamedTuple):
    """One operator of c10d. Positions are those of its arguments.

    `name` is the public function's, without variants. `payload` is the tensor, or list of tensors,
    that measures the message (of lists of lists the first); `part` says that it is one member's
    share of the whole. `async_op` is where it says whether the caller goes on, in
    which case the end of the operation is told by its Work. `work` is where in the result
    the Work stands, None where it is the result itself.
    `uneven`: members may pass different sizes.
    `methods` are those of `dist.ProcessGroup` that come to this operator and need nothing but one
    tensor, or one and another; the last is what a backend calls it. They take the same tensors in
    the same places, and what stands behind the group in one object of options (`reduceOp`,
    `rootRank`, `asyncOp`); or for messages, peer and tag, one place earlier without the group.
    """

    c10d: str
    name: str
    payload: int | None
    group: int
    async_op: int | None
    work: int | None = None
    part: bool = False
    peer: int | None = None
    tag: int | None = None
    reduction: int | None = None
    root: int | None = None
    uneven: bool = False
    methods: tuple[str, ...] = ()

    @property
    def is_message(self) -> bool:
        """Whether it goes from one rank to another."""
        return self.name in ("send", "recv")


# fmt: off
OPERATORS: tuple[Operator, ...] = (
    #        in c10d                   public name      payload  group  async_op
    Operator("allreduce_",             "all_reduce",           0, 1, 4, work=1, reduction=2,
             methods=("allreduce",)),
    Operator("allreduce_coalesced_",   "all_reduce",           0, 1, 3, reduction=2),
    Operator("reduce_",                "reduce",               0, 1, 5, reduction=2, root=3,
             methods=("reduce",)),
    Operator("broadcast_",             "broadcast",            0, 1, 4, work=1, root=2,
             methods=("broadcast",)),
    Operator("allgather_",             "all_gather",           1, 2, 3, work=1, part=True),
    Operator("_allgather_base_",       "all_gather",           0, 2, 3, work=1,
             methods=("all_gather_single", "_allgather_base")),
    Operator("allgather_coalesced_",   "all_gather",           1, 2, 3, part=True),
    Operator("allgather_into_tensor_coalesced_", "all_gather",   0, 2, 3),
    Operator("reduce_scatter_",        "reduce_scatter", 0, 2, 4, work=1, part=True, reduction=3),
    Operator("_reduce_scatter_base_",  "reduce_scatter",       1, 2, 4, work=1, reduction=3,
             methods=("reduce_scatter_single", "_reduce_scatter_base")),
    Operator("reduce_scatter_tensor_coalesced_", "reduce_scatter",   1, 2, 4, reduction=3),
    Operator("gather_",                "gather",               1, 2, 4, part=True, root=3),
    Operator("scatter_",               "scatter",              0, 2, 4, work=1, part=True, root=3),
    Operator("alltoall_",              "all_to_all",           1, 2, 3, work=1, uneven=True),
    Operator("alltoall_base_",         "all_to_all",           1, 2, 5, uneven=True),
    Operator("barrier",                "barrier",           None, 1, 3),
    Operator("monitored_barrier_",     "monitored_barrier", None, 1, None),
    Operator("send",                   "send",                 0, 1, None, peer=2, tag=3,
             methods=("send",)),
    Operator("recv_",                  "recv",                 0, 1, None, peer=2, tag=3,
             methods=("recv",)),
    Operator("recv_any_source_",       "recv",                 0, 1, None, tag=2,
             methods=("recv_anysource",)),
)
# fmt: on
