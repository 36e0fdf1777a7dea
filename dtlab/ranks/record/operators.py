"""A table of the c10d operators: their names, and the positions of their arguments.

Every communication call of torch.distributed ends in one of these operators.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OPERATORS", "Operator"]


class Operator(NamedTuple):
    """One operator of c10d, with the positions of its arguments.

    `payload`, `group`, `async_op`, `peer`, `tag`, `reduction` and `root` are indices into the
    operator's arguments, or None if it has no such argument.
    `name` is the public function's name, without variants.
    `payload` is the tensor, or list of tensors, whose size is recorded; of a list of lists, the
    first list. `part` is True if the payload is one member's share of the whole.
    `async_op` is the flag that lets the caller continue at once; the returned Work then shows when
    the operation is complete.
    `work` is the index of the Work in the result, or None if the result is the Work.
    `uneven` is True if members may pass different sizes.
    `methods` are the methods of `dist.ProcessGroup` that only call this operator, with one or two
    tensors; the last name is also that of the backend's method. A method has no group argument.
    Its tensors are at the operator's positions. A collective then takes one options object
    (`reduceOp`, `rootRank`, `asyncOp`) for all other arguments; a message takes peer and tag, each
    one position earlier than in the operator.
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
        """Whether the operator is a point-to-point send or receive."""
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
    Operator("_allgather_base_",       "all_gather",           1, 2, 3, work=1, part=True,
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
